"""Simulator shards as Ray actors, which are given jobs, watched, and replaced if they die or hang.

A thread with an event loop manages the actors, so that they play on while the run learns. Every wait has a deadline,
and an error message that names the process and its activity.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import queue
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from marl.cluster.broadcast_group import BroadcastHandle
from marl.cluster.call_timing import batching_s, call_limit_s
from marl.cluster.gpu_weights import WeightBufferPool
from marl.cluster.node_plan import start_on
from marl.cluster.pending_calls import PendingCalls
from marl.cluster.simulator_process import ExecuteAndPlayReply, SimulatorProcess, SimulatorProcessSettings
from marl.cluster.simulator_slot import RestartableSimulator, UnfinishedJobBatch
from marl.cluster.weight_broadcast import WeightBroadcaster
from marl.cluster.weight_transfer import PublishedWeights
from marl.core.errors import EngineError, EngineLostError
from marl.core.types import Metrics, Ticket
from marl.rollout.base import ProcessActivity
from marl.rollout.shards import (
    AddOrRemovePolicyCommand,
    BroadcastCommand,
    CancelJobsCommand,
    LoadWeightsCommand,
    ReportStepMetricsCommand,
    RestoreUsageCommand,
    ShardCommand,
    ShardGroup,
    ShardJobResult,
    ShardStepReport,
    SleepCommand,
    StartJobsCommand,
)
from marl.scenario.cluster import ClusterConfig

# Metrics of this module (name | unit | meaning), which `tests/bench/figures.py` copies into marl/README.md.
METRICS = """
cluster/simulators | processes | simulators that play (`cluster: {kind: ray}`)
cluster/restarts | processes | lost and replaced in this step
cluster/idle | share | of the step's time in which a simulator had nothing to play, mean over simulators
cluster/idle_max | share | the same of the simulator that had nothing to play for longest
cluster/idle_max_simulator | index | of this simulator, as in `marl status`
cluster/published_bytes | bytes | of new weights that the step before put into the object store
cluster/broadcast_bytes | bytes | of new weights that the step before sent by broadcast, counted once for all simulators
cluster/publish_s | s | that this took the run itself
"""

_END_S = 10.0
"""Maximum time that `close` waits for the end of all tasks, in seconds."""


class _SimulatorProcessLost(Exception):  # noqa: N818 (says what happened)
    """A simulator's process died, or gave no sign of life within its deadline."""


