"""Folders of the user's that are called like ours hide nothing, and are named where something cannot be found."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.paths import ROOT

TRAP = "raise RuntimeError('the folder of the user hides ours')\n"
NIM: dict[str, Any] = {
    "game": {"kind": "nim"},
    "seats": {"player_0": "player", "player_1": "player"},
    "roles": {"player": {"kind": "player", "policy": "actor"}},
    "policies": {"actor": {"model": {"kind": "tiny"}, "learner": {"kind": "grpo"}}},
    "schedule": {"steps": 1, "groups": 1, "group_size": 2},
}
TEAM = NIM | {
    "game": {
        "kind": "team",
        "task": {"kind": "arithmetic", "train": 4, "held_out": 2},
        "stages": [
            {"role": "solver", "examples": ["{{ answer }}"]},
            {"role": "verifier", "verifies": "solver", "scores": ["correct"]},
        ],
        "rewards": {"solver": {"right": "own.correct"}},
    },
    "seats": {},
    "roles": {"solver": {"kind": "solver", "policy": "actor"}, "verifier": {"kind": "verifier", "policy": "checker"}},
    "policies": NIM["policies"] | {"checker": {"engine": {"kind": "verifiers", "checks": {"correct": "numeric"}}}},
}
WAYS = {"console": ["-c", "from marl.commands.cli import main; main()"], "module": ["-m", "marl"]}


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    """A folder with packages and modules that must not be imported, each called like one of ours."""
    for name in ("games/__init__", "games/nim", "games/verifiers/__init__", "roles/__init__", "credit/assign/outcome"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"{name}.py").write_text(TRAP)
    (tmp_path / "trainers").mkdir()
    (tmp_path / "trainers" / "mine.py").write_text("")
    (tmp_path / "nim.yaml").write_text(yaml.safe_dump(NIM))
    return tmp_path


def python(desk: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=False, cwd=desk, env=environment
    )


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_folders_called_like_ours_hide_nothing_from_a_command(desk: Path, way: list[str]) -> None:
    done = python(desk, *way, "check", "nim.yaml")
    assert done.stdout.startswith("nim.yaml: fine; game nim, trains actor\n"), done.stderr
    assert "imports" not in done.stdout, "what is imported is installed"


@pytest.mark.one_in(3)
def test_a_file_called_like_an_optional_package_of_a_library_is_not_run(desk: Path) -> None:
    # torch, transformers and httpx import these if they find them anywhere.
    for name in ("brotli", "h2", "mistral_common", "opt_einsum", "socksio"):
        (desk / f"{name}.py").write_text("open('ran', 'w').close()\n")
    done = python(desk, "-P", *WAYS["console"], "train", "nim.yaml")
    assert "run folder: runs/nim" in done.stdout or "marl show runs/nim" in done.stdout, done.stderr
    assert not (desk / "ran").exists()


def test_the_working_folder_is_importable_with_consent_alone(desk: Path) -> None:
    (desk / "mine.py").write_text("from marl.games.nim import NimConfig\n\nclass Mine(NimConfig): ...\n")
    (desk / "nim.yaml").write_text(yaml.safe_dump(NIM | {"game": "mine:Mine"}))
    show = "import sys, os; from marl.commands.cli import main\ntry: main()\nfinally: print(os.getcwd() in sys.path)"
    assert python(desk, "-P", "-c", show, "check", "nim.yaml").stdout == "False\n"
    assert python(desk, "-P", "-c", show, "check", "nim.yaml", "--quick", "--trust").stdout.endswith("True\n")
    assert python(desk, "-P", "-c", show, "describe", "mine:Mine").stdout.startswith("mine:Mine")


def test_folders_called_like_ours_hide_nothing_from_worker_processes(desk: Path) -> None:
    (desk / "team.yaml").write_text(yaml.safe_dump(TEAM))
    done = python(desk, "-m", "marl", "check", "team.yaml", "--graders")
    assert "verdicts as they must be" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("marl.trainers.mine:Mine", "no module 'marl.trainers.mine' to import; 'marl' is {ours}"),
        ("marl.games.nim:Mine", "module 'marl.games.nim' has no 'Mine'; 'marl' is {ours}"),
    ],
)
def test_what_our_package_does_not_hold_is_named_with_where_it_is(desk: Path, kind: str, problem: str) -> None:
    done = python(desk, "-m", "marl", "describe", kind)
    assert done.stderr == f"marl: kind {kind!r}: {problem.format(ours=ROOT / 'marl')}\n"


def test_a_class_in_a_folder_of_the_user_that_is_called_like_ours_is_imported(desk: Path) -> None:
    (desk / "trainers" / "mine.py").write_text(
        "from marl.trainers.policy_gradient.settings import Grpo\n\nclass Mine(Grpo): ...\n"
    )
    learner = {"model": {"kind": "tiny"}, "learner": {"kind": "trainers.mine:Mine"}}
    (desk / "nim.yaml").write_text(yaml.safe_dump(NIM | {"policies": {"actor": learner}}))
    done = python(desk, "-m", "marl", "check", "nim.yaml", "--quick", "--trust")
    assert done.stdout.startswith("nim.yaml: fine; game nim, trains actor\n"), done.stderr


def test_a_script_beside_folders_called_like_ours_gets_ours(desk: Path) -> None:
    (desk / "script.py").write_text(
        "import marl\nprint(marl.env('kuhn_poker').possible_agents, marl.load('nim.yaml').game.kind)\n"
    )
    done = python(desk, "script.py")
    assert done.stdout.endswith("nim\n"), done.stderr


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("def f(:\n", "{path}, line 1: invalid syntax"),
        ("from marl.core.types import Nothing\n", "cannot import name 'Nothing' from 'marl.core.types' ("),
    ],
)
def test_a_module_of_ones_own_that_cannot_be_imported_is_a_message_and_harms_no_list(
    desk: Path, text: str, problem: str
) -> None:
    (desk / "broken.py").write_text(text)
    (desk / "nim.yaml").write_text(yaml.safe_dump(NIM | {"game": {"kind": "broken:Game"}}))
    done = python(desk, "-m", "marl", "check", "nim.yaml", "--trust")
    assert done.returncode == 2
    assert f"game.kind: kind 'broken:Game': {problem.format(path=desk / 'broken.py')}" in done.stderr
