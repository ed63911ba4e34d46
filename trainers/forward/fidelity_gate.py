"""Check that sampler and learner compute the same log-probabilities; otherwise the learner's ratios are wrong."""

import math
from collections.abc import Mapping, Sequence
from itertools import compress, repeat
from typing import Any

import torch

from marl.core.errors import NonFiniteError, SamplerLearnerLogprobGap, SamplerLogprobMismatchError
from marl.core.types import Metrics, Sample
from marl.trainers.batching.planner import BatchPlanner
from marl.trainers.batching.rows import (
    BatchRow,
    TokenValues,
    checked_token_values,
    has_sampled_tokens,
    sampled_token_mask,
)
from marl.trainers.forward.mismatch_causes import MismatchedTurns, describe_likely_mismatch_cause, logprob_gaps
from marl.trainers.forward.rounding_noise import MaxAndMeanGap, rounding_noise, unit_roundoff
from marl.trainers.optim.settings import FidelityCheck

# Metrics of this module (name | unit | meaning), which `tests/bench/figures.py` copies into marl/README.md.
METRICS = """
policy/POLICY/fidelity_max | nats | greatest difference of learner and sampler in the log-probability of a sampled
    token
policy/POLICY/fidelity_mean | nats | mean absolute difference
policy/POLICY/fidelity_ratio | ratio | mean of the learner's probability over the sampler's
policy/POLICY/fidelity_rounding_max, fidelity_rounding_mean | nats | in half precision: the same differences between
    two readings of the learner's own that round otherwise
"""

FLOAT32_LIMITS = MaxAndMeanGap(1e-4, math.inf)
"""Limits (nats) of the difference of log-probabilities, for weights in float32 or wider."""
MAX_ROUNDING_RATIO = 5.0
"""Maximum ratio of the log-probability gap to the learner's own rounding error, for half-precision weights. Measured:
at most 1 with our engine, 1.6 with an engine all in bfloat16 (trainers/README.md), 3.7 with vLLM on one processor."""
MAX_SUSPECTS = 8
"""Maximum number of turns that are examined for the cause of a mismatch."""


class FidelityGate:
    """Check that compares the learner's log-probabilities with the sampler's, and stops the run at a large gap."""

    def __init__(self, settings: FidelityCheck, policy: str, model: Any, planner: BatchPlanner) -> None:
        self._settings, self._policy, self._model, self._planner = settings, policy, model, planner
        self._is_half_precision = unit_roundoff(model) > torch.finfo(torch.float32).eps
        self._newest: int | None = None
        """Version of the newest weights that sampled for the previous update. None before the first update."""

    def is_check_due(self, update_index: int) -> bool:
        """Return True if log-probabilities of learner and sampler must be compared before an update."""
        return update_index % self._settings.every == 0

    def check_sampler_fidelity(self, samples: Sequence[Sample], update_index: int) -> Metrics:
        """Compare log-probabilities on samples of the newest weights; return the differences as metrics, if any.

        Stale samples are left out, because other weights have other log-probabilities.

        Raises:
            SamplerLogprobMismatchError: if the log-probabilities are too far apart.
            NonFiniteError: if a log-probability is not finite.
        """
        if not samples:
            return {}
        newest, previous = max(sample.versions[1] for sample in samples), self._newest
        self._newest = newest
        compared: list[tuple[TokenValues, Sample]] = []
        bad: list[Sample] = []
        for sample in samples:
            is_newest = sample.versions == (newest, newest) and not sample.staleness and has_sampled_tokens(sample)
            if is_newest and sample.reading and sample.reading.logprobs and self.is_check_due(update_index):
                gaps = _gaps_at_sampled_tokens(sample, sample.reading.logprobs)
                compared.append((gaps, sample))
                if not math.isfinite(sum(gaps)):
                    bad.append(sample)
        if not compared:
            return {}
        if bad:
            raise NonFiniteError(self._policy, "log-probability", bad)
        compared.sort(key=lambda pair: max(map(abs, pair[0])), reverse=True)
        all_gaps: list[float] = []
        rows: list[BatchRow] = []
        for gaps, sample in compared:
            all_gaps += gaps
            rows.append(BatchRow(sample.prompt_ids, sample.token_ids, sample.sampling, samples=(sample,)))
        mean = sum(map(abs, all_gaps)) / len(all_gaps)
        # Gaps are capped, because the exponential of a number above 709 overflows.
        ratio = math.fsum(math.exp(min(gap, 700.0)) for gap in all_gaps) / len(all_gaps)
        worst_gaps, worst = compared[0]
        gap = SamplerLearnerLogprobGap(max(map(abs, worst_gaps)), mean, ratio, worst.id)
        limits, noise = self._logprob_gap_limits_and_rounding_metrics(rows)
        if gap.max > limits.max or gap.mean > limits.mean:
            # The search for causes varies sampling settings, so all suspects must share one setting.
            suspects = [row for row in rows if row.sampling == rows[0].sampling][:MAX_SUSPECTS]
            turns = MismatchedTurns(self._model, self._planner, suspects, update_index, newest, previous)
            named = {"max": limits.max, "mean": limits.mean}
            allowed = ", ".join(f"{name} {limit:.3g}" for name, limit in named.items() if limit < math.inf)
            raise SamplerLogprobMismatchError(self._policy, gap, allowed, describe_likely_mismatch_cause(turns))
        return {"fidelity_max": gap.max, "fidelity_mean": gap.mean, "fidelity_ratio": gap.ratio, **noise}

    def _logprob_gap_limits_and_rounding_metrics(self, rows: Sequence[BatchRow]) -> tuple[MaxAndMeanGap, Metrics]:
        """Return the limits of log-probability differences, and metrics of the rounding error if it was estimated."""
        settings, limits, metrics = self._settings, FLOAT32_LIMITS, {}
        if self._is_half_precision and not (settings.max and settings.mean):
            noise = rounding_noise(self._model, self._planner, rows)
            limits = MaxAndMeanGap(MAX_ROUNDING_RATIO * noise.max, MAX_ROUNDING_RATIO * noise.mean)
            metrics = {"fidelity_rounding_max": noise.max, "fidelity_rounding_mean": noise.mean}
        return MaxAndMeanGap(settings.max or limits.max, settings.mean or limits.mean), metrics

    def state_dict(self) -> dict[str, Any]:
        return {"newest": self._newest}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._newest = state.get("newest")


def _gaps_at_sampled_tokens(sample: Sample, learner_logprobs: TokenValues) -> TokenValues:
    """Return the differences of learner and sampler at sampled tokens. Inserted tokens are left out, as top-p or top-k
    may leave them a probability of 0."""
    learner = checked_token_values(sample, learner_logprobs, "reading.logprobs")
    sampler = checked_token_values(sample, sample.logprobs, "logprobs")
    mask = sampled_token_mask(sample) or repeat(True)
    return logprob_gaps(list(compress(learner, mask)), list(compress(sampler, mask)))
