"""Rows: samples with identical tokens are merged into one row, which is computed once. Rows hold no tensors."""

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from marl.core.config import Sampling
from marl.core.types import ImitationTarget, Sample
from marl.trainers.batching.aggregation import MinibatchTotals

TokenValues = tuple[float, ...]
MISSING_VALUE = float("nan")
"""Placeholder in a column for a missing value, such as the value target of a token without target."""


@dataclass(frozen=True, slots=True)
class BatchRow:
    """One or more samples with the same tokens, which share a forward pass."""

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    sampling: Sampling = field(default_factory=Sampling)
    count: float = 1
    """Number of merged samples. For one of several imitation targets of a sample: the target's share."""
    unit: Hashable = None
    """Rows with equal units, such as the two sides of a pair, are computed in one forward pass. None: no unit."""
    columns: Mapping[str, TokenValues] = field(default_factory=dict)
    """Name -> one number per completion token, such as `advantages`. All rows of an update have the same names."""
    scalars: Mapping[str, float] = field(default_factory=dict)
    """Name -> one number of the row, such as a label. All rows of an update have the same names."""
    loss_mask: tuple[bool, ...] | None = None
    """True for completion tokens in the loss (None: all). Other tokens are still part of the model's input."""
    samples: tuple[Sample, ...] = ()

    @property
    def length(self) -> int:
        """Number of tokens of prompt and completion."""
        return len(self.prompt_ids) + len(self.token_ids)

    @property
    def loss_token_count(self) -> int:
        """Number of tokens in the loss."""
        return len(self.token_ids) if self.loss_mask is None else sum(self.loss_mask)


def count_minibatch_totals(rows: Sequence[BatchRow]) -> MinibatchTotals:
    """Return the denominators of a minibatch's loss: counts over its `rows`."""
    column_counts: dict[str, float] = dict.fromkeys(rows[0].columns, 0) if rows else {}
    scalar_sums: dict[str, float] = dict.fromkeys(rows[0].scalars, 0) if rows else {}
    tokens: float = 0
    for row in rows:
        tokens += row.count * row.loss_token_count
        for name in column_counts:
            missing = sum(map(math.isnan, row.columns[name]))
            column_counts[name] += row.count * (len(row.columns[name]) - missing)
        for name in scalar_sums:
            scalar_sums[name] += row.count * row.scalars[name]
    units: float = 0
    for unit in group_by_unit(rows):
        if any(row.loss_token_count for row in unit):
            units += unit[0].count
    # Counts are fractions if a sample has several targets, so the sum must be rounded correctly (`fsum`).
    samples = math.fsum(row.count for row in rows if row.loss_token_count)
    return MinibatchTotals(samples, tokens, units, column_counts, scalar_sums)


def forward_pass_keys(rows: Iterable[BatchRow]) -> list[Hashable]:
    """Return a key for each row, equal for rows that must be computed in one forward pass."""
    return [index if row.unit is None else ("unit", row.unit) for index, row in enumerate(rows)]


def group_by_unit(rows: Sequence[BatchRow]) -> list[list[BatchRow]]:
    """Return `rows` grouped into units, whose rows must be computed together, in order of first appearance."""
    units: dict[Hashable, list[BatchRow]] = {}
    for key, row in zip(forward_pass_keys(rows), rows, strict=True):
        units.setdefault(key, []).append(row)
    return list(units.values())


def rows_of_data_parallel_rank(rows: Sequence[BatchRow], rank: int, world_size: int) -> list[BatchRow]:
    """Return the rows that process `rank` of `world_size` computes: whole units, with about equally many tokens each.

    Units are sorted by their tokens, so that rows with a common prefix are in one process, which computes it once.
    """
    if world_size == 1:
        return list(rows)
    units = sorted(group_by_unit(rows), key=lambda unit: (unit[0].prompt_ids, unit[0].token_ids))
    lengths = [sum(row.length for row in unit) for unit in units]
    start, total = 0, sum(lengths)
    share: list[BatchRow] = []
    for unit, length in zip(units, lengths, strict=True):
        # All tokens are divided evenly among processes; a unit goes to the process that has the unit's middle token.
        if (2 * start + length) * world_size // (2 * total) == rank:
            share += unit
        start += length
    return share


