"""Settings of learners in processes of their own: what a scenario's author can get wrong."""

from __future__ import annotations

import pytest

import marl
from marl.cluster.connection import check_cluster_capacity
from marl.protocols import LearnerConfig
from marl.scenario.cluster import ClusterConfig
from marl.scenario.load import ScenarioError
from marl.trainers.policy_gradient.settings import Grpo
from marl.trainers.q_learning.settings import QLearning
from marl.trainers.reward_model.settings import RewardModeling
from tests.support.paths import KUHN

MACHINE = {"Alive": True, "NodeManagerAddress": "one", "Resources": {"CPU": 4.0}}


def test_a_policy_that_does_not_learn_has_no_processes() -> None:
    with pytest.raises(
        ScenarioError, match=r"cluster\.learners: 'actr' is no policy with a learner; did you mean 'actor'"
    ):
        marl.load(KUHN, ["cluster={learners: {actr: 2}}"])
    cluster = marl.load(KUHN, ["cluster={learners: {actor: 2}}"]).cluster
    assert cluster is not None
    assert cluster.learners == {"actor": 2}


@pytest.mark.parametrize(
    ("settings", "way", "why"),
    [
        (QLearning(), "ddp", "the learner 'q_learning' works in one process"),
        (Grpo(optimizer="adamw_8bit"), "fsdp", "optimizer 'adamw_8bit' steps whole weights, not shards"),
        (RewardModeling(), "fsdp", "a reward model is saved by a process that has all of it"),
    ],
)
def test_a_learner_says_why_processes_cannot_share_it(settings: LearnerConfig, way: str, why: str) -> None:
    assert (settings.data_parallel_error(way) or "").startswith(why)  # type: ignore[arg-type]


def test_a_cluster_without_room_for_the_learners_says_so() -> None:
    check_cluster_capacity(ClusterConfig(learners={"actor": 3}), [MACHINE])
    with pytest.raises(
        ScenarioError, match="4 processes of learners and 1 simulators take 5 CPU, but the cluster has 4"
    ):
        check_cluster_capacity(ClusterConfig(learners={"actor": 4}), [MACHINE])


def test_learners_without_ray_have_no_processes() -> None:
    with pytest.raises(ValueError, match="learners: no effect on kind: local"):
        ClusterConfig(kind="local", learners={"actor": 2})
