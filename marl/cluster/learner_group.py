"""A learner in several Ray actors, with the interface of a learner in one process."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError, RayTaskError

from marl.cluster.learner_worker import LearnerSpec, LearnerWorker, WorkerUpdate
from marl.core.errors import Notice, RunError, Writing
from marl.core.types import Metrics, Reading, Sample, TokenFigures, Turn, TurnId
from marl.rollout.base import ProcessStatus

if TYPE_CHECKING:
    from torch import Tensor

HEALTH = "health"
"""Concurrency group of calls that an actor answers during another call."""


class LearnerLostError(RunError):
    """A process of a learner has died or hangs. The message names the process and its activity."""


class LearnerRestarted(Notice):
    """The processes of a learner were restarted after the loss of at least one."""


@dataclass(frozen=True, slots=True)
class LearnerResources:
    """Resources of a learner's processes, deadlines, and the number of processes that may be lost."""

    cpus: float = 1.0
    """CPUs reserved by each process."""
    gpus: float = 0.0
    """GPUs reserved by each process."""
    deadline_s: float = 120.0
    """Maximum time without a sign of life, in seconds."""
    start_s: float = 600.0
    """Maximum time for the processes to find room and start, in seconds."""
    room_s: float = 60.0
    """Maximum wait for room for all processes after a loss, in seconds. Then those with room continue alone until there
    is more."""
    max_losses: int = 5
    """Maximum number of retries of one call after a loss. 0: the first loss ends the run, and no state is kept."""


