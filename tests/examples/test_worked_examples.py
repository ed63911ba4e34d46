"""The worked examples of CONTRIBUTING.md and the loss of trainers/README.md, used in small runs."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from pettingzoo.test import api_test

import marl
from marl.core.graph import read_trajectories
from marl.core.types import Metrics, Problem, VerifierCase
from marl.runs.credit_records import read_credit_record
from marl.scenario.load import validate
from tests.support.readme_blocks import BLOCKS, Block, write_modules
from tests.support.run_processes import tiny_model

EXAMPLES = [block for block in BLOCKS if block.document == "CONTRIBUTING.md" and block.module]
SCENARIOS = [block for block in BLOCKS if block.document == "CONTRIBUTING.md" and block.language == "yaml"]
LOSSES = [block for block in BLOCKS if block.module == "my_loss"]
STEPS = 3


@pytest.fixture(autouse=True)
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: Path) -> None:
    """A folder with the modules of CONTRIBUTING.md, where commands look for parts."""
    monkeypatch.setenv("MARL_CACHE", str(made))
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.chdir(tmp_path)
    write_modules("CONTRIBUTING.md", tmp_path)


def train(**changes: Any) -> tuple[Path, list[Metrics]]:
    """Train Nim with a tiny model, or what `changes` make of it; the run's folder, and its metrics by step."""
    learner = {"kind": "grpo", "lr": 3e-3, "epochs": 2}
    scenario = {
        "game": {"kind": "nim"},
        "seats": {"player_0": "player", "player_1": "player"},
        "roles": {"player": {"kind": "player", "policy": "actor", "sampling": {"max_tokens": 6}}},
        "policies": {"actor": {"model": tiny_model(), "learner": learner}},
        "schedule": {"steps": STEPS, "groups": 8, "group_size": 4, "threads": 1},
        "checkpoint": {"every": STEPS, "trajectories": 1.0},
    }
    rows: list[Metrics] = []
    run = Path("run").absolute()
    assert marl.train(validate(scenario | changes), run, overwrite=True, on_step=lambda _, row: rows.append(row))
    assert len(rows) == STEPS + 1
    assert all(row["policy/actor/samples"] > 0 for row in rows[1:])
    return run, rows


def test_there_is_an_example_of_each_kind_of_part_in_at_most_30_lines() -> None:
    modules = ["my_game", "my_environment", "my_role", "my_verifier", "my_credit", "my_loss", "my_engine"]
    assert [block.module for block in EXAMPLES] == [*modules, "my_experience"]
    assert all(len(block.text.splitlines()) <= 30 for block in EXAMPLES)
    named = "".join(block.text for block in SCENARIOS)
    assert all(f"{block.module}:" in named for block in EXAMPLES), "a scenario on the page uses each of them"


def test_the_loss_in_the_readme_of_trainers_has_at_most_15_lines() -> None:
    (block,) = (block for block in LOSSES if block.document == "trainers/README.md")
    assert len(block.text.splitlines()) <= 15


def test_the_game_passes_pettingzoos_checks_and_is_played_and_learned() -> None:
    game = importlib.import_module("my_game").MeetConfig().build()
    api_test(game, num_cycles=40)
    for second, reward in (("park", 1.0), ("cafe", 0.0)):
        game.reset(seed=0)
        game.step("park")
        game.step(second)
        assert game.rewards == {"ann": reward, "bob": reward}

    run, _ = train(game={"kind": "my_game:MeetConfig"}, seats={"ann": "player", "bob": "player"})
    met = {True: 0, False: 0}
    for trajectory in read_trajectories(run / "trajectories" / "000001.jsonl.zst"):
        moves = [turn.action for turn in trajectory.turns]
        if len(moves) == 2 and None not in moves:
            assert not list(trajectory.graph.edges), "they do not hear each other"
            assert trajectory.returns.get("ann", 0.0) == float(moves[0] == moves[1])
            met[moves[0] == moves[1]] += 1
    assert all(met.values())


