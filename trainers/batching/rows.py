"""Samples -> rows. Identical samples become one row, which is computed once. No tensors yet."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from marl.config import Sampling
from marl.types import Sample
from trainers.losses.aggregation import Totals

Floats = tuple[float, ...]
WHOLE = Sampling()
"""The model's own distribution: temperature 1, nothing cut off."""
ABSENT = float("nan")
"""What a column holds at a token to which it does not apply, such as the value target of one that has none."""


@dataclass(frozen=True, slots=True)
class Row:
    """One or more samples with the same tokens, which one forward pass serves."""

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    sampling: Sampling = WHOLE
    count: int = 1
    """How many samples this is."""
    unit: Hashable = None
    """Rows with equal units are one thing to their objective, such as a pair: computed together. None: alone."""
    columns: Mapping[str, Floats] = field(default_factory=dict)
    """Numbers of each token, by name. A loss says which it needs; all rows of an update have the same ones."""
    facts: Mapping[str, float] = field(default_factory=dict)
    """Numbers of the row, by name; all rows of an update have the same ones."""
    counted: tuple[bool, ...] | None = None
    """Tokens that the loss looks at; None: all. The others are still read by those that follow."""
    samples: tuple[Sample, ...] = ()

    @property
    def length(self) -> int:
        """Prompt and completion, in tokens."""
        return len(self.prompt_ids) + len(self.token_ids)

    @property
    def counts(self) -> int:
        """How many of its tokens the loss looks at."""
        return len(self.token_ids) if self.counted is None else sum(self.counted)


def totals_of(rows: Sequence[Row]) -> Totals:
    """What they hold together."""
    present = {
        name: sum(row.count * sum(not math.isnan(v) for v in row.columns[name]) for row in rows)
        for name in (rows[0].columns if rows else ())
    }
    return Totals(
        samples=sum(row.count for row in rows if row.counts),
        tokens=sum(row.count * row.counts for row in rows),
        units=sum(row.unit is None for row in rows) + len({row.unit for row in rows if row.unit is not None}),
        columns=present,
        facts={name: sum(row.count * row.facts[name] for row in rows) for name in (rows[0].facts if rows else ())},
    )


def distribution(sampling: Sampling) -> tuple[float, float, int]:
    """What of the sampling settings changes a token's probability."""
    return sampling.temperature, sampling.top_p, sampling.top_k


def group(samples: Sequence[Sample], key: Callable[[Sample], Hashable], merge: bool) -> list[tuple[Sample, ...]]:
    """Samples with equal tokens and `key`, in order of first appearance. Those without tokens teach nothing."""
    kept = [sample for sample in samples if sample.token_ids]
    if not merge:
        return [(sample,) for sample in kept]
    groups: dict[Hashable, list[Sample]] = {}
    for sample in kept:
        groups.setdefault((sample.token_ids, sample.prompt_ids, key(sample)), []).append(sample)
    return [tuple(members) for members in groups.values()]


def judged_rows(samples: Sequence[Sample], old: str, merge: bool, whole: bool = False) -> list[Row]:
    """Rows for a policy gradient, with the columns `advantages`, `sampled` (the sampler's log-probabilities) and `old`
    (those that the ratio is taken to).

    Every surrogate is linear in the advantage for one sign of it, so samples of one sign merge exactly (zero goes with
    the positive). The log-probabilities of merged samples came from the same weights and differ only by float noise of
    about 1e-6 (the sampler's batches differ): their mean is taken.

    `whole`: the surrogate looks at the sign of a row's mean advantage, too.
    """
    key = whole_judgement if whole else judgement
    return [_judged_row(members, old) for members in group(samples, key, merge)]


def imitated_rows(samples: Sequence[Sample], merge: bool) -> list[Row]:
    """Rows for imitation, which asks neither for advantages nor how the tokens were drawn."""
    groups = group(samples, lambda _: None, merge)
    return [Row(m[0].prompt_ids, m[0].token_ids, count=len(m), samples=m) for m in groups]


def judgement(sample: Sample) -> Hashable:
    """Equal for samples with equal tokens whose surrogates add up to that of their summed advantages."""
    advantage, (first, last) = sample.advantage, sample.versions
    signs = tuple(a >= 0 for a in advantage.tokens) if advantage.tokens else advantage.value >= 0
    # Weights that changed within a completion may have changed at another token in the next sample.
    weights = first if first == last else sample.id
    return signs, weights, distribution(sample.sampling)


def whole_judgement(sample: Sample) -> Hashable:
    """The same for surrogates of whole rows: where tokens differ in advantage, the mean's sign could change."""
    tokens = sample.advantage.tokens
    return judgement(sample), sample.id if len(set(tokens)) > 1 else None


def _judged_row(members: tuple[Sample, ...], old: str) -> Row:
    first = members[0]
    sampled = mean_of([checked(s, s.logprobs, "logprobs") for s in members])
    columns = {
        "advantages": advantages_of(members),
        "sampled": sampled,
        "old": sampled if old == "sampler" else mean_of([read_logprobs(s) for s in members]),
    }
    return Row(first.prompt_ids, first.token_ids, first.sampling, len(members), columns=columns, samples=members)


def advantages_of(members: Sequence[Sample]) -> Floats:
    """Of each token, summed over samples with equal tokens."""
    if not members[0].advantage.tokens:
        return (math.fsum(s.advantage.value for s in members),) * len(members[0].token_ids)
    columns = zip(*(checked(s, s.advantage.tokens, "advantage.tokens") for s in members), strict=True)
    # Correctly rounded, so that the order of the samples does not matter.
    return tuple(map(math.fsum, columns))


def read_logprobs(sample: Sample) -> Floats:
    """The learner's own log-probabilities before the update.

    Raises:
        ValueError: if the sample was not read.
    """
    if sample.reading is None:
        raise ValueError(f"old='read' needs a reading of turn {sample.id}, got none")
    return checked(sample, sample.reading.logprobs, "reading.logprobs")


def mean_of(rows: list[Floats]) -> Floats:
    """Column by column."""
    if len(rows) == 1:
        return rows[0]
    return tuple(math.fsum(column) / len(rows) for column in zip(*rows, strict=True))


def checked(sample: Sample, values: Floats, name: str) -> Floats:
    """Raises:
    ValueError: if there is not one number a token.
    """
    if len(values) != len(sample.token_ids):
        raise ValueError(f"turn {sample.id} has {len(sample.token_ids)} tokens, but {name} has {len(values)} numbers")
    return values
