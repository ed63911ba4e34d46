"""Who earned it, by a central critic: what a turn added to what its agent would have said otherwise (COMA)."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, PositiveInt, model_validator

from credit.assign.value_decomposition import FittedAssign
from marl.protocols import Assign


class Coma(FittedAssign):
    """COMA (arXiv 1705.08926): A_i = Q(s, a) - sum over a' of pi_i(a') Q(s, (a_-i, a')).

    A central critic judges what one agent said, knowing what its round holds: the round's state and what the others
    said in it. Where moves are listed, the sum is over all of them, each as likely as its policy is to say the text of
    it (`Request.options`) and no other of them; these texts are scored, which is counted as tokens spent. Elsewhere it
    is over `alternatives`. A turn that has none gets 0, and what `rest` keeps.
    """

    kind: str = "coma"
    lam: float = Field(default=0.8, ge=0, le=1)
    """Of TD(lambda): G_t = r_t + gamma [(1 - lam) Q_target(t + 1) + lam G_(t + 1)], where Q(t + 1) is the mean over the
    round's agents. 0.8 as in pymarl."""
    alternatives: Literal["siblings", "resample"] = "siblings"
    """What an agent that may say any text could have said. `siblings`: what it said when asked the same, word for word,
    in other episodes of the step; `resample`: new answers of its policy, which cost tokens."""
    samples: PositiveInt = 8
    """How many of those at most."""

    @model_validator(mode="after")
    def _can_describe(self) -> Self:
        if self.alternatives == "resample" and self.features != "text":
            raise ValueError(
                f"alternatives: 'resample' gives new texts, of which no states are read (features: {self.features!r}); "
                "choices: features: text, or alternatives: siblings"
            )
        return self

    def build(self) -> Assign:
        from credit.mixing.central import Central

        return Central(self)
