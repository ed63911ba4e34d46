"""Which turns of a step are compared with which."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import PositiveFloat, PositiveInt, model_validator

from marl.config import Config
from trainers.settings.optimisation import Optimisation

Worth = Literal["paid", "earned"]
"""`paid`: what its agent was paid in the whole episode. `earned`: what credit assigned the turn, baseline aside."""
IDLE = ("aggregation", "norm", "merge")
"""Settings that mean nothing where a loss is a mean over pairs and every row has rivals of its own."""


class Pairing(Optimisation):
    """Learns from pairs of a step of which one side went better. Pairs have the same start, so luck is the same."""

    compares: ClassVar[bool] = True
    pairs: Literal["siblings", "best_worst", "episodes"] = "siblings"
    """`siblings`: turns that were asked the same, every better one with every worse one. `best_worst`: of those, the
    best with the worst. `episodes`: all turns of an agent in a better episode with all of them in a worse one."""
    by: Worth = "paid"
    """What better means."""
    margin: PositiveFloat = 1e-6
    """The least difference that makes a pair."""
    most: PositiveInt | None = None
    """The most pairs of turns that were asked the same, or of episodes with the same start: the clearest first."""

    @property
    def judged(self) -> bool:
        """What was paid is known without a credit rule."""
        return self.by == "earned"

    @model_validator(mode="after")
    def _check_idle(self) -> Self:
        fields = Optimisation.model_fields
        changed = {name: value for name in IDLE if (value := getattr(self, name)) != fields[name].default}
        if changed:
            raise ValueError(f"{changed} has no effect on pairs, whose loss is a mean over them; remove it")
        return self


class Keep(Config):
    """Which turns are imitated (rejection sampling)."""

    at_least: float | None = None
    """Those worth this."""
    best: PositiveInt | None = None
    """Of each agent and start, those of so many episodes that went best; by `earned`, the best turns of those that
    were asked the same."""
    by: Worth = "paid"
    """What worth means."""

    @model_validator(mode="after")
    def _keeps(self) -> Self:
        if self.at_least is None and self.best is None:
            raise ValueError("at_least and best are both missing, so all would be kept; give one, or no `keep`")
        return self
