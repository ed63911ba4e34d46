"""Who earned it: a turn is probed by playing on, again and again, from the very state in which it was said."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from pydantic import PositiveInt

from credit.assign.playing import Courses, PlayingAssign
from credit.assign.teams import Team
from marl.protocols import Evidence
from marl.types import Fork, TurnId

if TYPE_CHECKING:
    from marl.graph import Trajectory

Place = tuple[TurnId, frozenset[str]]
"""The turn before which it is, and for whom it is worth something. Episodes that share the turn share the place."""


class Replay(PlayingAssign):
    """Each turn is worth how much better it made what was to be expected, found by playing on from around it.

    `vine` (VinePPO, arXiv 2410.01679): A = V(after the turn) - V(before it), where V is the mean that the team is paid
    in `samples` continuations from there; after the last turn, and wherever only answers by rule are left, it is what
    was paid. Unbiased for the advantage of the turn. What is before one turn is after the last one, so it takes
    `samples` continuations for each turn if all are judged, and up to twice as many if only some are.

    `siblings` (C3, arXiv 2603.06859): A = R - the mean of `samples` other courses from before the turn. Also unbiased,
    but R is a single draw of what follows the turn, so more samples do not make it exact. `samples` for each turn.

    What is paid counts from the whole episode; what was paid before the turn is the same in all courses and drops out.
    """

    kind: str = "replay"
    form: Literal["vine", "siblings"] = "vine"
    samples: PositiveInt = 8
    """Courses from each state."""

    def judge(self, evidence: Evidence, courses: Courses) -> Iterator[tuple[TurnId, float]]:
        probes = list(self._probes(evidence))
        places: dict[Place, tuple[Fork, Team]] = {}
        for trajectory, team, around in probes:
            for index in around:
                fork = Fork((trajectory.id, index), n=self.samples)
                places.setdefault(_place(trajectory, index, team), (fork, team))
        values = dict(zip(places, courses.worths(list(places.values())), strict=True))
        for trajectory, team, around in probes:
            before, *after = [values[_place(trajectory, index, team)] for index in around]
            then = after[0] if after else team.worth(trajectory)
            if before is not None and then is not None:
                yield trajectory.turns[around[0]].id, then - before

    def _probes(self, evidence: Evidence) -> Iterator[tuple[Trajectory, Team, tuple[int, ...]]]:
        """Each turn that is judged: where it stands and, if what follows must be played, where the next one does that
        is no answer by rule."""
        for trajectory in evidence.trajectories:
            free = [turn.id[1] for turn in trajectory.turns if turn.role not in evidence.rules]
            following = dict(pairwise(free)) if self.form == "vine" else {}
            for team, turns in self.judged(trajectory, evidence):
                for index in [turn.id[1] for turn in turns]:
                    yield trajectory, team, (index, following[index]) if index in following else (index,)


def _place(trajectory: Trajectory, index: int, team: Team) -> Place:
    return trajectory.turns[index].id, team.agents
