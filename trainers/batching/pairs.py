"""Samples that are compared: contests, their rows and tensors, and the samples that imitation selects."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from marl.types import Sample
from trainers.batching.batches import Batch
from trainers.batching.rows import Row, sampled_tokens

if TYPE_CHECKING:
    from trainers.settings.preferences import Pairing, SampleSelection, Worth

Entry = tuple[Sample, ...]
"""One turn, or an agent's turns of one episode."""


@dataclass(frozen=True, slots=True, eq=False)
class Contest:
    """Entries that began alike, and which of them went better. It is the unit of its rows, so that each turn is
    computed once, however many pairs it is in."""

    entries: tuple[Entry, ...]
    pairs: tuple[tuple[int, int], ...]
    """(better, worse), as indices of `entries`."""

    @property
    def samples(self) -> list[Sample]:
        """Return the samples of all entries."""
        return [sample for entry in self.entries for sample in entry]


def contests(samples: Iterable[Sample], settings: Pairing) -> list[Contest]:
    """Return all comparisons that the samples allow, in order of first appearance, without entries that are in no pair.

    Entries with the same tokens are never a pair: whatever the loss, their gradients cancel. Samples without tokens are
    left out.
    """
    groups: dict[Hashable, dict[Hashable, list[Sample]]] = {}
    for sample in samples:
        if not sample.token_ids:
            continue
        if settings.pairs == "episodes":
            groups.setdefault((sample.group, sample.agent), {}).setdefault(sample.id[0], []).append(sample)
        else:
            entries = groups.setdefault((sample.group, sample.role, sample.prompt_ids), {})
            entries[len(entries)] = [sample]
    made = (_contest([tuple(entry) for entry in entries.values()], settings) for entries in groups.values())
    return [contest for contest in made if contest.pairs]


def _contest(entries: Sequence[Entry], settings: Pairing) -> Contest:
    scores, most = [worth(entry, settings.by) for entry in entries], settings.most
    texts = [tuple((sample.prompt_ids, sample.token_ids) for sample in entry) for entry in entries]
    places = range(len(entries))
    # Scores are sums of rewards: a difference of mere rounding is a tie.
    gaps = {(i, j): round(scores[i] - scores[j], 9) for i in places for j in places if texts[i] != texts[j]}
    pairs = [pair for pair, gap in gaps.items() if gap >= settings.margin]
    if settings.pairs == "best_worst":
        most = 1
    if most is not None and len(pairs) > most:
        better, worse = (sorted({pair[place] for pair in pairs}) for place in (0, 1))
        turn = {(i, j): (worse.index(j) - better.index(i)) % len(worse) for i, j in pairs}
        # Of equally clear pairs, entries that are in no pair yet come first.
        pairs = sorted(pairs, key=lambda pair: (-gaps[pair], turn[pair], pair))[:most]
    used = sorted({place for pair in pairs for place in pair})
    return Contest(tuple(entries[i] for i in used), tuple((used.index(i), used.index(j)) for i, j in pairs))


def worth(entry: Sequence[Sample], by: Worth) -> float:
    """Return an entry's mean reward (`paid`, the same for all turns of an episode) or credit (`earned`)."""
    return fmean(sample.paid if by == "paid" else sample.earned for sample in entry)


def paired_rows(samples: Iterable[Sample], settings: Pairing) -> list[Row]:
    """Return a row for each turn in a pair, with its `Contest` as unit and two facts: `entry`, the index of its entry,
    and `pairs`, their number (on one row of each contest, so that the sum over rows is the number of all)."""
    rows: list[Row] = []
    for contest in contests(samples, settings):
        pairs = float(len(contest.pairs))
        for number, entry in enumerate(contest.entries):
            for sample in entry:
                facts = {"entry": float(number), "pairs": pairs}
                mask = sampled_tokens(sample)
                rows.append(
                    Row(
                        sample.prompt_ids,
                        sample.token_ids,
                        unit=contest,
                        facts=facts,
                        loss_mask=mask,
                        samples=(sample,),
                    )
                )
                pairs = 0.0
    return rows


@dataclass(frozen=True, slots=True)
class ContestBatch:
    """Entries and pairs of all contests of a batch, numbered through."""

    entries_B: Tensor
    """Number of each row's entry."""
    size: int
    """Number of entries."""
    better_U: Tensor
    worse_U: Tensor
    """Entries of each pair."""

    def sum(self, values_B: Tensor) -> Tensor:
        """Return [S], sums over the rows of each entry."""
        return values_B.new_zeros(self.size).index_add(0, self.entries_B, values_B)

    def mean(self, values_B: Tensor) -> Tensor:
        """Return [S], means over the rows of each entry."""
        return self.sum(values_B) / self.sum(torch.ones_like(values_B))

    def shares(self, losses_U: Tensor) -> Tensor:
        """Return [B], each row's share of its pairs' losses, with the same sum."""
        halves_S = losses_U.new_zeros(self.size)
        halves_S = halves_S.index_add(0, self.better_U, losses_U / 2).index_add(0, self.worse_U, losses_U / 2)
        return (halves_S / self.sum(torch.ones_like(self.entries_B)))[self.entries_B]


def contest_batch(batch: Batch) -> ContestBatch:
    """Return the entries and pairs of rows made by `paired_rows`, which must be whole contests."""
    starts: list[int] = []
    pairs: list[tuple[int, int]] = []
    size = 0
    for contest in batch.units:
        assert isinstance(contest, Contest)
        starts.append(size)
        pairs += [(size + better, size + worse) for better, worse in contest.pairs]
        size += len(contest.entries)
    device = batch.units_B.device
    pairs_U2 = torch.tensor(pairs, device=device)
    entries_B = torch.tensor(starts, device=device)[batch.units_B] + batch.facts["entry"].long()
    return ContestBatch(entries_B, size, pairs_U2[:, 0], pairs_U2[:, 1])


def select_samples(samples: Sequence[Sample], selection: SampleSelection) -> list[Sample]:
    """Return the samples worth imitating, in their order. Ties go to the first."""
    least = selection.at_least
    good = [sample for sample in samples if least is None or worth((sample,), selection.by) >= least]
    if selection.best is None:
        return good
    groups: dict[Hashable, dict[Hashable, list[Sample]]] = {}
    for sample in good:
        turn = (sample.role, sample.prompt_ids), sample.id
        alike, rival = (sample.agent, sample.id[0]) if selection.by == "paid" else turn
        groups.setdefault((sample.group, alike), {}).setdefault(rival, []).append(sample)
    ranked = (sorted(rivals.values(), key=lambda rival: -worth(rival, selection.by)) for rivals in groups.values())
    best = {id(sample) for rivals in ranked for rival in rivals[: selection.best] for sample in rival}
    return [sample for sample in good if id(sample) in best]


def distinct(samples: Sequence[Sample]) -> list[Sample]:
    """Return the first of the samples with the same prompt and completion."""
    first: dict[Hashable, Sample] = {}
    for sample in samples:
        first.setdefault((sample.prompt_ids, sample.token_ids), sample)
    return list(first.values())
