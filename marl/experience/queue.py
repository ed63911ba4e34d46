"""Play ahead: episodes of later steps are played while the run learns from earlier ones."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import NonNegativeInt

from marl.protocols import Deals, Experience, ExperienceConfig, Simulator
from marl.types import Metrics, Ticket

if TYPE_CHECKING:
    from marl.graph import Trajectory

_WAIT_S = 1.0


class Queue(ExperienceConfig):
    """Fresh play that runs ahead of learning by up to `max_staleness` steps: generation and learning overlap.

    With simulators in other processes (`cluster`), they play on while the run learns. An episode that is in flight when
    weights are published goes on with the new ones. Learners that correct for it (`mismatch: {kind: tis}` or `mis`)
    need no other setting. What is in flight when a run ends is played again when it is resumed. Engines in the run's
    own process compute only while the run waits for them: there, nothing overlaps.
    """

    kind: str = "queue"
    max_staleness: NonNegativeInt = 1
    """Steps by which the weights that began an episode may be older than those that learn from it; 0 is on-policy,
    and then every bit is that of `rollouts`."""

    def build(self) -> Experience:
        return PlayAhead(self.max_staleness)

    @property
    def ahead(self) -> int:
        """Return `max_staleness`."""
        return self.max_staleness


class PlayAhead:
    """Episodes in flight and finished ones, by step. A step is learnt from when all of its episodes are there."""

    def __init__(self, max_staleness: int) -> None:
        self._ahead = max_staleness
        self._steps: dict[int, list[Ticket]] = {}
        """Step -> its episodes, in deal order."""
        self._finished: dict[Ticket, Trajectory | None] = {}
        self._metrics: Metrics = {}

    def gather(self, step: int, deals: Deals, simulator: Simulator) -> list[Trajectory]:
        """Return the episodes of `step`, and leave those of the steps that follow in flight."""
        self._give_up(simulator, [other for other in self._steps if other < step or other > step + self._ahead])
        for later in range(step, step + self._ahead + 1):
            if later not in self._steps:
                self._steps[later] = simulator.start(deals(later))
        began, wanted = time.perf_counter(), self._steps[step]
        while not self._finished.keys() >= set(wanted):
            self._finished.update(simulator.poll(_WAIT_S))
        waited_s = time.perf_counter() - began
        del self._steps[step]
        ready, in_flight = self._depth()
        self._metrics = {"queue/ready": float(ready), "queue/in_flight": float(in_flight), "queue/wait_s": waited_s}
        return [trajectory for ticket in wanted if (trajectory := self._finished.pop(ticket))]

    def metrics(self) -> Metrics:
        """Return `queue/...` of the last step."""
        return dict(self._metrics)

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: what is in flight is played again from its seeds."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore nothing."""

    def _depth(self) -> tuple[int, int]:
        """Return the numbers of episodes of later steps that are finished, and that are in flight."""
        tickets = [ticket for step in self._steps.values() for ticket in step]
        ready = sum(ticket in self._finished for ticket in tickets)
        return ready, len(tickets) - ready

    def _give_up(self, simulator: Simulator, steps: Iterable[int]) -> None:
        """Forget steps that are not wanted any more, as after a run went back."""
        for step in list(steps):
            tickets = self._steps.pop(step)
            simulator.cancel(tickets)
            for ticket in tickets:
                self._finished.pop(ticket, None)
