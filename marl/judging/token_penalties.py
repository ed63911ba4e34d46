"""Penalties on tokens beside the game's rewards: KL divergence from a reference model, and overlong completions.

Only credit sees them; rewards themselves do not change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

from marl.statistics import adapted_kl

if TYPE_CHECKING:
    from marl.protocols import Evidence
    from marl.scenario.schema import KlInReward, Overlong
    from marl.types import Metrics, Reading, Turn, TurnId

TokenRewards = dict["TurnId", tuple[float, ...]]
"""Turn -> reward of each of its tokens; penalties are negative."""
Penalties = dict[str, dict["TurnId", float]]
"""Name (`kl`, `overlong`) -> turn -> sum over its tokens."""


class TokenPenalties:
    """Both penalties at work, with the state of a KL coefficient that adapts."""

    def __init__(self, kl: KlInReward | None, overlong: Overlong | None) -> None:
        self._kl, self._overlong = kl, overlong
        self._coefficient = kl.coefficient if kl else 0.0
        self.needs = kl.needs if kl else frozenset[str]()

    @property
    def adapts(self) -> bool:
        """Return True if the KL coefficient of a step depends on the steps before."""
        return self._kl is not None and self._kl.target is not None

    def __call__(self, evidence: Evidence, judged: Set[TurnId] | None) -> tuple[TokenRewards, Penalties, Metrics]:
        """Return the token rewards of every turn that has some, their sums by name, and figures of `judged` turns.

        `credit/kl`: mean over turns of the mean k_t (nats). `credit/kl_coefficient`: the coefficient it was multiplied
        by. `credit/overlong`: mean over turns of the reward for their length.
        """
        turns = {turn.id: turn for t in evidence.trajectories for turn in t.turns if turn.completion.token_ids}
        rewards = {turn_id: [0.0] * len(turn.completion.token_ids) for turn_id, turn in turns.items()}
        metrics: Metrics = {}
        sums: dict[str, dict[TurnId, float]] = {}
        if self._kl:
            metrics |= self._add_kl(self._kl, rewards, evidence.readings, judged)
            sums["kl"] = {turn: sum(tokens) for turn, tokens in rewards.items() if any(tokens)}
        if self._overlong:
            lengths = _add_length(self._overlong, rewards, turns)
            sums["overlong"] = {turn: reward for turn, reward in lengths.items() if reward}
            counted = [reward for turn, reward in lengths.items() if judged is None or turn in judged]
            metrics |= {"credit/overlong": _mean(counted)} if counted else {}
        return {turn: tuple(tokens) for turn, tokens in rewards.items() if any(tokens)}, sums, metrics

    def _add_kl(
        self,
        kl: KlInReward,
        rewards: Mapping[TurnId, list[float]],
        readings: Mapping[TurnId, Reading],
        judged: Set[TurnId] | None,
    ) -> Metrics:
        means = list[float]()
        for turn in rewards:
            reading = readings.get(turn)
            if reading is None or reading.reference is None:
                continue
            tokens = divergences(reading.logprobs, reading.reference, kl)
            rewards[turn][:] = [-self._coefficient * k for k in tokens]
            if judged is None or turn in judged:
                means.append(_mean(tokens))
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


def divergences(logprobs: tuple[float, ...], reference: tuple[float, ...], kl: KlInReward) -> list[float]:
    """Return k_t of each token, in nats."""
    import numpy as np

    d = np.subtract(logprobs, reference)
    with np.errstate(over="ignore", invalid="ignore"):
        estimators = {"k1": lambda: d, "k2": lambda: d**2 / 2, "k3": lambda: np.expm1(-d) + d, "abs": lambda: abs(d)}
        k = estimators[kl.estimator]()
    return (k if kl.clamp is None else k.clip(-kl.clamp, kl.clamp)).tolist()


def _add_length(
    overlong: Overlong, rewards: Mapping[TurnId, list[float]], turns: Mapping[TurnId, Turn]
) -> dict[TurnId, float]:
    """Add the reward for its length to each turn's last token; return these rewards."""
    lengths = {turn_id: len(turn.completion.token_ids) for turn_id, turn in turns.items()}
    added = {
        turn: overlong.factor * length_penalty(length, overlong.limit, overlong.buffer, capped=overlong.capped)
        for turn, length in lengths.items()
    }
    for turn, reward in added.items():
        rewards[turn][-1] += reward
    return added


def length_penalty(length: int, limit: int, buffer: int, *, capped: bool = True) -> float:
    """Return DAPO's soft overlong punishment (arXiv 2503.14476, equation 13) of a completion of `length` tokens.

    0 up to `limit - buffer`, -1 at `limit`, linear between. Beyond `limit` it stays -1 if `capped` (paper, OpenRLHF),
    else it goes on falling (verl, ms-swift).
    """
    over = (length - (limit - buffer)) / buffer
    return min(0.0, max(-over, -1.0) if capped else -over)


def _mean(numbers: Sequence[float]) -> float:
    # Not `fmean`, which raises where infinities of both signs meet: the learner refuses and names those.
    return sum(numbers) / len(numbers)
