"""Plans of the machines on which a run's processes start."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from marl.scenario.cluster import ClusterConfig
from marl.scenario.load import ScenarioError

pytest.importorskip("ray")
from marl.cluster.connection import check_cluster_capacity
from marl.cluster.node_plan import NodePlan, plan_nodes


def machines(*sizes: tuple[float, float]) -> list[dict[str, Any]]:
    """Machines with these numbers of CPUs and GPUs."""
    return [
        {"NodeID": f"node{number}", "NodeManagerAddress": f"10.0.0.{number}", "Resources": {"CPU": cpus, "GPU": gpus}}
        for number, (cpus, gpus) in enumerate(sizes)
    ]


def test_simulators_leave_a_whole_machine_to_a_learner_that_needs_one() -> None:
    settings = ClusterConfig(simulators=2, learners={"actor": 1}, learner_cpus=2)
    assert plan_nodes(settings, machines((2, 0), (2, 0))) == NodePlan(("node1", "node1"), {"actor": ("node0",)})


def test_simulators_are_spread_where_learners_leave_room_for_it() -> None:
    settings = ClusterConfig(simulators=4, learners={"actor": 2}, learner_gpus=1)
    plan = plan_nodes(settings, machines((4, 0), (4, 0), (8, 2)))
    assert plan is not None
    assert plan.learners == {"actor": ("node2", "node2")}
    assert max(Counter(plan.simulators).values()) == 2


def test_simulators_are_packed_if_learners_would_not_fit_otherwise() -> None:
    settings = ClusterConfig(simulators=2, cpus=2, learners={"actor": 3}, learner_cpus=1.3)
    plan = plan_nodes(settings, machines((4, 0), (4, 0)))
    assert plan == NodePlan(("node0", "node0"), {"actor": ("node1",) * 3})


def test_there_is_no_plan_if_the_processes_do_not_fit_at_once() -> None:
    settings = ClusterConfig(simulators=3, learners={"actor": 1}, learner_cpus=2)
    assert plan_nodes(settings, machines((2, 0), (2, 0))) is None


def test_a_process_of_a_learner_that_is_larger_than_every_machine_is_refused() -> None:
    settings = ClusterConfig(learners={"actor": 1}, learner_cpus=3)
    with pytest.raises(ScenarioError, match=r"cluster\.learner_cpus: no machine has room for a process of 3 CPU"):
        check_cluster_capacity(settings, machines((2, 0), (2, 0)))
