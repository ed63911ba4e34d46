"""More play in which something else is paid."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from marl.protocols import Evidence, Simulator
from marl.types import Completion, Deal, Failure, Fork, Purpose, Request, Turn, TurnId

if TYPE_CHECKING:
    from marl.graph import Trajectory

Change = Callable[["Trajectory"], "Trajectory"]


def repaid(evidence: Evidence, change: Change) -> Evidence:
    """The same evidence with every episode changed by `change`, those that are still to be played included."""
    simulator = evidence.simulator and Repaid(evidence.simulator, change)
    return replace(evidence, trajectories=[change(t) for t in evidence.trajectories], simulator=simulator)


@dataclass(frozen=True, slots=True)
class Repaid:
    """A simulator whose episodes are changed by `change`, which leaves their turns as they are."""

    simulator: Simulator
    change: Change
    held: list[Trajectory] = field(default_factory=list)
    """As they were played: a simulator forks only what somebody holds, and whoever asked holds the changed ones."""

    def play(self, deals: Sequence[Deal]) -> list[Trajectory]:
        return self._changed(self.simulator.play(deals))

    def fork(self, turn_id: TurnId, n: int, action: str | None = None) -> list[Trajectory]:
        return self._changed(self.simulator.fork(turn_id, n, action))

    def branch(self, forks: Sequence[Fork]) -> list[list[Trajectory]]:
        return [self._changed(courses) for courses in self.simulator.branch(forks)]

    def score(self, requests: Sequence[Request], purpose: Purpose = "credit") -> list[Completion | Failure]:
        return self.simulator.score(requests, purpose)

    def greedy(self) -> Simulator:
        return Repaid(self.simulator.greedy(), self.change)

    def address(self, turn: Turn) -> Request:
        return self.simulator.address(turn)

    def question(self, role: str, agent: str, text: str) -> Request:
        return self.simulator.question(role, agent, text)

    def _changed(self, played: Iterable[Trajectory]) -> list[Trajectory]:
        episodes = list(played)
        self.held.extend(episodes)
        return [self.change(trajectory) for trajectory in episodes]
