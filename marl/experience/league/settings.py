"""Settings of a league: its players, their opponents, and the pool of earlier weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Literal, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, field_validator, model_validator

from marl.core.config import Config, choices_hint
from marl.experience.league.pool import POOL, SELF
from marl.protocols import Experience, ExperienceConfig, ScenarioSummary

Matchmaking = Literal["uniform", "latest", "pfsp", "pfsp_even", "psro"]


class Reset(Config):
    """Conditions for resetting a player: its weights return to their initial values, its optimizer is re-created, and
    its latest weights join the pool."""

    every: PositiveInt | None = None
    """Updates after which the player is reset, or null to reset it by `win_rate` alone."""
    win_rate: float | None = Field(default=None, gt=0, le=1)
    """Share of points against every opponent from which on the player is reset (a draw is half a point), or null to
    reset it by `every` alone."""
    games: PositiveInt = 100
    """Games against each opponent before `win_rate` counts."""

    @model_validator(mode="after")
    def _happens(self) -> Self:
        if self.every is None and self.win_rate is None:
            raise ValueError("every and win_rate are both null, so that it never happens; give one, or leave reset out")
        return self


class LeaguePlayer(Config):
    """Settings of one learning player: its opponents, additions to the pool, and resets.

    AlphaStar's players (Vinyals et al. 2019, https://doi.org/10.1038/s41586-019-1724-z): a main agent plays against
    itself and all of the pool, `{self: .35, pool: .65}` by `pfsp`; a main exploiter against the main agent alone,
    `{actor: 1}`; a league exploiter against all of the pool, `{pool: 1}`. Both exploiters have a `reset`.
    """

    share: PositiveFloat = 1.0
    """Weight of the player's games among the games of all players."""
    opponents: dict[str, NonNegativeFloat] = Field(default={SELF: 0.5, POOL: 0.5})
    """Opponent -> weight: `self` (both seats learn), `pool` (earlier weights), a policy of the scenario as it is now,
    or a player that the game exports, such as `random`."""
    pool: tuple[str, ...] | None = None
    """Policies whose earlier weights the player meets. Null: the policies of all players."""
    by: Matchmaking = "pfsp"
    """Way of choosing a member of the pool: with equal probabilities (`uniform`; with `opponents: {pool: 1}` this is
    fictitious self-play against the average of all earlier weights, Heinrich et al. 2015), the newest (`latest`), by
    (1 - win rate)^power (`pfsp`, prefers opponents that win), by win rate x (1 - win rate) (`pfsp_even`, prefers
    opponents of equal strength), or by a Nash equilibrium of the pool's payoffs (`psro`)."""
    power: NonNegativeFloat = 2.0
    """Exponent of `pfsp`."""
    every: PositiveInt | None = 20
    """Updates between two additions of the player's weights to the pool. Null: only resets add weights."""
    reset: Reset | None = None
    """Conditions for resetting the player. Null: the player is never reset."""

    @field_validator("opponents")
    @classmethod
    def _has_opponent(cls, opponents: dict[str, float]) -> dict[str, float]:
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
    """Learning role -> its settings. Each of several players plays its share of the groups, in the seats of any player;
    so only one of them needs a seat in `seats`."""
    opponent: str = "opponent"
    """Role in whose seats opponents play; it must not be trainable. Opponents replace the role's policy."""
    keep: int = Field(default=200, ge=2)
    """Maximum number of members of the pool from each policy. Beyond it, the member whose neighbours in time are
    closest to each other is removed, never the oldest or the newest, so that members stay spread over the run."""
    resident: PositiveInt = 1
    """Maximum number of members of the pool in memory at the same time, beside the policies themselves."""
    draws: PositiveInt = 4
    """Maximum number of members of the pool that a player meets in a step; each is loaded once."""
    decay: float = Field(default=0.99, gt=0, le=1)
    """Factor by which every new result against an opponent reduces the weight of earlier results in the win rate
    (AlphaStar: 0.99)."""
    matches: PositiveInt = 32
    """Episodes between two members of the pool, from which `psro` estimates their payoffs."""
    budget: PositiveInt = 512
    """Maximum number of episodes between members of the pool in a step; pairs with the newest members come first."""

    def build(self) -> Experience:
        from marl.experience.league.league import LeaguePlay

        return LeaguePlay(self)

    @property
    def max_loaded_weights(self) -> int:
        """Return `resident`."""
        return self.resident

    def seatings(self, seats: Mapping[str, str]) -> list[dict[str, str]]:
        """Return the scenario's seats, and for each player the seats with this player in all players' seats."""
        seatings = [dict(seats)]
        for name in self.players:
            seatings.append({agent: name if role in self.players else role for agent, role in seats.items()})
        return seatings

    def extra_policies(self) -> Collection[str]:
        names: set[str] = set()
        for player in self.players.values():
            names |= player.opponents.keys()
        return names

    def scenario_conflicts(self, cast: ScenarioSummary) -> Iterator[str]:
        if cast.game is None:
            yield "kind: 'league' plays one game; give `game` in place of `games`"
            return
        if self.opponent not in cast.seats.values():
            choices = choices_hint(self.opponent, {*cast.seats.values()})
            yield f"opponent: no seat has the role {self.opponent!r}; {choices}"
        if self.opponent in cast.trained_roles:
            yield f"opponent: roles.{self.opponent} is trained on what opponents say; set trainable: false"
        if not self.players.keys() & set(cast.seats.values()):
            yield f"players: none of {', '.join(self.players)} has a seat; seats: {dict(cast.seats)}"
        policies = Counter(cast.trained_roles.get(name) for name in self.players)
        for name, player in self.players.items():
            field, policy = f"players.{name}", cast.trained_roles.get(name)
            if policy is None:
                yield f"{field}: no role of this name learns; {choices_hint(name, cast.trained_roles)}"
            elif policies[policy] > 1:
                yield f"{field}: speaks with policy {policy!r}, as another player does; each needs one of its own"
            yield from (
                f"{field}.{problem}" for problem in self._player_conflicts(player, cast, [*filter(None, policies)])
            )

    def _player_conflicts(
        self, player: LeaguePlayer, cast: ScenarioSummary, policies: Collection[str]
    ) -> Iterator[str]:
        assert cast.game is not None
        choices = {SELF, POOL, "random", *cast.has_weights, *cast.game.opponents()}
        for name in player.opponents:
            if name not in choices:
                yield f"opponents.{name}: no such opponent; {choices_hint(name, choices)}"
        for name in player.pool or ():
            if name not in policies:
                yield f"pool: {name!r} is no policy of a player; {choices_hint(name, policies)}"
        if player.by == "psro":
            if self.resident < 2:
                yield "by: 'psro' lets two members of the pool play each other; set experience.resident: 2"
            if len(cast.seats) != 2 or not cast.game.is_zero_sum():
                yield f"by: 'psro' needs a zero-sum game of two, which {cast.game.kind!r} is not; use pfsp"