def temperature_top_p_and_top_k(sampling: Sampling) -> tuple[float, float, int]:
    """Return temperature, top-p and top-k: the sampling settings that change a token's probability."""
    return sampling.temperature, sampling.top_p, sampling.top_k


def imitation_rows(
    samples: Sequence[Sample], merge_equal: bool, merge_key: Callable[[Sample], Hashable] = lambda _: None
) -> list[BatchRow]:
    """Return rows for losses that imitate completions, without advantages and log-probabilities.

    A sample with imitation targets gives one row for each target, which counts with the target's share. With
    `merge_equal`, rows with equal tokens and equal `merge_key` merge. Samples without sampled tokens are left out.
    """
    groups: dict[Hashable, list[tuple[Sample, ImitationTarget]]] = {}
    for sample in samples:
        targets = sample.targets or ((ImitationTarget(sample.token_ids, 1.0),) if has_sampled_tokens(sample) else ())
        for target in targets:
            key = (
                (target.token_ids, sample.prompt_ids, sample.imposed, merge_key(sample)) if merge_equal else len(groups)
            )
            groups.setdefault(key, []).append((sample, target))
    rows: list[BatchRow] = []
    for group in groups.values():
        sample, target = group[0]
        # Imposed tokens were not sampled, so they are left out of the loss, except in imitation targets.
        mask = None if sample.targets else sampled_token_mask(sample)
        count = math.fsum(target.share for _, target in group)
        merged = tuple([sample for sample, _ in group])
        rows.append(BatchRow(sample.prompt_ids, target.token_ids, count=count, loss_mask=mask, samples=merged))
    return rows


def has_sampled_tokens(sample: Sample) -> bool:
    """Return False if the completion is empty, or if the engine inserted all of its tokens: no token is in a loss."""
    return len(sample.imposed) < len(sample.token_ids)


def sampled_token_mask(sample: Sample) -> tuple[bool, ...] | None:
    """Return a mask, False at completion tokens that the engine inserted instead of sampling; None if it has none."""
    if not sample.imposed:
        return None
    return tuple(index not in sample.imposed for index in range(len(sample.token_ids)))


def policy_gradient_rows(
    samples: Sequence[Sample],
    old_logprobs_from: str,
    merge_equal: bool,
    uses_row_advantage: bool = False,
    unit: str = "turn",
    merge_key: Callable[[Sample], Hashable] = lambda _: None,
) -> list[BatchRow]:
    """Return rows for a policy gradient, with the columns `advantages`, `sampled` and `old`.

    `sampled` are the sampler's log-probabilities. `old` are those in the ratio's denominator: the sampler's again, or
    the learner's before the update (`old_logprobs_from`: `sampler`, `read`). With `merge_equal`, samples of equal
    tokens, signs of advantages (0 is positive) and `merge_key` share a row. This is exact for a loss that is linear in
    the advantage for each sign. `uses_row_advantage`: the loss uses a row's mean advantage. `unit: episode`: an agent's
    turns of an episode are one unit, and merge if all of them do. Samples without sampled tokens are left out.
    """
    groups: dict[Hashable, list[list[Sample]]] = {}
    for sequence in group_by_agent_episode(samples) if unit == "episode" else [(sample,) for sample in samples]:
        turns = [sample for sample in sequence if has_sampled_tokens(sample)]
        if not turns:
            continue
        key: Hashable = len(groups)
        if merge_equal:
            all_advantages: set[float] = set()
            turn_keys: list[Hashable] = []
            for turn in turns:
                advantages = turn.advantage.tokens or (turn.advantage.value,)
                all_advantages.update(advantages)
                # A completion during which the weights changed is not merged: the change may be at another token.
                version = turn.versions[0] if turn.versions[0] == turn.versions[1] else turn.id
                signs = tuple([a >= 0 for a in advantages]) if turn.advantage.tokens else turn.advantage.value >= 0
                turn_keys.append((turn.token_ids, turn.prompt_ids, signs, version))
                turn_keys.append((temperature_top_p_and_top_k(turn.sampling), turn.imposed, merge_key(turn)))
            # If advantages vary between tokens, merging could change the sign of a row's mean advantage.
            alone = turns[0].id if uses_row_advantage and len(all_advantages) > 1 else None
            key = alone, tuple(turn_keys)
        groups.setdefault(key, []).append(turns)
    rows: list[BatchRow] = []
    for number, sequences in enumerate(groups.values()):
        row_unit = ("episode", number) if len(sequences[0]) > 1 else None
        for merged in zip(*sequences, strict=True):
            rows.append(_merge_samples_into_row(merged, old_logprobs_from, row_unit))
    return rows