class LearnerGroup:
    """`Learner` of a policy that several processes train together.

    The run's process keeps the state after every update. If a process dies or hangs, all of the group are restarted
    from this state and repeat the interrupted call: the weights are equal to the last bit.
    """

    def __init__(self, spec: LearnerSpec, resources: LearnerResources) -> None:
        """Start the processes and build the learner in them.

        Raises:
            LearnerLostError: if they do not start, or too many are lost.
        """
        self._spec, self._resources = spec, resources
        self._workers: list[Any] = []
        self._waiting: dict[Any, Any] = {}
        """Pending `alive` call -> handle, of the processes without room so far."""
        self._state: dict[str, Any] | None = None
        """State after the newest update, or None for a newly built learner."""
        self._locations: list[str] = []
        """Host name and process id of each process."""
        self._activity = ("starting", time.time())
        """Current call and its beginning, in seconds since 1970."""
        self._lost: LearnerLostError | None = None
        """Loss after which no state is left to restart from."""
        self.changes, self.restarts = 0, 0
        self.token_figures: dict[TurnId, TokenFigures] | None = None
        """Filled by the next update, unless None or not reported by the learner."""
        self._call("alive")

    @property
    def needs(self) -> frozenset[str]:
        """Return the fields of `Reading` to be read of turns before the next update."""
        return self._needs

    def read(self, turns: Sequence[Turn], wanted: frozenset[str]) -> list[Reading]:
        """Return the model's reading of each turn, with the fields `wanted`."""
        return self._call("read", list(turns), wanted)[0]

    def update(self, samples: Sequence[Sample]) -> Metrics:
        """Update the weights; return metrics of the update.

        Raises:
            NonFinite: as in one process.
            LearnerLostError: if too many processes are lost, or the first if no state is kept.
        """
        if self._waiting and ray.wait(list(self._waiting), timeout=0)[0]:
            self._end()
            self._warn(f"{self._name}: there is room for more processes again")
        keeps_state = self._resources.max_losses > 0
        # Without a kept state, a failed update may have changed the weights, so it counts as a change at its start.
        self.changes += not keeps_state
        result: WorkerUpdate = self._call("update", list(samples), keeps_state, self.token_figures is not None)[0]
        self.changes += keeps_state
        self._needs, self._state = result.needs, result.state or None
        if self.token_figures is not None:
            self.token_figures |= result.tokens
        return {**result.metrics, "restarts": float(self.restarts)}

    def publish(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the weights by name."""
        yield from self._call("publish")[0].items()

    def save(self, folder: Path) -> None:
        """Write the weights as a Hugging Face folder with the tokenizer. The processes need no shared disk for this."""
        files: dict[str, bytes] = self._call("save")[0]
        with Writing(folder):
            for name, content in files.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(content)

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state of the learner: the next update depends on it and its samples alone."""
        return self._state if self._state is not None else self._call("state_dict")[0]

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state`, saved by a group of any size."""
        self.changes += 1
        self._needs = self._call("load_state", dict(state))[0]
        self._state = dict(state) if self._resources.max_losses else None

    def close(self) -> None:
        """End the processes."""
        self._end()
        for worker in self._waiting.values():
            ray.kill(worker)
        self._waiting = {}

    def status(self) -> list[ProcessStatus]:
        """Return the activity of each process; may be called from any thread."""
        activity, since = self._activity
        return [
            ProcessStatus(f"{self._name}, process {rank}", location, activity, since, 0, self.restarts)
            for rank, location in enumerate(list(self._locations))
        ]

    @property
    def _name(self) -> str:
        return f"learner of policy {self._spec.context.policy!r}"

    def _call(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method of all processes and return their results by rank; retried with new processes after a loss."""
        losses = 0
        if self._lost:
            raise self._lost  # without a state, new processes would start from the initial weights
        while True:
            try:
                if not self._workers:
                    self._start()
                return self._call_all(method, *arguments)
            except LearnerLostError as lost:
                self._end()
                if losses == self._resources.max_losses:
                    self._lost = None if self._resources.max_losses else lost
                    raise
                losses += 1
                self.restarts += 1
                self._warn(f"{lost}; its processes are started anew")

    def _start(self) -> None:
        """Start processes; let them form a group, build the learner and load its state."""
        self._start_processes()
        self._locations = self._call_all("alive")
        spec = replace(self._spec, world_size=len(self._workers))
        address = self._call_all("rendezvous_address")[0]
        joining = [worker.join.remote(spec, address, rank) for rank, worker in enumerate(self._workers)]
        self._needs = self._results("join", joining)[0]
        if self._state is not None:
            self._needs = self._call_all("load_state", self._state)[0]

    def _start_processes(self) -> None:
        """Start the processes and wait for room; after a loss, continue with the processes that have room.

        Raises:
            LearnerLostError: if there is no room for any process, or, at the first start, not for all.
        """
        self._activity = "waiting for room", time.time()
        size, resources = self._spec.world_size, self._resources
        options: dict[str, Any] = {"num_cpus": resources.cpus, "num_gpus": resources.gpus}
        options["concurrency_groups"] = {HEALTH: 1}
        actor: Any = ray.remote(**options)(LearnerWorker)
        starting = dict(self._waiting)
        for _ in range(size - len(starting)):
            worker = actor.remote()
            starting[worker.alive.remote()] = worker
        # Not in fsdp: with fewer processes each shard is larger, and may not fit.
        may_shrink = self.restarts > 0 and self._spec.data_parallel == "ddp"
        timeout = resources.room_s if may_shrink else resources.start_s
        up, late = ray.wait(list(starting), num_returns=size, timeout=timeout)
        if may_shrink and not up:
            up, late = ray.wait(late, timeout=resources.start_s)
        self._workers, self._waiting = [starting[call] for call in up], {call: starting[call] for call in late}
        if not late:
            return
        room = f"{self._name}: {size} processes with {resources.cpus:g} processors and {resources.gpus:g} GPUs each"
        if not (may_shrink and up):
            self.close()
            raise LearnerLostError(f"{room} have not come up within {resources.start_s:g} s")
        few = f"{len(up)} have come up within {resources.room_s:g} s"
        self._warn(f"{room}: {few}, and go on until there is room for all")

    def _warn(self, message: str) -> None:
        # With the restart number, as Python shows equal warnings only once.
        warnings.warn(f"{message} (restart {self.restarts})", LearnerRestarted, stacklevel=3)

    def _end(self) -> None:
        for worker in self._workers:
            ray.kill(worker)
        self._workers = []

    def _call_all(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method of all processes once; return their results by rank.

        Raises:
            LearnerLostError: if a process died, or gives no sign of life before the deadline.
        """
        stored = [ray.put(argument) for argument in arguments]  # once for all processes
        return self._results(method, [getattr(worker, method).remote(*stored) for worker in self._workers])

    def _results(self, method: str, calls: Sequence[Any]) -> list[Any]:
        results: dict[Any, Any] = {}
        self._activity = method, time.time()
        while waiting := [call for call in calls if call not in results]:
            # Half of the deadline for the call, half for a sign of life.
            done, _ = ray.wait(waiting, timeout=self._resources.deadline_s / 2)
            try:
                results.update(zip(done, ray.get(done, timeout=self._resources.deadline_s / 2), strict=True))
            except RayTaskError as error:
                # After the loss of a process the others raise too: the loss is the cause to report.
                self._expect_alive(method)
                raise error.cause from error
            except RayError:
                self._expect_alive(method)
                raise
            if not done:
                self._expect_alive(method)
        self._activity = "idle", time.time()
        return [results[call] for call in calls]

    def _expect_alive(self, method: str) -> None:
        """Check that every process gives a sign of life.

        Raises:
            LearnerLostError: for the first process without one.
        """
        deadline_s = self._resources.deadline_s
        pings = [worker.alive.options(concurrency_group=HEALTH).remote() for worker in self._workers]
        done, _ = ray.wait(pings, num_returns=len(pings), timeout=deadline_s / 2)
        for rank, ping in enumerate(pings):
            process = f"{self._name}: process {rank} of {len(pings)}"
            if ping not in done:
                raise LearnerLostError(f"{process} has given no sign of life for {deadline_s:g} s, in {method!r}")
            try:
                ray.get(ping, timeout=deadline_s)
            except RayError as error:
                raise LearnerLostError(f"{process} has died, in {method!r}") from error
