"""What tokens are charged beside what the game pays: their distance from a reference model, and too many of them.

Rewards themselves do not change: what is charged is seen by credit alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from marl.config import Config
from marl.controllers import adapted_kl
from marl.judging.overlong import punishment

if TYPE_CHECKING:
    from marl.protocols import Evidence
    from marl.types import Metrics, Reading, Turn, TurnId

TokenRewards = dict["TurnId", tuple[float, ...]]
"""Turn -> what each of its tokens is paid (charged, where it is negative)."""


HORIZON = 10_000
"""Turns, as in verl."""


class KlInReward(Config):
    """A KL penalty in the reward: token t is charged `coefficient` k_t, a constant that no gradient flows through.

    k_t is estimated from the sampled token, d = log p_policy - log p_reference in nats: `k1` d (usual), `k2` d^2 / 2,
    `k3` exp(-d) - 1 + d, `abs` |d|. The learner of whoever is charged must have a `reference`.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"logprobs", "reference"})
    """What of a turn it is read from."""
    coefficient: NonNegativeFloat
    estimator: Literal["k1", "k2", "k3", "abs"] = "k1"
    clamp: PositiveFloat | None = None
    """k_t stays between minus this and this (OpenRLHF: 10)."""
    target: PositiveFloat | None = None
    """The coefficient follows the mean k_t so that it comes to this (nats a token; verl: 0.1). None: it is constant."""
    horizon: PositiveInt = HORIZON
    """Turns after which the coefficient of a `target` that is missed has risen or fallen by up to a fifth (Ziegler et
    al. 2019, arXiv 1909.08593)."""

    @model_validator(mode="after")
    def _adapts(self) -> Self:
        if self.target is not None and not self.coefficient:
            raise ValueError(f"coefficient: 0 times anything is 0, so target: {self.target:g} has no effect; give more")
        # Not whether it was set: settings that were written down and read again say all they are.
        if self.target is None and self.horizon != HORIZON:
            raise ValueError(f"horizon: {self.horizon} has no effect on a constant coefficient; give a target")
        return self


class Overlong(Config):
    """DAPO's soft punishment of long answers (arXiv 2503.14476): from 0 at `limit` - `buffer` tokens to -1 at `limit`,
    times `factor`, charged at the last token. Lengths are of completions, the end token included."""

    limit: PositiveInt
    buffer: PositiveInt
    factor: PositiveFloat = 1.0
    capped: bool = True
    """Whether it stays -1 beyond the limit (paper, OpenRLHF), or goes on falling (verl, ms-swift)."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.buffer > self.limit:
            raise ValueError(f"buffer: {self.buffer} tokens before the limit of {self.limit}; choices: 1 to the limit")
        return self


class Charges:
    """Both at work, with the state of a coefficient that adapts."""

    def __init__(self, kl: KlInReward | None, overlong: Overlong | None) -> None:
        self._kl, self._overlong = kl, overlong
        self._coefficient = kl.coefficient if kl else 0.0
        self.needs = kl.needs if kl else frozenset[str]()

    @property
    def adapts(self) -> bool:
        """Whether a step is charged by those before."""
        return self._kl is not None and self._kl.target is not None

    def __call__(self, evidence: Evidence, judged: Set[TurnId] | None) -> tuple[TokenRewards, Metrics]:
        """What tokens are paid, of every turn that has some; figures are of `judged` (None: all) alone.

        `credit/kl`: mean over turns of the mean k_t (nats), `credit/kl_coefficient`: what it was charged with.
        `credit/overlong`: mean over turns of what they were paid for their length.
        """
        turns = {turn.id: turn for t in evidence.trajectories for turn in t.turns if turn.completion.token_ids}
        paid = {turn: [0.0] * len(said.completion.token_ids) for turn, said in turns.items()}
        metrics: Metrics = {}
        if self._kl:
            metrics |= self._charge_kl(self._kl, paid, evidence.readings, judged)
        if self._overlong:
            metrics |= _charge_length(self._overlong, paid, turns, judged)
        return {turn: tuple(own) for turn, own in paid.items() if any(own)}, metrics

    def _charge_kl(
        self,
        kl: KlInReward,
        paid: Mapping[TurnId, list[float]],
        readings: Mapping[TurnId, Reading],
        judged: Set[TurnId] | None,
    ) -> Metrics:
        means = list[float]()
        for turn in paid:
            reading = readings.get(turn)
            if reading is None or reading.reference is None:
                continue
            told = divergences(reading.logprobs, reading.reference, kl)
            paid[turn][:] = [-self._coefficient * k for k in told]
            if judged is None or turn in judged:
                means.append(_mean(told))
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
    """k_t of each token, in nats."""
    import numpy as np

    d = np.subtract(logprobs, reference)
    with np.errstate(over="ignore", invalid="ignore"):
        found = {"k1": lambda: d, "k2": lambda: d**2 / 2, "k3": lambda: np.expm1(-d) + d, "abs": lambda: abs(d)}
        k = found[kl.estimator]()
    return (k if kl.clamp is None else k.clip(-kl.clamp, kl.clamp)).tolist()


def _charge_length(
    overlong: Overlong,
    paid: Mapping[TurnId, list[float]],
    turns: Mapping[TurnId, Turn],
    judged: Set[TurnId] | None,
) -> Metrics:
    found = list[float]()
    for turn, said in turns.items():
        length = len(said.completion.token_ids)
        one = overlong.factor * punishment(length, overlong.limit, overlong.buffer, capped=overlong.capped)
        paid[turn][-1] += one
        if judged is None or turn in judged:
            found.append(one)
    return {"credit/overlong": _mean(found)} if found else {}


def _mean(numbers: Sequence[float]) -> float:
    # Not `fmean`, which raises where infinities of both signs meet: those are for the learner to refuse and to name.
    return sum(numbers) / len(numbers)
