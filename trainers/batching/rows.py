"""Samples -> rows. Identical samples become one row, which is computed once. No tensors yet."""

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from marl.config import Sampling
from marl.types import Sample, Target
from trainers.losses.aggregation import Totals

Floats = tuple[float, ...]
ABSENT = float("nan")
"""Value of a column at a token to which it does not apply, such as a value target where there is none."""


@dataclass(frozen=True, slots=True)
class Row:
    """One or more samples with the same tokens, which share a forward pass."""

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    sampling: Sampling = field(default_factory=Sampling)
    count: float = 1
    """Number of samples; of a sample that has several targets, the share of this one."""
    unit: Hashable = None
    """Rows with equal units are computed together, as an objective such as a pair's needs. None: alone."""
    columns: Mapping[str, Floats] = field(default_factory=dict)
    """Name -> a number for each token, as the loss needs them; all rows of an update have the same names."""
    facts: Mapping[str, float] = field(default_factory=dict)
    """Name -> a number of the row; all rows of an update have the same names."""
    loss_mask: tuple[bool, ...] | None = None
    """Tokens in the loss; None: all. The others are still read by the tokens after them."""
    samples: tuple[Sample, ...] = ()

    @property
    def length(self) -> int:
        """Return the tokens of prompt and completion."""
        return len(self.prompt_ids) + len(self.token_ids)

    @property
    def loss_tokens(self) -> int:
        """Return the number of tokens in the loss."""
        return len(self.token_ids) if self.loss_mask is None else sum(self.loss_mask)


def totals_of(rows: Sequence[Row]) -> Totals:
    """Return the counts over all rows."""
    columns, facts = (rows[0].columns, rows[0].facts) if rows else ({}, {})
    return Totals(
        samples=math.fsum(row.count for row in rows if row.loss_tokens),
        units=sum(unit[0].count for unit in units_of(rows) if any(row.loss_tokens for row in unit)),
        tokens=sum(row.count * row.loss_tokens for row in rows),
        columns={n: sum(row.count * sum(not math.isnan(v) for v in row.columns[n]) for row in rows) for n in columns},
        facts={name: sum(row.count * row.facts[name] for row in rows) for name in facts},
    )


def unit_keys(rows: Iterable[Row]) -> list[Hashable]:
    """Return a key for each row; equal for rows that must be computed together."""
    return [index if row.unit is None else ("unit", row.unit) for index, row in enumerate(rows)]


def units_of(rows: Sequence[Row]) -> list[list[Row]]:
    """Return the rows that must be computed together, in order of first appearance."""
    units: dict[Hashable, list[Row]] = {}
    for key, row in zip(unit_keys(rows), rows, strict=True):
        units.setdefault(key, []).append(row)
    return list(units.values())


def distribution(sampling: Sampling) -> tuple[float, float, int]:
    """Return the sampling settings that change a token's probability."""
    return sampling.temperature, sampling.top_p, sampling.top_k


def plain_rows(
    samples: Sequence[Sample], merge: bool, alike: Callable[[Sample], Hashable] = lambda _: None
) -> list[Row]:
    """Return rows for losses that need neither advantages nor the distribution that tokens were sampled from.

    A sample that has targets is a row for each of them, which counts by its share. Samples with equal tokens merge if
    what `alike` returns is equal, too. Those without tokens are left out.
    """
    groups: dict[Hashable, list[tuple[Sample, Target]]] = {}
    for sample in samples:
        for target in _targets(sample):
            key = (target.token_ids, sample.prompt_ids, sample.imposed, alike(sample)) if merge else len(groups)
            groups.setdefault(key, []).append((sample, target))
    return [_plain_row(group) for group in groups.values()]


def _targets(sample: Sample) -> Sequence[Target]:
    """Return the completions that a sample is to be imitated by, each with its share."""
    return sample.targets or ((Target(sample.token_ids, 1.0),) if sample.token_ids else ())


def _plain_row(group: Sequence[tuple[Sample, Target]]) -> Row:
    """Return the row of merged samples; tokens that nobody chose are out of the loss, unless they are of a target."""
    sample, target = group[0]
    mask = None if sample.targets else sampled_tokens(sample)
    count, merged = math.fsum(each.share for _, each in group), tuple([each for each, _ in group])
    return Row(sample.prompt_ids, target.token_ids, count=count, loss_mask=mask, samples=merged)


def sampled_tokens(sample: Sample) -> tuple[bool, ...] | None:
    """Return a mask of the tokens that the policy chose, such as all but an imposed end of a thought; None: all."""
    if not sample.imposed:
        return None
    return tuple(place not in sample.imposed for place in range(len(sample.token_ids)))


