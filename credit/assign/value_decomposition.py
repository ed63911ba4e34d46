"""Credit by networks that are fitted during the run: value decomposition (VDN, QMIX) and a central critic (COMA)."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, PositiveInt, model_validator

from marl.credit.assign.fitted import FittedNetworkAssign, ValueDecompositionAssign
from marl.protocols import AssignRule


class Vdn(ValueDecompositionAssign):
    """Value decomposition network (arXiv 1706.05296): Q_tot is the sum of the utilities, so a turn earns Q - V."""

    kind: str = "vdn"

    def build(self) -> AssignRule:
        from marl.credit.mixing.decomposition import DecompositionRule

        return DecompositionRule(self)


class Qmix(ValueDecompositionAssign):
    """QMIX (arXiv 1803.11485): Q_tot is a mixture of the agents' utilities, monotonic in each utility.

    The weights of the mixture are functions of the round's state: the agents' observations, the agents and their roles,
    and the round's position in the graph.
    """

    kind: str = "qmix"
    embed: PositiveInt = 32
    """Width of the mixing network's hidden layer."""

    def build(self) -> AssignRule:
        from marl.credit.mixing.decomposition import DecompositionRule

        return DecompositionRule(self, self.embed)


class Coma(FittedNetworkAssign):
    """COMA (arXiv 1705.08926): A_i = Q(s, a) - sum over a' of pi_i(a') Q(s, (a_-i, a')), by a central critic.

    The critic reads one agent's prompt and completion, the completions of the round's other agents, and the round's
    state. If the game lists the legal moves, the sum is over all moves. The probability of a move is the policy's
    probability of its text (`Request.options`), normalised over all moves; scoring these texts counts as tokens spent.
    Without such a list the sum is over `alternatives`. A turn without alternatives earns 0, plus the residual with
    `rest: keep`.
    """

    kind: str = "coma"
    lam: float = Field(default=0.8, ge=0, le=1)
    """Lambda of TD(lambda): G_t = r_t + gamma [(1 - lam) Q_target(t + 1) + lam G_(t + 1)], where Q(t + 1) is the mean
    over the round's agents. 0.8 as in pymarl."""
    alternatives: Literal["siblings", "resample"] = "siblings"
    """Alternative answers of a turn with free text. `siblings`: the agent's answers to the same prompt, token for
    token, in other episodes of the step; `resample`: new answers of the agent's policy, which cost tokens."""
    samples: PositiveInt = 8
    """Maximum number of alternatives of one turn with free text."""

    @model_validator(mode="after")
    def _check_alternatives_fit_features(self) -> Self:
        if self.alternatives == "resample" and self.features != "text":
            raise ValueError(
                f"alternatives: 'resample' gives new texts, of which no states are read (features: {self.features!r}); "
                "choices: features: text, or alternatives: siblings"
            )
        return self

    def build(self) -> AssignRule:
        from marl.credit.mixing.coma import ComaRule

        return ComaRule(self, self.alternatives, self.samples)
