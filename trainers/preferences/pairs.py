"""Comparisons of samples with the same start: groups of entries, their pairs, rows and tensors.

S = entries, U = pairs of entries.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import permutations
from statistics import fmean

import torch
from torch import Tensor

from marl.core.types import Sample
from marl.trainers.batching.batches import Batch
from marl.trainers.batching.rows import Row, chosen_token_mask
from marl.trainers.preferences.options import PairwiseLearnerConfig, RankingMeasure

ComparedTurns = tuple[Sample, ...]
"""An entry: one turn, or an agent's turns of one episode."""


@dataclass(frozen=True, slots=True, eq=False)
class ComparisonGroup:
    """Entries with the same start, and the pairs of a better and a worse entry.

    The group is the unit of its rows, so that each turn is computed once, however many pairs it is in.
    """

    entries: tuple[ComparedTurns, ...]
    pairs: tuple[tuple[int, int], ...]
    """(better, worse), as indices of `entries`."""

    @property
    def samples(self) -> list[Sample]:
        """The samples of all entries, in order."""
        return [sample for entry in self.entries for sample in entry]


def comparison_groups(samples: Iterable[Sample], settings: PairwiseLearnerConfig) -> list[ComparisonGroup]:
    """Return the comparison groups of `samples` in order of first appearance, without entries that are in no pair.

    Entries with the same tokens are never a pair: their gradients cancel, whatever the loss. Samples without tokens are
    left out.
    """
    starts: dict[Hashable, dict[Hashable, list[Sample]]] = {}
    for sample in samples:
        if not sample.token_ids:
            continue
        if settings.pairs == "episodes":
            starts.setdefault((sample.group, sample.agent), {}).setdefault(sample.id[0], []).append(sample)
        else:
            entries = starts.setdefault((sample.group, sample.role, sample.prompt_ids), {})
            entries[len(entries)] = [sample]
    groups: list[ComparisonGroup] = []
    for entries in starts.values():
        group = _group([tuple(entry) for entry in entries.values()], settings)
        if group.pairs:
            groups.append(group)
    return groups


def _group(entries: Sequence[ComparedTurns], settings: PairwiseLearnerConfig) -> ComparisonGroup:
    """Return the entries of the selected pairs, and the pairs."""
    scores = [mean_measure(entry, settings.by) for entry in entries]
    texts = [tuple((sample.prompt_ids, sample.token_ids) for sample in entry) for entry in entries]
    gaps: dict[tuple[int, int], float] = {}
    for better, worse in permutations(range(len(entries)), 2):
        # Scores are sums of rewards: a difference of mere rounding is a tie.
        gap = round(scores[better] - scores[worse], 9)
        if texts[better] != texts[worse] and gap >= settings.margin:
            gaps[better, worse] = gap
    pairs = list(gaps)
    max_pairs = 1 if settings.pairs == "best_worst" else settings.most
    if max_pairs is not None and len(pairs) > max_pairs:
        better_rank = {entry: rank for rank, entry in enumerate(sorted({better for better, _ in pairs}))}
        worse_rank = {entry: rank for rank, entry in enumerate(sorted({worse for _, worse in pairs}))}

        def preference(pair: tuple[int, int]) -> tuple[float, int, tuple[int, int]]:
            # Among equally clear pairs, the offset of ranks puts entries that are in no pair yet first.
            offset = (worse_rank[pair[1]] - better_rank[pair[0]]) % len(worse_rank)
            return -gaps[pair], offset, pair

        pairs = sorted(pairs, key=preference)[:max_pairs]
    used = sorted({entry for pair in pairs for entry in pair})
    renumbered = tuple((used.index(better), used.index(worse)) for better, worse in pairs)
    return ComparisonGroup(tuple(entries[entry] for entry in used), renumbered)


def mean_measure(entry: Sequence[Sample], by: RankingMeasure) -> float:
    """Return an entry's mean reward (`paid`, the same for all turns of an episode) or credit (`earned`)."""
    return fmean(sample.paid if by == "paid" else sample.earned for sample in entry)


def paired_rows(samples: Iterable[Sample], settings: PairwiseLearnerConfig) -> list[Row]:
    """Return a row for each turn in a pair, with its `ComparisonGroup` as unit and two scalars, `entry` and `pairs`.

    `entry` is the index of the row's entry. `pairs` is the group's number of pairs on one row of each group and 0 on
    the others, so that the sum over rows is the number of all pairs.
    """
    rows: list[Row] = []
    for group in comparison_groups(samples, settings):
        pairs = float(len(group.pairs))
        for number, entry in enumerate(group.entries):
            for sample in entry:
                scalars, mask = {"entry": float(number), "pairs": pairs}, chosen_token_mask(sample)
                tokens = sample.prompt_ids, sample.token_ids
                rows.append(Row(*tokens, unit=group, scalars=scalars, loss_mask=mask, samples=(sample,)))
                pairs = 0.0
    return rows


@dataclass(frozen=True, slots=True)
class ComparisonBatch:
    """Entries and pairs of all comparison groups of a batch, with indices into the entries of the whole batch."""

    entries_B: Tensor
    """Index of each row's entry."""
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

    def spread_over_rows(self, losses_U: Tensor) -> Tensor:
        """Return [B], each row's share of the losses of its pairs; both tensors have the same sum."""
        halves_S = losses_U.new_zeros(self.size)
        halves_S = halves_S.index_add(0, self.better_U, losses_U / 2).index_add(0, self.worse_U, losses_U / 2)
        return (halves_S / self.sum(torch.ones_like(self.entries_B)))[self.entries_B]


def comparison_batch(batch: Batch) -> ComparisonBatch:
    """Return the entries and pairs of rows made by `paired_rows`; the batch must hold whole comparison groups."""
    starts: list[int] = []
    pairs: list[tuple[int, int]] = []
    size = 0
    for group in batch.units:
        assert isinstance(group, ComparisonGroup)
        starts.append(size)
        pairs += [(size + better, size + worse) for better, worse in group.pairs]
        size += len(group.entries)
    device = batch.units_B.device
    pairs_U2 = torch.tensor(pairs, device=device)
    entries_B = torch.tensor(starts, device=device)[batch.units_B] + batch.scalars["entry"].long()
    return ComparisonBatch(entries_B, size, pairs_U2[:, 0], pairs_U2[:, 1])
