"""Play ahead: episodes of later steps are played while the run learns from earlier steps."""

from __future__ import annotations

import time
from itertools import chain

from pydantic import NonNegativeInt

from marl.core.graph import Trajectory
from marl.core.types import Ticket
from marl.experience.rollouts import StatelessExperience
from marl.protocols import DealsOfStep, Experience, ExperienceConfig, Simulator

# Metrics of this module (name | unit | meaning), which `tests/bench/figures.py` copies into marl/README.md.
METRICS = """
queue/ready | episodes | of later steps that are finished (`experience: queue`)
queue/in_flight | episodes | of later steps that are being played
queue/wait_s | s | for which the run waited for the step's episodes
"""

_POLL_S = 1.0
"""Maximum time for which one poll of the simulator blocks, in seconds."""


class PlayAheadQueue(ExperienceConfig):
    """Fresh play that runs ahead of learning by up to `max_staleness` steps: generation and learning overlap.

    Simulators in other processes (`cluster`) play on while the run learns. An episode that is in flight when weights
    are published continues with the new weights. Learners that correct for these off-policy tokens (`mismatch: {kind:
    tis}` or `mis`) need no other setting. Episodes in flight at the end of a run are played again when the run is
    resumed. Engines in the run's own process compute only while the run waits for them, so nothing overlaps there.
    """

    kind: str = "queue"
    max_staleness: NonNegativeInt = 1
    """Maximum number of steps between the weights that began an episode and the weights that learn from it. 0 is
    on-policy: results are then bit-identical to `rollouts`."""

    def build(self) -> Experience:
        return PlayAheadExperience(self.max_staleness)

    @property
    def max_steps_played_ahead(self) -> int:
        """Return the number of steps whose deals are played before their turn: `max_staleness`."""
        return self.max_staleness


class PlayAheadExperience(StatelessExperience):
    """Experience with a queue of the next steps' episodes, in flight or finished.

    The queue is not part of checkpoints: a resumed run plays the episodes in flight again from their seeds.
    """

    def __init__(self, max_staleness: int) -> None:
        self._ahead = max_staleness
        self._steps: dict[int, list[Ticket]] = {}
        """Step -> tickets of its episodes, in deal order."""
        self._finished: dict[Ticket, Trajectory | None] = {}

    def gather(self, step: int, deals: DealsOfStep, simulator: Simulator) -> list[Trajectory]:
        """Return the episodes of `step`. The episodes of the following steps stay in flight."""
        wanted_steps = range(step, step + self._ahead + 1)
        # Other steps are in flight only if the run went back to an earlier checkpoint; their episodes are cancelled.
        for other in sorted(self._steps.keys() - set(wanted_steps)):
            tickets = self._steps.pop(other)
            simulator.cancel(tickets)
            for ticket in tickets:
                self._finished.pop(ticket, None)
        for wanted in wanted_steps:
            if wanted not in self._steps:
                self._steps[wanted] = simulator.start(deals(wanted))
        started, tickets = time.perf_counter(), self._steps[step]
        while not self._finished.keys() >= set(tickets):
            self._finished.update(simulator.poll(_POLL_S))
        waited_s = time.perf_counter() - started
        del self._steps[step]
        later_tickets = set(chain.from_iterable(self._steps.values()))
        ready = len(later_tickets & self._finished.keys())
        in_flight = len(later_tickets) - ready
        self._metrics = {"queue/ready": float(ready), "queue/in_flight": float(in_flight), "queue/wait_s": waited_s}
        return list(filter(None, map(self._finished.pop, tickets)))
