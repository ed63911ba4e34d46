"""Learner of one policy in several Ray actors, with the interface of a learner in one process."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import ray
from ray.exceptions import RayError, RayTaskError

from marl.cluster.kept_state import ShareCopies, pack_share, shares_in_object_store
from marl.cluster.learner_worker import LearnerProcessSettings, LearnerWorker, WorkerUpdateResult
from marl.cluster.node_plan import start_on
from marl.core.errors import RaiseRunFolderErrorOnFailedWrite, RunError, UserNotice
from marl.core.state_shares import StateShares, make_state_share
from marl.core.types import Metrics, Reading, Sample, Turn, TurnId
from marl.protocols import TokenLogprobsAndEntropies
from marl.rollout.base import ProcessActivity

if TYPE_CHECKING:
    from torch import Tensor

# Metrics of this module (name | unit | meaning), which `tests/bench/figures.py` copies into marl/README.md.
METRICS = """
policy/POLICY/restarts | number | times that the processes of a learner (`cluster.learners`) were started anew
    because one was lost, in this sitting
"""

_T = TypeVar("_T")

HEALTH = "health"
"""Name of the concurrency group of calls that an actor answers while another call runs."""


class LearnerProcessLostError(RunError):
    """Error if a process of a learner has died or hangs; it names the process and the call in progress."""


class LearnerRestartNotice(UserNotice):
    """Notice that a learner's processes were restarted: one was lost, or there is room for more of them."""


@dataclass(frozen=True, slots=True)
class LearnerProcessResourcesAndDeadlines:
    """Resources of a learner's processes, deadlines, and the tolerated number of losses."""

    cpus: float = 1.0
    """CPUs reserved for each process."""
    gpus: float = 0.0
    """GPUs reserved for each process."""
    deadline_s: float = 120.0
    """Maximum time without a sign of life from a process, in seconds."""
    start_s: float = 600.0
    """Maximum time until all processes have found room and started, in seconds."""
    room_s: float = 60.0
    """Maximum wait for room for all processes after a loss, in seconds. Afterwards the processes with room continue
    alone, until there is room for all."""
    max_losses: int = 5
    """Maximum number of retries of a call after losses. 0: the first loss ends the run, and no state is kept."""
    node_ids: tuple[str, ...] = ()
    """Machine on which each process starts; after a loss, and by default, processes may start on any machine."""


