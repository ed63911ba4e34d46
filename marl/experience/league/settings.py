"""Settings of a league: its players, their opponents, and the pool of earlier weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Literal, Self

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)

from marl.core.config import Config, DistinctValues, choices_hint
from marl.experience.league.pool import POOL, SELF
from marl.protocols import Experience, ExperienceConfig, ScenarioSummary

MatchmakingRule = Literal["uniform", "latest", "pfsp", "pfsp_even", "psro", "rectified", "alpha_rank", "anytime"]


class ResetConditions(Config):
    """Conditions for resetting a player: its weights return to their initial values, its optimizer is re-created, and
    its latest weights join the pool."""

    every: PositiveInt | None = None
    """Number of updates after which the player is reset, or null to reset the player by `win_rate` alone."""
    win_rate: float | None = Field(default=None, gt=0, le=1)
    """Win rate at which the player is reset if it holds against every opponent (a draw is half a win), or null to reset
    the player by `every` alone."""
    games: PositiveInt = 100
    """Minimum number of games against each opponent for a reset by `win_rate`."""

    @model_validator(mode="after")
    def _check_has_reset_condition(self) -> Self:
        if self.every is None and self.win_rate is None:
            raise ValueError("every and win_rate are both null, so that it never happens; give one, or leave reset out")
        return self


class Population(Config):
    """Frozen members of another run's league, from which the opponents of a group are drawn."""

    run: Path
    """`RUN@pool` (every member with equal probability) or `RUN@meta` (members by the run's meta-strategy). The members
    and their probabilities are read once, before the first step; the run must keep their folders. The engine and the
    model settings of the policy of the role `opponent` load them."""

    @field_validator("run")
    @classmethod
    def _check_names_population(cls, run: Path) -> Path:
        if not run.name.endswith(("@pool", "@meta")):
            raise ValueError(f"{run}: names no population; choices: RUN@pool, RUN@meta")
        return run


class LeaguePlayer(Config):
    """Settings of one learning player: its opponents, additions to the pool, and resets.

    AlphaStar's players (Vinyals et al. 2019, https://doi.org/10.1038/s41586-019-1724-z): a main agent plays against
    itself and all of the pool, `{self: .35, pool: .65}` by `pfsp`; a main exploiter against the main agent alone,
    `{actor: 1}`; a league exploiter against all of the pool, `{pool: 1}`. Both exploiters have a `reset`.
    """

    share: PositiveFloat = 1.0
    """Weight of the player's games among the games of all players."""
    opponents: dict[str, NonNegativeFloat] = Field(default={SELF: 0.5, POOL: 0.5})
    """Opponent -> weight of its games among the player's games. Opponents: `self` (both seats learn), `pool` (earlier
    weights), a policy of the scenario with its newest weights, a name in `populations` (frozen members of another run's
    league), or a player that the game exports, such as `random`."""
    pool: DistinctValues[str] | None = None
    """Policies whose earlier weights the player meets (null: the policies of all players)."""
    by: MatchmakingRule = "pfsp"
    """Distribution over the members of the pool, from which opponents are drawn. `uniform`: equal probabilities; with
    `opponents: {pool: 1}` this is fictitious self-play against the average of all earlier weights (Heinrich et al.
    2015). `latest`: the newest member. `pfsp`: in proportion to (1 - win rate)^power, which prefers opponents that win.
    `pfsp_even`: in proportion to win rate x (1 - win rate), which prefers opponents of equal strength. `psro`: a Nash
    equilibrium of the pool's payoffs. `rectified`: the same equilibrium, restricted to members that the player's newest
    member beats or ties (Balduzzi et al. 2019). `alpha_rank`: the stationary distribution of alpha-Rank on the pool's
    payoffs (Omidshafiei et al. 2019). `anytime`: the least exploitable mixture of members, found by regret matching
    against the player while it learns, from the episodes of training alone (anytime PSRO, McAleer et al. 2022)."""
    power: NonNegativeFloat = 2.0
    """Exponent of (1 - win rate) in `pfsp`."""
    every: PositiveInt | None = 20
    """Number of updates between two additions of the player's weights to the pool (null: only resets add weights)."""
    reset: ResetConditions | None = None
    """Conditions for resetting the player (null: the player is never reset)."""

    @property
    def needs_payoffs(self) -> bool:
        """Return True if members of the pool play each other, so that `by` can use their payoffs."""
        return self.by in ("psro", "rectified", "alpha_rank")

    @field_validator("opponents")
    @classmethod
    def _check_has_opponent(cls, opponents: dict[str, float]) -> dict[str, float]:
        if not sum(opponents.values()):
            raise ValueError("no opponent has a weight above 0; give one, such as self: 1")
        return opponents


