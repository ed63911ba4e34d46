"""One of the processes that teach a policy together. Ray runs it as an actor; a test may run it without."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marl.protocols import DataParallel, Learner, LearnerConfig, LearnerContext, ReportsTokens
from marl.training.placement import use_threads
from marl.types import Metrics, Reading, Sample, TokenFigures, Turn, TurnId

if TYPE_CHECKING:
    from torch import Tensor


_GET_ADDRESS = 0x8915
"""SIOCGIFADDR of Linux."""


@dataclass(frozen=True, slots=True)
class LearnerTask:
    """Learner that processes are to build together."""

    settings: LearnerConfig
    context: LearnerContext
    size: int
    """Number of processes."""
    way: DataParallel
    threads: int | None
    """Threads that torch uses in each; None: its own choice."""
    deadline_s: float
    """Longest wait of one process for the others, in seconds."""


@dataclass(frozen=True, slots=True)
class WorkerUpdate:
    """All that one update of a learner returns to the run."""

    metrics: Metrics
    needs: frozenset[str]
    """Fields of `Reading` that the next update wants read."""
    state: dict[str, Any]
    """State after it; empty if it was not wanted."""
    tokens: dict[TurnId, TokenFigures]
    """Figures of its samples' tokens; empty if they were not wanted, or the learner does not report them."""


class LearnerWorker:
    """Holds one process's part of a learner. All of a group's are called alike, one call after the other."""

    def __init__(self) -> None:
        self._rank, self._membership = 0, ExitStack()
        self._learner: Learner | None = None

    def alive(self) -> str:
        """Return the machine and the number of this process; one that hangs does not."""
        return f"{socket.gethostname()}, process {os.getpid()}"

    def meeting_place(self) -> str:
        """Return an address at which other processes of the cluster can meet this one, with a port that is free now."""
        host = _own_address()
        with socket.socket() as listener:
            listener.bind((host, 0))
            return f"tcp://{host}:{listener.getsockname()[1]}"

    def join(self, task: LearnerTask, place: str, rank: int) -> frozenset[str]:
        """Meet the other processes and build the learner; return its needs."""
        from marl.models.process_group import Membership, joined

        self._rank = rank
        use_threads(task.threads)
        # By itself, gloo takes the interface that the machine's name leads to, which others may not reach.
        if interface := _interface(_own_address()):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        member = Membership(rank, task.size, place, task.way, task.deadline_s)
        group = self._membership.enter_context(joined(member))
        self._learner = task.settings.build(replace(task.context, collective=group))
        return self._learner.needs

    @property
    def learner(self) -> Learner:
        """Return the learner, once built."""
        assert self._learner is not None
        return self._learner

    def read(self, turns: Sequence[Turn], wanted: frozenset[str]) -> list[Reading]:
        """Return the readings; in other processes than rank 0 none."""
        return self.learner.read(turns, wanted)

    def update(self, samples: Sequence[Sample], keep: bool, tokens: bool) -> WorkerUpdate | None:
        """Return the update, with the state to `keep` it and with figures of `tokens` if wanted; rank 0 alone does."""
        learner, figures = self.learner, dict[TurnId, TokenFigures]()
        if isinstance(learner, ReportsTokens):
            learner.token_figures = figures if tokens else None
        metrics = learner.update(samples)
        state = learner.state_dict() if keep else {}
        return None if self._rank else WorkerUpdate(metrics, learner.needs, state, figures)

    def publish(self) -> dict[str, Tensor]:
        """Return the weights by name; in other processes than rank 0 none."""
        weights = self.learner.publish()
        assert isinstance(weights, Iterable)
        # On the processor: the process that takes them may see no GPU.
        return {name: tensor.cpu() for name, tensor in weights if not self._rank}

    def save(self) -> dict[str, bytes]:
        """Return the files of a Hugging Face folder by their paths in it; in other processes than rank 0 none."""
        with tempfile.TemporaryDirectory() as folder:
            home = Path(folder)
            self.learner.save(home)
            return {str(file.relative_to(home)): file.read_bytes() for file in home.rglob("*") if file.is_file()}

    def state_dict(self) -> dict[str, Any]:
        """Return the learner's state; in other processes than rank 0 none."""
        state = self.learner.state_dict()
        return {} if self._rank else state

    def put_back(self, state: Mapping[str, Any]) -> frozenset[str]:
        """Put the state back; return the needs of the next update."""
        self.learner.load_state_dict(state)
        return self.learner.needs


def _own_address() -> str:
    """Return the address of this machine at which Ray's other machines reach it."""
    import ray

    here = ray.get_runtime_context().get_node_id()
    return next(node["NodeManagerAddress"] for node in ray.nodes() if node["NodeID"] == here)


def _interface(address: str) -> str:
    """Return the name of the network interface with this IPv4 address; "" if none is found."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # it has none
                answer = fcntl.ioctl(probe.fileno(), _GET_ADDRESS, struct.pack("256s", name.encode()))
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    return ""