class MultiProcessLearner:
    """`Learner` of one policy, trained by several processes with data parallelism.

    After every update each process leaves its share of the learner's state in its machine's object store, with a copy
    on another machine (`ShareCopies`). If a process dies or hangs, all processes of the group are restarted from this
    state and repeat the interrupted call, with bit-identical weights.
    """

    def __init__(
        self,
        spec: LearnerProcessSettings,
        resources: LearnerProcessResourcesAndDeadlines,
        starting: list[MultiProcessLearner] | None = None,
    ) -> None:
        """Start the processes and build the learner in them. Before that, this object is appended to `starting`.

        Raises:
            LearnerProcessLostError: if the processes do not start, or too many of them are lost.
        """
        self._spec, self._resources = spec, resources
        self._workers: list[Any] = []
        self._waiting: dict[Any, Any] = {}
        """Pending `ping` call -> actor handle, for each process that still waits for room."""
        self._shares: list[Any] | None = None
        """References to the shares of the learner's state after its newest update, or None before the first."""
        self._copies, self._node_ids = ShareCopies(), list[str]()
        """Copies of these shares on other machines, and the id of the machine of each process, by rank."""
        self._locations: list[str] = []
        """Host name and process id of each process, by rank."""
        self._activity = ("starting", time.time())
        """Name of the current call, and its start in seconds since 1970."""
        self._lost: LearnerProcessLostError | None = None
        """Loss of a process that ends the run, because no state was kept to restart from. None: no such loss."""
        self.changes, self.restarts = 0, 0
        """Number of changes of the learner's state, and of restarts of its processes, so far."""
        self.token_figures: dict[TurnId, TokenLogprobsAndEntropies] | None = None
        """Turn -> its tokens' log-probabilities and entropies, filled by the next update. None: not recorded."""
        if starting is not None:
            starting.append(self)
        self._call_with_retries("ping")

    @property
    def needed_reading_fields(self) -> frozenset[str]:
        """Names of the model's outputs, such as log-probabilities, to compute for all turns before the next update."""
        return self._needs

    def read(self, turns: Sequence[Turn], reading_fields: frozenset[str]) -> list[Reading]:
        """Return the model's reading of each turn, with the requested fields."""
        return self._call_with_retries("read", list(turns), reading_fields)[0]

    def update(self, samples: Sequence[Sample]) -> Metrics:
        """Update the weights on `samples`; return the update's metrics.

        Raises:
            NonFiniteError: if a loss or gradient is not finite.
            LearnerProcessLostError: if more than `max_losses` processes are lost.
        """
        if self._waiting and ray.wait(list(self._waiting), timeout=0)[0]:
            self._kill_processes()
            self._warn_user_of_restart(f"{self._message_name}: there is room for more processes again")
        keeps_state = self._resources.max_losses > 0
        # Without a kept state, a failed update may have changed the weights, so the change is counted before it.
        self.changes += not keeps_state

        def update_and_keep() -> tuple[WorkerUpdateResult, list[Any] | None]:
            results = self._call_in_all_processes("update", list(samples), self.token_figures is not None)
            return results[0], self._keep_shares() if keeps_state else None

        result, self._shares = self._with_retries(update_and_keep)
        self.changes += keeps_state
        self._needs = result.needed_reading_fields
        if self.token_figures is not None:
            self.token_figures |= result.tokens
        return {**result.metrics, "restarts": float(self.restarts)}

    def publish(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the names and tensors of the learner's current weights."""
        yield from self._call_with_retries("publish")[0].items()

    def save(self, folder: Path) -> None:
        """Write a Hugging Face folder with weights and tokenizer. The processes send the files, so no disk is
        shared."""
        files: dict[str, bytes] = self._call_with_retries("save")[0]
        with RaiseRunFolderErrorOnFailedWrite(folder):
            for name, content in files.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(content)

    def state_dict(self) -> StateShares:
        """Return the state on which the next update depends, apart from its samples: one share of each process."""
        return shares_in_object_store(self._shares or self._with_retries(self._collect_shares))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state that was saved by a group of any number of processes."""
        self.changes += 1
        shares = state.shares() if isinstance(state, StateShares) else [make_state_share(state, 0, 1)]
        references = [ray.put(pack_share(share)) for share in shares]
        self._needs = self._call_with_retries("load_state_and_list_needed_fields", references)[0]
        self._shares = references if self._resources.max_losses else None

    def close(self) -> None:
        """End all processes, also those that wait for room."""
        self._kill_processes()
        self._copies.forget()
        for worker in self._waiting.values():
            ray.kill(worker)
        self._waiting = {}

    def process_activities(self) -> list[ProcessActivity]:
        """Return the activity of each process. May be called from any thread."""
        activity, since = self._activity
        locations = list(self._locations) or [""] * self._spec.world_size
        return [
            ProcessActivity(f"{self._message_name}, process {rank}", location, activity, since, 0, self.restarts)
            for rank, location in enumerate(locations)
        ]

    @property
    def _message_name(self) -> str:
        return f"learner of policy {self._spec.context.policy!r}"

    def _call_with_retries(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method in all processes; return the results by rank. After a loss, retry with new processes."""
        return self._with_retries(lambda: self._call_in_all_processes(method, *arguments))

    def _with_retries(self, work: Callable[[], _T]) -> _T:
        """Return the result of `work`, which calls methods of all processes. After a loss, retry with new processes."""
        losses = 0
        if self._lost:
            # New processes would start from the initial weights, because no state was kept before the loss.
            raise self._lost
        while True:
            try:
                if not self._workers:
                    self._start_processes_with_state()
                return work()
            except LearnerProcessLostError as lost:
                self._kill_processes()
                if losses == self._resources.max_losses:
                    self._lost = None if self._resources.max_losses else lost
                    raise
                losses += 1
                self.restarts += 1
                self._warn_user_of_restart(f"{lost}; its processes are started anew")

    def _start_processes_with_state(self) -> None:
        """Start the processes, join them in a process group, build the learner in each, and load its state.

        After a loss, a group with `ddp` may continue without the processes that find no room in time.

        Raises:
            LearnerProcessLostError: if no process has room, or at the first start not all of them.
        """
        self._activity = "waiting for room", time.time()
        size, resources = self._spec.world_size, self._resources
        options: dict[str, Any] = {"num_cpus": resources.cpus, "num_gpus": resources.gpus}
        options["concurrency_groups"] = {HEALTH: 1}
        actor: Any = ray.remote(**options)(LearnerWorker)
        starting = dict(self._waiting)
        node_ids = () if self.restarts else resources.node_ids
        for index in range(size - len(starting)):
            strategy = start_on(node_ids, index) if node_ids else "DEFAULT"
            worker = actor.options(scheduling_strategy=strategy).remote()
            starting[worker.ping.remote()] = worker
        # With fsdp, the group keeps its size: in a smaller group each shard is larger, and may not fit into memory.
        may_shrink = self.restarts > 0 and self._spec.data_parallel == "ddp"
        timeout = resources.room_s if may_shrink else resources.start_s
        up, late = ray.wait(list(starting), num_returns=size, timeout=timeout)
        if may_shrink and not up:
            up, late = ray.wait(late, timeout=resources.start_s)
        self._workers, self._waiting = [starting[call] for call in up], {call: starting[call] for call in late}
        if late:
            resource_text = f"{resources.cpus:g} processors and {resources.gpus:g} GPUs each"
            room = f"{self._message_name}: {size} processes with {resource_text}"
            if not (may_shrink and up):
                self.close()
                raise LearnerProcessLostError(f"{room} have not come up within {resources.start_s:g} s")
            few = f"{len(up)} have come up within {resources.room_s:g} s"
            self._warn_user_of_restart(f"{room}: {few}, and go on until there is room for all")
        self._locations = self._call_in_all_processes("ping")
        spec = replace(self._spec, world_size=len(self._workers))
        address = self._call_in_all_processes("rendezvous_address")[0]
        joining = [
            worker.join_group_and_list_needed_fields.remote(spec, address, rank)
            for rank, worker in enumerate(self._workers)
        ]
        self._needs = self._await_results("join", joining)[0]
        self._node_ids = self._call_in_all_processes("node_id")
        if self._shares is not None:
            self._needs = self._call_in_all_processes("load_state_and_list_needed_fields", self._shares)[0]

    def _keep_shares(self) -> list[Any]:
        """Return references to the shares of the learner's current state, after they were copied to other machines.

        Raises:
            LearnerProcessLostError: if a process or a copy was lost meanwhile.
        """
        references = self._collect_shares()
        try:
            # The first copies wait for their holders to start.
            self._copies.store(references, self._node_ids, self._resources.start_s)
        except RayError as error:
            raise LearnerProcessLostError(f"{self._message_name}: a copy of its state was lost: {error}") from error
        return references

    def _collect_shares(self) -> list[Any]:
        """Return a reference to each process's share of the learner's current state, by rank."""
        calls = [worker.state_share.options(num_returns=2).remote() for worker in self._workers]
        self._await_results("state_share", [success for success, _ in calls])
        return [share for _, share in calls]

    def _warn_user_of_restart(self, message: str) -> None:
        # Python shows equal warnings only once, so the number of restarts makes each message different.
        warnings.warn(f"{message} (restart {self.restarts})", LearnerRestartNotice, stacklevel=3)

    def _kill_processes(self) -> None:
        """Kill the processes of the group."""
        for worker in self._workers:
            ray.kill(worker)
        self._workers = []

    def _call_in_all_processes(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method in all processes, without a retry; return the results by rank.

        Raises:
            LearnerProcessLostError: if a process died, or gives no sign of life before the deadline.
        """
        stored = list(map(ray.put, arguments))  # Ray stores each argument once, and all processes read this copy
        return self._await_results(method, [getattr(worker, method).remote(*stored) for worker in self._workers])

    def _await_results(self, method: str, calls: Sequence[Any]) -> list[Any]:
        """Return the results of pending calls of `method`, while watching that all processes live."""
        results: dict[Any, Any] = {}
        self._activity = method, time.time()
        while waiting := [call for call in calls if call not in results]:
            # A call may take half of the deadline; the other half is left for a sign of life from the processes.
            done, _ = ray.wait(waiting, timeout=self._resources.deadline_s / 2)
            try:
                results.update(zip(done, ray.get(done, timeout=self._resources.deadline_s / 2), strict=True))
            except RayTaskError as error:
                # If one process dies, the others raise errors, too, but the lost process is the cause to report.
                self._check_processes_alive(method)
                raise error.cause from error
            except RayError:
                self._check_processes_alive(method)
                raise
            if not done:
                self._check_processes_alive(method)
        self._activity = "idle", time.time()
        return [results[call] for call in calls]

    def _check_processes_alive(self, method: str) -> None:
        """Check that every process gives a sign of life.

        Raises:
            LearnerProcessLostError: for the first process without a sign of life.
        """
        deadline_s = self._resources.deadline_s
        pings = [worker.ping.options(concurrency_group=HEALTH).remote() for worker in self._workers]
        done, _ = ray.wait(pings, num_returns=len(pings), timeout=deadline_s / 2)
        for rank, ping in enumerate(pings):
            process = f"{self._message_name}: process {rank} of {len(pings)}"
            if ping not in done:
                raise LearnerProcessLostError(
                    f"{process} has given no sign of life for {deadline_s:g} s, in {method!r}"
                )
            try:
                ray.get(ping, timeout=deadline_s)
            except RayError as error:
                raise LearnerProcessLostError(f"{process} has died, in {method!r}") from error
