"""Plan on which machine each process of a run starts, so that all of them have room at the same time.

Ray places one process after the other. It spreads simulators over the machines, and so may leave no machine with room
for a larger process of a learner.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from marl.scenario.cluster import ClusterConfig

_ROUNDING = 1e-9
"""Tolerance of sums of resources, so that ten processes of 0.1 CPU fit on one CPU."""


class NodePlan(NamedTuple):
    """Ray's id of the machine on which each process starts."""

    simulators: tuple[str, ...]
    """Machine of each simulator."""
    learners: Mapping[str, tuple[str, ...]]
    """Policy -> machine of each process of its learner."""


class _Room(NamedTuple):
    """Numbers of GPUs and CPUs that a machine has or a process reserves. GPUs come first, as they are scarcer."""

    gpus: float
    cpus: float

    def fits(self, need: _Room) -> bool:
        """Return True if a process that reserves `need` fits into this room."""
        return self.gpus >= need.gpus - _ROUNDING and self.cpus >= need.cpus - _ROUNDING


def plan_nodes(settings: ClusterConfig, nodes: Sequence[Mapping[str, Any]]) -> NodePlan | None:
    """Return a plan by which all processes fit on the machines `nodes` (entries of `ray.nodes`), or None if none is
    found. Simulators are spread over the machines if the learners leave room for this."""
    return _place_largest_first(settings, nodes, spread=True) or _place_largest_first(settings, nodes, spread=False)


def start_on(node_ids: Sequence[str], index: int) -> Any:
    """Return Ray's scheduling strategy of the process with this `index`: its planned machine if there is room, or else
    any machine with room. Without a plan (`node_ids` is empty), processes are spread."""
    if not node_ids:
        return "SPREAD"
    return NodeAffinitySchedulingStrategy(node_ids[index], soft=True, _spill_on_unavailable=True)


def _place_largest_first(
    settings: ClusterConfig, nodes: Sequence[Mapping[str, Any]], *, spread: bool
) -> NodePlan | None:
    """Place the largest processes first, each on the machine with the least remaining room for it.

    With `spread`, a simulator is placed on the machine with the most room instead.
    """
    free: dict[str, _Room] = {}
    for node in nodes:
        resources: Mapping[str, float] = node["Resources"]
        free[node["NodeID"]] = _Room(resources.get("GPU", 0.0), resources.get("CPU", 0.0))
    simulators: list[str] = []
    learners: dict[str, list[str]] = {policy: [] for policy in settings.learners}
    needs = [(_Room(settings.gpus, settings.cpus), simulators)] * settings.simulators
    for policy, size in settings.learners.items():
        needs += [(_Room(settings.learner_gpus, settings.learner_cpus), learners[policy])] * size
    for need, placed in sorted(needs, key=lambda entry: entry[0], reverse=True):
        fitting = [node for node, room in free.items() if room.fits(need)]
        if not fitting:
            return None
        if spread and placed is simulators:
            # A machine with GPUs is no better than others for a process without one.
            node = max(fitting, key=lambda name: (free[name].gpus if need.gpus else 0.0, free[name].cpus))
        else:
            node = min(fitting, key=lambda name: free[name])
        free[node] = _Room(free[node].gpus - need.gpus, free[node].cpus - need.cpus)
        placed.append(node)
    return NodePlan(tuple(simulators), {policy: tuple(placed) for policy, placed in learners.items()})
