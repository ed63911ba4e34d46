"""State of a learner's processes after an update, kept in Ray's object store: one share on the machine of each process.

The run holds references only. A share outlives its process, since it is in its machine's object store; a copy on the
machine of another process outlives the machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayActorError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from marl.cluster.weight_transfer import PackedTensors, pack_tensors, unpack_tensors
from marl.core.state_shares import StateShare, StateShares

_FETCH_S = 600.0
"""Maximum time to fetch a share from another machine, in seconds."""


class PackedShare(NamedTuple):
    """Share of a state as plain bytes, of which all processes of a machine read one copy in Ray's object store."""

    structure: str
    tensors: PackedTensors
    positions: Mapping[str, tuple[int, int]]


def pack_share(share: StateShare) -> PackedShare:
    """Return `share` for Ray's object store."""
    return PackedShare(share.structure, pack_tensors(share.tensors), share.positions)


def shares_in_object_store(references: Sequence[Any]) -> StateShares:
    """Return the state in shares whose packed forms have these `references`; shares are fetched when needed."""
    return StateShares([partial(_fetch_share, reference) for reference in references])


def _fetch_share(reference: Any) -> StateShare:
    """Return a share whose tensors are views of Ray's object store. They must not be changed."""
    packed: PackedShare = ray.get(reference, timeout=_FETCH_S)
    return StateShare(packed.structure, unpack_tensors(packed.tensors), packed.positions)


class ShareHolder:
    """Ray actor that keeps copies of other machines' shares in the object store of its own machine."""

    def __init__(self) -> None:
        self._shares: tuple[PackedShare, ...] = ()
        self._earlier_shares: tuple[PackedShare, ...] = ()

    def hold(self, *shares: PackedShare) -> None:
        """Keep `shares`, whose arrays are views of this machine's object store, beside the earlier ones."""
        self._shares = shares

    def forget_earlier(self) -> None:
        """Drop the shares before the newest ones. Until then, a machine lost while copies are made loses no share."""
        self._earlier_shares = self._shares


class ShareCopies:
    """Copies of the shares of a learner's newest state, each on another machine than its process."""

    def __init__(self) -> None:
        self._holders: dict[str, Any] = {}
        """Id of a machine -> actor that holds copies there."""

    def store(self, references: Sequence[Any], node_ids: Sequence[str], timeout_s: float) -> None:
        """Copy each share to a machine of another process; without one, to the machine of the run if it is another.

        Args:
            references: share of each process, by rank.
            node_ids: id of the machine of each process, by rank.
            timeout_s: maximum time for each holder to start and to copy, in seconds.

        Raises:
            RayError: if a machine or a holder was lost meanwhile. The copies of the earlier state are still there.
        """
        copied: dict[str, list[Any]] = {}
        for rank, reference in enumerate(references):
            others = [*node_ids[rank:], *node_ids[:rank], ray.get_runtime_context().get_node_id()]
            neighbour = next((node for node in others if node != node_ids[rank]), None)
            if neighbour is not None:
                copied.setdefault(neighbour, []).append(reference)
        calls: dict[str, Any] = {}
        for node, shares in copied.items():
            holder = self._holders[node] = self._holders.get(node) or _start_holder(node)
            calls[node] = holder.hold.remote(*shares)
        for node, call in calls.items():
            try:
                ray.get(call, timeout=timeout_s)
            except RayActorError:
                del self._holders[node]
                raise
        for node in self._holders.keys() - copied.keys():
            ray.kill(self._holders.pop(node))
        for holder in self._holders.values():
            holder.forget_earlier.remote()

    def forget(self) -> None:
        """Kill all holders. Their copies are lost."""
        for holder in self._holders.values():
            ray.kill(holder)
        self._holders = {}


def _start_holder(node_id: str) -> Any:
    actor: Any = ray.remote(num_cpus=0)(ShareHolder)
    return actor.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False)).remote()
