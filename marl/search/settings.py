"""Settings of a search: how much it looks at, and what it takes for the worth of what it finds."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from marl.config import Config


class RootNoise(Config):
    """Dirichlet noise in the prior at the root, so that training looks at moves that the policy avoids (AlphaZero)."""

    share: float = Field(default=0.25, gt=0, le=1)
    """Share of the noise in the prior."""
    concentration: PositiveFloat = 10.0
    """Parameter of the noise, divided by the number of legal moves."""


class SearchSettings(Config):
    """Settings of a search from one position."""

    simulations: PositiveInt = 64
    """Simulations of a decision: each adds one position to the tree."""
    rule: Literal["puct", "gumbel"] = "puct"
    """`puct`: as AlphaZero (1712.01815), by prior and visits. `gumbel`: sequential halving at the root and the improved
    policy below it (Danihelka et al. 2022), which needs few simulations."""
    exploration: PositiveFloat = 1.25
    """`puct`: weight of the prior against values, in units of the range of values met in the tree."""
    considered: PositiveInt = 16
    """`gumbel`: most moves that are considered at the root."""
    visit_scale: NonNegativeFloat = 50.0
    """`gumbel`: number that is added to the visits of the most visited move before they multiply values (c_visit)."""
    value_scale: PositiveFloat = 0.1
    """`gumbel`: factor of that product (c_scale), in nats."""
    prior: Literal["policy", "uniform"] = "policy"
    """Prior of moves: the role's policy under its own prompt, normalised over legal moves, or none at all."""
    prior_temperature: PositiveFloat = 1.0
    """The prior is the policy's to the power of 1 / temperature: above 1, a search also looks at moves of which a sharp
    policy is sure that they are bad (Leela Chess Zero's policy temperature)."""
    values: Literal["rollouts", "critic"] = "rollouts"
    """Value of a new position: what plays from there to the end of the game pay; or what the critic of the policy that
    is to move there expects (AlphaZero's value network), in games of one agent and zero-sum games of two, in which the
    other agent's value is the opposite. It counts as what is paid from there on: if a game pays before its end, credit
    must count to-go (`gae`, or `outcome: {to_go: true}`)."""
    rollouts: Literal["random", "policy"] = "random"
    """Moves of these plays: uniformly random ones, or the policies' own."""
    repeats: PositiveInt = 1
    """Number of these plays of a new position; their mean is its value."""
    determinizations: PositiveInt = 8
    """Most states that are sampled, in a game that hides something, among those that the agent to move cannot tell
    apart. Each is searched as if everything were known, and the results are averaged (PIMC). That is unsound: it plans
    with knowledge that nobody will have. Simulations are divided among them."""
    temperature: NonNegativeFloat = 0.0
    """A move is drawn from the search's policy to the power of 1 / temperature; 0 takes the best one. `gumbel`: above
    0, the best of noisy scores is taken, which is a draw from the improved policy as a whole."""
    noise: RootNoise | None = None
    """`puct`: noise in the prior at the root. None: there is none."""

    @model_validator(mode="after")
    def _check_values(self) -> Self:
        idle = [name for name, usual in _PLAYS.items() if getattr(self, name) != usual]
        if self.values == "critic" and idle:
            raise ValueError(
                f"{idle[0]}: {getattr(self, idle[0])!r} has no effect with values: 'critic', which plays nothing; "
                "choices: values: rollouts, or leave it out"
            )
        return self


_PLAYS = {"rollouts": "random", "repeats": 1}
"""Settings of plays to the end, with their defaults."""
