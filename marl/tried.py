"""Where courses of one episode part: the turns that an experience tried several answers at."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from marl.types import TurnId

if TYPE_CHECKING:
    from marl.graph import Trajectory


def tried(trajectories: Iterable[Trajectory]) -> set[TurnId] | None:
    """The first turn that each fork has to itself; and of an episode that is no fork, the first at which it was left.

    Where an experience goes on from what ended well, these alone are fair samples: what was said after them belongs to
    courses that were chosen for their end. None where there are no forks: then all turns are.
    """
    forks = {trajectory.id: trajectory.parent for trajectory in trajectories if trajectory.parent}
    first: dict[str, int] = {}
    for episode, index in forks.values():
        if episode not in forks:
            first[episode] = min(index, first.get(episode, index))
    return {(name, parent[1]) for name, parent in forks.items()} | set(first.items()) if forks else None
