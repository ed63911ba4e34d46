"""Penalties on tokens in addition to the game's rewards: KL from a reference policy, overlong completions, a price.

Penalties change credit only; the recorded rewards stay as the game paid them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np

from marl.core.statistics import adapted_kl_coefficient
from marl.core.types import Completion, Metrics, Reading, TurnId
from marl.protocols import Evidence
from marl.scenario.schema import KlInReward, OverlongPenalty

# Metrics of this module (name | unit | meaning), which `tests/bench/figures.py` copies into marl/README.md.
METRICS = """
credit/kl | nats a token | mean over judged turns of the mean k_t that `credit.kl` charges
credit/kl_coefficient | number | coefficient of `credit.kl` in this step
credit/overlong | reward | mean over judged turns of the penalty for their length (`credit.overlong`)
credit/token_cost | reward | mean over judged turns of the price of their tokens (`credit.token_cost`)
"""

TokenRewards = dict[TurnId, tuple[float, ...]]
"""Turn -> reward of each of its tokens; penalties are negative."""
PenaltySums = dict[str, dict[TurnId, float]]
"""Name of a penalty (`kl`, `overlong`, `token_cost`) -> turn -> sum of the penalty over the turn's tokens."""


class TokenPenalties:
    """KL penalty, length penalty and token price of one credit rule, with the state of an adaptive KL coefficient."""

    def __init__(self, kl: KlInReward | None, overlong: OverlongPenalty | None, token_cost: float = 0.0) -> None:
        self._kl, self._overlong, self._token_cost = kl, overlong, token_cost
        self._names = [name for name, used in (("kl", kl), ("overlong", overlong), ("token_cost", token_cost)) if used]
        self._coefficient = kl.coefficient if kl else 0.0
        self.needed_reading_fields = kl.needed_reading_fields if kl else frozenset[str]()
        self.has_adaptive_kl_coefficient = kl is not None and kl.target is not None
        """True if the KL coefficient of a step depends on earlier steps."""

    def __call__(self, evidence: Evidence, credited: Set[TurnId] | None) -> tuple[TokenRewards, PenaltySums, Metrics]:
        """Return token rewards, their sums by name, and metrics of the `credited` turns (None: all turns).

        `credit/kl`: mean over turns of the mean k_t [nats]. `credit/kl_coefficient`: the coefficient that multiplied
        k_t. `credit/overlong`: mean over turns of the reward for a completion's length. `credit/token_cost`: mean over
        turns of the reward for the number of their tokens. Turns whose token rewards are all 0 are absent from the
        first two results. An adaptive coefficient is adapted for the next step.
        """
        token_rewards: TokenRewards = {}
        sums: PenaltySums = {name: {} for name in self._names}
        if not self._names:
            return token_rewards, sums, {}
        kl_means: list[float] = []
        counted: dict[str, list[float]] = {name: [] for name in self._names}
        for turn_id, turn in evidence.turns().items():
            if not turn.completion.token_ids:
                continue
            by_name, mean_k = self._rewards_by_penalty(turn.completion, evidence.readings.get(turn_id))
            for name, rewards in by_name.items():
                if any(rewards):
                    sums[name][turn_id] = sum(rewards)
            totals = tuple(map(sum, zip(*by_name.values(), strict=True)))
            if any(totals):
                token_rewards[turn_id] = totals
            if credited is None or turn_id in credited:
                kl_means += [] if mean_k is None else [mean_k]
                for name, rewards in by_name.items():
                    counted[name].append(sum(rewards))
        metrics: Metrics = {}
        for name in ("overlong", "token_cost"):
            if counted.get(name):
                metrics[f"credit/{name}"] = _mean(counted[name])
        if kl := self._kl:
            metrics["credit/kl_coefficient"] = self._coefficient
            if kl_means:
                metrics["credit/kl"] = mean_kl = _mean(kl_means)
                if kl.target is not None:
                    self._coefficient = adapted_kl_coefficient(
                        self._coefficient, mean_kl, kl.target, len(kl_means), kl.horizon
                    )
        return token_rewards, sums, metrics

    def _rewards_by_penalty(
        self, completion: Completion, reading: Reading | None
    ) -> tuple[dict[str, list[float]], float | None]:
        """Return, for each penalty, the rewards of a completion's tokens; and the mean k_t, or None without one.

        Tokens that the engine imposed have no k_t, because the policy did not choose them.
        """
        by_name: dict[str, list[float]] = {}
        mean_k: float | None = None
        length = len(completion.token_ids)
        if self._kl and reading and reading.reference is not None:
            k = kl_per_token(reading.logprobs, reading.reference, self._kl)
            for index in completion.imposed:
                k[index] = 0.0
            sampled_count = length - len(completion.imposed)
            mean_k = sum(k) / sampled_count if sampled_count else None
            by_name["kl"] = [-self._coefficient * token_k for token_k in k]
        if overlong := self._overlong:
            penalty = soft_overlong_penalty(length, overlong.limit, overlong.buffer, capped=overlong.capped)
            # The penalty for an overlong completion belongs to its last token.
            by_name["overlong"] = [0.0] * (length - 1) + [overlong.factor * penalty]
        if self._token_cost:
            by_name["token_cost"] = [-self._token_cost] * length
        return by_name, mean_k

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
