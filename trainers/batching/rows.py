"""Samples -> rows. Identical samples become one row, which is computed once. No tensors yet."""

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from marl.core.config import Sampling
from marl.core.types import ImitationTarget, Sample
from marl.trainers.batching.aggregation import MinibatchTotals

TokenValues = tuple[float, ...]
MISSING_VALUE = float("nan")
"""Value of a column at a token to which the column does not apply, such as a value target where there is none."""


@dataclass(frozen=True, slots=True)
class Row:
    """One or more samples with the same tokens, which share a forward pass."""

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    sampling: Sampling = field(default_factory=Sampling)
    count: float = 1
    """Number of samples; of a sample with several targets, the share of the target of this row."""
    unit: Hashable = None
    """Rows with equal units are computed together, as an objective such as a pair's needs. None: alone."""
    columns: Mapping[str, TokenValues] = field(default_factory=dict)
    """Name -> a number for each token, as the loss needs them; all rows of an update have the same names."""
    scalars: Mapping[str, float] = field(default_factory=dict)
    """Name -> a number of the row; all rows of an update have the same names."""
    loss_mask: tuple[bool, ...] | None = None
    """Tokens in the loss (None: all). Later tokens still read the other tokens."""
    samples: tuple[Sample, ...] = ()

    @property
    def length(self) -> int:
        """Number of tokens of prompt and completion."""
        return len(self.prompt_ids) + len(self.token_ids)

    @property
    def loss_tokens(self) -> int:
        """Number of tokens in the loss."""
        return len(self.token_ids) if self.loss_mask is None else sum(self.loss_mask)


def count_totals(rows: Sequence[Row]) -> MinibatchTotals:
    """Return the counts over all `rows` of a minibatch."""
    column_counts: dict[str, float] = dict.fromkeys(rows[0].columns, 0) if rows else {}
    scalar_sums: dict[str, float] = dict.fromkeys(rows[0].scalars, 0) if rows else {}
    tokens: float = 0
    for row in rows:
        tokens += row.count * row.loss_tokens
        for name in column_counts:
            missing = sum(map(math.isnan, row.columns[name]))
            column_counts[name] += row.count * (len(row.columns[name]) - missing)
        for name in scalar_sums:
            scalar_sums[name] += row.count * row.scalars[name]
    units: float = 0
    for unit in group_by_unit(rows):
        if any(row.loss_tokens for row in unit):
            units += unit[0].count
    # Correctly rounded, because counts are shares where a sample has several targets.
    samples = math.fsum(row.count for row in rows if row.loss_tokens)
    return MinibatchTotals(samples, tokens, units, column_counts, scalar_sums)


def unit_keys(rows: Iterable[Row]) -> list[Hashable]:
    """Return a key for each row; equal for rows that must be computed together."""
    return [index if row.unit is None else ("unit", row.unit) for index, row in enumerate(rows)]


def group_by_unit(rows: Sequence[Row]) -> list[list[Row]]:
    """Return the rows that must be computed together, in order of first appearance."""
    units: dict[Hashable, list[Row]] = {}
    for key, row in zip(unit_keys(rows), rows, strict=True):
        units.setdefault(key, []).append(row)
    return list(units.values())


def rows_of_rank(rows: Sequence[Row], rank: int, size: int) -> list[Row]:
    """Return the rows of process `rank` of `size`: whole units, with about equally many tokens for each process.

    Rows are dealt sorted by their tokens, because neighbours share prefixes, which are best computed once.
    """
    if size == 1:
        return list(rows)
    units = sorted(group_by_unit(rows), key=lambda unit: (unit[0].prompt_ids, unit[0].token_ids))
    lengths = [sum(row.length for row in unit) for unit in units]
    start, total = 0, sum(lengths)
    share: list[Row] = []
    for unit, length in zip(units, lengths, strict=True):
        # A unit belongs to the process whose share of all tokens contains the unit's middle.
        if (2 * start + length) * size // (2 * total) == rank:
            share += unit
        start += length
    return share


def sampling_distribution(sampling: Sampling) -> tuple[float, float, int]:
    """Return the sampling settings that change a token's probability."""
    return sampling.temperature, sampling.top_p, sampling.top_k


def imitation_rows(
    samples: Sequence[Sample], merge: bool, merge_key: Callable[[Sample], Hashable] = lambda _: None
) -> list[Row]:
    """Return rows for losses that need neither advantages nor the distribution that tokens were sampled from.

    A sample with targets gives a row for each target, which counts by its share. Samples with equal tokens merge if
    their `merge_key` is equal, too. Samples without tokens are left out.
    """
    groups: dict[Hashable, list[tuple[Sample, ImitationTarget]]] = {}
    for sample in samples:
        targets = sample.targets or ((ImitationTarget(sample.token_ids, 1.0),) if sample.token_ids else ())
        for target in targets:
            key = (target.token_ids, sample.prompt_ids, sample.imposed, merge_key(sample)) if merge else len(groups)
            groups.setdefault(key, []).append((sample, target))
    rows: list[Row] = []
    for group in groups.values():
        sample, target = group[0]
        # Imposed tokens are out of the loss, but a target's tokens are all to be imitated.
        mask = None if sample.targets else chosen_token_mask(sample)
        count = math.fsum(target.share for _, target in group)
        merged = tuple([sample for sample, _ in group])
        rows.append(Row(sample.prompt_ids, target.token_ids, count=count, loss_mask=mask, samples=merged))
    return rows