class _SimulatorProcessRaised(Exception):  # noqa: N818 (says what happened)
    """Exception that code of marl raised in a simulator's process; it ends the run, as it would in one process."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.cause = cause


class RayShardGroup(ShardGroup):
    """Group of simulator shards in Ray actors.

    Public methods are called in the run's thread, private ones in the thread of the event loop.
    """

    def __init__(self, settings: ClusterConfig, setup: SimulatorProcessSettings, node_ids: Sequence[str] = ()) -> None:
        """`node_ids`: machine on which each simulator starts (default: chosen by Ray). Replacements may be anywhere."""
        super().__init__(settings.simulators)
        self._node_ids = node_ids
        self._settings, self._setup = settings, ray.put(setup)
        self._call_limit_s, self._batching_s = call_limit_s(settings), batching_s(settings.simulators)
        self._sleeps = any(policy.engine.can_sleep for policy in setup.scenario.policies.values())
        # Events of single calls are for Ray's dashboard, and cost a twentieth of each call.
        options: dict[str, Any] = {"max_restarts": 0, "enable_task_events": False}
        self._actor: Any = ray.remote(num_cpus=settings.cpus, num_gpus=settings.gpus, **options)(SimulatorProcess)
        # `queue.Queue` is used, because a SimpleQueue could wait for ever if a signal ends a timed wait.
        self._done: queue.Queue[tuple[Ticket, ShardJobResult] | None] = queue.Queue()
        self._failure: BaseException | None = None
        self._notes: list[str] = []
        self._weights: dict[str, LoadWeightsCommand] = {}
        """Policy -> command with its newest weights, for new processes."""
        self._added: dict[str, AddOrRemovePolicyCommand] = {}
        """Added policy -> the command that added it, for new processes."""
        self._restored: RestoreUsageCommand | None = None
        """Command with the restored usage of engines, for new processes."""
        self._buffers = WeightBufferPool()
        self._late: list[ShardStepReport] = []
        """Reports that came after the end of their step."""
        self._published_bytes = self._published_s = 0.0
        self._restarts = 0
        self._step_began = time.monotonic()
        self._slots = [RestartableSimulator(number) for number in range(self.size)]
        self._loop = asyncio.new_event_loop()
        self._calls = PendingCalls(self._loop)
        broadcasts = settings.weight_transfer == "broadcast"
        self._broadcaster = WeightBroadcaster(self._calls, settings) if broadcasts else None
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        for slot in self._slots:
            asyncio.run_coroutine_threadsafe(self._keep_simulator_running(slot), self._loop)

    # --- methods called in the run's thread -----------------------------------------------------------------------

    def submit(self, shard_index: int, batch: StartJobsCommand) -> None:
        self._loop.call_soon_threadsafe(self._assign_job_batch, shard_index, batch)

    def step(self, wait_s: float) -> None:
        timeout_s = max(wait_s, 1e-4)
        with suppress(queue.Empty):
            while self._failure is None:
                # `step` waits for its first result only. Further results are taken if they are ready.
                if finished := self._done.get(timeout=timeout_s):
                    ticket, result = finished
                    self.results[ticket] = result
                timeout_s = 0.0
        if self._failure is not None:
            raise self._failure

    def send_command(self, command: BroadcastCommand) -> None:
        match command:
            case CancelJobsCommand(tickets):
                self._loop.call_soon_threadsafe(self._cancel_jobs, tickets)
            case LoadWeightsCommand():
                began = time.perf_counter()
                # Weights are copied before this method returns, because the learner may change them afterwards.
                publication = PublishedWeights(command.weights, self._buffers, ray.put, bool(self._broadcaster))
                self._published_bytes += publication.stored_bytes
                self._loop.call_soon_threadsafe(self._broadcast_command, replace(command, weights=publication))
                self._published_s += time.perf_counter() - began
            case RestoreUsageCommand(spent) if not spent:
                pass
            case _:
                self._loop.call_soon_threadsafe(self._broadcast_command, command)

    def collect_reports(self, command: ReportStepMetricsCommand | SleepCommand) -> list[ShardStepReport]:
        """Execute a command in all shards; return the reports of the shards without open jobs.

        Shards that play ahead are not waited for: their reports come later, and their engines stay awake.
        """
        if isinstance(command, SleepCommand) and not self._sleeps:
            return []
        return asyncio.run_coroutine_threadsafe(self._gather_reports(command), self._loop).result()

    def metrics_of_processes(self) -> Metrics:
        now = time.monotonic()
        elapsed = max(now - self._step_began, 1e-9)
        idle = [1 - min(slot.busy_s / elapsed, 1.0) for slot in self._slots]
        metrics: Metrics = {
            "cluster/simulators": float(sum(not slot.vacant for slot in self._slots)),
            "cluster/restarts": float(self._restarts),
            "cluster/idle": sum(idle) / len(idle),
            # Not a metric of each simulator: a row of 1,000 of them would take 45 kB.
            "cluster/idle_max": max(idle),
            "cluster/idle_max_simulator": float(idle.index(max(idle))),
        }
        for slot in self._slots:
            slot.busy_s = 0.0
        metrics["cluster/published_bytes"] = self._published_bytes
        metrics["cluster/publish_s"] = self._published_s
        if self._broadcaster:
            metrics["cluster/broadcast_bytes"] = float(self._broadcaster.take_sent_bytes())
        self._step_began, self._restarts = now, 0
        self._published_bytes = self._published_s = 0.0
        return metrics

    def take_lost_shard_messages(self) -> list[str]:
        notes, self._notes = self._notes, []
        return notes + (self._broadcaster.take_messages() if self._broadcaster else [])

    def process_activities(self) -> list[ProcessActivity]:
        return [
            ProcessActivity(slot.name, slot.location, slot.activity, slot.since, slot.open_job_count, slot.restarts)
            for slot in self._slots
        ]

    def close(self) -> None:
        """End the processes of all simulators."""
        with suppress(concurrent.futures.TimeoutError):
            asyncio.run_coroutine_threadsafe(_cancel_other_asyncio_tasks(), self._loop).result(_END_S)
        self._calls.close()
        if self._broadcaster:
            self._loop.call_soon_threadsafe(self._broadcaster.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_END_S)
        for slot in self._slots:
            slot.kill_process()

    # --- methods called in the thread of the event loop -----------------------------------------------------------

    def _assign_job_batch(self, shard_index: int, batch: StartJobsCommand) -> None:
        """Give a batch of jobs to the shard's process, or to a stand-in if it has no process."""
        slot = self._slots[shard_index]
        player = self._next_slot_with_process(slot) if slot.vacant else slot
        player.queue_job_batch(UnfinishedJobBatch(batch, set(batch.jobs)))

    def _next_slot_with_process(self, slot: RestartableSimulator) -> RestartableSimulator:
        """Return the next simulator that has a process, to do the jobs of the vacant `slot`."""
        for offset in range(1, self.size):
            other = self._slots[(slot.number + offset) % self.size]
            if not other.vacant:
                return other
        return slot

    def _cancel_jobs(self, tickets: frozenset[Ticket]) -> None:
        for slot in self._slots:
            affected = [opened for opened in slot.open if tickets & opened.open_jobs]
            for opened in affected:
                opened.cancelled |= tickets & opened.open_jobs
                opened.open_jobs -= tickets
            if affected:
                slot.drop_finished_batches()
                slot.queue_command(CancelJobsCommand(tickets))

    def _broadcast_command(self, command: LoadWeightsCommand | RestoreUsageCommand | AddOrRemovePolicyCommand) -> None:
        """Send a command to all processes, and store it for processes that start later.

        An idle simulator gets the command with its next jobs, and weights after a short while, so that it loads them
        while the run does other work.
        """
        match command:
            case LoadWeightsCommand(policy):
                self._weights[policy] = command
                publication: PublishedWeights = command.weights
                if self._broadcaster and publication.copy:
                    publication.broadcast = self._broadcaster.start(policy, publication.copy, self._slots)
                self._loop.call_later(self._batching_s, self._send_queued_commands)
            case RestoreUsageCommand():
                self._restored = command
            case AddOrRemovePolicyCommand(name, player):
                self._added.pop(name, None)
                if player:
                    self._added[name] = command
        for slot in self._slots:
            slot.queue_command(command, is_sent_at_once=False)

    def _send_queued_commands(self) -> None:
        for slot in self._slots:
            if slot.commands:
                slot.wake.set()

    async def _gather_reports(self, command: ReportStepMetricsCommand | SleepCommand) -> list[ShardStepReport]:
        reports: list[ShardStepReport] = []
        present: list[RestartableSimulator] = []
        for slot in self._slots:
            if isinstance(command, ReportStepMetricsCommand) and (report := slot.end_step_if_idle()):
                reports.append(report)
            elif not slot.vacant:
                present.append(slot)
        for slot in present:
            if not slot.open:
                slot.report = self._loop.create_future()
            if not slot.open or isinstance(command, ReportStepMetricsCommand):
                slot.queue_command(command)
        reports += await asyncio.gather(*[slot.report for slot in present if slot.report])
        if isinstance(command, ReportStepMetricsCommand):
            late, self._late = self._late, []
            reports += late
        return reports

    async def _keep_simulator_running(self, slot: RestartableSimulator) -> None:
        """Run one simulator until the run ends; a lost process is killed and replaced.

        After `cluster.tries` losses in a row without a result, the run ends with an error.
        """
        try:
            while True:
                try:
                    await self._start_process(slot)
                    while True:
                        await self._send_commands_and_deliver_results(slot)
                except _SimulatorProcessLost as error:
                    slot.kill_process()
                    slot.losses, slot.restarts = slot.losses + 1, slot.restarts + 1
                    self._restarts += 1
                    message = f"{slot.name} ({slot.location or 'not started'}) {error}"
                    if slot.losses >= self._settings.tries:
                        in_a_row = f"that was process {slot.losses} in a row without a result (cluster.tries)"
                        raise EngineError(f"{message}; {in_a_row}") from error
                    repeated = f"{slot.open_job_count} unfinished episodes are played again"
                    self._notes.append(f"{message}; it is replaced, and {repeated}")
                    slot.deliver_report(ShardStepReport())
        except _SimulatorProcessRaised as error:
            self._end_run_with_error(error.cause)
        except EngineError as error:
            self._end_run_with_error(error)

    async def _start_process(self, slot: RestartableSimulator) -> None:
        """Start a process, build its simulator, and queue commands for all unfinished batches."""
        slot.process, slot.location = self._create_actor(slot), ""
        patience_s = self._settings.room_s if slot.restarts else self._settings.start_s
        vacate = self._loop.call_later(patience_s, self._reassign_jobs_until_process_starts, slot)
        try:
            host, process_id = await self._await_process_call(
                slot, "waiting for room", slot.process.hostname_and_pid.remote(), None
            )
        finally:
            vacate.cancel()
        slot.location = f"{host}, process {process_id}"
        built = slot.process.build_and_list_gpu_uuids.remote(self._setup, slot.number)
        slot.gpus = await self._await_process_call(slot, "loading weights", built, self._settings.start_s)
        # Batches of jobs come last in the queue, because they need these weights and policies.
        commands: list[ShardCommand] = [*self._weights.values()]
        if self._restored:
            commands.append(self._restored)
        commands += self._added.values()
        commands += [opened.without_cancelled_jobs() for opened in slot.open]
        slot.process_started(commands)
        # A `step` that waits for a report of the lost process gets an empty report instead.
        slot.deliver_report(ShardStepReport())
        if slot.vacant or slot.losses:
            self._notes.append(f"{slot.name} is there again ({slot.location})")
        slot.vacant = False

    def _create_actor(self, slot: RestartableSimulator) -> Any:
        """Return the handle of a new actor, which Ray starts when there is room for it."""
        strategy = start_on(() if slot.restarts else self._node_ids, slot.number)
        return self._actor.options(scheduling_strategy=strategy).remote()

    async def _send_commands_and_deliver_results(self, slot: RestartableSimulator) -> None:
        """Let a process execute its commands and play until its next results; deliver its results and reports.

        Further commands wait for the reply to this call.
        """
        if not slot.open and not slot.wake.is_set():
            slot.set_process_activity("idle")
            await slot.wake.wait()
        slot.wake.clear()
        slot.idle_report = None
        commands, slot.commands = slot.commands, []
        activity = f"playing {slot.open_job_count} episodes" if slot.open else "taking orders"
        slot.sent_commands = commands
        payloads = [await self._with_weights_payload(slot, command) for command in commands]
        # `commands` keeps shared GPU buffers alive until the process has replied, and so has read them.
        call = slot.process.execute_and_play.remote(payloads, self._call_limit_s, self._batching_s)
        reply: ExecuteAndPlayReply = await self._await_process_call(slot, activity, call, self._settings.deadline_s)
        slot.sent_commands = ()
        slot.busy_s += reply.busy_s
        slot.idle_report = reply.idle_report
        for report in reply.reports:
            if slot.report:
                slot.deliver_report(report)
            else:
                self._late.append(report)
        for ticket, result in reply.results:
            for opened in slot.open:
                # A new process repeats the results of a lost one. Each job's result is delivered only once.
                if ticket in opened.open_jobs:
                    opened.open_jobs.discard(ticket)
                    slot.losses = 0
                    self._done.put((ticket, result))
        slot.drop_finished_batches()

    async def _with_weights_payload(self, slot: RestartableSimulator, command: ShardCommand) -> ShardCommand:
        """Return `command`, with the payload for the slot's process if it is a command to load weights."""
        if not isinstance(command, LoadWeightsCommand):
            return command
        publication: PublishedWeights = command.weights
        if publication.broadcast and slot.process_key in await publication.broadcast:
            return replace(command, weights=BroadcastHandle(command.policy))
        stored_bytes = publication.stored_bytes
        payload = publication.weights_payload_for(slot.gpus)
        self._published_bytes += publication.stored_bytes - stored_bytes
        return replace(command, weights=payload)

    async def _await_process_call(
        self, slot: RestartableSimulator, activity: str, pending_call: Any, limit_s: float | None
    ) -> Any:
        """Return the result of a pending Ray call of the slot's process.

        Raises:
            _SimulatorProcessRaised: if code of marl raised an exception there.
            _SimulatorProcessLost: if the process has died, or does not reply within `limit_s`.
        """
        slot.set_process_activity(activity)
        try:
            return await asyncio.wait_for(self._calls.result_of(pending_call), limit_s)
        except RayTaskError as error:
            if isinstance(error.cause, RayError):
                raise _SimulatorProcessLost(
                    f"lost its connection while {activity}: {_first_message_line(error.cause)}"
                ) from None
            if isinstance(error.cause, EngineLostError):
                raise _SimulatorProcessLost(f"lost an engine while {activity}: {error.cause}") from None
            raise _SimulatorProcessRaised(error.cause) from None
        except TimeoutError:
            raise _SimulatorProcessLost(
                f"gave no sign of life for {limit_s:g} s while {activity} (cluster.deadline_s)"
            ) from None
        except RayError as error:
            raise _SimulatorProcessLost(f"died while {activity}: {_first_message_line(error)}") from None

    def _reassign_jobs_until_process_starts(self, slot: RestartableSimulator) -> None:
        """Give a simulator's jobs to another simulator, until there is room for its process."""
        slot.vacant = True
        if all(other.vacant for other in self._slots):
            self._end_run_with_error(
                EngineError("no simulator is left, and there is no room for another (cluster.room_s)")
            )
            return
        stand_in = self._next_slot_with_process(slot)
        for opened in slot.open:
            stand_in.queue_job_batch(opened)
        slot.open = []
        slot.deliver_report(ShardStepReport())
        waited = f"there was no room for it for {self._settings.room_s:g} s (cluster.room_s)"
        self._notes.append(f"{slot.name}: {waited}; {stand_in.name} does its work until there is")

    def _end_run_with_error(self, error: BaseException) -> None:
        """End the run with `error`, which its thread raises at its next wait."""
        self._failure = error
        for slot in self._slots:
            slot.deliver_report(ShardStepReport())
        self._done.put(None)  # any item, even None, wakes the run's thread in `step`


async def _cancel_other_asyncio_tasks() -> None:
    """Cancel all other tasks of the running event loop, and wait for their end."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _first_message_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
