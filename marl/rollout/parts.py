"""Parts of a simulator: each plays what it is given with engines of its own. Some live in this process."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from marl.protocols import EngineConfig, Player
from marl.rollout.base import EpisodeResult, PartStatus, Start
from marl.rollout.casting import RoleCasting
from marl.rollout.request_router import Answer
from marl.rollout.simulator import PendingAnswers, RolloutSimulator
from marl.types import Metrics, Purpose, Request, Ticket, Usage

if TYPE_CHECKING:
    from marl.protocols import Weights

_ALL = 10**18
"""More episodes than any run has: parts may drop all, and the run counts them."""
_KEPT = 16
"""Tables that a part keeps set up; those that were not played at for longest are forgotten."""


@dataclass(frozen=True, slots=True)
class Table:
    """Everything that a part must know to play: a game, the roles at its seats, and engines beside its own."""

    number: int
    """Number that no other table of the run has."""
    game: str | None
    """One of several games, whose deals name none; None: as deals say."""
    roles: RoleCasting
    players: Mapping[str, EngineConfig] = field(default_factory=dict)
    """Policy -> the settings of an engine without weights."""


class RequestList(NamedTuple):
    """Requests that a part is to answer together."""

    requests: Sequence[Request]
    purpose: Purpose


Job = Start | RequestList
Result = EpisodeResult | list[Answer]


@dataclass(frozen=True, slots=True)
class JobBatch:
    """Jobs that a part begins together. If a part is lost, they are begun together again: equal batches, equal bits."""

    table: Table
    jobs: Mapping[Ticket, Job]


@dataclass(slots=True)
class PartReport:
    """Figures of a part since the last report."""

    metrics: Metrics = field(default_factory=dict)
    """Of its engines, named as by `BaseSimulator.end_step`."""
    failures: list[str] = field(default_factory=list)
    spent: dict[str, Usage] = field(default_factory=dict)
    """Policy -> the cost of its answers."""


class SimulatorPart:
    """One part: plays batches with engines of its own."""

    def __init__(self, simulator: RolloutSimulator) -> None:
        self._simulator = simulator
        self._tables: dict[int, RolloutSimulator] = {}
        self._plays: dict[tuple[int, Ticket], Ticket] = {}
        """(table, ticket there) -> ticket of the job."""
        self._pending: dict[Ticket, tuple[int, PendingAnswers]] = {}
        self._reported: dict[str, Usage] = {}
        """Policy -> what was spent when that was reported, or told, last."""

    @property
    def jobs(self) -> int:
        """Return the number of jobs that are not finished."""
        return len(self._plays) + len(self._pending)

    def start(self, batch: JobBatch) -> None:
        """Begin the jobs of a batch, in order."""
        number, simulator = batch.table.number, self._at(batch.table)
        for ticket, job in batch.jobs.items():
            if isinstance(job, RequestList):
                self._pending[ticket] = number, simulator.put_all(job.requests, job.purpose)
            else:
                self._plays[number, simulator.begin(*job)] = ticket

    def work(self, wait_s: float) -> list[tuple[Ticket, Result]]:
        """Let all jobs go on; return the results of those that have finished. Blocks for at most `wait_s`."""
        results: list[tuple[Ticket, Result]] = []
        for number, simulator in self._tables.items():
            if any(table == number for table, _ in self._plays):
                finished = simulator.outcomes(0.0 if results else wait_s)
                results += [(self._plays.pop((number, ticket)), outcome) for ticket, outcome in finished]
        if not results and self._pending and not self._plays:
            self._simulator.pump(wait_s)
        answered = [(ticket, pending) for ticket, (_, pending) in self._pending.items() if pending.answered]
        for ticket, pending in answered:
            del self._pending[ticket]
            results.append((ticket, pending.in_order()))
        return results

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        """Give up jobs."""
        given_up = set(tickets)
        for (number, inner), ticket in list(self._plays.items()):
            if ticket in given_up:
                del self._plays[number, inner]
                self._tables[number].cancel([inner])
        for ticket in given_up & self._pending.keys():
            self._simulator.withdraw(self._pending.pop(ticket)[1])

    def load_weights(self, policy: str, weights: Weights, version: int) -> None:
        """Let a policy sample with new weights from now on; what is being played goes on with them."""
        self._simulator.load_weights(policy, weights, version)

    def set_guest(self, name: str, player: Player | None) -> None:
        """Let a player speak under a name in what is begun from now on; None: let it go that did."""
        if player:
            self._simulator.add_policy(name, player)
        else:
            self._simulator.remove_policy(name)

    def restore_spent(self, spent: Mapping[str, Usage]) -> None:
        """Go on from what all parts have spent."""
        self._simulator.restore_spent(spent)
        self._reported = dict(self._simulator.spent)

    def sleep(self) -> None:
        """Let engines free their memory until they are needed again."""
        self._simulator.sleep()

    def end_step(self) -> PartReport:
        """Return figures of the step that ends."""
        simulator, before = self._simulator, self._reported
        self._reported = dict(simulator.spent)
        spent = {policy: usage - before.get(policy, Usage()) for policy, usage in self._reported.items()}
        return PartReport(simulator.end_step(), simulator.take_failures(), spent)

    def _at(self, table: Table) -> RolloutSimulator:
        """Return the simulator of a table, set up when it is played at first."""
        simulator = self._tables.pop(table.number, None) or self._set_up(table)
        self._tables[table.number] = simulator  # last, as it is the latest
        used = {number for number, _ in self._plays} | {number for number, _ in self._pending.values()}
        for number in [number for number in self._tables if number not in used][: len(self._tables) - _KEPT]:
            del self._tables[number]
        return simulator

    def _set_up(self, table: Table) -> RolloutSimulator:
        simulator = self._simulator if table.game is None else self._simulator.of_game(table.game)
        simulator = simulator.variant(table.roles, table.players)
        simulator.may_drop = _ALL
        return simulator


class Parts(Protocol):
    """The parts of a simulator, from 0, wherever they live."""

    count: int

    def submit(self, part: int, batch: JobBatch) -> None:
        """Let a part begin a batch."""
        ...

    def wait(self, wait_s: float) -> list[tuple[Ticket, Result]]:
        """Return results that have come; wait for at most `wait_s` for the first.

        Raises:
            RunError, ValueError, TimeoutError: as a `RolloutSimulator` does; EngineError if no part is left.
        """
        ...

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        """Give up jobs; they have no results."""
        ...

    def load_weights(self, policy: str, weights: Weights, version: int) -> None:
        """Let all parts sample with new weights in what they begin from now on. They may be changed afterwards."""
        ...

    def set_guest(self, name: str, player: Player | None) -> None:
        """Let a player speak under a name in all parts, in what they begin from now on.

        None: let it go that did; nothing in which it speaks may be in flight.
        """
        ...

    def end_step(self) -> tuple[list[PartReport], Metrics]:
        """Return the reports of all parts, and figures of the parts themselves, named `cluster/...`."""
        ...

    def sleep(self) -> None:
        """Let the engines of all parts free their memory until they are needed again; return when they have."""
        ...

    def restore_spent(self, spent: Mapping[str, Usage]) -> None:
        """Tell all parts what was spent."""
        ...

    def take_notes(self) -> list[str]:
        """Return what happened to parts since the last call, for the run's log."""
        ...

    def status(self) -> list[PartStatus]:
        """Return what each part does; may be called from any thread."""
        ...