def test_the_environment_passes_pettingzoos_checks_and_is_played_against_itself() -> None:
    settings = importlib.import_module("my_environment").RockPaperScissorsConfig
    api_test(settings().build(), num_cycles=40)
    game = settings().build()
    for answers, won in ((("rock", "paper"), -1.0), (("rock", "scissors"), 1.0), (("rock", "rock"), 0.0)):
        game.reset(seed=0)
        for answer in answers:
            game.step(answer)
        assert game.rewards == {"left": won, "right": -won}

    kind = {"kind": "my_environment:RockPaperScissorsConfig", "illegal": {"retry": 1}}
    run, _ = train(game=kind, seats={"left": "player", "right": "player"})
    played = list(read_trajectories(run / "trajectories" / "000001.jsonl.zst"))
    agents = {turn.id: turn.agent for trajectory in played for turn in trajectory.turns}
    heard = {(agents[a], agents[b]) for trajectory in played for a, b in trajectory.graph.edges}
    assert heard <= {("left", "left"), ("right", "right")}, "neither sees the other's hand"
    assert {trajectory.returns.get("left", 0.0) for trajectory in played} >= {-1.0, 1.0}


def test_the_role_reads_what_is_shouted_and_is_learned_by() -> None:
    role = importlib.import_module("my_role").Shouter(policy="actor")
    legal = ("cafe", "park")
    assert role.parse("No, not the CAFE ... the PARK it is", legal) == "park"
    assert role.parse("the park", legal) is None
    assert role.parse("HOME", legal) is None
    assert all(role.parse(role.phrase(move), legal) == move for move in legal)

    shouter = {"kind": "my_role:Shouter", "policy": "actor", "sampling": {"max_tokens": 6}, "tone": "SHOUT"}
    seats = {"ann": "player", "bob": "player"}
    run, _ = train(game={"kind": "my_game:MeetConfig"}, seats=seats, roles={"player": shouter})
    turns = [turn for t in read_trajectories(run / "trajectories" / "000001.jsonl.zst") for turn in t.turns]
    assert {turn.action for turn in turns} >= {"cafe", "park"}
    assert all(turn.action.upper() in turn.completion.text for turn in turns if turn.action)


def test_the_verifier_scores_by_distance_and_tells_nobody_the_answer() -> None:
    close = importlib.import_module("my_verifier").Close(reach=4)
    problem = Problem("3 + 4", "3 + 4", "7")
    verdicts = {answer: close(VerifierCase(problem, "", answer)) for answer in ("7", "6", "9", "30", "six", None)}
    assert [verdict.score for verdict in verdicts.values()] == [1.0, 0.75, 0.5, 0.0, 0.0, 0.0]
    assert {verdict.why for verdict in verdicts.values()} == {"", "no number"}


def test_the_credit_rule_shares_every_return_equally() -> None:
    run, _ = train(credit={"assign": {"kind": "my_credit:EqualShares"}})
    judged = read_credit_record(run / "credit" / "000001.jsonl.zst").turns()
    shared = 0
    for trajectory in read_trajectories(run / "trajectories" / "000001.jsonl.zst"):
        assigned = defaultdict(list)
        for turn in trajectory.turns:
            assigned[turn.agent].append(judged[turn.id].assigned)
        for agent, shares in assigned.items():
            assert len(set(shares)) == 1
            assert sum(shares) == pytest.approx(trajectory.returns.get(agent, 0.0))
            shared += len(shares) > 1
    assert shared, "some agents had several turns"


@pytest.mark.parametrize("block", LOSSES, ids=lambda block: block.document.replace("/", " "))
def test_the_losses_learn(block: Block, tmp_path: Path) -> None:
    write_modules(block.document, tmp_path)
    name = "StayClose" if block.document.startswith("trainers") else "SimplePolicyOptimization"
    loss = getattr(importlib.import_module("my_loss"), name)()
    logprobs_BT = torch.tensor([[-1.0, -2.0]], requires_grad=True)
    old_BT, advantages_BT, mask_BT = (
        logprobs_BT.detach(),
        torch.tensor([[1.0, -2.0]]),
        torch.ones(1, 2, dtype=torch.bool),
    )
    loss(logprobs_BT, old_BT, advantages_BT, mask_BT).sum().backward()
    assert logprobs_BT.grad is not None
    assert torch.equal(logprobs_BT.grad, -advantages_BT), "before the first step it is the policy gradient"

    learner = {"kind": "grpo", "lr": 3e-3, "epochs": 2, "loss": {"kind": f"my_loss:{name}"}}
    _, rows = train(policies={"actor": {"model": tiny_model(), "learner": learner}})
    assert all(row["policy/actor/grad_norm"] > 0 for row in rows[1:])