def group_by_agent_episode(samples: Iterable[Sample]) -> list[Sequence[Sample]]:
    """Return one sequence of samples for each agent of each episode. A turn that an episode shares with its forks
    belongs to the episode in which it was played."""
    episodes: dict[Hashable, list[Sample]] = {}
    for sample in samples:
        episodes.setdefault((sample.id[0], sample.agent), []).append(sample)
    return list(episodes.values())


def _merge_samples_into_row(samples: tuple[Sample, ...], old_logprobs_from: str, unit: Hashable) -> BatchRow:
    """Return the row of merged samples, with their summed advantages and mean log-probabilities.

    Log-probabilities of merged samples differ by rounding alone, about 1e-6, because the sampler's batches differ.
    """
    first = samples[0]
    sampled = column_means([checked_token_values(s, s.logprobs, "logprobs") for s in samples])
    # `fsum` rounds correctly, so the order of samples does not change the sum.
    advantages = (math.fsum(s.advantage.value for s in samples),) * len(first.token_ids)
    if first.advantage.tokens:
        columns = [checked_token_values(s, s.advantage.tokens, "advantage.tokens") for s in samples]
        advantages = tuple(map(math.fsum, zip(*columns, strict=True)))
    old_logprobs = sampled
    if old_logprobs_from != "sampler":
        readings: list[TokenValues] = []
        for sample in samples:
            if sample.reading is None:
                raise ValueError(f"old='read' needs a reading of turn {sample.id}, got none")
            readings.append(checked_token_values(sample, sample.reading.logprobs, "reading.logprobs"))
        old_logprobs = column_means(readings)
    mask = sampled_token_mask(first)
    if mask is not None:
        # An inserted token may be outside the sampler's top-p or top-k, with a log-probability of minus infinity.
        sampled, old_logprobs = (
            tuple([logprob if in_loss else 0.0 for logprob, in_loss in zip(logprobs, mask, strict=True)])
            for logprobs in (sampled, old_logprobs)
        )
    return BatchRow(
        *(first.prompt_ids, first.token_ids, first.sampling, len(samples), unit),
        columns={"advantages": advantages, "sampled": sampled, "old": old_logprobs},
        loss_mask=mask,
        samples=samples,
    )


def column_means(value_rows: list[TokenValues]) -> TokenValues:
    """Return the mean of each column of `value_rows`; a single row is returned as it is."""
    if len(value_rows) == 1:
        return value_rows[0]
    return tuple(math.fsum(column) / len(value_rows) for column in zip(*value_rows, strict=True))


def checked_token_values(sample: Sample, token_values: TokenValues, field_name: str) -> TokenValues:
    """Return `token_values`, one for each token of the sample's completion. `field_name` is their field in error
    messages.

    Raises:
        ValueError: if the number of values is not the number of the sample's tokens.
    """
    if len(token_values) != len(sample.token_ids):
        raise ValueError(
            f"turn {sample.id} has {len(sample.token_ids)} tokens, but {field_name} has {len(token_values)} numbers"
        )
    return token_values
