"""A learner whose processes are Ray actors: seen from the run, one learner like any other."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError, RayTaskError

from marl.cluster.learner_worker import LearnerTask, LearnerWorker, WorkerUpdate
from marl.errors import Notice, RunError, Writing
from marl.rollout.base import PartStatus
from marl.types import Metrics, Reading, Sample, TokenFigures, Turn, TurnId

if TYPE_CHECKING:
    from torch import Tensor

HEALTH = "health"
"""Calls of this group are answered while another call is at work."""


class LearnerLost(RunError):  # noqa: N818 (says what happened)
    """A process of a learner has died or hangs; the message names it and what it was doing."""


class ReplacedLearner(Notice):
    """The processes of a learner were started anew, because one was lost."""


@dataclass(frozen=True, slots=True)
class Provision:
    """Resources of the processes of a learner, waits for them, and the number that may be lost."""

    cpus: float = 1.0
    gpus: float = 0.0
    """Processors and GPUs that each process reserves."""
    deadline_s: float = 120.0
    """Longest time without a sign of life."""
    start_s: float = 600.0
    """Longest time in which the processes find room and come up."""
    room_s: float = 60.0
    """Longest wait for room for all, if some were lost; then those that have room go on alone until there is more."""
    losses: int = 5
    """Times that one call may be tried again after a process was lost. 0: the run ends, and no state is kept."""


class LearnerGroup:
    """The `Learner` of a policy that several processes teach together.

    After every update the state is kept here, too. If a process dies or hangs, all of the group are started anew with
    that state, and do again what they were doing: the weights come out the same to the last bit.
    """

    def __init__(self, task: LearnerTask, provision: Provision) -> None:
        """Start the processes and build the learner in them.

        Raises:
            LearnerLost: if they do not come up, or too many are lost.
        """
        self._task, self._provision = task, provision
        self._workers: list[Any] = []
        self._waiting: dict[Any, Any] = {}
        """Sign that a process is up -> its handle, of those for which there was no room."""
        self._state: dict[str, Any] | None = None
        """State after the newest update; None: that of a learner that was just built."""
        self._places: list[str] = []
        """Machine and number of each process."""
        self._doing = ("starting", time.time())
        """What the processes do, and since when, in seconds since 1970."""
        self._lost: LearnerLost | None = None
        """Loss after which there is no state to go on from."""
        self.changes, self.restarts = 0, 0
        self.token_figures: dict[TurnId, TokenFigures] | None = None
        """Filled by the next update, if it is not None and the learner reports them."""
        self._call("alive")

    @property
    def needs(self) -> frozenset[str]:
        """Return the fields of `Reading` that it wants read of turns before its next update."""
        return self._needs

    def read(self, turns: Sequence[Turn], wanted: frozenset[str]) -> list[Reading]:
        """Return the model's reading of each turn."""
        return self._call("read", list(turns), wanted)[0]

    def update(self, samples: Sequence[Sample]) -> Metrics:
        """Update the weights; return figures of the update.

        Raises:
            NonFinite: as one process raises it.
            LearnerLost: if too many processes are lost; or one, if none may be.
        """
        self._take_up()
        keeps = self._provision.losses > 0
        self.changes += not keeps
        result: WorkerUpdate = self._call("update", list(samples), keeps, self.token_figures is not None)[0]
        self.changes += keeps
        self._needs, self._state = result.needs, result.state or None
        if self.token_figures is not None:
            self.token_figures |= result.tokens
        return {**result.metrics, "restarts": float(self.restarts)}

    def publish(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the weights by name."""
        yield from self._call("publish")[0].items()

    def save(self, folder: Path) -> None:
        """Write the weights as a Hugging Face folder, tokenizer included; no disk is shared with the processes."""
        files: dict[str, bytes] = self._call("save")[0]
        with Writing(folder):
            for name, content in files.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(content)

    def state_dict(self) -> dict[str, Any]:
        """Return all that the next update depends on, except for its samples."""
        return self._state if self._state is not None else self._call("state_dict")[0]

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken, by any number of processes."""
        self.changes += 1
        self._needs = self._call("put_back", dict(state))[0]
        self._state = dict(state) if self._provision.losses else None

    def close(self) -> None:
        """End the processes."""
        self._end()
        for worker in self._waiting.values():
            ray.kill(worker)
        self._waiting = {}

    def status(self) -> list[PartStatus]:
        """Return what each process does; may be called from any thread."""
        doing, since = self._doing
        return [
            PartStatus(f"{self._name}, process {rank}", place, doing, since, 0, self.restarts)
            for rank, place in enumerate(list(self._places))
        ]

    @property
    def _name(self) -> str:
        return f"learner of policy {self._task.context.policy!r}"

    def _call(self, method: str, *arguments: Any) -> list[Any]:
        """Return what each process returns, by rank; again with new processes if one is lost."""
        losses = 0
        if self._lost:
            raise self._lost  # without a state, new processes would begin anew
        while True:
            try:
                if not self._workers:
                    self._start()
                return self._all(method, *arguments)
            except LearnerLost as lost:
                self._end()
                if losses == self._provision.losses:
                    self._lost = None if self._provision.losses else lost
                    raise
                losses += 1
                self.restarts += 1
                self._tell(f"{lost}; its processes are started anew")

    def _start(self) -> None:
        """Start processes that have found room, and let them build the learner and take its state."""
        self._hire()
        self._places = self._all("alive")
        task, place = replace(self._task, size=len(self._workers)), self._all("meeting_place")[0]
        joining = [worker.join.remote(task, place, rank) for rank, worker in enumerate(self._workers)]
        self._needs = self._results("join", joining)[0]
        if self._state is not None:
            self._needs = self._all("put_back", self._state)[0]

    def _hire(self) -> None:
        """Wait for the processes; if one was lost, go on with those for which there is room.

        Raises:
            LearnerLost: if there is no room for any, or at first for all.
        """
        self._doing = "waiting for room", time.time()
        size, provision = self._task.size, self._provision
        reserved = {"num_cpus": provision.cpus, "num_gpus": provision.gpus}
        options: dict[str, Any] = {**reserved, "concurrency_groups": {HEALTH: 1}}
        actor: Any = ray.remote(**options)(LearnerWorker)
        coming = dict(self._waiting)
        for _ in range(size - len(coming)):
            worker = actor.remote()
            coming[worker.alive.remote()] = worker
        fewer = self.restarts > 0 and self._task.way == "ddp"  # of shards, each might be too large
        up, late = ray.wait(list(coming), num_returns=size, timeout=provision.room_s if fewer else provision.start_s)
        if fewer and not up:
            up, late = ray.wait(late, timeout=provision.start_s)
        self._workers, self._waiting = [coming[sign] for sign in up], {sign: coming[sign] for sign in late}
        if not late:
            return
        room = f"{self._name}: {size} processes with {provision.cpus:g} processors and {provision.gpus:g} GPUs each"
        if not (fewer and up):
            self.close()
            raise LearnerLost(f"{room} have not come up within {provision.start_s:g} s")
        few = f"{len(up)} have come up within {provision.room_s:g} s"
        self._tell(f"{room}: {few}, and go on until there is room for all")

    def _take_up(self) -> None:
        """Begin anew with more processes if there is room for one that was waited for."""
        if self._waiting and ray.wait(list(self._waiting), timeout=0)[0]:
            self._end()
            self._tell(f"{self._name}: there is room for more processes again")

    def _tell(self, message: str) -> None:
        # With the number, as Python shows equal warnings once.
        warnings.warn(f"{message} (restart {self.restarts})", ReplacedLearner, stacklevel=3)

    def _end(self) -> None:
        for worker in self._workers:
            ray.kill(worker)
        self._workers = []

    def _all(self, method: str, *arguments: Any) -> list[Any]:
        """Return what each process returns, by rank.

        Raises:
            LearnerLost: if one died, or gives no sign of life before the deadline.
        """
        stored = [ray.put(argument) for argument in arguments]  # once, however many processes read them
        return self._results(method, [getattr(worker, method).remote(*stored) for worker in self._workers])

    def _results(self, method: str, calls: Sequence[Any]) -> list[Any]:
        results: dict[Any, Any] = {}
        self._doing = method, time.time()
        while waiting := [call for call in calls if call not in results]:
            # Half of the deadline for the call, half for a sign of life.
            done, _ = ray.wait(waiting, timeout=self._provision.deadline_s / 2)
            try:
                results.update(zip(done, ray.get(done, timeout=self._provision.deadline_s / 2), strict=True))
            except RayTaskError as error:
                # The others fail, too, when one is lost.
                self._expect_alive(method)
                raise error.cause from error
            except RayError:
                self._expect_alive(method)
                raise
            if not done:
                self._expect_alive(method)
        self._doing = "idle", time.time()
        return [results[call] for call in calls]

    def _expect_alive(self, method: str) -> None:
        deadline_s = self._provision.deadline_s
        pings = [worker.alive.options(concurrency_group=HEALTH).remote() for worker in self._workers]
        done, _ = ray.wait(pings, num_returns=len(pings), timeout=deadline_s / 2)
        for rank, ping in enumerate(pings):
            doing = f"{self._name}: process {rank} of {len(pings)}"
            if ping not in done:
                raise LearnerLost(f"{doing} has given no sign of life for {deadline_s:g} s, in {method!r}")
            try:
                ray.get(ping, timeout=deadline_s)
            except RayError as error:
                raise LearnerLost(f"{doing} has died, in {method!r}") from error
