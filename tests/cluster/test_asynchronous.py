"""Play ahead on a real Ray cluster: episodes once each, in flight under new weights, and what is not held up."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from marl.cluster.learner_group import LearnerProcessResourcesAndDeadlines, MultiProcessLearner
from marl.cluster.learner_worker import LearnerProcessSettings
from marl.cluster.learners import ClusterLearners
from marl.cluster.placement import ShardedPlacement
from marl.cluster.ray_placement import RayPlacement
from marl.core.graph import Trajectory
from marl.core.types import Sample
from marl.runs.run_folder import RunFolder
from marl.scenario.cluster import ClusterConfig
from marl.scenario.load import validate
from marl.trainers.policy_gradient.settings import Grpo
from marl.training.placement import Placement
from marl.training.session import NewOrResumedRunStart, train_in_folder
from tests.support.learning_samples import SamplePlan, context, make_samples
from tests.support.ray_clusters import local_cluster
from tests.support.run_processes import RunWorkspace, SignalTrigger, contents, exit_status, kuhn_scenario, metric_lines
from tests.support.slow_plugins import SlowLoss

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]
SCHEDULE = {"steps": 6, "groups": 6, "group_size": 4, "threads": 1}
SLOW = {"kind": "tests.support.slow_plugins:SlowDecoding", "pause_s": 0.02}


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    with local_cluster(8):
        yield


def scenario(experience: dict[str, Any] | str, **engine: Any) -> dict[str, Any]:
    """Kuhn poker, every episode on disk, with a correction for stale episodes."""
    data = kuhn_scenario({"old": "read", "mismatch": {"kind": "tis"}, "fidelity": {"every": 2}}, schedule=SCHEDULE)
    data["policies"]["actor"] |= {"engine": engine} if engine else {}
    evaluate = {"every": 3, "nashconv": True, "against": {"random": 6}}
    return data | {"experience": experience, "evaluate": evaluate, "checkpoint": {"every": 2, "trajectories": 1.0}}


def trained(data: dict[str, Any], folder: Path, placement: Placement) -> list[dict[str, Any]]:
    """Train; return a row of metrics for each step."""
    assert train_in_folder(validate(data), folder, NewOrResumedRunStart(), [], placement=placement)
    return [row for row in RunFolder(folder).rows() if row["step"]]


def on_ray(data: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    placement = RayPlacement(ClusterConfig(simulators=2))
    try:
        return trained(data, folder, placement)
    finally:
        placement.close()


def episodes(folder: Path) -> dict[int, list[Trajectory]]:
    """Step -> its episodes, from disk."""
    home = RunFolder(folder)
    return {step: home.load_trajectories(step) for step in home.recorded_steps()}


def each_once(steps: int) -> list[str]:
    """Names of all episodes that a run is to learn from, in order."""
    groups, size = SCHEDULE["groups"], SCHEDULE["group_size"]
    return [f"{step:06d}.{group}.{i}" for step in range(1, steps + 1) for group in range(groups) for i in range(size)]


def names(folder: Path) -> list[str]:
    return [trajectory.id for _, played in sorted(episodes(folder).items()) for trajectory in played]


def test_without_staleness_a_queue_on_ray_gives_the_bits_of_rollouts(
    cluster: None, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARL_CACHE", str(made))
    ahead = on_ray(scenario({"kind": "queue", "max_staleness": 0}), tmp_path / "queue")
    plain = trained(scenario("rollouts"), tmp_path / "plain", ShardedPlacement(2))
    clock = ("time/", "crc32", "cluster/", "queue/")
    assert [{name: row[name] for name in row if not name.startswith(clock)} for row in ahead] == [
        {name: row[name] for name in row if not name.startswith(clock)} for row in plain
    ]
    weights = [contents(tmp_path / name, "checkpoints", "trajectories") for name in ("queue", "plain")]
    manifests = [{k: v for k, v in files.items() if not k.endswith("manifest.json")} for files in weights]
    assert manifests[0] == manifests[1]


@pytest.mark.parametrize("ahead", [1, 4])
def test_every_episode_is_learnt_from_once_while_those_in_flight_go_on_under_new_weights(
    cluster: None, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    monkeypatch.setenv("MARL_CACHE", str(made))
    table = on_ray(scenario({"kind": "queue", "max_staleness": ahead}, **SLOW), tmp_path / "run")
    assert names(tmp_path / "run") == each_once(6)
    stale = [row["role/player/staleness_max"] for row in table]
    assert 1 <= max(stale) <= ahead
    assert all(age <= row for row, age in enumerate(stale))  # at step s there are s older versions
    turns = [turn for played in episodes(tmp_path / "run").values() for t in played for turn in t.turns]
    versions = {turn.completion.versions for turn in turns}
    assert any(first < last for first, last in versions)  # one completion, begun by old and ended by new weights
    figures = ("queue/ready", "queue/in_flight", "queue/wait_s", "cluster/idle", "cluster/idle_max")
    assert all(row["cluster/idle_max_simulator"] in {0, 1} for row in table)
    assert all(row[figure] >= 0 for row in table for figure in figures)
    assert table[-1]["queue/in_flight"] == table[-1]["queue/ready"] == 0  # nothing is played beyond the last step


@pytest.mark.parametrize("ahead", [1, 2, 4])
def test_simulators_of_one_process_play_ahead_by_as_many_steps(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    monkeypatch.setenv("MARL_CACHE", str(made))
    table = trained(scenario({"kind": "queue", "max_staleness": ahead}), tmp_path / "run", ShardedPlacement(2))
    assert names(tmp_path / "run") == each_once(6)
    stale = [row["role/player/staleness_max"] for row in table]
    assert stale[: ahead + 1] == [*range(ahead + 1)]  # the first step's wait plays all of them to their end
    assert max(stale) == ahead


def test_a_run_killed_with_episodes_in_flight_goes_on_without_losing_or_repeating_one(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").symlink_to(made)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    data = scenario({"kind": "queue", "max_staleness": 2}, **SLOW) | {"cluster": {"simulators": 2, "cpus": 0.1}}
    desk = RunWorkspace(tmp_path, data)
    assert exit_status(desk.start_training(kill=SignalTrigger("call", "TrainingLoop._update_policies", 4))) == -9, (
        desk.take_output()
    )
    assert len(metric_lines(desk.run)) == 4  # that before the first step, and three, two of them in a checkpoint
    assert exit_status(desk.start_training("--resume", "auto")) == 0, desk.take_output()
    assert [json.loads(row)["step"] for row in metric_lines(desk.run)] == [*range(7)]
    assert names(desk.run) == each_once(6)


def test_learners_of_two_policies_update_at_the_same_time(cluster: None) -> None:
    settings = Grpo(loss=SlowLoss(seconds=0.7), minibatches=2, merge=False)
    places = {name: replace(context(), policy=name) for name in ("planner", "solver")}
    provision = LearnerProcessResourcesAndDeadlines(cpus=0.5, start_s=300.0)
    learners = ClusterLearners(
        {
            name: MultiProcessLearner(LearnerProcessSettings(settings, place, 1, "ddp", 1, 60.0), provision)
            for name, place in places.items()
        }
    )
    samples = make_samples(SamplePlan(count=4))
    alone_s = min(update_s(learners, {"planner": samples}) for _ in range(2))
    both_s = min(update_s(learners, dict.fromkeys(places, samples)) for _ in range(2))
    assert alone_s > 1.4  # two minibatches
    assert both_s < 1.5 * alone_s
    time.sleep(both_s)
    assert all(0.3 < figures["idle"] < 0.7 for figures in learners.update(dict.fromkeys(places, samples)).values())
    learners.close()


def update_s(learners: ClusterLearners, samples: dict[str, list[Sample]]) -> float:
    """Seconds of an update."""
    began = time.perf_counter()
    learners.update(samples)
    return time.perf_counter() - began