def policy_rows(
    samples: Sequence[Sample],
    old: str,
    merge: bool,
    by_row: bool = False,
    unit: str = "turn",
    alike: Callable[[Sample], Hashable] = lambda _: None,
) -> list[Row]:
    """Return rows for a policy gradient, with the columns `advantages`, `sampled` (the sampler's log-probabilities) and
    `old` (those in the ratio's denominator: of the `sampler`, or `read`).

    Samples of one sign merge exactly where the loss is linear in the advantage for one sign (zero goes with the
    positive). With `by_row` the signs of their mean advantages must be equal, too, and whatever `alike` returns. With
    `unit` `episode`, an agent's turns of an episode are one unit of rows, and merge with those of another if all do.
    """

    def key(sequence: Sequence[Sample]) -> Hashable:
        return _sign_key(sequence) if by_row else None, tuple([(_merge_key(s), alike(s)) for s in sequence])

    sequences = by_episode(samples) if unit == "episode" else [(sample,) for sample in samples]
    rows: list[Row] = []
    for number, turns in enumerate(_merged(sequences, key, merge)):
        name = ("episode", number) if len(turns) > 1 else None
        rows += [replace(_policy_row(group, old), unit=name) for group in turns]
    return rows


def by_episode(samples: Iterable[Sample]) -> list[Sequence[Sample]]:
    """Return the samples of each agent in each episode. A turn that forks share is of the one in which it was said."""
    episodes: dict[Hashable, list[Sample]] = {}
    for sample in samples:
        episodes.setdefault((sample.id[0], sample.agent), []).append(sample)
    return list(episodes.values())


def _merged(
    sequences: Iterable[Sequence[Sample]], key: Callable[[Sequence[Sample]], Hashable], merge: bool
) -> list[list[tuple[Sample, ...]]]:
    """Return sequences with equal tokens and `key` as one, in order of first appearance: for each of its turns, the
    samples that share it. Samples without tokens are left out."""
    nonempty = [left for sequence in sequences if (left := [sample for sample in sequence if sample.token_ids])]
    if not merge:
        return [[(sample,) for sample in sequence] for sequence in nonempty]
    groups: dict[Hashable, list[Sequence[Sample]]] = {}
    for sequence in nonempty:
        tokens = tuple([(sample.token_ids, sample.prompt_ids) for sample in sequence])
        groups.setdefault((tokens, key(sequence)), []).append(sequence)
    return [list(zip(*group, strict=True)) for group in groups.values()]


def _sign_key(sequence: Sequence[Sample]) -> Hashable:
    """Return a key of its own for a sequence whose tokens differ in advantage: the sign of their mean could change."""
    advantages = {a for s in sequence for a in s.advantage.tokens or (s.advantage.value,)}
    return sequence[0].id if len(advantages) > 1 else None


def _merge_key(sample: Sample) -> Hashable:
    """Return a key that is equal for samples whose losses add up to the loss of their summed advantages."""
    advantage, (first, last) = sample.advantage, sample.versions
    positive = tuple(a >= 0 for a in advantage.tokens) if advantage.tokens else advantage.value >= 0
    # Weights that changed within a completion may have changed at another token in the next sample.
    weights = first if first == last else sample.id
    return positive, weights, distribution(sample.sampling), sample.imposed


def _policy_row(group: tuple[Sample, ...], old: str) -> Row:
    """Return the row of merged samples.

    Their log-probabilities differ by float noise only (about 1e-6, from other batches of the sampler); take the mean.
    """
    first = group[0]
    sampled = mean_of([per_token(s, s.logprobs, "logprobs") for s in group])
    # Correctly rounded sums: the order of the samples does not matter.
    advantages = (math.fsum(s.advantage.value for s in group),) * len(first.token_ids)
    if first.advantage.tokens:
        tokens = (per_token(s, s.advantage.tokens, "advantage.tokens") for s in group)
        advantages = tuple(map(math.fsum, zip(*tokens, strict=True)))
    columns = {
        "advantages": advantages,
        "sampled": sampled,
        "old": sampled if old == "sampler" else mean_of([_read_logprobs(s) for s in group]),
    }
    return Row(
        *(first.prompt_ids, first.token_ids, first.sampling, len(group)),
        columns=columns,
        loss_mask=sampled_tokens(first),
        samples=group,
    )


def _read_logprobs(sample: Sample) -> Floats:
    if sample.reading is None:
        raise ValueError(f"old='read' needs a reading of turn {sample.id}, got none")
    return per_token(sample, sample.reading.logprobs, "reading.logprobs")


def mean_of(rows: list[Floats]) -> Floats:
    """Return the mean of each column."""
    if len(rows) == 1:
        return rows[0]
    return tuple(math.fsum(column) / len(rows) for column in zip(*rows, strict=True))


def per_token(sample: Sample, values: Floats, name: str) -> Floats:
    """Return `values`.

    Raises:
        ValueError: unless there is one for each token.
    """
    if len(values) != len(sample.token_ids):
        raise ValueError(f"turn {sample.id} has {len(sample.token_ids)} tokens, but {name} has {len(values)} numbers")
    return values
