"""Preference pairs among samples with the same start, and their rows and tensors.

An entry is a side of pairs: a turn, or an agent's turns of an episode. S = entries, U = pairs of entries.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, permutations
from statistics import fmean

import torch
from torch import Tensor

from marl.core.types import Sample
from marl.trainers.batching.batches import Batch
from marl.trainers.batching.rows import BatchRow, has_sampled_tokens, sampled_token_mask
from marl.trainers.preferences.options import PairwiseLearnerConfig, RankingMeasure

ComparisonEntry = tuple[Sample, ...]
"""One entry: a turn, or an agent's turns of an episode."""


@dataclass(frozen=True, slots=True, eq=False)
class ComparisonGroup:
    """Entries with the same start, and the pairs of a better and a worse entry.

    All rows of a group are one unit, so that a turn in several pairs is computed once.
    """

    entries: tuple[ComparisonEntry, ...]
    pairs: tuple[tuple[int, int], ...]
    """(better, worse) of each pair, as indices in `entries`."""

    @property
    def samples(self) -> list[Sample]:
        """Samples of all entries, in order."""
        return list(chain.from_iterable(self.entries))


def comparison_groups(samples: Iterable[Sample], settings: PairwiseLearnerConfig) -> list[ComparisonGroup]:
    """Return the comparison groups of `samples` in order of first appearance, without entries that are in no pair.

    Entries with the same tokens are never a pair: their gradients cancel, whatever the loss. Samples without sampled
    tokens are left out.
    """
    starts: dict[Hashable, dict[Hashable, list[Sample]]] = {}
    for sample in samples:
        if not has_sampled_tokens(sample):
            continue
        if settings.pairs == "episodes":
            starts.setdefault((sample.group, sample.agent), {}).setdefault(sample.id[0], []).append(sample)
        else:
            entries = starts.setdefault((sample.group, sample.role, sample.prompt_ids), {})
            entries[len(entries)] = [sample]
    groups: list[ComparisonGroup] = []
    for entries in starts.values():
        group = _comparison_group(list(map(tuple, entries.values())), settings)
        if group.pairs:
            groups.append(group)
    return groups


def _comparison_group(entries: Sequence[ComparisonEntry], settings: PairwiseLearnerConfig) -> ComparisonGroup:
    """Return the pairs that `settings` select among entries with the same start, with the entries in these pairs."""
    scores: list[float] = []
    texts: list[list[tuple[tuple[int, ...], tuple[int, ...]]]] = []
    for entry in entries:
        scores.append(mean_reward_or_credit(entry, settings.by))
        texts.append([(sample.prompt_ids, sample.token_ids) for sample in entry])
    gaps: dict[tuple[int, int], float] = {}
    for better, worse in permutations(range(len(entries)), 2):
        # Scores are sums of rewards, so a difference that is mere rounding counts as a tie.
        gap = round(scores[better] - scores[worse], 9)
        if texts[better] != texts[worse] and gap >= settings.margin:
            gaps[better, worse] = gap
    pairs = list(gaps)
    max_pairs = 1 if settings.pairs == "best_worst" else settings.most
    if max_pairs is not None and len(pairs) > max_pairs:
        all_better, all_worse = (sorted(set(side)) for side in zip(*pairs, strict=True))

        def pair_sort_key(pair: tuple[int, int]) -> tuple[float, int, tuple[int, int]]:
            # Among pairs with equal gaps, those with different texts come first: (0, 0), (1, 1) and so on.
            offset = (all_worse.index(pair[1]) - all_better.index(pair[0])) % len(all_worse)
            return -gaps[pair], offset, pair

        pairs = sorted(pairs, key=pair_sort_key)[:max_pairs]
    used = sorted(set(chain.from_iterable(pairs)))
    renumbered = [(used.index(better), used.index(worse)) for better, worse in pairs]
    return ComparisonGroup(tuple(map(entries.__getitem__, used)), tuple(renumbered))


def mean_reward_or_credit(entry: Sequence[Sample], measure: RankingMeasure) -> float:
    """Return the mean over an entry's turns of the agent's reward (`paid`) or of the turn's credit (`earned`)."""
    return fmean(sample.paid if measure == "paid" else sample.earned for sample in entry)


def rows_of_paired_turns(samples: Iterable[Sample], settings: PairwiseLearnerConfig) -> list[BatchRow]:
    """Return a row for each turn in a pair, with its `ComparisonGroup` as unit and two scalars, `entry` and `pairs`.

    `entry` is the index of the row's entry. `pairs` is the number of the group's pairs in the group's first row, and 0
    in its other rows, so that the sum over all rows is the number of all pairs.
    """
    rows: list[BatchRow] = []
    for group in comparison_groups(samples, settings):
        pairs = float(len(group.pairs))
        for number, entry in enumerate(group.entries):
            for sample in entry:
                scalars, mask = {"entry": float(number), "pairs": pairs}, sampled_token_mask(sample)
                tokens = sample.prompt_ids, sample.token_ids
                rows.append(BatchRow(*tokens, unit=group, scalars=scalars, loss_mask=mask, samples=(sample,)))
                pairs = 0.0
    return rows


@dataclass(frozen=True, slots=True)
class ComparisonBatch:
    """Entries and pairs of all comparison groups of a batch, as indices of rows and entries."""

    entries_B: Tensor
    """Index of the entry to which each row belongs."""
    size: int
    """Number of entries of the batch."""
    better_U: Tensor
    """Index of each pair's better entry."""
    worse_U: Tensor
    """Index of each pair's worse entry."""

    def sum_of_row_values_per_entry(self, values_B: Tensor) -> Tensor:
        """Return [S], the sum of row values over each entry."""
        return values_B.new_zeros(self.size).index_add(0, self.entries_B, values_B)

    def mean_row_value_per_entry(self, values_B: Tensor) -> Tensor:
        """Return [S], the mean of the row values of each compared turn or episode (entry)."""
        return self.sum_of_row_values_per_entry(values_B) / self.sum_of_row_values_per_entry(torch.ones_like(values_B))

    def divide_pair_losses_among_rows(self, losses_U: Tensor) -> Tensor:
        """Return [B], the losses of pairs divided among the rows of their entries; the sum stays the same."""
        halves_S = losses_U.new_zeros(self.size)
        halves_S = halves_S.index_add(0, self.better_U, losses_U / 2).index_add(0, self.worse_U, losses_U / 2)
        return (halves_S / self.sum_of_row_values_per_entry(torch.ones_like(self.entries_B)))[self.entries_B]


def comparison_batch(batch: Batch) -> ComparisonBatch:
    """Return the entries and pairs of a batch of whole comparison groups, whose rows are made by
    `rows_of_paired_turns`."""
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