def test_the_engine_plays_the_first_move_and_is_never_learned_from() -> None:
    player = {"kind": "player", "policy": "actor", "sampling": {"max_tokens": 6}}
    run, rows = train(
        seats={"player_0": "player", "player_1": "fixed"},
        roles={"player": player, "fixed": player | {"policy": "fixed"}},
        policies={
            "actor": {"model": tiny_model(), "learner": {"kind": "grpo", "lr": 3e-3}},
            "fixed": {"engine": {"kind": "my_engine:FirstMove"}},
        },
    )
    turns = [turn for t in read_trajectories(run / "trajectories" / "000001.jsonl.zst") for turn in t.turns]
    assert {turn.action for turn in turns if turn.role == "fixed"} == {"1"}
    assert rows[1]["policy/actor/samples"] == sum(turn.role == "player" for turn in turns)


def test_the_experience_leaves_out_episodes_with_unreadable_answers() -> None:
    untaught = {"kind": "tiny", "hidden": 16, "layers": 1, "warm_up": {"steps": 12, "episodes": 64, "lr": 2e-2}}
    policies = {"actor": {"model": untaught, "learner": {"kind": "grpo", "lr": 1e-4}}}
    run, rows = train(policies=policies, experience={"kind": "my_experience:CleanPlay"})
    for step, row in enumerate(rows[1:], 1):
        kept = list(read_trajectories(run / "trajectories" / f"{step:06d}.jsonl.zst"))
        assert row["clean_play/left_out"] == 1 - len(kept) / 32
        assert all(turn.action is not None for trajectory in kept for turn in trajectory.turns)
    assert max(row["clean_play/left_out"] for row in rows[1:]) > 0


@pytest.mark.parametrize("block", SCENARIOS, ids=lambda block: str(block.line))
def test_the_scenarios_of_the_page_train(block: Block) -> None:
    scenario = yaml.safe_load(block.text)
    scenario["schedule"] |= {"steps": 1, "groups": 4}
    scenario["policies"]["actor"]["model"]["warm_up"] = {"steps": 25, "episodes": 64, "lr": 2e-2}
    assert marl.train(validate(scenario), "run")
    if "my_verifier" in block.text:
        (trajectory, *_) = read_trajectories(Path("run/trajectories/000001.jsonl.zst"))
        scores = json.loads(trajectory.turns[-1].action or "")["scores"]
        assert trajectory.returns.get("solver", 0.0) == scores["close"]


@pytest.mark.slow
def test_installed_as_the_package_that_the_page_shows_they_have_short_names(tmp_path: Path) -> None:
    (package,) = (block for block in BLOCKS if block.document == "CONTRIBUTING.md" and "[project]" in block.text)
    (tmp_path / "pyproject.toml").write_text(package.text)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--target", "site", "."], check=True)
    groups = tomllib.loads(package.text)["project"]["entry-points"].values()
    short = {place: kind for group in groups for kind, place in group.items()}
    assert {place.partition(":")[0] for place in short} == {block.module for block in EXAMPLES}

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "site")}
    for block in SCENARIOS:
        text = block.text
        for place, kind in short.items():
            text = text.replace(place, kind)
        assert "my_" not in text
        (elsewhere / "own.yaml").write_text(text)
        command = [sys.executable, "-m", "marl", "train", "own.yaml", "schedule.steps=1", "--overwrite", "--out", "run"]
        done = subprocess.run(command, cwd=elsewhere, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    listed = subprocess.run(
        [sys.executable, "-m", "marl", "list"],
        cwd=elsewhere,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert all(f" {kind} " in listed.stdout for kind in short.values())
