"""Settings of direct preference optimisation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from marl.config import Sampling
from marl.protocols import Brief
from trainers.settings.pairing import Pairing

if TYPE_CHECKING:
    from trainers.learner import Learner


class Dpo(Pairing):
    """Makes the better side of a pair likelier than the worse one: DPO, cDPO, robust DPO, IPO, SLiC's hinge.

    With `refresh`, on fresh play: iterative DPO. Without: online DPO. With `experience: preferences`: offline DPO.
    """

    kind: str = "dpo"
    loss: Literal["sigmoid", "ipo", "hinge", "robust"] = "sigmoid"
    """`sigmoid`: DPO (2305.18290), with `smoothing` cDPO. `robust`: 2403.00409. `ipo`: 2310.12036. `hinge`: SLiC."""
    beta: PositiveFloat = 0.1
    """How closely the policy is kept to the reference; IPO's tau."""
    smoothing: float = Field(default=0.0, ge=0, lt=0.5)
    """Share of pairs that are taken to be the wrong way round; of `sigmoid` and `robust`."""
    over: Literal["sum", "mean"] = "sum"
    """Of a side's tokens. `mean` makes `sigmoid` TRL's `sigmoid_norm`, and `ipo` what TRL 1.16 and its authors run."""
    nll: NonNegativeFloat = 0.0
    """Weight of imitating the better side: the mean -log p of its tokens (Iterative RPO, 2404.19733)."""
    refresh: PositiveInt | None = None
    """Updates between copies of the policy into the reference. None: the initial weights, for ever."""

    @model_validator(mode="after")
    def _check_smoothing(self) -> Self:
        if self.smoothing and self.loss not in ("sigmoid", "robust"):
            raise ValueError(f"smoothing={self.smoothing} has no effect with loss={self.loss!r}; use sigmoid or robust")
        return self

    def corrects(self, sampling: Sampling) -> bool:
        """A preference does not ask how a token was chosen."""
        return True

    def build(self, brief: Brief) -> Learner:
        """A learner with its own copy of the weights, and the reference."""
        from trainers.learner import Learner
        from trainers.objectives.preference import Preference

        model = brief.source.model()
        return Learner(self, brief, model, Preference(self, model, brief.steps))
