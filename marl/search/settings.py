"""Settings of a search: how much it looks at, and what it takes for the worth of what it finds."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

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


class TurnSearchSettings(Config):
    """Settings of a search over the turns of a team, which picks one of several courses of an episode."""

    rule: Literal["best_of_n", "beam", "tree"]
    """`best_of_n`: whole courses, one independent of the other. `beam`: several answers at a turn, each played to the
    end, and on from the best one, then anew (AT-GRPO, 2510.11062). `tree`: UCT over turns, in which each course is a
    rollout (LATS, 2310.04406; rStar, 2408.06195)."""
    by: str
    """Rating by which courses are compared: `ROLE.score`, the last verdict of a role that answers with a number or yes
    or no; `ROLE.CHECK`, the last score of this name of a verifier or reward model; or `returns`, the sum of what the
    game pays, which is known in training only: an oracle."""
    verdicts: Literal["last", "mean", "least"] = "last"
    """Verdicts of the rating role that count: the last one (of several agents the mean of theirs), or the mean or the
    least of all, where it speaks after each step (a process reward model). Unreadable ones are left out."""
    tokens: PositiveInt
    """Most tokens that are sampled for a problem, by all roles together, the rating one included. A course counts if it
    is at its end by then; the first one always does. Prompts cost nothing here, and are reported."""
    width: int = Field(default=4, ge=2)
    """`beam`, `tree`: answers that are sampled at a turn, those that were said before included. When a whole tree has
    as many, one more is allowed at every turn of it."""
    growth: float = Field(default=0.0, ge=0, le=1)
    """`tree`: at a turn with N visits, `width` N^growth answers are sampled (progressive widening, Couetoux et al.
    2011). 0: `width` at every turn."""
    exploration: NonNegativeFloat = 1.0
    """`tree`: factor of sqrt(ln N / n) in UCB1 (Kocsis and Szepesvari 2006), in units of the range of ratings met."""
    prefix: float = Field(default=0.5, ge=0, le=1)
    """`tree`: weight of the rating of an answer itself, where the rating role speaks right after it (a process reward
    model), against the mean rating of the courses that go on from it."""
    roles: tuple[str, ...] = ()
    """`beam`, `tree`: roles at whose turns answers are compared; default: all that sample, without the rating one."""

    _only: ClassVar[dict[str, tuple[str, ...]]] = {
        **dict.fromkeys(("growth", "exploration", "prefix"), ("tree",)),
        **dict.fromkeys(("width", "roles"), ("beam", "tree")),
    }
    """Field -> rules that use it."""

    @model_validator(mode="after")
    def _used(self) -> Self:
        for name, rules in self._only.items():
            if name in self.model_fields_set and self.rule not in rules:
                raise ValueError(
                    f"{name}: has no effect with rule: {self.rule}; it belongs to rule: {', '.join(rules)}"
                )
        if self.by == "returns" and "verdicts" in self.model_fields_set:
            raise ValueError("verdicts: has no effect with by: returns; it belongs to a role that rates")
        return self
