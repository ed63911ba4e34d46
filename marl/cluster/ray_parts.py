"""The simulators of a run as actors of Ray: each is given work, watched, and replaced when it dies or hangs.

A thread of its own looks after them, so that they go on while the run learns. Every wait has a deadline, and a message
that names who was waited for, and what that was doing.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import queue
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError, RayTaskError

from marl.cluster.gpu_weights import Lender
from marl.cluster.simulator_process import (
    Cancel,
    EndStep,
    Guest,
    NewWeights,
    Order,
    Reply,
    Setup,
    SimulatorProcess,
    Sleep,
    Spent,
)
from marl.cluster.weights import Publication
from marl.errors import EngineError
from marl.protocols import Player
from marl.rollout.base import PartStatus
from marl.rollout.parts import JobBatch, PartReport, Result
from marl.scenario.cluster import ClusterConfig
from marl.types import Metrics, Ticket, Usage

if TYPE_CHECKING:
    from marl.protocols import Weights

_TURN_S = 0.5
"""Longest time for which a simulator plays before it takes new orders."""

_END_S = 10.0
"""Longest time for which the end of all processes is waited for."""


class _Lost(Exception):  # noqa: N818 (says what happened)
    """A process died, or gave no sign of life within its deadline."""


class _Failed(Exception):  # noqa: N818 (says what happened)
    """Our own code raised in a process: the run ends with it, as it would in one process."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.cause = cause


@dataclass(slots=True)
class _OpenBatch:
    """A batch with unfinished jobs."""

    batch: JobBatch
    left: set[Ticket]
    """Jobs without a result."""
    cancelled: set[Ticket] = field(default_factory=set)

    def again(self) -> JobBatch:
        """Return the batch as it is begun by another process: finished jobs too, so that its bits are the same."""
        jobs = {ticket: job for ticket, job in self.batch.jobs.items() if ticket not in self.cancelled}
        return JobBatch(self.batch.table, jobs)


@dataclass(slots=True)
class SimulatorSlot:
    """One simulator of a run, whichever process it is at the moment."""

    number: int
    process: Any = None
    """Ray's handle."""
    place: str = ""
    """Machine and number of the process."""
    gpus: frozenset[str] = frozenset()
    """UUIDs of the GPUs that it uses."""
    doing: str = "starting"
    since: float = field(default_factory=time.time)
    """Time, in seconds since 1970, at which it began with that."""
    vacant: bool = False
    """True while there is no room for a process; others do its work."""
    orders: list[Order] = field(default_factory=list)
    """Orders that were not sent yet."""
    open: list[_OpenBatch] = field(default_factory=list)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    report: asyncio.Future[PartReport] | None = None
    """Awaited by the end of a step."""
    busy_s: float = 0.0
    """Seconds of work since the last step ended."""
    restarts: int = 0
    losses: int = 0
    """Processes lost in a row, without a result in between."""

    @property
    def left(self) -> int:
        """Return the number of its jobs that have no result."""
        return sum(len(each.left) for each in list(self.open))

    def note(self, doing: str) -> None:
        """Note what it does from now on."""
        if doing != self.doing:
            self.doing, self.since = doing, time.time()

    def put(self, order: Order) -> None:
        """Give it an order."""
        self.orders.append(order)
        self.wake.set()

    def begin(self, opened: _OpenBatch) -> None:
        """Give it a batch to play."""
        self.open.append(opened)
        self.put(opened.again())

    def answer(self, report: PartReport) -> None:
        """Hand a report to the step that waits for it."""
        if self.report and not self.report.done():
            self.report.set_result(report)
        self.report = None


