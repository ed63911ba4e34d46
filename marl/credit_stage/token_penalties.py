"""Penalties on tokens in addition to the game's rewards: KL divergence from a reference policy, overlong completions.

Penalties change credit only; the recorded rewards stay as the game paid them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np

from marl.core.statistics import adapted_kl_coefficient
from marl.core.types import Metrics, TurnId
from marl.protocols import Evidence
from marl.scenario.schema import KlInReward, OverlongPenalty

# Metrics of this module (name | unit | meaning), which `tests/bench/figures.py` copies into marl/README.md.
METRICS = """
credit/kl | nats a token | mean over judged turns of the mean k_t that `credit.kl` charges
credit/kl_coefficient | number | coefficient of `credit.kl` in this step
credit/overlong | reward | mean over judged turns of the penalty for their length (`credit.overlong`)
"""

TokenRewards = dict[TurnId, tuple[float, ...]]
"""Turn -> reward of each of its tokens; penalties are negative."""
PenaltySums = dict[str, dict[TurnId, float]]
"""Name of a penalty (`kl`, `overlong`) -> turn -> sum of the penalty over the turn's tokens."""


class TokenPenalties:
    """KL penalty and length penalty of one credit rule, with the state of an adaptive KL coefficient."""

    def __init__(self, kl: KlInReward | None, overlong: OverlongPenalty | None) -> None:
        self._kl, self._overlong = kl, overlong
        self._coefficient = kl.coefficient if kl else 0.0
        self.needed_reading_fields = kl.needed_reading_fields if kl else frozenset[str]()
        self.has_adaptive_kl_coefficient = kl is not None and kl.target is not None
        """True if the KL coefficient of a step depends on earlier steps."""

    def __call__(self, evidence: Evidence, credited: Set[TurnId] | None) -> tuple[TokenRewards, PenaltySums, Metrics]:
        """Return token rewards, their sums by name, and metrics of the `credited` turns (None: all turns).

        `credit/kl`: mean over turns of the mean k_t [nats]. `credit/kl_coefficient`: the coefficient that multiplied
        k_t. `credit/overlong`: mean over turns of the reward for a completion's length. Turns whose token rewards are
        all 0 are absent from the first two results. An adaptive coefficient is adapted for the next step.
        """
        kl, overlong = self._kl, self._overlong
        token_rewards: TokenRewards = {}
        kl_sums: dict[TurnId, float] = {}
        length_rewards: dict[TurnId, float] = {}
        kl_means: list[float] = []
        length_means: list[float] = []
        for turn_id, turn in evidence.turns().items():
            if not turn.completion.token_ids:
                continue
            rewards = [0.0] * len(turn.completion.token_ids)
            counts = credited is None or turn_id in credited
            reading = evidence.readings.get(turn_id)
            if kl and reading and reading.reference is not None:
                k = kl_per_token(reading.logprobs, reading.reference, kl)
                rewards = [-self._coefficient * token_k for token_k in k]
                if any(rewards):
                    kl_sums[turn_id] = sum(rewards)
                if counts:
                    kl_means.append(_mean(k))
            if overlong:
                penalty = soft_overlong_penalty(len(rewards), overlong.limit, overlong.buffer, capped=overlong.capped)
                length_reward = overlong.factor * penalty
                # The penalty for an overlong completion belongs to its last token.
                rewards[-1] += length_reward
                if length_reward:
                    length_rewards[turn_id] = length_reward
                if counts:
                    length_means.append(length_reward)
            if any(rewards):
                token_rewards[turn_id] = tuple(rewards)
        metrics: Metrics = {}
        sums: PenaltySums = {}
        if kl:
            metrics["credit/kl_coefficient"] = self._coefficient
            sums["kl"] = kl_sums
        if kl_means:
            metrics["credit/kl"] = mean_kl = _mean(kl_means)
            if kl and kl.target is not None:
                self._coefficient = adapted_kl_coefficient(
                    self._coefficient, mean_kl, kl.target, len(kl_means), kl.horizon
                )
        if overlong:
            sums["overlong"] = length_rewards
        if length_means:
            metrics["credit/overlong"] = _mean(length_means)
        return token_rewards, sums, metrics

    def state_dict(self) -> dict[str, Any]:
        return {"kl_coefficient": self._coefficient} if self.has_adaptive_kl_coefficient else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if self.has_adaptive_kl_coefficient:
            self._coefficient = float(state["kl_coefficient"])


def kl_per_token(
    logprobs: tuple[float, ...], reference_logprobs: tuple[float, ...], settings: KlInReward
) -> list[float]:
    """Return the estimate k_t of each token's KL divergence from the reference policy, in nats."""
    d = np.subtract(logprobs, reference_logprobs)
    # Infinite numbers give no warning here, because the learner refuses them and names the turn.
    with np.errstate(over="ignore", invalid="ignore"):
        if settings.estimator == "k1":
            k = d
        elif settings.estimator == "k2":
            k = d**2 / 2
        elif settings.estimator == "k3":
            k = np.expm1(-d) + d
        else:
            k = abs(d)
    return (k if settings.clamp is None else k.clip(-settings.clamp, settings.clamp)).tolist()


def soft_overlong_penalty(token_count: int, max_tokens: int, buffer_tokens: int, *, capped: bool = True) -> float:
    """Return DAPO's soft overlong punishment (arXiv 2503.14476, equation 13) of a completion of `token_count` tokens.

    The punishment is 0 up to `max_tokens - buffer_tokens` tokens, -1 at `max_tokens`, and linear between. Beyond
    `max_tokens` the punishment stays -1 if `capped` (paper, OpenRLHF), else the punishment continues to fall (verl,
    ms-swift).
    """
    over = (token_count - (max_tokens - buffer_tokens)) / buffer_tokens
    return min(0.0, max(-over, -1.0) if capped else -over)


def _mean(numbers: Sequence[float]) -> float:
    # `fmean` raises on infinities of both signs, but the learner is to refuse them with the turn's name.
    return sum(numbers) / len(numbers)
