"""Settings of a league: who learns in it, whom they meet, and which of their earlier weights are kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Literal, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, field_validator, model_validator

from marl.config import Config, nearest
from marl.experience.league.matchmaking import POOL, SELF
from marl.protocols import Cast, Experience, ExperienceConfig

Matchmaking = Literal["uniform", "latest", "pfsp", "pfsp_even", "psro"]


class Reset(Config):
    """Conditions on which a player begins anew, from its first weights and with a new optimizer; what it was joins the
    pool."""

    every: PositiveInt | None = None
    """Updates since it began. None: no matter how many."""
    win_rate: float | None = Field(default=None, gt=0, le=1)
    """Share of points against each of its opponents (a draw is half a point). None: no matter how well it plays."""
    games: PositiveInt = 100
    """Games against each opponent before `win_rate` counts."""

    @model_validator(mode="after")
    def _happens(self) -> Self:
        if self.every is None and self.win_rate is None:
            raise ValueError("every and win_rate are both null, so that it never happens; give one, or leave reset out")
        return self


class LeaguePlayer(Config):
    """Settings of one player that learns: whom it meets, how often it is kept, and when it begins anew.

    AlphaStar's players (Vinyals et al. 2019, https://doi.org/10.1038/s41586-019-1724-z): a main agent meets itself and
    all of the pool, `{self: .35, pool: .65}` by `pfsp`; a main exploiter the main agent alone, `{actor: 1}`, and a
    league exploiter all of the pool, `{pool: 1}`; both exploiters have a `reset`.
    """

    share: PositiveFloat = 1.0
    """Weight of its games among those of all players."""
    opponents: dict[str, NonNegativeFloat] = Field(default={SELF: 0.5, POOL: 0.5})
    """Opponent -> weight: `self` (both seats learn), `pool` (earlier weights), a policy of the scenario as it is now,
    or a player that the game exports, such as `random`."""
    pool: tuple[str, ...] | None = None
    """Policies whose earlier weights it meets. Null: those of all players."""
    by: Matchmaking = "pfsp"
    """Way in which a member of the pool is chosen: each alike (`uniform`: with `opponents: {pool: 1}` fictitious
    self-play, whose opponent is the average of all earlier selves, Heinrich et al. 2015), the newest (`latest`), by
    (1 - win rate)^power (`pfsp`: those that it loses to), by win rate x (1 - win rate) (`pfsp_even`: those of its own
    strength), or by a Nash equilibrium of the pool's payoffs (`psro`)."""
    power: NonNegativeFloat = 2.0
    """Exponent of `pfsp`."""
    every: PositiveInt | None = 20
    """Updates between its members of the pool. Null: only what a reset leaves joins it."""
    reset: Reset | None = None
    """Conditions on which it begins anew. Null: it never does."""

    @field_validator("opponents")
    @classmethod
    def _meets_somebody(cls, opponents: dict[str, float]) -> dict[str, float]:
        if not sum(opponents.values()):
            raise ValueError("no opponent has a weight above 0; give one, such as self: 1")
        return opponents


class League(ExperienceConfig):
    """Fresh play against earlier weights of the run's own policies, fixed players, and itself.

    All episodes of a group have one opponent. Earlier weights are written to league/POLICY/STEP in the run's folder,
    and loaded when they are met.
    """

    kind: str = "league"
    players: dict[str, LeaguePlayer] = Field(default_factory=lambda: {"player": LeaguePlayer()}, min_length=1)
    """Role that learns -> whom it meets. Of several, each plays its share of the groups, in the seats of any of them;
    so only one of them need have a seat in `seats`."""
    opponent: str = "opponent"
    """Role, not trainable, whose seats opponents take. The policy that it names is replaced."""
    keep: int = Field(default=200, ge=2)
    """Members of the pool from each policy. Of more, the one goes whose neighbours in time are closest to each other,
    never the oldest or the newest, so that they stay spread over the run."""
    resident: PositiveInt = 1
    """Members of the pool in memory at the same time, beside the policies themselves."""
    draws: PositiveInt = 4
    """Most members of the pool that a player meets in a step; each is loaded once."""
    decay: float = Field(default=0.99, gt=0, le=1)
    """Factor of all earlier results against an opponent with every further one, for win rates (AlphaStar: 0.99)."""
    matches: PositiveInt = 32
    """Episodes between two members of the pool, from which `psro` knows what they win from each other."""
    budget: PositiveInt = 512
    """Most such episodes in a step; pairs with the newest members come first."""

    def build(self) -> Experience:
        from marl.experience.league.league import LeaguePlay

        return LeaguePlay(self)

    @property
    def guests(self) -> int:
        """Return `resident`."""
        return self.resident

    def seatings(self, seats: Mapping[str, str]) -> list[dict[str, str]]:
        """Return the seats as they are, and for each player with it in the seats of players."""
        return [
            dict(seats),
            *(
                {agent: name if role in self.players else role for agent, role in seats.items()}
                for name in self.players
            ),
        ]

    def speakers(self) -> Collection[str]:
        return {name for player in self.players.values() for name in player.opponents}

    def miscast(self, cast: Cast) -> Iterator[str]:
        if cast.game is None:
            yield "kind: 'league' plays one game; give `game` in place of `games`"
            return
        if self.opponent not in cast.seats.values():
            yield f"opponent: no seat has the role {self.opponent!r}; {nearest(self.opponent, {*cast.seats.values()})}"
        if self.opponent in cast.learning:
            yield f"opponent: roles.{self.opponent} is trained on what opponents say; set trainable: false"
        if not self.players.keys() & set(cast.seats.values()):
            yield f"players: none of {', '.join(self.players)} has a seat; seats: {dict(cast.seats)}"
        policies = Counter(cast.learning.get(name) for name in self.players)
        for name, player in self.players.items():
            field, policy = f"players.{name}", cast.learning.get(name)
            if policy is None:
                yield f"{field}: no role of this name learns; {nearest(name, cast.learning)}"
            elif policies[policy] > 1:
                yield f"{field}: speaks with policy {policy!r}, as another player does; each needs one of its own"
            yield from (f"{field}.{problem}" for problem in self._misfits(player, cast, [*filter(None, policies)]))

    def _misfits(self, player: LeaguePlayer, cast: Cast, policies: Collection[str]) -> Iterator[str]:
        assert cast.game is not None
        known = {SELF, POOL, "random", *cast.policies, *cast.game.opponents()}
        for name in (name for name in player.opponents if name not in known):
            yield f"opponents.{name}: no such opponent; {nearest(name, known)}"
        for name in (name for name in player.pool or () if name not in policies):
            yield f"pool: {name!r} is no policy of a player; {nearest(name, policies)}"
        if player.by == "psro":
            if self.resident < 2:
                yield "by: 'psro' lets two members of the pool play each other; set experience.resident: 2"
            if len(cast.seats) != 2 or not cast.game.is_zero_sum():
                yield f"by: 'psro' needs a zero-sum game of two, which {cast.game.kind!r} is not; use pfsp"