class RayParts:
    """The parts of a simulator, each an actor. All but the methods of `Parts` runs in the thread that looks after them.

    Methods of the protocol are described there.
    """

    def __init__(self, settings: ClusterConfig, setup: Setup) -> None:
        self.count, self._settings, self._setup = settings.simulators, settings, ray.put(setup)
        self._sleeps = any(policy.engine.sleeps for policy in setup.scenario.policies.values())
        self._actor = ray.remote(SimulatorProcess).options(
            num_cpus=settings.cpus, num_gpus=settings.gpus, scheduling_strategy="SPREAD", max_restarts=0
        )
        # No SimpleQueue: a signal at the end of a timed wait, such as the watchdog's, can make it wait for ever.
        self._done: queue.Queue[tuple[Ticket, Result] | None] = queue.Queue()
        self._failure: BaseException | None = None
        self._notes: list[str] = []
        self._weights: dict[str, NewWeights] = {}
        self._guests: dict[str, Guest] = {}
        self._lender = Lender()
        self._spent: Mapping[str, Usage] = {}
        self._late: list[PartReport] = []
        """Reports that no step waited for."""
        self._published_bytes = self._published_s = 0.0
        self._restarts = 0
        self._step_began = time.monotonic()
        self._slots = [SimulatorSlot(number) for number in range(self.count)]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        for slot in self._slots:
            asyncio.run_coroutine_threadsafe(self._serve(slot), self._loop)

    # What the run calls, from its own thread.

    def submit(self, part: int, batch: JobBatch) -> None:
        self._soon(self._begin, part, batch)

    def wait(self, wait_s: float) -> list[tuple[Ticket, Result]]:
        results: list[tuple[Ticket, Result]] = []
        with suppress(queue.Empty):
            if self._failure is None and (first := self._done.get(timeout=max(wait_s, 1e-4))):
                results.append(first)
            while self._failure is None:
                if more := self._done.get_nowait():
                    results.append(more)
        if self._failure is not None:
            raise self._failure
        return results

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        self._soon(self._cancel, frozenset(tickets))

    def load_weights(self, policy: str, weights: Weights, version: int) -> None:
        began = time.perf_counter()
        publication = Publication(weights, self._lender, ray.put)
        self._published_bytes += publication.stored_bytes
        self._soon(self._publish, NewWeights(policy, version, publication))
        self._published_s += time.perf_counter() - began

    def set_guest(self, name: str, player: Player | None) -> None:
        self._soon(self._welcome, Guest(name, player))

    def restore_spent(self, spent: Mapping[str, Usage]) -> None:
        if spent:
            self._soon(self._tell_spent, dict(spent))

    def take_notes(self) -> list[str]:
        notes, self._notes = self._notes, []
        return notes

    def end_step(self) -> tuple[list[PartReport], Metrics]:
        return self._ordered(EndStep()), self._figures()

    def sleep(self) -> None:
        if self._sleeps:
            self._ordered(Sleep())

    def status(self) -> list[PartStatus]:
        return [
            PartStatus(_name(slot), slot.place, slot.doing, slot.since, slot.left, slot.restarts)
            for slot in self._slots
        ]

    def close(self) -> None:
        """End all processes."""
        with suppress(concurrent.futures.TimeoutError):
            asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop).result(_END_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_END_S)
        for slot in self._slots:
            _kill(slot)

    def _ordered(self, order: EndStep | Sleep) -> list[PartReport]:
        """Give simulators an order; return the reports that are there when all that play nothing have carried it out.

        Those that play ahead are not waited for: they report on the step later, and would stay awake anyway.
        """
        return asyncio.run_coroutine_threadsafe(self._reports(order), self._loop).result()

    def _soon(self, call: Any, *arguments: Any) -> None:
        self._loop.call_soon_threadsafe(call, *arguments)

    def _figures(self) -> Metrics:
        now = time.monotonic()
        elapsed = max(now - self._step_began, 1e-9)
        idle = [1 - min(slot.busy_s / elapsed, 1.0) for slot in self._slots]
        figures = {
            "cluster/simulators": float(sum(not slot.vacant for slot in self._slots)),
            "cluster/restarts": float(self._restarts),
            "cluster/idle": sum(idle) / len(idle),
            **{f"cluster/simulator_{slot.number}/idle": share for slot, share in zip(self._slots, idle, strict=True)},
            "cluster/published_bytes": self._published_bytes,
            "cluster/publish_s": self._published_s,
        }
        for slot in self._slots:
            slot.busy_s = 0.0
        self._step_began, self._restarts = now, 0
        self._published_bytes = self._published_s = 0.0
        return figures

    # What runs in the thread that looks after the processes.

    def _begin(self, part: int, batch: JobBatch) -> None:
        slot = self._slots[part]
        (self._stand_in(slot) if slot.vacant else slot).begin(_OpenBatch(batch, set(batch.jobs)))

    def _stand_in(self, slot: SimulatorSlot) -> SimulatorSlot:
        """Return the next simulator that is there, which does the work of one that is not."""
        following = [self._slots[(slot.number + i) % self.count] for i in range(1, self.count)]
        return next((other for other in following if not other.vacant), slot)

    def _cancel(self, tickets: frozenset[Ticket]) -> None:
        for slot in self._slots:
            if any(tickets & each.left for each in slot.open):
                for each in slot.open:
                    each.cancelled |= tickets & each.left
                    each.left -= tickets
                slot.open = [each for each in slot.open if each.left]
                slot.put(Cancel(tickets))

    def _publish(self, weights: NewWeights) -> None:
        self._weights[weights.policy] = weights
        for slot in self._slots:
            slot.put(weights)

    def _welcome(self, guest: Guest) -> None:
        staying = {name: each for name, each in self._guests.items() if name != guest.name}
        self._guests = staying | {guest.name: guest} if guest.player else staying
        for slot in self._slots:
            slot.put(guest)

    def _tell_spent(self, spent: Mapping[str, Usage]) -> None:
        self._spent = spent
        for slot in self._slots:
            slot.put(Spent(spent))

    async def _reports(self, order: EndStep | Sleep) -> list[PartReport]:
        there = [slot for slot in self._slots if not slot.vacant]
        for slot in there:
            if not slot.open:
                slot.report = self._loop.create_future()
            if not slot.open or isinstance(order, EndStep):
                slot.put(order)
        reports = await asyncio.gather(*[slot.report for slot in there if slot.report])
        if isinstance(order, EndStep):
            late, self._late = self._late, []
            reports = [*late, *reports]
        return reports

    async def _serve(self, slot: SimulatorSlot) -> None:
        """Keep one simulator going, in one process after another."""
        try:
            while True:
                try:
                    await self._hire(slot)
                    while True:
                        await self._work(slot)
                except _Lost as error:
                    self._lose(slot, error)
        except _Failed as error:
            self._fail(error.cause)
        except EngineError as error:
            self._fail(error)

    async def _hire(self, slot: SimulatorSlot) -> None:
        """Start a process, let it load its weights, and put orders for all that is unfinished."""
        slot.process, slot.place = self._actor.remote(), ""
        patience_s = self._settings.room_s if slot.restarts else self._settings.start_s
        vacate = self._loop.call_later(patience_s, self._vacate, slot)
        try:
            machine, number = await self._call(slot, "waiting for room", slot.process.place.remote(), None)
        finally:
            vacate.cancel()
        slot.place = f"{machine}, process {number}"
        built = slot.process.build.remote(self._setup)
        slot.gpus = await self._call(slot, "loading weights", built, self._settings.start_s)
        # All that was ordered before is in here, so what was not sent yet is not sent twice.
        slot.orders = [*self._weights.values(), *([Spent(self._spent)] if self._spent else [])]
        slot.orders += [*self._guests.values(), *(each.again() for each in slot.open)]
        slot.answer(PartReport())
        if slot.vacant or slot.losses:
            self._notes.append(f"{_name(slot)} is there again ({slot.place})")
        slot.vacant = False

    async def _work(self, slot: SimulatorSlot) -> None:
        """Let a process take its orders and play for a while; take what it has finished."""
        while not slot.orders and not slot.open:
            slot.note("idle")
            slot.wake.clear()
            await slot.wake.wait()
        orders, slot.orders = slot.orders, []
        doing = f"playing {slot.left} episodes" if slot.open else "taking orders"
        # Weights that are lent stay as they are until `orders` goes, which is when the process has taken them.
        sent = [self._addressed(order, slot) for order in orders]
        reply: Reply = await self._call(slot, doing, slot.process.work.remote(sent, _TURN_S), self._settings.deadline_s)
        slot.busy_s += reply.busy_s
        for report in reply.reports:
            if slot.report:
                slot.answer(report)
            else:
                self._late.append(report)
        self._take(slot, reply.results)

    def _addressed(self, order: Order, slot: SimulatorSlot) -> Order:
        """Return an order as it is sent to a simulator: new weights by the shortest way to it."""
        if not isinstance(order, NewWeights):
            return order
        stored, sent = order.sent.stored_bytes, order.sent.towards(slot.gpus)
        self._published_bytes += order.sent.stored_bytes - stored
        return replace(order, sent=sent)

    def _take(self, slot: SimulatorSlot, results: Iterable[tuple[Ticket, Result]]) -> None:
        """Hand results on, each once: a batch that is played again has some that are known."""
        for ticket, result in results:
            for each in slot.open:
                if ticket in each.left:
                    each.left.discard(ticket)
                    slot.losses = 0
                    self._done.put((ticket, result))
        slot.open = [each for each in slot.open if each.left]

    async def _call(self, slot: SimulatorSlot, doing: str, reference: Any, limit_s: float | None) -> Any:
        """Return the answer to a call of a process.

        Raises:
            _Failed: if our own code raised there.
            _Lost: if the process is dead, or does not answer in time.
        """
        slot.note(doing)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(reference.future()), limit_s)
        except RayTaskError as error:
            if isinstance(error.cause, RayError):
                raise _Lost(f"lost its connection while {doing}: {_first_line(error.cause)}") from None
            raise _Failed(error.cause) from None
        except TimeoutError:
            raise _Lost(f"gave no sign of life for {limit_s:g} s while {doing} (cluster.deadline_s)") from None
        except RayError as error:
            raise _Lost(f"died while {doing}: {_first_line(error)}") from None

    def _lose(self, slot: SimulatorSlot, error: _Lost) -> None:
        """Give up a process.

        Raises:
            EngineError: if that happens again and again without a result.
        """
        _kill(slot)
        slot.losses, slot.restarts, self._restarts = slot.losses + 1, slot.restarts + 1, self._restarts + 1
        message = f"{_name(slot)} ({slot.place or 'not started'}) {error}"
        if slot.losses >= self._settings.tries:
            raise EngineError(f"{message}; that was process {slot.losses} in a row without a result (cluster.tries)")
        self._notes.append(f"{message}; it is replaced, and {slot.left} unfinished episodes are played again")
        slot.answer(PartReport())

    def _vacate(self, slot: SimulatorSlot) -> None:
        """Let others do a simulator's work until there is room for its process."""
        slot.vacant = True
        if all(other.vacant for other in self._slots):
            self._fail(EngineError("no simulator is left, and there is no room for another (cluster.room_s)"))
            return
        stand_in = self._stand_in(slot)
        for each in slot.open:
            stand_in.begin(each)
        slot.open = []
        slot.answer(PartReport())
        waited = f"there was no room for it for {self._settings.room_s:g} s (cluster.room_s)"
        self._notes.append(f"{_name(slot)}: {waited}; {_name(stand_in)} does its work until there is")

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        for slot in self._slots:
            slot.answer(PartReport())
        self._done.put(None)


async def _cancel_others() -> None:
    """End all other tasks of this loop."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _name(slot: SimulatorSlot) -> str:
    return f"simulator {slot.number}"


def _kill(slot: SimulatorSlot) -> None:
    if slot.process is not None:
        with suppress(RayError, ValueError):
            ray.kill(slot.process, no_restart=True)


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
