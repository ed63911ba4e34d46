"""Every course that a small game can take, each once: what uniform play looks like if it goes on for ever."""

from __future__ import annotations

from functools import cache

from marl.core.graph import Trajectory
from marl.core.types import Deal
from marl.protocols import Evidence, GameConfig
from marl.roles.answering import PlayerRole
from marl.rollout.casting import RoleRequestBuilder
from marl.rollout.episode import Episode


def all_rollouts(game: GameConfig) -> tuple[Trajectory, ...]:
    """In the order of the moves."""
    return _all_rollouts(game)  # pyright: ignore[reportArgumentType]  # settings are frozen, and so hashable


@cache
def _all_rollouts(game: GameConfig) -> tuple[Trajectory, ...]:
    settings, cast = game.build(), RoleRequestBuilder({"player": PlayerRole(policy="actor")}, 0)
    seats = dict.fromkeys(settings.possible_agents, "player")

    def from_here(moves: tuple[str, ...]) -> list[Trajectory]:
        episode = Episode(game.build(), Deal("".join(("e", *moves)), "", 0, seats), cast)
        for move in moves:
            episode.force_action(move)
        if episode.done:
            return [episode.trajectory]
        episode.take_new_requests()
        legal = episode.game.infos[episode.game.agent_selection]["legal"] or ()
        return [course for move in legal for course in from_here((*moves, move))]

    return tuple(from_here(()))


def exhaustive_evidence(game: GameConfig, seed: int = 0) -> Evidence:
    """All courses of a game as one step."""
    return Evidence(all_rollouts(game), game.kind, seed=seed)


def team_return(course: Trajectory) -> float:
    """The mean over agents of what they are paid."""
    return sum(course.returns.values()) / len(course.deal.seats)
