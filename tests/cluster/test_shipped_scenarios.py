"""Shipped scenarios on a real Ray cluster, from their own files with `cluster` on the command line: the same result."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import marl
from tests.support.paths import KUHN, SCENARIOS
from tests.support.ray_clusters import local_cluster
from tests.support.run_processes import contents

pytestmark = [pytest.mark.slow, pytest.mark.one_in(2), pytest.mark.xdist_group("ray")]
TEAM = SCENARIOS / "team_arithmetic.yaml"
ON_RAY = ("cluster.simulators=2", "cluster.cpus=0.5")
HERE = ("cluster={kind: local, simulators: 2}",)
SHORT = ("schedule.steps=3", "evaluate.every=3", "checkpoint.every=3", "checkpoint.trajectories=1")
BRIEF = [f"policies.{name}.model.warm_up={{steps: 20, episodes: 256}}" for name in ("planner", "solver", "critic")]
SMALL = {
    "kuhn": (KUHN, *SHORT, "schedule.groups=24"),
    "team": (TEAM, *SHORT, *BRIEF, "schedule.groups=4", "evaluate.held_out=20"),
    "vllm": (
        *(KUHN, *SHORT, "schedule.groups=24", "policies.actor.model.head_dim=32"),
        "policies.actor.engine={kind: vllm, kv_cache_mib: 32}",
    ),
}


@pytest.fixture(scope="module", autouse=True)
def cluster(made: Path) -> Iterator[None]:
    with local_cluster(4, MARL_CACHE=str(made)):
        yield


def rows(run: Path) -> list[dict[str, Any]]:
    """Return the metrics that depend neither on the clock nor on processes."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(("time/", "crc32", "cluster/"))} for row in lines]


def trained(name: str, folder: Path, *settings: str) -> Path:
    file, *overrides = SMALL[name]
    assert marl.train(marl.load(file, [*overrides, *settings]), folder)
    return folder


def weights(run: Path, policy: str) -> torch.Tensor:
    """Return [P], the weights of a policy at the end."""
    stored = load_file(run / "checkpoints" / "000003" / "policies" / policy / "model.safetensors")
    return torch.cat([stored[name].double().flatten() for name in sorted(stored)])


@pytest.mark.parametrize("name", ["kuhn", "team"])
def test_a_scenario_learns_the_same_bits_on_the_cluster(name: str, tmp_path: Path) -> None:
    ours, here = trained(name, tmp_path / "ray", *ON_RAY), trained(name, tmp_path / "here", *HERE)
    assert rows(ours) == rows(here)
    of_episodes = [contents(run, "trajectories", "credit") for run in (ours, here)]
    assert of_episodes[0] == of_episodes[1]
    for policy in ("actor",) if name == "kuhn" else ("planner", "solver", "critic"):
        assert torch.equal(weights(ours, policy), weights(here, policy))


def test_a_learner_in_two_processes_of_the_cluster_ends_at_the_weights_of_one(tmp_path: Path) -> None:
    here = trained("team", tmp_path / "here", *HERE)
    ours = trained("team", tmp_path / "ray", *ON_RAY, "cluster.learners.solver=2", "cluster.learner_cpus=0.5")
    for policy in ("planner", "solver", "critic"):
        gap = weights(ours, policy) - weights(here, policy)
        assert float(gap.norm() / weights(here, policy).norm()) < 1e-5


def test_a_scenario_with_vllm_under_its_roles_runs_on_the_cluster(tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    ours, here = trained("vllm", tmp_path / "ray", *ON_RAY), trained("vllm", tmp_path / "here", *HERE)
    for mine, theirs in zip(rows(ours), rows(here), strict=True):
        assert mine["step"] == theirs["step"]
        for key in ("eval/nashconv", "policy/actor/kl_sampler", "episode/turns"):
            if key in theirs:
                assert mine[key] == pytest.approx(theirs[key], abs=1e-3), key
    assert float((weights(ours, "actor") - weights(here, "actor")).abs().max()) < 1e-3
