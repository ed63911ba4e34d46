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
from trainers.batching.rows import Row

if TYPE_CHECKING:
    from trainers.settings.preferences import Pairing, SampleSelection, Worth

Side = tuple[Sample, ...]
"""One turn, or an agent's turns of one episode."""


@dataclass(frozen=True, slots=True, eq=False)
class Contest:
    """Sides that began alike, and which of them went better. It is the unit of its rows, so that each turn is computed
    once, however many pairs it is in."""

    sides: tuple[Side, ...]
    pairs: tuple[tuple[int, int], ...]
    """(better, worse), as indices of `sides`."""

    @property
    def samples(self) -> list[Sample]:
        """Return the samples of all sides."""
        return [sample for side in self.sides for sample in side]


def contests(samples: Iterable[Sample], settings: Pairing) -> list[Contest]:
    """Return all comparisons that the samples allow, in order of first appearance, without sides that are in no pair.

    Sides with the same tokens are never a pair: whatever the loss, their gradients cancel. Samples without tokens are
    left out.
    """
    spoken = [sample for sample in samples if sample.token_ids]
    grouped = _episodes(spoken) if settings.pairs == "episodes" else _siblings(spoken)
    most = 1 if settings.pairs == "best_worst" else settings.most
    made = (_contest(sides, [worth(side, settings.by) for side in sides], settings.margin, most) for sides in grouped)
    return [contest for contest in made if contest.pairs]


def paired_rows(samples: Iterable[Sample], settings: Pairing) -> list[Row]:
    """Return a row for each turn in a pair, with its `Contest` as unit and two facts: `side`, the index of its side,
    and `pairs`, their number (on one row of each contest, so that the sum over rows is the number of all)."""
    return [row for contest in contests(samples, settings) for row in _rows(contest)]


def worth(side: Sequence[Sample], by: Worth) -> float:
    """Return the mean reward (`paid`, the same for all turns of an episode) or credit (`earned`) of a side's turns."""
    return fmean(sample.paid if by == "paid" else sample.earned for sample in side)


def _siblings(samples: Sequence[Sample]) -> list[list[Side]]:
    """Return turns that have the same prompt and the same start."""
    groups: dict[Hashable, list[Side]] = {}
    for sample in samples:
        groups.setdefault((sample.group, sample.role, sample.prompt_ids), []).append((sample,))
    return list(groups.values())


def _episodes(samples: Sequence[Sample]) -> list[list[Side]]:
    """Return turns by agent and start, then by episode."""
    groups: dict[Hashable, dict[str, list[Sample]]] = {}
    for sample in samples:
        groups.setdefault((sample.group, sample.agent), {}).setdefault(sample.id[0], []).append(sample)
    return [[tuple(turns) for turns in episodes.values()] for episodes in groups.values()]


def _contest(sides: Sequence[Side], scores: Sequence[float], margin: float, most: int | None) -> Contest:
    texts = [tuple((sample.prompt_ids, sample.token_ids) for sample in side) for side in sides]
    places = range(len(sides))
    # Scores are sums of rewards: a difference of mere rounding is a tie.
    gaps = {(i, j): round(scores[i] - scores[j], 9) for i in places for j in places if texts[i] != texts[j]}
    pairs = [pair for pair, gap in gaps.items() if gap >= margin]
    if most is not None and len(pairs) > most:
        better, worse = (sorted({pair[place] for pair in pairs}) for place in (0, 1))
        turn = {(i, j): (worse.index(j) - better.index(i)) % len(worse) for i, j in pairs}
        # Of equally clear pairs, sides that are in no pair yet come first.
        pairs = sorted(pairs, key=lambda pair: (-gaps[pair], turn[pair], pair))[:most]
    used = sorted({place for pair in pairs for place in pair})
    return Contest(tuple(sides[i] for i in used), tuple((used.index(i), used.index(j)) for i, j in pairs))


def _rows(contest: Contest) -> list[Row]:
    rows = []
    for side, turns in enumerate(contest.sides):
        for sample in turns:
            facts = {"side": float(side), "pairs": 0.0 if rows else float(len(contest.pairs))}
            rows.append(Row(sample.prompt_ids, sample.token_ids, unit=contest, facts=facts, samples=(sample,)))
    return rows


@dataclass(frozen=True, slots=True)
class ContestBatch:
    """Sides and pairs of all contests of a batch, numbered through."""

    sides_B: Tensor
    """Number of each row's side."""
    many: int
    """Number of sides."""
    better_U: Tensor
    worse_U: Tensor
    """Sides of each pair."""

    def sum(self, values_B: Tensor) -> Tensor:
        """Return [S], sums over the rows of each side."""
        return values_B.new_zeros(self.many).index_add(0, self.sides_B, values_B)

    def mean(self, values_B: Tensor) -> Tensor:
        """Return [S], means over the rows of each side."""
        return self.sum(values_B) / self.sum(torch.ones_like(values_B))

    def shares(self, losses_U: Tensor) -> Tensor:
        """Return [B], each row's share of its pairs' losses, with the same sum."""
        halves_S = losses_U.new_zeros(self.many)
        halves_S = halves_S.index_add(0, self.better_U, losses_U / 2).index_add(0, self.worse_U, losses_U / 2)
        return (halves_S / self.sum(torch.ones_like(self.sides_B)))[self.sides_B]


def contest_batch(batch: Batch) -> ContestBatch:
    """Return the sides and pairs of rows made by `paired_rows`, which must be whole contests."""
    starts: list[int] = []
    pairs: list[tuple[int, int]] = []
    many = 0
    for contest in batch.units:
        assert isinstance(contest, Contest)
        starts.append(many)
        pairs += [(many + better, many + worse) for better, worse in contest.pairs]
        many += len(contest.sides)
    device = batch.units_B.device
    pairs_U2 = torch.tensor(pairs, device=device)
    sides_B = torch.tensor(starts, device=device)[batch.units_B] + batch.facts["side"].long()
    return ContestBatch(sides_B, many, pairs_U2[:, 0], pairs_U2[:, 1])


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
    ranked = (sorted(rivals.values(), key=lambda side: -worth(side, selection.by)) for rivals in groups.values())
    best = {id(sample) for rivals in ranked for side in rivals[: selection.best] for sample in side}
    return [sample for sample in good if id(sample) in best]


def distinct(samples: Sequence[Sample]) -> list[Sample]:
    """Return the first of the samples with the same prompt and completion."""
    first: dict[Hashable, Sample] = {}
    for sample in samples:
        first.setdefault((sample.prompt_ids, sample.token_ids), sample)
    return list(first.values())
