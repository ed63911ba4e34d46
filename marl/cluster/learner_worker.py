"""One of several processes that train a policy together. Ray runs it as an actor; a test may run it without Ray."""

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

import ray

from marl.core.types import Metrics, Reading, Sample, TokenFigures, Turn, TurnId
from marl.protocols import DataParallel, Learner, LearnerConfig, LearnerContext, ReportsTokens
from marl.training.placement import use_threads

if TYPE_CHECKING:
    from torch import Tensor


_GET_ADDRESS = 0x8915
"""SIOCGIFADDR of Linux."""


@dataclass(frozen=True, slots=True)
class LearnerSpec:
    """Specification of a learner for a group of processes."""

    settings: LearnerConfig
    context: LearnerContext
    world_size: int
    """Number of processes."""
    data_parallel: DataParallel
    threads: int | None
    """Number of torch's threads in each process, or None for torch's default."""
    deadline_s: float
    """Maximum wait of one process for the others, in seconds."""


@dataclass(frozen=True, slots=True)
class WorkerUpdate:
    """Results of one update, from the process of rank 0 to the run."""

    metrics: Metrics
    needs: frozenset[str]
    """Fields of `Reading` to be read for the next update."""
    state: dict[str, Any]
    """State after the update; empty if not requested."""
    tokens: dict[TurnId, TokenFigures]
    """Figures of the samples' tokens; empty if not requested, or if the learner does not report them."""


class LearnerWorker:
    """Share of a learner in one process. All workers of a group receive the same calls in the same order."""

    def __init__(self) -> None:
        self._rank, self._membership = 0, ExitStack()
        self._learner: Learner | None = None

    def alive(self) -> str:
        """Return host name and process id, as a sign of life."""
        return f"{socket.gethostname()}, process {os.getpid()}"

    def rendezvous_address(self) -> str:
        """Return an address of this process for the rest of the cluster, with a free port."""
        host = _own_address()
        with socket.socket() as listener:
            listener.bind((host, 0))
            return f"tcp://{host}:{listener.getsockname()[1]}"

    def join(self, spec: LearnerSpec, address: str, rank: int) -> frozenset[str]:
        """Join the group at `address` and build the learner; return its needs."""
        # Imported here, not at the top: `alive` answers before torch is loaded, and ends the wait for room.
        from marl.models.torch_process_group import ProcessGroupMember, join_process_group

        self._rank = rank
        use_threads(spec.threads)
        # By default gloo uses the interface behind the machine's name, which other machines may not reach.
        if interface := _interface(_own_address()):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        member = ProcessGroupMember(rank, spec.world_size, address, spec.data_parallel, spec.deadline_s)
        group = self._membership.enter_context(join_process_group(member))
        self._learner = spec.settings.build(replace(spec.context, data_parallel=group))
        return self._learner.needs

    @property
    def learner(self) -> Learner:
        """Return the learner, after `join`."""
        assert self._learner is not None
        return self._learner

    def read(self, turns: Sequence[Turn], fields: frozenset[str]) -> list[Reading]:
        """Return the readings of `turns` in the process of rank 0, none in others."""
        return self.learner.read(turns, fields)

    def update(self, samples: Sequence[Sample], return_state: bool, return_tokens: bool) -> WorkerUpdate | None:
        """Update the weights; return the results in the process of rank 0, None in others."""
        learner, figures = self.learner, dict[TurnId, TokenFigures]()
        if isinstance(learner, ReportsTokens):
            learner.token_figures = figures if return_tokens else None
        metrics = learner.update(samples)
        # Called in every rank: a learner with shards gathers its state from all of them.
        state = learner.state_dict() if return_state else {}
        return None if self._rank else WorkerUpdate(metrics, learner.needs, state, figures)

    def publish(self) -> dict[str, Tensor]:
        """Return the weights by name in the process of rank 0, none in others."""
        weights = self.learner.publish()
        assert isinstance(weights, Iterable)
        # On the CPU: the receiving process may see no GPU. The iterator runs in every rank, as shards are gathered.
        return {name: tensor.cpu() for name, tensor in weights if not self._rank}

    def save(self) -> dict[str, bytes]:
        """Return the files of a Hugging Face folder by relative path in the process of rank 0, none in others."""
        files: dict[str, bytes] = {}
        with tempfile.TemporaryDirectory() as folder:
            home = Path(folder)
            self.learner.save(home)
            for path in home.rglob("*"):
                if path.is_file():
                    files[str(path.relative_to(home))] = path.read_bytes()
        return files

    def state_dict(self) -> dict[str, Any]:
        """Return the learner's state in the process of rank 0, an empty one in others."""
        state = self.learner.state_dict()
        return {} if self._rank else state

    def load_state(self, state: Mapping[str, Any]) -> frozenset[str]:
        """Restore the learner's state; return the needs of the next update."""
        self.learner.load_state_dict(state)
        return self.learner.needs


def _own_address() -> str:
    """Return the address under which Ray's other machines reach this machine."""
    node_id = ray.get_runtime_context().get_node_id()
    return next(node["NodeManagerAddress"] for node in ray.nodes() if node["NodeID"] == node_id)


def _interface(address: str) -> str:
    """Return the name of the network interface with this IPv4 address, or "" if there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # interfaces without an IPv4 address
                answer = fcntl.ioctl(probe.fileno(), _GET_ADDRESS, struct.pack("256s", name.encode()))
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    return ""
