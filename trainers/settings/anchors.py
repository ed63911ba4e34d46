"""What a policy is kept close to, and how hard."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt, field_validator, model_validator

from marl.config import Config

Estimator = Literal["exact", "k2", "k3", "k3_is", "k1+", "k3+"]
HORIZON = 10_000


class Anchor(Config):
    """A penalty on the KL divergence (nats a token) from the policy to a fixed or slowly moving copy of it."""

    coefficient: NonNegativeFloat
    """0, and nothing that would change it: no part of the loss, only there for credit that reads it."""
    final: NonNegativeFloat | None = None
    """The coefficient of the run's last update, reached linearly. None: it stays."""
    target: PositiveFloat | None = None
    """KL (nats a token) that the coefficient is steered to from update to update (1909.08593). None: it is not."""
    horizon: PositiveInt = HORIZON
    """Samples over which a steered coefficient changes by as much as it may."""
    refresh: PositiveInt | None = None
    """Updates between copies of the current policy. None: the initial weights, for ever."""
    estimator: Estimator = "exact"
    """Over the whole vocabulary, or from the sampled token: `k2`; `k3_is`, corrected by the ratio to the policy that
    sampled; `k1+` and `k3+`, values of k1 and k3 with k2's gradient. All have the KL's gradient in expectation on fresh
    samples (`k3_is` on older ones, too) but plain `k3`, whose gradient is that of KL(anchor ‖ policy)."""
    clamp: PositiveFloat | None = None
    """Greatest estimate (nats) of one token, either sign, with no gradient beyond: 10 in verl and OpenRLHF."""

    @field_validator("estimator", mode="before")
    @classmethod
    def _check_signal(cls, estimator: Any) -> Any:
        if estimator in ("k1", "abs"):
            raise ValueError(
                f"estimator={estimator!r} is refused in a loss: k1 has no gradient in expectation, only noise, and abs "
                "is biased; choose exact, k2, k3_is or k1+, or put k1 into the reward (credit)"
            )
        return estimator

    @model_validator(mode="after")
    def _check_steering(self) -> Self:
        if self.target is None:
            if self.horizon != HORIZON:
                raise ValueError(f"horizon={self.horizon} has no effect without a target; give one, or remove it")
        elif self.final is not None or self.coefficient == 0:
            raise ValueError(
                f"target={self.target} steers the coefficient from a start above 0, got coefficient={self.coefficient} "
                f"with final={self.final}; give a coefficient above 0 and no final"
            )
        if self.clamp is not None and self.estimator == "exact":
            raise ValueError(f"clamp={self.clamp} has no effect with estimator='exact'; choose a sampled one")
        return self

    @property
    def penalises(self) -> bool:
        """Whether it is ever part of the loss."""
        return self.coefficient > 0 or bool(self.final)
