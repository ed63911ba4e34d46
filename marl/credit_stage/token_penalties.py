"""Penalties on tokens in addition to the game's rewards: KL divergence from a reference policy, overlong completions.

Only credit sees them; the recorded rewards do not change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np

from marl.core.statistics import adapted_kl
from marl.core.types import Metrics, Reading, Turn, TurnId
from marl.protocols import Evidence
from marl.scenario.schema import KlInReward, Overlong

TokenRewards = dict[TurnId, tuple[float, ...]]
"""Turn -> reward of each of its tokens; penalties are negative."""
Penalties = dict[str, dict[TurnId, float]]
"""Name (`kl`, `overlong`) -> turn -> sum over its tokens."""


class TokenPenalties:
    """Both penalties of one rule, with the state of an adaptive KL coefficient."""

    def __init__(self, kl: KlInReward | None, overlong: Overlong | None) -> None:
        self._kl, self._overlong = kl, overlong
        self._coefficient = kl.coefficient if kl else 0.0
        self.needs = kl.needs if kl else frozenset[str]()
        self.adapts = kl is not None and kl.target is not None
        """True if the KL coefficient of a step depends on the steps before."""

    def __call__(self, evidence: Evidence, credited: Set[TurnId] | None) -> tuple[TokenRewards, Penalties, Metrics]:
        """Return token rewards, their sums by name, and metrics of the `credited` turns (None: all turns).

        `credit/kl`: mean over turns of the mean k_t (nats). `credit/kl_coefficient`: the coefficient that multiplied
        k_t. `credit/overlong`: mean over turns of the reward for their length. Turns whose token rewards are all 0 are
        absent from the first two results.
        """
        turns: dict[TurnId, Turn] = {}
        for trajectory in evidence.trajectories:
            turns.update((turn.id, turn) for turn in trajectory.turns if turn.completion.token_ids)
        rewards = {turn_id: [0.0] * len(turn.completion.token_ids) for turn_id, turn in turns.items()}
        metrics: Metrics = {}
        sums: Penalties = {}
        if self._kl:
            metrics |= self._add_kl(self._kl, rewards, evidence.readings, credited)
            sums["kl"] = {turn: sum(tokens) for turn, tokens in rewards.items() if any(tokens)}
        if self._overlong:
            lengths = _add_overlong(self._overlong, rewards)
            sums["overlong"] = {turn: reward for turn, reward in lengths.items() if reward}
            counted = [reward for turn, reward in lengths.items() if credited is None or turn in credited]
            if counted:
                metrics["credit/overlong"] = _mean(counted)
        return {turn: tuple(tokens) for turn, tokens in rewards.items() if any(tokens)}, sums, metrics

    def _add_kl(
        self,
        kl: KlInReward,
        rewards: Mapping[TurnId, list[float]],
        readings: Mapping[TurnId, Reading],
        credited: Set[TurnId] | None,
    ) -> Metrics:
        """Write the KL rewards into `rewards`, adapt the coefficient for the next step, and return the metrics."""
        means = list[float]()
        for turn in rewards:
            reading = readings.get(turn)
            if reading is None or reading.reference is None:
                continue
            k = kl_per_token(reading.logprobs, reading.reference, kl)
            rewards[turn][:] = [-self._coefficient * token_k for token_k in k]
            if credited is None or turn in credited:
                means.append(_mean(k))
        metrics = {"credit/kl_coefficient": self._coefficient}
        if means:
            metrics["credit/kl"] = _mean(means)
        if means and kl.target is not None:
            self._coefficient = adapted_kl(self._coefficient, _mean(means), kl.target, len(means), kl.horizon)
        return metrics

    def state_dict(self) -> dict[str, Any]:
        return {"kl_coefficient": self._coefficient} if self.adapts else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if self.adapts:
            self._coefficient = float(state["kl_coefficient"])


def kl_per_token(logprobs: tuple[float, ...], reference: tuple[float, ...], kl: KlInReward) -> list[float]:
    """Return the KL estimate k_t of each token, in nats."""
    d = np.subtract(logprobs, reference)
    # Infinities pass without a warning here: the learner refuses them and names the turn.
    with np.errstate(over="ignore", invalid="ignore"):
        if kl.estimator == "k1":
            k = d
        elif kl.estimator == "k2":
            k = d**2 / 2
        elif kl.estimator == "k3":
            k = np.expm1(-d) + d
        else:
            k = abs(d)
    return (k if kl.clamp is None else k.clip(-kl.clamp, kl.clamp)).tolist()


def _add_overlong(overlong: Overlong, rewards: Mapping[TurnId, list[float]]) -> dict[TurnId, float]:
    """Add each turn's reward for its length to the reward of its last token; return the rewards for length."""
    added: dict[TurnId, float] = {}
    for turn, tokens in rewards.items():
        penalty = soft_overlong_penalty(len(tokens), overlong.limit, overlong.buffer, capped=overlong.capped)
        added[turn] = overlong.factor * penalty
        tokens[-1] += added[turn]
    return added


def soft_overlong_penalty(length: int, limit: int, buffer: int, *, capped: bool = True) -> float:
    """Return DAPO's soft overlong punishment (arXiv 2503.14476, equation 13) of a completion of `length` tokens.

    The punishment is 0 up to `limit - buffer` tokens, -1 at `limit`, and linear between. Beyond `limit` it stays -1 if
    `capped` (paper, OpenRLHF), else it continues to fall (verl, ms-swift).
    """
    over = (length - (limit - buffer)) / buffer
    return min(0.0, max(-over, -1.0) if capped else -over)


def _mean(numbers: Sequence[float]) -> float:
    # Not `fmean`, which raises on infinities of both signs: the learner is to refuse and name those.
    return sum(numbers) / len(numbers)