class LocalParts:
    """Parts in this process, which take turns."""

    def __init__(self, parts: Sequence[SimulatorPart]) -> None:
        self._parts, self.count, self._began = parts, len(parts), time.time()

    def submit(self, part: int, batch: JobBatch) -> None:
        self._parts[part].start(batch)

    def wait(self, wait_s: float) -> list[tuple[Ticket, Result]]:
        busy = [part for part in self._parts if part.jobs]
        return [result for part in busy for result in part.work(wait_s / len(busy))]

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        given_up = list(tickets)
        for part in self._parts:
            part.cancel(given_up)

    def load_weights(self, policy: str, weights: Weights, version: int) -> None:
        held = weights if not isinstance(weights, Iterable) else list(weights)
        for part in self._parts:
            part.load_weights(policy, held, version)

    def set_guest(self, name: str, player: Player | None) -> None:
        for part in self._parts:
            part.set_guest(name, player)

    def end_step(self) -> tuple[list[PartReport], Metrics]:
        return [part.end_step() for part in self._parts], {}

    def sleep(self) -> None:
        for part in self._parts:
            part.sleep()

    def restore_spent(self, spent: Mapping[str, Usage]) -> None:
        for part in self._parts:
            part.restore_spent(spent)

    def take_notes(self) -> list[str]:
        return []

    def status(self) -> list[PartStatus]:
        jobs = [part.jobs for part in self._parts]
        return [PartStatus(f"simulator {i}", "", "here", self._began, many) for i, many in enumerate(jobs)]
