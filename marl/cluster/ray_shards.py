"""Simulator shards as actors of Ray: each is given jobs, watched, and replaced when it dies or hangs.

A thread with an event loop manages the actors, so that they play on while the run learns. Every wait has a deadline and
a message with the name and the activity of the process.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import queue
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from marl.cluster.gpu_weights import GpuBufferPool
from marl.cluster.simulator_process import Reply, SimulatorProcess, SimulatorSetup
from marl.cluster.simulator_slot import OpenBatch, SimulatorSlot
from marl.cluster.weight_transfer import PublishedWeights
from marl.core.errors import EngineError
from marl.core.types import Metrics, Ticket
from marl.rollout.base import ProcessStatus
from marl.rollout.shards import (
    CancelJobs,
    EndStep,
    JobBatch,
    LoadWeights,
    RestoreUsage,
    Result,
    SetPolicy,
    ShardCommand,
    ShardGroup,
    ShardReport,
    Sleep,
)
from marl.scenario.cluster import ClusterConfig

_TURN_S = 0.5
"""Maximum time of one call of `SimulatorProcess.work`, in seconds. New commands wait for its end."""
_END_S = 10.0
"""Maximum wait for the end of all tasks at `close`, in seconds."""


class _Lost(Exception):  # noqa: N818 (says what happened)
    """A process died, or gave no sign of life within its deadline."""


class _Failed(Exception):  # noqa: N818 (says what happened)
    """Code of ours raised in a process: the run ends with this error, as with one process."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.cause = cause


