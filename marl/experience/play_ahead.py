"""Play ahead: episodes of later steps are played while the run learns from earlier steps."""

from __future__ import annotations

import time

from pydantic import NonNegativeInt

from marl.core.graph import Trajectory
from marl.core.types import Metrics, Ticket
from marl.experience.rollouts import StatelessExperience
from marl.protocols import Deals, Experience, ExperienceConfig, Simulator

_POLL_S = 1.0
"""Maximum time that one poll of the simulator blocks, in seconds."""


class PlayAheadQueue(ExperienceConfig):
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
    def max_steps_ahead(self) -> int:
        """Return `max_staleness`."""
        return self.max_staleness


class PlayAhead(StatelessExperience):
    """Queue of episodes by step, in flight or finished. A step is complete when all its episodes have finished.

    The queue is no part of checkpoints: a resumed run plays the episodes in flight again from their seeds.
    """

    def __init__(self, max_staleness: int) -> None:
        self._ahead = max_staleness
        self._steps: dict[int, list[Ticket]] = {}
        """Step -> tickets of its episodes, in deal order."""
        self._finished: dict[Ticket, Trajectory | None] = {}
        self._metrics: Metrics = {}

    def gather(self, step: int, deals: Deals, simulator: Simulator) -> list[Trajectory]:
        """Return the episodes of `step`; episodes of the following steps stay in flight."""
        # A run that went back to a checkpoint has other steps in flight.
        for other in [other for other in self._steps if other < step or other > step + self._ahead]:
            tickets = self._steps.pop(other)
            simulator.cancel(tickets)
            for ticket in tickets:
                self._finished.pop(ticket, None)
        for later in range(step, step + self._ahead + 1):
            if later not in self._steps:
                self._steps[later] = simulator.start(deals(later))
        started, tickets = time.perf_counter(), self._steps[step]
        while not self._finished.keys() >= set(tickets):
            self._finished.update(simulator.poll(_POLL_S))
        waited_s = time.perf_counter() - started
        del self._steps[step]
        later_tickets = [ticket for later in self._steps.values() for ticket in later]
        ready = sum(ticket in self._finished for ticket in later_tickets)
        in_flight = len(later_tickets) - ready
        self._metrics = {"queue/ready": float(ready), "queue/in_flight": float(in_flight), "queue/wait_s": waited_s}
        return [trajectory for ticket in tickets if (trajectory := self._finished.pop(ticket))]

    def metrics(self) -> Metrics:
        """Return `queue/...` of the last step."""
        return dict(self._metrics)
