"""Samples -> rows. Identical samples become one row, which is computed once. No tensors yet."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from marl.config import Sampling
from marl.types import Sample

Floats = tuple[float, ...]
WHOLE = Sampling()
"""The model's own distribution: temperature 1, nothing cut off."""


@dataclass(frozen=True, slots=True)
class Row:
    """One or more samples with the same tokens, which one forward pass serves."""

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    sampling: Sampling = WHOLE
    count: int = 1
    """How many samples this is."""
    advantages: Floats = ()
    """Of each token, summed over the samples."""
    sampled: Floats = ()
    """The sampler's log-probabilities."""
    old: Floats = ()
    """Those that the ratio is taken to."""
    samples: tuple[Sample, ...] = ()

    @property
    def length(self) -> int:
        """Prompt and completion, in tokens."""
        return len(self.prompt_ids) + len(self.token_ids)


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


def judged_rows(samples: Sequence[Sample], old: str, merge: bool) -> list[Row]:
    """Rows for a policy gradient.

    The clipped surrogate is linear in the advantage for one sign of it, so samples of one sign merge exactly (zero goes
    with the positive). The log-probabilities of merged samples came from the same weights and differ only by float
    noise of about 1e-6 (the sampler's batches differ): their mean is taken.
    """
    return [_judged_row(members, old) for members in group(samples, _judgement, merge)]


def imitated_rows(samples: Sequence[Sample], merge: bool) -> list[Row]:
    """Rows for imitation, which asks neither for advantages nor how the tokens were drawn."""
    groups = group(samples, lambda _: None, merge)
    return [Row(m[0].prompt_ids, m[0].token_ids, count=len(m), samples=m) for m in groups]


def _judgement(sample: Sample) -> Hashable:
    advantage, (first, last) = sample.advantage, sample.versions
    signs = tuple(a >= 0 for a in advantage.tokens) if advantage.tokens else advantage.value >= 0
    # Weights that changed within a completion may have changed at another token in the next sample.
    weights = first if first == last else sample.id
    return signs, weights, distribution(sample.sampling)


def _judged_row(members: tuple[Sample, ...], old: str) -> Row:
    first = members[0]
    sampled = _mean([_checked(s, s.logprobs, "logprobs") for s in members])
    return Row(
        first.prompt_ids,
        first.token_ids,
        first.sampling,
        count=len(members),
        advantages=_advantages(members),
        sampled=sampled,
        old=sampled if old == "sampler" else _mean([_read(s) for s in members]),
        samples=members,
    )


def _advantages(members: tuple[Sample, ...]) -> Floats:
    if not members[0].advantage.tokens:
        return (sum(s.advantage.value for s in members),) * len(members[0].token_ids)
    columns = zip(*(_checked(s, s.advantage.tokens, "advantage.tokens") for s in members), strict=True)
    return tuple(map(sum, columns))


def _read(sample: Sample) -> Floats:
    if sample.reading is None:
        raise ValueError(f"old='read' needs a reading of turn {sample.id}, got none")
    return _checked(sample, sample.reading.logprobs, "reading.logprobs")


def _mean(rows: list[Floats]) -> Floats:
    if len(rows) == 1:
        return rows[0]
    return tuple(sum(column) / len(rows) for column in zip(*rows, strict=True))


def _checked(sample: Sample, values: Floats, name: str) -> Floats:
    if len(values) != len(sample.token_ids):
        raise ValueError(f"turn {sample.id} has {len(sample.token_ids)} tokens, but {name} has {len(values)} numbers")
    return values