class League(ExperienceConfig):
    """Fresh play against earlier weights of the run's own policies, fixed players, and the player itself.

    All episodes of a group have one opponent. Earlier weights are written to league/POLICY/STEP in the run's folder,
    and loaded for the episodes against them.
    """

    kind: str = "league"
    players: dict[str, LeaguePlayer] = Field(default_factory=lambda: {"player": LeaguePlayer()}, min_length=1)
    """Learning role -> settings of the player with this role. In its share of the groups, a player takes the seats of
    all players, so `seats` needs to name only one of the players."""
    opponent: str = "opponent"
    """Role in whose seats opponents play; it must not be trainable. The opponent replaces the role's policy."""
    populations: dict[str, Population] = Field(default_factory=dict[str, Population])
    """Name of an opponent -> frozen members of another run's league. Each group that meets this opponent has one
    member, drawn as members of the pool are; `draws` holds for it, too."""
    keep: int = Field(default=200, ge=2)
    """Maximum number of members of the pool from each policy. If there are more, the member whose neighbours in time
    are closest to each other is removed, never the oldest or the newest. So members stay spread over the run."""
    resident: PositiveInt = 1
    """Maximum number of members of the pool in memory at the same time, in addition to the scenario's policies."""
    draws: PositiveInt = 4
    """Maximum number of members of the pool that a player meets in a step; each of them is loaded once."""
    decay: float = Field(default=0.99, gt=0, le=1)
    """Factor by which every new result against an opponent reduces the weight of earlier results in the win rate
    (AlphaStar: 0.99)."""
    matches: PositiveInt = 32
    """Number of episodes between two members of the pool, from which `psro`, `rectified` and `alpha_rank` estimate
    their payoffs."""
    budget: PositiveInt = 512
    """Maximum number of episodes per step between members of the pool, played to estimate payoffs. Pairs with the
    newest members are played first."""
    refine: NonNegativeInt = 0
    """Maximum number of episodes per step, once all pairs have played, that refine payoffs where the meta-strategy
    needs them: between members that it gives a probability above 0."""

    def build(self) -> Experience:
        from marl.experience.league.league import LeagueExperience

        return LeagueExperience(self)

    @property
    def max_saved_weights_in_memory(self) -> int:
        """Return the maximum number of members of the pool in memory at the same time: `resident`."""
        return self.resident

    def seatings(self, role_by_agent: Mapping[str, str]) -> list[dict[str, str]]:
        """Return the scenario's seats, and for each player the seats with this player in all players' seats."""
        seatings = [dict(role_by_agent)]
        for name in self.players:
            seatings.append({agent: name if role in self.players else role for agent, role in role_by_agent.items()})
        return seatings

    def policies_without_role(self) -> Collection[str]:
        names: set[str] = set()
        for player in self.players.values():
            names |= player.opponents.keys()
        return names

    def scenario_conflicts(self, summary: ScenarioSummary) -> Iterator[str]:
        if summary.game is None:
            yield "kind: 'league' plays one game; give `game` in place of `games`"
            return
        if self.opponent not in summary.seats.values():
            choices = choices_hint(self.opponent, {*summary.seats.values()})
            yield f"opponent: no seat has the role {self.opponent!r}; {choices}"
        if self.opponent in summary.trained_roles:
            yield f"opponent: roles.{self.opponent} is trained on what opponents say; set trainable: false"
        for name in self.populations:
            if name in (SELF, POOL, "random", *summary.has_weights, *summary.game.reference_players()):
                yield f"populations.{name}: another opponent has this name; choose one of its own"
        if not self.players.keys() & set(summary.seats.values()):
            yield f"players: none of {', '.join(self.players)} has a seat; seats: {dict(summary.seats)}"
        policies = Counter(summary.trained_roles.get(name) for name in self.players)
        for name, player in self.players.items():
            field, policy = f"players.{name}", summary.trained_roles.get(name)
            if policy is None:
                yield f"{field}: no role of this name learns; {choices_hint(name, summary.trained_roles)}"
            elif policies[policy] > 1:
                yield f"{field}: speaks with policy {policy!r}, as another player does; each needs one of its own"
            for problem in self._player_conflicts(player, summary, [*filter(None, policies)]):
                yield f"{field}.{problem}"

    def _player_conflicts(
        self, player: LeaguePlayer, summary: ScenarioSummary, policies: Collection[str]
    ) -> Iterator[str]:
        assert summary.game is not None
        choices = {SELF, POOL, "random", *self.populations, *summary.has_weights, *summary.game.reference_players()}
        for name in player.opponents:
            if name not in choices:
                yield f"opponents.{name}: no such opponent; {choices_hint(name, choices)}"
        for name in player.pool or ():
            if name not in policies:
                yield f"pool: {name!r} is no policy of a player; {choices_hint(name, policies)}"
        if player.needs_payoffs and self.resident < 2:
            yield f"by: {player.by!r} lets two members of the pool play each other; set experience.resident: 2"
        two_player_zero_sum = len(summary.seats) == 2 and summary.game.is_zero_sum()
        if (player.needs_payoffs or player.by == "anytime") and not two_player_zero_sum:
            yield f"by: {player.by!r} needs a zero-sum game of two, which {summary.game.kind!r} is not; use pfsp"
