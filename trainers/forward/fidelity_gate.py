"""Gate between sampler and learner: both must compute the same log-probabilities, or the learner's ratios are wrong."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from marl.core.errors import LogprobGap, NonFiniteError, SamplerMismatch
from marl.core.types import Metrics, Sample
from marl.trainers.batching.planner import BatchPlanner
from marl.trainers.batching.rows import Row, TokenValues, check_per_token
from marl.trainers.forward.mismatch_causes import MismatchedTurns, find_cause, logprob_gaps
from marl.trainers.forward.rounding_noise import GapLimits, rounding_noise, unit_roundoff
from marl.trainers.optim.settings import FidelityCheck

FLOAT32_LIMITS = GapLimits(1e-4, math.inf)
"""Greatest difference of one token, and greatest mean (nats), with weights in float32 or wider."""
MAX_ROUNDING_RATIO = 3.0
"""With narrower weights, greatest ratio of the differences to the learner's own noise of rounding. Our engine is at
once or less, one that rounds all that it computes at 1.6 (trainers/README.md), vLLM on one kind of processor at 2.6."""
MAX_SUSPECTS = 8
"""Number of turns on which the cause is searched."""


class FidelityGate:
    """Compares readings with the sampler's log-probabilities, and stops the run where they are too far apart."""

    def __init__(self, settings: FidelityCheck, policy: str, model: Any, planner: BatchPlanner) -> None:
        self._settings, self._policy, self._model, self._planner = settings, policy, model, planner
        self._is_coarse = unit_roundoff(model) > torch.finfo(torch.float32).eps
        self._newest: int | None = None
        """Version of the newest weights that sampled for the last update."""

    def due(self, update: int) -> bool:
        """Return True if samples are compared before `update` (counted from 0)."""
        return update % self._settings.every == 0

    def check(self, samples: Sequence[Sample], update: int) -> Metrics:
        """Return the differences on samples of the newest weights that were read; no metrics without such samples.

        Stale samples are left out: weights other than the learner's have other log-probabilities.

        Raises:
            SamplerMismatch: if the log-probabilities are too far apart.
            NonFiniteError: if a log-probability is not finite.
        """
        if not samples:
            return {}
        newest, previous = max(sample.versions[1] for sample in samples), self._newest
        self._newest = newest
        compared: list[tuple[TokenValues, Sample]] = []
        for sample in samples:
            is_newest = sample.versions == (newest, newest) and not sample.staleness
            if is_newest and sample.reading and sample.reading.logprobs and self.due(update):
                learner = check_per_token(sample, sample.reading.logprobs, "reading.logprobs")
                compared.append((logprob_gaps(learner, check_per_token(sample, sample.logprobs, "logprobs")), sample))
        if not compared:
            return {}
        if bad := [sample for gaps, sample in compared if not math.isfinite(sum(gaps))]:
            raise NonFiniteError(self._policy, "log-probability", bad)
        compared.sort(key=lambda pair: max(map(abs, pair[0])), reverse=True)
        all_gaps = [gap for gaps, _ in compared for gap in gaps]
        mean = sum(map(abs, all_gaps)) / len(all_gaps)
        # exp of more than 709 overflows.
        ratio = math.fsum(math.exp(min(gap, 700.0)) for gap in all_gaps) / len(all_gaps)
        worst_gaps, worst = compared[0]
        gap = LogprobGap(max(map(abs, worst_gaps)), mean, ratio, worst.id)
        rows = [Row(s.prompt_ids, s.token_ids, s.sampling, samples=(s,)) for _, s in compared]
        limits, noise = self._limits(rows)
        if gap.max > limits.max or gap.mean > limits.mean:
            # The tests for causes vary the sampling settings, so suspects must share them.
            suspects = [row for row in rows if row.sampling == rows[0].sampling][:MAX_SUSPECTS]
            turns = MismatchedTurns(self._model, self._planner, suspects, update, newest, previous)
            named = {"max": limits.max, "mean": limits.mean}
            allowed = ", ".join(f"{name} {limit:.3g}" for name, limit in named.items() if limit < math.inf)
            raise SamplerMismatch(self._policy, gap, allowed, find_cause(turns))
        return {"fidelity_max": gap.max, "fidelity_mean": gap.mean, "fidelity_ratio": gap.ratio, **noise}

    def _limits(self, rows: Sequence[Row]) -> tuple[GapLimits, Metrics]:
        """Return the greatest allowed differences, and metrics of the rounding noise where the limits depend on it."""
        settings, limits, metrics = self._settings, FLOAT32_LIMITS, {}
        if self._is_coarse and not (settings.max and settings.mean):
            noise = rounding_noise(self._model, self._planner, rows)
            limits = GapLimits(MAX_ROUNDING_RATIO * noise.max, MAX_ROUNDING_RATIO * noise.mean)
            metrics = {"fidelity_rounding_max": noise.max, "fidelity_rounding_mean": noise.mean}
        return GapLimits(settings.max or limits.max, settings.mean or limits.mean), metrics

    def state_dict(self) -> dict[str, Any]:
        return {"newest": self._newest}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._newest = state.get("newest")
