"""Credit by networks that are fitted during the run: value decomposition (VDN, QMIX) and a central critic (COMA)."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, PositiveInt, model_validator

from marl.credit.assign.fitted import Decomposition, FittedAssign
from marl.protocols import Assign


class Vdn(Decomposition):
    """Value decomposition network (arXiv 1706.05296): Q_tot is the sum of the utilities, so a turn earns Q - V."""

    kind: str = "vdn"

    def build(self) -> Assign:
        from marl.credit.mixing.decomposition import DecompositionRule

        return DecompositionRule(self)


class Qmix(Decomposition):
    """QMIX (arXiv 1803.11485): Q_tot is a mix of the utilities that rises with each of them.

    The round's state decides its weights: what its agents knew, who they are, and its place in the graph.
    """

    kind: str = "qmix"
    embed: PositiveInt = 32
    """Width of the mixer."""

    def build(self) -> Assign:
        from marl.credit.mixing.decomposition import DecompositionRule

        return DecompositionRule(self, self.embed)


class Coma(FittedAssign):
    """COMA (arXiv 1705.08926): A_i = Q(s, a) - sum over a' of pi_i(a') Q(s, (a_-i, a')), by a central critic.

    It judges what one agent said, knowing what its round holds: the round's state and what its other agents said.
    Where moves are listed, the sum is over all of them, each as likely as its policy is to say the text of it
    (`Request.options`) and no other of them; these texts are scored, which is counted as tokens spent. Elsewhere it
    is over `alternatives`. A turn that has none gets 0, and what `rest` keeps.
    """

    kind: str = "coma"
    lam: float = Field(default=0.8, ge=0, le=1)
    """Lambda of TD(lambda): G_t = r_t + gamma [(1 - lam) Q_target(t + 1) + lam G_(t + 1)], where Q(t + 1) is the mean
    over the round's agents. 0.8 as in pymarl."""
    alternatives: Literal["siblings", "resample"] = "siblings"
    """Alternatives of an agent that may say any text. `siblings`: what it said with the same prompt, word for
    word, in other episodes of the step; `resample`: new answers of its policy, which cost tokens."""
    samples: PositiveInt = 8
    """Largest number of alternatives of one turn."""

    @model_validator(mode="after")
    def _check_alternatives(self) -> Self:
        if self.alternatives == "resample" and self.features != "text":
            raise ValueError(
                f"alternatives: 'resample' gives new texts, of which no states are read (features: {self.features!r}); "
                "choices: features: text, or alternatives: siblings"
            )
        return self

    def build(self) -> Assign:
        from marl.credit.mixing.coma import ComaRule

        return ComaRule(self, self.alternatives, self.samples)