def chosen_token_mask(sample: Sample) -> tuple[bool, ...] | None:
    """Return a mask of the tokens that the policy chose, such as all but an imposed end of a thought; None: all."""
    if not sample.imposed:
        return None
    return tuple(index not in sample.imposed for index in range(len(sample.token_ids)))


def policy_rows(
    samples: Sequence[Sample],
    old: str,
    merge: bool,
    by_row: bool = False,
    unit: str = "turn",
    merge_key: Callable[[Sample], Hashable] = lambda _: None,
) -> list[Row]:
    """Return rows for a policy gradient, with the columns `advantages`, `sampled` and `old`.

    `sampled` are the sampler's log-probabilities, `old` those in the ratio's denominator (`sampler` or `read`). Samples
    of one sign merge exactly where the loss is linear in the advantage for one sign (zero counts as positive). With
    `by_row` the signs of their mean advantages must be equal, too, and so must their `merge_key`. With the `unit`
    `episode`, an agent's turns of an episode are one unit of rows and merge with another episode's if all turns do.
    Samples without tokens are left out.
    """
    groups: dict[Hashable, list[list[Sample]]] = {}
    for sequence in group_by_agent_episode(samples) if unit == "episode" else [(sample,) for sample in samples]:
        turns = [sample for sample in sequence if sample.token_ids]
        if not turns:
            continue
        key: Hashable = len(groups)
        if merge:
            advantages = {a for turn in turns for a in turn.advantage.tokens or (turn.advantage.value,)}
            # Where tokens differ in advantage, the sign of the row's mean could change by merging.
            alone = turns[0].id if by_row and len(advantages) > 1 else None
            key = alone, tuple([(turn.token_ids, turn.prompt_ids, _sign_key(turn), merge_key(turn)) for turn in turns])
        groups.setdefault(key, []).append(turns)
    rows: list[Row] = []
    for number, sequences in enumerate(groups.values()):
        row_unit = ("episode", number) if len(sequences[0]) > 1 else None
        for merged in zip(*sequences, strict=True):
            rows.append(_policy_row(merged, old, row_unit))
    return rows


def group_by_agent_episode(samples: Iterable[Sample]) -> list[Sequence[Sample]]:
    """Return the samples of each agent in each episode. A turn shared by forks counts to the episode that played it."""
    episodes: dict[Hashable, list[Sample]] = {}
    for sample in samples:
        episodes.setdefault((sample.id[0], sample.agent), []).append(sample)
    return list(episodes.values())


def _sign_key(sample: Sample) -> Hashable:
    """Return a key that is equal for samples whose losses add up to the loss of their summed advantages."""
    advantage, (first, last) = sample.advantage, sample.versions
    positive = tuple(a >= 0 for a in advantage.tokens) if advantage.tokens else advantage.value >= 0
    # Weights that changed within a completion may have changed at another token in the next sample.
    weights = first if first == last else sample.id
    return positive, weights, sampling_distribution(sample.sampling), sample.imposed


def _policy_row(group: tuple[Sample, ...], old: str, unit: Hashable) -> Row:
    """Return the row of merged samples.

    Their log-probabilities differ by float noise only (about 1e-6, from other batches of the sampler); take the mean.
    """
    first = group[0]
    sampled = column_means([check_per_token(s, s.logprobs, "logprobs") for s in group])
    # Correctly rounded sums: the order of the samples does not matter.
    advantages = (math.fsum(s.advantage.value for s in group),) * len(first.token_ids)
    if first.advantage.tokens:
        columns = [check_per_token(s, s.advantage.tokens, "advantage.tokens") for s in group]
        advantages = tuple(map(math.fsum, zip(*columns, strict=True)))
    old_logprobs = sampled
    if old != "sampler":
        readings: list[TokenValues] = []
        for sample in group:
            if sample.reading is None:
                raise ValueError(f"old='read' needs a reading of turn {sample.id}, got none")
            readings.append(check_per_token(sample, sample.reading.logprobs, "reading.logprobs"))
        old_logprobs = column_means(readings)
    return Row(
        *(first.prompt_ids, first.token_ids, first.sampling, len(group), unit),
        columns={"advantages": advantages, "sampled": sampled, "old": old_logprobs},
        loss_mask=chosen_token_mask(first),
        samples=group,
    )


def column_means(rows: list[TokenValues]) -> TokenValues:
    """Return the mean of each column of `rows`; a single row is returned as it is."""
    if len(rows) == 1:
        return rows[0]
    return tuple(math.fsum(column) / len(rows) for column in zip(*rows, strict=True))


def check_per_token(sample: Sample, values: TokenValues, name: str) -> TokenValues:
    """Return `values`.

    Raises:
        ValueError: if the number of values is not the number of the sample's tokens.
    """
    if len(values) != len(sample.token_ids):
        raise ValueError(f"turn {sample.id} has {len(sample.token_ids)} tokens, but {name} has {len(values)} numbers")
    return values
