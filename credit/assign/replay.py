"""Credit by playing on, again and again, from the very state in which a turn was taken."""

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

State = tuple[TurnId, frozenset[str]]
"""The turn that follows it, and the team whose reward is expected there. Episodes that share the turn share it."""


class Replay(PlayingAssign):
    """Each turn earns how much better it made what was to be expected, found by playing on from around it.

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
    """`vine`: value after the turn minus value before it; `siblings`: what was paid minus the mean of other courses."""
    samples: PositiveInt = 8
    """Courses from each state."""

    def judge(self, evidence: Evidence, courses: Courses) -> Iterator[tuple[TurnId, float]]:
        probes = list(self._probes(evidence))
        forks: dict[State, tuple[Fork, Team]] = {}
        for trajectory, team, indices in probes:
            for index in indices:
                fork = Fork(trajectory, index, n=self.samples)
                forks.setdefault(_state(trajectory, index, team), (fork, team))
        values = dict(zip(forks, courses.mean_rewards(list(forks.values())), strict=True))
        for trajectory, team, indices in probes:
            before, *after = [values[_state(trajectory, index, team)] for index in indices]
            value = after[0] if after else team.total_reward(trajectory)
            if before is not None and value is not None:
                yield trajectory.turns[indices[0]].id, value - before

    def _probes(self, evidence: Evidence) -> Iterator[tuple[Trajectory, Team, tuple[int, ...]]]:
        """Yield the place of each turn that is judged, and that of the next one that is no answer by rule.

        The latter is left out if what follows the turn need not be played.
        """
        for trajectory in evidence.trajectories:
            free = [turn.id[1] for turn in trajectory.turns if turn.role not in evidence.rules]
            following = dict(pairwise(free)) if self.form == "vine" else {}
            for team, turns in self.judged_turns(trajectory, evidence):
                for index in [turn.id[1] for turn in turns]:
                    yield trajectory, team, (index, following[index]) if index in following else (index,)


def _state(trajectory: Trajectory, index: int, team: Team) -> State:
    return trajectory.turns[index].id, team.agents
