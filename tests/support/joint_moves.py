"""Every course that a small game can take, each once: what uniform play looks like if it goes on for ever."""

from __future__ import annotations

from functools import cache

from marl.graph import Trajectory
from marl.protocols import Evidence, GameConfig
from marl.rollout.casting import RoleCasting
from marl.rollout.episode import Episode
from marl.types import Deal
from roles.answering import PlayerRole


@cache
def every_course(game: GameConfig) -> tuple[Trajectory, ...]:
    """In the order of the moves."""
    settings, cast = game.build(), RoleCasting({"player": PlayerRole(policy="actor")}, 0)
    seats = dict.fromkeys(settings.possible_agents, "player")

    def from_here(moves: tuple[str, ...]) -> list[Trajectory]:
        episode = Episode(game.build(), Deal("".join(("e", *moves)), "", 0, seats), cast)
        for move in moves:
            episode.force(move)
        if episode.over:
            return [episode.trajectory]
        episode.new_requests()
        legal = episode.game.infos[episode.game.agent_selection]["legal"] or ()
        return [course for move in legal for course in from_here((*moves, move))]

    return tuple(from_here(()))


def whole(game: GameConfig, seed: int = 0) -> Evidence:
    """All courses of a game as one step."""
    return Evidence(every_course(game), game.kind, seed=seed)


def paid(course: Trajectory) -> float:
    """The mean over agents of what they are paid."""
    return sum(course.returns.values()) / len(course.deal.seats)