class RayShardGroup(ShardGroup):
    """Shards in Ray actors. The public methods belong to the run's thread, all others to the thread of the event loop.

    The base class documents its methods.
    """

    def __init__(self, settings: ClusterConfig, setup: SimulatorSetup) -> None:
        super().__init__(settings.simulators)
        self._settings, self._setup = settings, ray.put(setup)
        self._sleeps = any(policy.engine.sleeps for policy in setup.scenario.policies.values())
        self._actor = ray.remote(SimulatorProcess).options(
            num_cpus=settings.cpus, num_gpus=settings.gpus, scheduling_strategy="SPREAD", max_restarts=0
        )
        # No SimpleQueue: a signal at the end of a timed wait, such as the watchdog's, can make it wait for ever.
        self._done: queue.Queue[tuple[Ticket, Result] | None] = queue.Queue()
        self._failure: BaseException | None = None
        self._notes: list[str] = []
        self._weights: dict[str, LoadWeights] = {}
        """Policy -> its newest weights, for new processes."""
        self._added: dict[str, SetPolicy] = {}
        """Name -> added policy, for new processes."""
        self._restored: RestoreUsage | None = None
        """Usage of all shards together, for new processes."""
        self._buffers = GpuBufferPool()
        self._late: list[ShardReport] = []
        """Reports sent after their step had ended."""
        self._published_bytes = self._published_s = 0.0
        self._restarts = 0
        self._step_began = time.monotonic()
        self._slots = [SimulatorSlot(number) for number in range(self.size)]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        for slot in self._slots:
            asyncio.run_coroutine_threadsafe(self._serve(slot), self._loop)

    # Called by the run, in its own thread.

    def submit(self, shard: int, batch: JobBatch) -> None:
        self._call_soon(self._begin, shard, batch)

    def step(self, wait_s: float) -> None:
        timeout_s = max(wait_s, 1e-4)
        with suppress(queue.Empty):
            while self._failure is None:
                # Sleep for the first result alone, then take all others that are there.
                if finished := self._done.get(timeout=timeout_s):
                    ticket, result = finished
                    self.results[ticket] = result
                timeout_s = 0.0
        if self._failure is not None:
            raise self._failure

    def send(self, command: CancelJobs | LoadWeights | RestoreUsage | SetPolicy) -> None:
        match command:
            case CancelJobs(tickets):
                self._call_soon(self._cancel, tickets)
            case LoadWeights():
                began = time.perf_counter()
                # The copy is made here, in the run's thread: the learner may change its weights after this call.
                publication = PublishedWeights(command.weights, self._buffers, ray.put)
                self._published_bytes += publication.stored_bytes
                self._call_soon(self._broadcast, replace(command, weights=publication))
                self._published_s += time.perf_counter() - began
            case RestoreUsage(spent) if not spent:
                pass
            case _:
                self._call_soon(self._broadcast, command)

    def reports(self, command: EndStep | Sleep) -> list[ShardReport]:
        """Execute a command in all shards and return the reports of those without jobs.

        Shards that play ahead are not waited for: they report on the step later, and would stay awake anyway.
        """
        if isinstance(command, Sleep) and not self._sleeps:
            return []
        return asyncio.run_coroutine_threadsafe(self._gather_reports(command), self._loop).result()

    def metrics(self) -> Metrics:
        now = time.monotonic()
        elapsed = max(now - self._step_began, 1e-9)
        idle = [1 - min(slot.busy_s / elapsed, 1.0) for slot in self._slots]
        metrics: Metrics = {
            "cluster/simulators": float(sum(not slot.vacant for slot in self._slots)),
            "cluster/restarts": float(self._restarts),
            "cluster/idle": sum(idle) / len(idle),
        }
        for slot, share in zip(self._slots, idle, strict=True):
            metrics[f"cluster/simulator_{slot.number}/idle"] = share
            slot.busy_s = 0.0
        metrics["cluster/published_bytes"] = self._published_bytes
        metrics["cluster/publish_s"] = self._published_s
        self._step_began, self._restarts = now, 0
        self._published_bytes = self._published_s = 0.0
        return metrics

    def take_notes(self) -> list[str]:
        notes, self._notes = self._notes, []
        return notes

    def status(self) -> list[ProcessStatus]:
        return [
            ProcessStatus(slot.name, slot.location, slot.activity, slot.since, slot.open_jobs, slot.restarts)
            for slot in self._slots
        ]

    def close(self) -> None:
        """End all processes."""
        with suppress(concurrent.futures.TimeoutError):
            asyncio.run_coroutine_threadsafe(_cancel_tasks(), self._loop).result(_END_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_END_S)
        for slot in self._slots:
            slot.kill()

    def _call_soon(self, call: Callable[..., None], *arguments: Any) -> None:
        self._loop.call_soon_threadsafe(call, *arguments)

    # Called in the thread of the event loop.

    def _begin(self, shard: int, batch: JobBatch) -> None:
        slot = self._slots[shard]
        player = self._stand_in(slot) if slot.vacant else slot
        player.begin(OpenBatch(batch, set(batch.jobs)))

    def _stand_in(self, slot: SimulatorSlot) -> SimulatorSlot:
        """Return the next simulator with a process, which does the jobs of the vacant `slot`."""
        for offset in range(1, self.size):
            other = self._slots[(slot.number + offset) % self.size]
            if not other.vacant:
                return other
        return slot

    def _cancel(self, tickets: frozenset[Ticket]) -> None:
        for slot in self._slots:
            affected = [opened for opened in slot.open if tickets & opened.open_jobs]
            for opened in affected:
                opened.cancelled |= tickets & opened.open_jobs
                opened.open_jobs -= tickets
            if affected:
                slot.drop_finished()
                slot.put(CancelJobs(tickets))

    def _broadcast(self, command: LoadWeights | RestoreUsage | SetPolicy) -> None:
        """Send a command to all processes, and store it for new ones."""
        match command:
            case LoadWeights(policy):
                self._weights[policy] = command
            case RestoreUsage():
                self._restored = command
            case SetPolicy(name, player):
                self._added.pop(name, None)
                if player:
                    self._added[name] = command
        for slot in self._slots:
            slot.put(command)

    async def _gather_reports(self, command: EndStep | Sleep) -> list[ShardReport]:
        present = [slot for slot in self._slots if not slot.vacant]
        for slot in present:
            if not slot.open:
                slot.report = self._loop.create_future()
            if not slot.open or isinstance(command, EndStep):
                slot.put(command)
        reports = await asyncio.gather(*[slot.report for slot in present if slot.report])
        if isinstance(command, EndStep):
            late, self._late = self._late, []
            reports = [*late, *reports]
        return reports

    async def _serve(self, slot: SimulatorSlot) -> None:
        """Run one simulator, in one process after another."""
        try:
            while True:
                try:
                    await self._start_process(slot)
                    while True:
                        await self._work(slot)
                except _Lost as error:
                    self._lose(slot, error)
        except _Failed as error:
            self._fail(error.cause)
        except EngineError as error:
            self._fail(error)

    async def _start_process(self, slot: SimulatorSlot) -> None:
        """Start a process, build its simulator, and queue commands for all unfinished batches."""
        slot.process, slot.location = self._actor.remote(), ""
        patience_s = self._settings.room_s if slot.restarts else self._settings.start_s
        vacate = self._loop.call_later(patience_s, self._vacate, slot)
        try:
            host, process_id = await self._call(slot, "waiting for room", slot.process.location.remote(), None)
        finally:
            vacate.cancel()
        slot.location = f"{host}, process {process_id}"
        built = slot.process.build.remote(self._setup)
        slot.gpus = await self._call(slot, "loading weights", built, self._settings.start_s)
        # These replace the queue: they cover every earlier command, so none is sent twice. Batches come last, as they
        # need the weights and the added policies.
        slot.commands = [*self._weights.values()]
        if self._restored:
            slot.commands.append(self._restored)
        slot.commands += self._added.values()
        slot.commands += [opened.without_cancelled() for opened in slot.open]
        # The report of the step that is ending went with the old process.
        slot.answer(ShardReport())
        if slot.vacant or slot.losses:
            self._notes.append(f"{slot.name} is there again ({slot.location})")
        slot.vacant = False

    async def _work(self, slot: SimulatorSlot) -> None:
        """Let a process execute its commands and play for a while; collect the results."""
        while not slot.commands and not slot.open:
            slot.set_activity("idle")
            slot.wake.clear()
            await slot.wake.wait()
        commands, slot.commands = slot.commands, []
        activity = f"playing {slot.open_jobs} episodes" if slot.open else "taking orders"
        payloads: list[ShardCommand] = []
        for command in commands:
            if isinstance(command, LoadWeights):
                publication: PublishedWeights = command.weights
                stored_bytes = publication.stored_bytes
                payloads.append(replace(command, weights=publication.payload_for(slot.gpus)))
                self._published_bytes += publication.stored_bytes - stored_bytes
            else:
                payloads.append(command)
        # `commands` holds shared GPU buffers in use until the reply says that the process has read them.
        reply: Reply = await self._call(
            slot, activity, slot.process.work.remote(payloads, _TURN_S), self._settings.deadline_s
        )
        slot.busy_s += reply.busy_s
        for report in reply.reports:
            if slot.report:
                slot.answer(report)
            else:
                self._late.append(report)
        self._take_results(slot, reply.results)

    def _take_results(self, slot: SimulatorSlot, results: Iterable[tuple[Ticket, Result]]) -> None:
        """Deliver each result once: a batch played again repeats results of its lost process."""
        for ticket, result in results:
            for opened in slot.open:
                if ticket in opened.open_jobs:
                    opened.open_jobs.discard(ticket)
                    slot.losses = 0
                    self._done.put((ticket, result))
        slot.drop_finished()

    async def _call(self, slot: SimulatorSlot, activity: str, reference: Any, limit_s: float | None) -> Any:
        """Return the result of a call of a process.

        Raises:
            _Failed: if code of ours raised there.
            _Lost: if the process is dead, or does not reply within `limit_s`.
        """
        slot.set_activity(activity)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(reference.future()), limit_s)
        except RayTaskError as error:
            if isinstance(error.cause, RayError):
                raise _Lost(f"lost its connection while {activity}: {_first_line(error.cause)}") from None
            raise _Failed(error.cause) from None
        except TimeoutError:
            raise _Lost(f"gave no sign of life for {limit_s:g} s while {activity} (cluster.deadline_s)") from None
        except RayError as error:
            raise _Lost(f"died while {activity}: {_first_line(error)}") from None

    def _lose(self, slot: SimulatorSlot, error: _Lost) -> None:
        """Give up a process.

        Raises:
            EngineError: after `cluster.tries` losses in a row without a result.
        """
        slot.kill()
        slot.losses, slot.restarts, self._restarts = slot.losses + 1, slot.restarts + 1, self._restarts + 1
        message = f"{slot.name} ({slot.location or 'not started'}) {error}"
        if slot.losses >= self._settings.tries:
            raise EngineError(f"{message}; that was process {slot.losses} in a row without a result (cluster.tries)")
        self._notes.append(f"{message}; it is replaced, and {slot.open_jobs} unfinished episodes are played again")
        slot.answer(ShardReport())

    def _vacate(self, slot: SimulatorSlot) -> None:
        """Hand a simulator's jobs to another one until there is room for its process."""
        slot.vacant = True
        if all(other.vacant for other in self._slots):
            self._fail(EngineError("no simulator is left, and there is no room for another (cluster.room_s)"))
            return
        stand_in = self._stand_in(slot)
        for opened in slot.open:
            stand_in.begin(opened)
        slot.open = []
        slot.answer(ShardReport())
        waited = f"there was no room for it for {self._settings.room_s:g} s (cluster.room_s)"
        self._notes.append(f"{slot.name}: {waited}; {stand_in.name} does its work until there is")

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        for slot in self._slots:
            slot.answer(ShardReport())
        self._done.put(None)  # wakes `wait`


async def _cancel_tasks() -> None:
    """End all other tasks of this event loop."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
