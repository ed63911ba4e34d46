"""The gate between sampler and learner: both must mean the same probabilities, or nothing that is learned is right."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from marl.errors import Gap, NonFinite, Unfaithful
from marl.types import Metrics, Sample
from trainers.batching.planner import Planner
from trainers.batching.rows import checked
from trainers.sampler_check.causes import Case, cause

if TYPE_CHECKING:
    from trainers.settings import Fidelity

FINE = 1e-4, math.inf
"""Greatest difference of one token, and on average (nats), with weights in float32 or better."""
COARSE = 0.3, 0.03
"""The same with any weights of lower precision."""
SUSPECTS = 8
"""Turns on which the cause is looked for."""


class Gate:
    """Compares readings with what the sampler said, and stops the run where they are too far apart."""

    def __init__(self, settings: Fidelity, policy: str, model: Any, plan: Planner) -> None:
        self._every, self._policy, self._model, self._plan = settings.every, policy, model, plan
        half = any(torch.finfo(p.dtype).bits < 32 for p in model.parameters() if p.is_floating_point())
        greatest, mean = COARSE if half else FINE
        self._max, self._mean = settings.max or greatest, settings.mean or mean
        self._newest: int | None = None
        """Version of the newest weights that sampled for the last update."""

    def due(self, update: int) -> bool:
        """Whether samples are compared before `update` (counted from 0)."""
        return update % self._every == 0

    def check(self, samples: Sequence[Sample], update: int) -> Metrics:
        """How far apart they are on what was read of the newest weights' samples; nothing if none was.

        Raises:
            Unfaithful: if they are too far apart.
            NonFinite: if a log-probability is not finite.
        """
        if not samples:
            return {}
        newest, before = max(sample.versions[1] for sample in samples), self._newest
        self._newest = newest
        read = [s for s in samples if s.reading and s.reading.logprobs and s.versions == (newest, newest)]
        if not read or not self.due(update):
            return {}
        gaps = [_gaps(sample) for sample in read]
        if bad := [sample for sample, own in zip(read, gaps, strict=True) if not math.isfinite(sum(own))]:
            raise NonFinite(self._policy, "log-probability", bad)
        worst = sorted(zip(gaps, read, strict=True), key=lambda pair: max(map(abs, pair[0])), reverse=True)
        gap = _summary(worst)
        if gap.max > self._max or gap.mean > self._mean:
            alike = [sample for _, sample in worst if sample.sampling == worst[0][1].sampling]
            case = Case(self._model, self._plan, alike[:SUSPECTS], update, newest, before)
            raise Unfaithful(self._policy, gap, self._allowed, cause(case))
        return {"fidelity_max": gap.max, "fidelity_mean": gap.mean, "fidelity_ratio": gap.ratio}

    def state_dict(self) -> dict[str, Any]:
        """The newest weights seen."""
        return {"newest": self._newest}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from them."""
        self._newest = state.get("newest")

    @property
    def _allowed(self) -> str:
        limits = {"max": self._max, "mean": self._mean}
        return ", ".join(f"{name} {limit:g}" for name, limit in limits.items() if limit < math.inf)


def _gaps(sample: Sample) -> list[float]:
    """The learner's log-probability less the sampler's, of each token."""
    assert sample.reading is not None
    own = checked(sample, sample.reading.logprobs, "reading.logprobs")
    sampled = checked(sample, sample.logprobs, "logprobs")
    return [ours - theirs for ours, theirs in zip(own, sampled, strict=True)]


def _summary(worst: Sequence[tuple[list[float], Sample]]) -> Gap:
    every = [gap for gaps, _ in worst for gap in gaps]
    greatest, first = worst[0]
    return Gap(
        max=max(map(abs, greatest)),
        mean=sum(map(abs, every)) / len(every),
        ratio=math.fsum(math.exp(min(gap, 700.0)) for gap in every) / len(every),
        worst=first.id,
    )
