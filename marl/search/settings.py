"""Settings of searches over a game's moves and over the turns of a team."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from marl.core.config import Config, DistinctValues


class RootNoise(Config):
    """Dirichlet noise added to the prior of the root's moves, so that training explores unlikely moves (AlphaZero)."""

    share: float = Field(default=0.25, gt=0, le=1)
    """Share of the noise in the prior."""
    concentration: PositiveFloat = 10.0
    """Sum of the Dirichlet parameters. Each legal move's parameter is this number divided by the number of moves."""


class SearchSettings(Config):
    """Settings of a search from one position."""

    simulations: PositiveInt = 64
    """Number of simulations of a decision. Each adds one position to the tree."""
    rule: Literal["puct", "gumbel"] = "puct"
    """`puct`: as AlphaZero (1712.01815), by prior and visits. `gumbel`: sequential halving at the root and the improved
    policy below it (Danihelka et al. 2022), which needs few simulations."""
    exploration: PositiveFloat = 1.25
    """`puct`: weight of the prior against values, in units of the range of values in the tree."""
    considered: PositiveInt = 16
    """`gumbel`: maximum number of moves considered at the root."""
    visit_scale: NonNegativeFloat = 50.0
    """`gumbel`: constant c_visit in the scale of values, (c_visit + visits of the most visited move) c_scale."""
    value_scale: PositiveFloat = 0.1
    """`gumbel`: constant c_scale in the scale of values, in nats (see `visit_scale`)."""
    prior: Literal["policy", "uniform"] = "policy"
    """Prior of moves: the role's policy under its own prompt, normalised over legal moves, or uniform."""
    prior_temperature: PositiveFloat = 1.0
    """Temperature of the prior, the policy to the power of 1 / temperature. Above 1, a search also explores moves with
    almost no probability under a sharp policy (Leela Chess Zero's policy temperature)."""
    values: Literal["rollouts", "critic"] = "rollouts"
    """Value of a new position: the mean return of rollouts to the end of the game, or the value of the mover's critic
    (AlphaZero's value network). A critic needs a game of one agent, or a zero-sum game of two, where the other agent's
    value is the opposite. The critic's value counts as return from the position on: if a game pays before its end, use
    credit to-go (`gae`, or `outcome: {to_go: true}`)."""
    rollouts: Literal["random", "policy"] = "random"
    """Moves in rollouts: uniformly random, or sampled from the policies."""
    repeats: PositiveInt = 1
    """Number of rollouts from a new position, whose mean return is the value of the position."""
    hidden_information: Literal["ismcts", "pimc"] = "ismcts"
    """Search in a game of imperfect information. `ismcts`: one tree over information sets, with another state that the
    agent to move cannot tell from the real one in each simulation (Cowling et al. 2012). `pimc`: each of a few such
    states is searched with perfect information, and the results are averaged; plans use hidden information. Where the
    agent to move moves at once with others, the search is `pimc` with regret matching."""
    determinizations: PositiveInt | None = None
    """Maximum number of sampled states in a game of imperfect information (default: 8 with `pimc`, among which the
    simulations are divided, and one for each simulation with `ismcts`)."""
    temperature: NonNegativeFloat = 0.0
    """Temperature of the played move, drawn from the search's policy to the power of 1 / temperature (0: the best
    move). `gumbel`: above 0 the move with the best noisy score is played, which is a draw from the improved policy."""
    noise: RootNoise | None = None
    """`puct`: noise in the prior at the root, or None for no noise."""

    @property
    def asks_nobody(self) -> bool:
        """True if no policy and no critic is asked, as searches of moves made at once require."""
        return (self.prior, self.values, self.rollouts) == ("uniform", "rollouts", "random")

    @model_validator(mode="after")
    def _reject_rollout_settings_with_critic(self) -> Self:
        for name, setting, default in (("rollouts", self.rollouts, "random"), ("repeats", self.repeats, 1)):
            if self.values == "critic" and setting != default:
                raise ValueError(
                    f"{name}: {setting!r} has no effect with values: 'critic', which plays nothing; "
                    "choices: values: rollouts, or leave it out"
                )
        return self


class TurnSearchSettings(Config):
    """Settings of a search over the turns of a team. The search chooses among several rollouts of an episode."""

    rule: Literal["best_of_n", "beam", "tree"]
    """`best_of_n`: independent rollouts. `beam`: several answers at a turn, each played to the end, then the next turn
    of the best rollout, and after its end another beam (AT-GRPO, 2510.11062). `tree`: UCT over turns (LATS, 2310.04406;
    rStar, 2408.06195)."""
    by: str
    """Rating of rollouts: `ROLE.score`, the last verdict of a role with a number, yes or no as its answer;
    `ROLE.CHECK`, the last score of this name by a verifier or reward model; or `returns`, the sum of the game's rewards
    (an oracle, known in training only)."""
    verdicts: Literal["last", "mean", "least"] = "last"
    """Aggregation of the rating role's verdicts: the last (with several agents, the mean of their last), or mean or
    minimum of all, for a verdict after each step (process reward model). Unreadable verdicts are left out."""
    tokens: PositiveInt
    """Budget of sampled tokens for a problem, over all roles, the rating role included. A rollout counts if it ends
    within the budget; the first always counts. Prompt tokens are reported, but cost nothing."""
    width: int = Field(default=4, ge=2)
    """`beam`, `tree`: number of answers at a turn, including the answer of the first rollout. When all turns of a tree
    have this number, each may have one more."""
    growth: float = Field(default=0.0, ge=0, le=1)
    """`tree`: exponent of progressive widening: `width` N^growth answers at a turn with N visits (Couetoux et al.
    2011). 0: `width` at every turn."""
    exploration: NonNegativeFloat = 1.0
    """`tree`: factor of sqrt(ln N / n) in UCB1 (Kocsis and Szepesvari 2006), in units of the range of ratings so
    far."""
    prefix: float = Field(default=0.5, ge=0, le=1)
    """`tree`: weight of an answer's own rating against the mean rating of the rollouts through the answer. Answers have
    a rating of their own if the rating role speaks directly after them (process reward model)."""
    roles: DistinctValues[str] = ()
    """`beam`, `tree`: roles whose answers are searched (default: all roles with sampling, except the rating role)."""

    _only: ClassVar[dict[str, tuple[str, ...]]] = {
        **dict.fromkeys(("growth", "exploration", "prefix"), ("tree",)),
        **dict.fromkeys(("width", "roles"), ("beam", "tree")),
    }
    """Field -> rules with this setting."""

    @model_validator(mode="after")
    def _reject_settings_of_other_rules(self) -> Self:
        for name, rules in self._only.items():
            if name in self.model_fields_set and self.rule not in rules:
                raise ValueError(
                    f"{name}: has no effect with rule: {self.rule}; it belongs to rule: {', '.join(rules)}"
                )
        if self.by == "returns" and "verdicts" in self.model_fields_set:
            raise ValueError("verdicts: has no effect with by: returns; it belongs to a role that rates")
        return self
