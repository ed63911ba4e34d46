"""One of the processes that train a policy together. Ray runs it as an actor; a test may run it without Ray."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray

from marl.cluster.actor_errors import SendableErrors
from marl.cluster.connection import own_cluster_address
from marl.cluster.kept_state import PackedShare, pack_share, shares_in_object_store
from marl.core.state_shares import make_state_share
from marl.core.types import Metrics, Reading, Sample, Turn, TurnId
from marl.protocols import (
    DataParallel,
    Learner,
    LearnerBuildArguments,
    LearnerConfig,
    ReportsTokenStatistics,
    TokenLogprobsAndEntropies,
)
from marl.training.placement import set_torch_threads

if TYPE_CHECKING:
    from torch import Tensor


_GET_ADDRESS = 0x8915
"""Linux's ioctl request SIOCGIFADDR: the address of a network interface."""


@dataclass(frozen=True, slots=True)
class LearnerProcessSettings:
    """Settings from which each process of a group builds the learner."""

    settings: LearnerConfig
    context: LearnerBuildArguments
    world_size: int
    """Number of processes of the group."""
    data_parallel: DataParallel
    threads: int | None
    """Number of torch's threads in each process (default: torch's own)."""
    deadline_s: float
    """Maximum time that one process waits for the others, in seconds."""


@dataclass(frozen=True, slots=True)
class WorkerUpdateResult:
    """Results of one update that the process of rank 0 returns to the run."""

    metrics: Metrics
    needed_reading_fields: frozenset[str]
    """Fields of `Reading` to read before the next update."""
    tokens: dict[TurnId, TokenLogprobsAndEntropies]
    """Turn -> its tokens' log-probabilities and entropies; empty if not requested or not reported by the learner."""


class LearnerWorker:
    """One process of a data-parallel learner. All workers of a group receive the same calls in the same order."""

    def __init__(self) -> None:
        self._rank, self._world_size, self._membership = 0, 1, ExitStack()
        self._learner: Learner | None = None

    def ping(self) -> str:
        """Return the worker's host name and process id, as a sign of life."""
        return f"{socket.gethostname()}, process {os.getpid()}"

    def node_id(self) -> str:
        """Return Ray's id of this process's machine."""
        return ray.get_runtime_context().get_node_id()

    def rendezvous_address(self) -> str:
        """Return an address with a free port, at which the other workers can reach this process."""
        host = own_cluster_address()
        with socket.socket() as listener:
            listener.bind((host, 0))
            return f"tcp://{host}:{listener.getsockname()[1]}"

    @SendableErrors()
    def join_group_and_list_needed_fields(
        self, process_settings: LearnerProcessSettings, rendezvous_address: str, rank: int
    ) -> frozenset[str]:
        """Join the process group at `rendezvous_address` and build the learner; return the learner's needs."""
        # This module is imported late: `ping`, which shows that Ray found room, must answer before torch is loaded.
        from marl.models.torch_process_group import ProcessGroupJoinSettings, join_process_group

        self._rank, self._world_size = rank, process_settings.world_size
        set_torch_threads(process_settings.threads)
        # gloo uses the interface of the host name by default, which other machines may not reach; so it is set here.
        own_address = own_cluster_address()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            for _, interface in socket.if_nameindex():
                with suppress(OSError):  # the ioctl fails for an interface without an IPv4 address
                    answer = fcntl.ioctl(probe.fileno(), _GET_ADDRESS, struct.pack("256s", interface.encode()))
                    if socket.inet_ntoa(answer[20:24]) == own_address:
                        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
                        break
        member = ProcessGroupJoinSettings(
            rank,
            process_settings.world_size,
            rendezvous_address,
            process_settings.data_parallel,
            process_settings.deadline_s,
        )
        group = self._membership.enter_context(join_process_group(member))
        self._learner = process_settings.settings.build(replace(process_settings.context, data_parallel=group))
        return self._learner.needed_reading_fields

    @property
    def learner(self) -> Learner:
        """The learner, which exists after `join_group_and_list_needed_fields`."""
        assert self._learner is not None
        return self._learner

    @SendableErrors()
    def read(self, turns: Sequence[Turn], reading_fields: frozenset[str]) -> list[Reading]:
        """Return the reading of each turn in the process of rank 0, and an empty list in others."""
        return self.learner.read(turns, reading_fields)

    @SendableErrors()
    def update(self, samples: Sequence[Sample], return_token_figures: bool) -> WorkerUpdateResult | None:
        """Update the weights on `samples`; return the results in the process of rank 0, and None in others."""
        learner, figures = self.learner, dict[TurnId, TokenLogprobsAndEntropies]()
        if isinstance(learner, ReportsTokenStatistics):
            learner.token_figures = figures if return_token_figures else None
        metrics = learner.update(samples)
        return None if self._rank else WorkerUpdateResult(metrics, learner.needed_reading_fields, figures)

    @SendableErrors()
    def publish(self) -> dict[str, Tensor]:
        """Return the weights by name in the process of rank 0, and an empty dict in others."""
        weights = self.learner.publish()
        assert isinstance(weights, Iterable)
        # The run may see no GPU, so weights are sent from the CPU. Every rank iterates, because shards are gathered.
        return {name: tensor.cpu() for name, tensor in weights if not self._rank}

    @SendableErrors()
    def save(self) -> dict[str, bytes]:
        """Return relative path -> content of the saved Hugging Face folder in the process of rank 0, else an empty
        dict."""
        files: dict[str, bytes] = {}
        with tempfile.TemporaryDirectory() as folder:
            home = Path(folder)
            self.learner.save(home)
            for path in home.rglob("*"):
                if path.is_file():
                    files[str(path.relative_to(home))] = path.read_bytes()
        return files

    @SendableErrors()
    def state_share(self) -> tuple[None, PackedShare]:
        """Return None, which shows the run that the call succeeded, and this process's share of the learner's state.

        Ray leaves the share in the object store of this machine.
        """
        return None, pack_share(make_state_share(self.learner.state_dict(), self._rank, self._world_size))

    @SendableErrors()
    def load_state_and_list_needed_fields(self, share_references: Sequence[Any]) -> frozenset[str]:
        """Restore the learner's state from the shares of any number of processes; return the needs of the next
        update."""
        self.learner.load_state_dict(shares_in_object_store(share_references))
        return self.learner.needed_reading_fields
