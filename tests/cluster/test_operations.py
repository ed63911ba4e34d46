"""What operators are shown: files for Slurm and Kubernetes whose commands exist, and `marl check` with a placement."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

import marl
from marl.commands import cli
from marl.scenario.trust import external_accesses
from tests.support.command_line import marl_output
from tests.support.paths import KUHN, ROOT, SCENARIOS
from tests.support.run_processes import kuhn_scenario

EXAMPLES = ROOT / "marl" / "cluster" / "examples"
README = ROOT / "marl" / "cluster" / "README.md"


def job() -> dict[str, Any]:
    ray_job, policy = yaml.safe_load_all((EXAMPLES / "kuberay_job.yaml").read_text())
    assert (ray_job["kind"], policy["kind"]) == ("RayJob", "NetworkPolicy")
    return ray_job["spec"]


def commands() -> list[list[str]]:
    """Return the words of each command of `ray` and `marl` in the examples and in the README."""
    lines = job()["entrypoint"].splitlines()
    lines += (EXAMPLES / "slurm.sh").read_text().replace("\\\n", "").splitlines()
    lines += [line.removeprefix("head$").removeprefix("other$") for line in README.read_text().splitlines()]
    found = [
        re.search(r"^(?:srun [^#]*|until |\s*)((?:ray|marl) (?:start|status|train) [^>&#]*)", line) for line in lines
    ]
    return [shlex.split(each[1]) for each in found if each]


def test_commands_of_the_examples_exist_with_all_their_options() -> None:
    scripts = pytest.importorskip("ray.scripts.scripts")
    ours: Any = typer.main.get_command(cli.app)
    words = commands()
    assert {tuple(each[:2]) for each in words} == {("ray", "start"), ("ray", "status"), ("marl", "train")}
    for program, name, *rest in words:
        command = scripts.cli.commands[name] if program == "ray" else ours.get_command(None, name)
        options = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in rest if word.startswith("--")} <= options
        if program == "marl":
            marl.load(KUHN, [word for word in rest if word.startswith("cluster.") and "$" not in word])


def test_the_job_asks_for_the_machines_that_its_run_reserves() -> None:
    spec = job()
    overrides = [word for word in spec["entrypoint"].split() if word.startswith("cluster.")]
    settings = marl.load(KUHN, overrides).cluster
    assert settings is not None
    group = spec["rayClusterSpec"]["workerGroupSpecs"][0]
    limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
    learners = sum(settings.learners.values())
    gpus = settings.simulators * settings.gpus + learners * settings.learner_gpus
    cpus = settings.simulators * settings.cpus + learners * settings.learner_cpus + spec["entrypointNumCpus"]
    assert group["replicas"] * int(limits["nvidia.com/gpu"]) == gpus
    assert group["replicas"] * int(limits["cpu"]) >= cpus


def test_the_slurm_script_is_read_by_bash_and_leaves_time_for_a_checkpoint() -> None:
    subprocess.run(["bash", "-n", EXAMPLES / "slurm.sh"], check=True)
    text = (EXAMPLES / "slurm.sh").read_text()
    assert "--signal=B:TERM@300" in text
    assert "trap 'kill -TERM \"$run\"' TERM" in text


def test_check_says_what_is_placed_where_and_what_it_reserves(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["cluster.simulators=4", "cluster.cpus=0.5", "cluster.gpus=0.25", "cluster.learners.solver=2"]
    text = marl_output(monkeypatch, capsys, "check", "--quick", SCENARIOS / "team_arithmetic.yaml", *more)
    engines = "planner (transformers), solver (transformers), critic (transformers)"
    assert text.partition("\n\n")[2].splitlines() == [
        "placement  on a Ray cluster of the run's own, on this machine",
        "  this process       deals, credit, checkpoints, learners of planner, critic",
        f"  4 simulators       0.5 CPU and 0.25 GPU each: games and engines of {engines}; beside each, workers of "
        "checker (2 processes), which reserve nothing of their own",
        "  2 processes        teach solver (ddp), 1 CPU each; each keeps its share of the state after every update",
        "  reserved in all    4 CPU and 1 GPU",
    ]


def test_check_says_that_simulators_of_kind_local_take_turns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = marl_output(monkeypatch, capsys, "check", "--quick", KUHN, "cluster={kind: local, simulators: 2}")
    assert text.partition("\n\n")[2].splitlines() == [
        "placement  all in this process, in turns",
        "  this process       deals, credit, checkpoints, learners of actor",
        "  2 simulators       in this process: games and engines of actor (transformers)",
    ]


def test_servers_of_vllm_get_prompts_and_a_key_only_if_one_is_named() -> None:
    scenario, server = kuhn_scenario(), {"kind": "vllm_server", "base_url": ["http://10.0.0.1:8000", "http://[::1]:8"]}
    scenario["policies"]["actor"] |= {"model": "of/hub", "engine": server}
    sent = [each for each in external_accesses(scenario, Path()) if each.action == "sends"]
    assert [(each.target, each.needs_consent) for each in sent] == [
        ("prompts to 10.0.0.1", True),
        ("prompts to ::1", False),
    ]
    scenario["policies"]["actor"]["engine"] = {**server, "key_env": "KEY"}
    first = next(each for each in external_accesses(scenario, Path()) if each.action == "sends")
    assert first.target == "prompts and the environment variable KEY to 10.0.0.1"
