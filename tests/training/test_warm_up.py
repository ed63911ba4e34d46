"""A tiny model is taught every form of an answer: tags, calls of tools, and prompts that continue its last turn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

import marl
from marl.core.errors import UserNotice
from marl.core.types import TOOL_CALL_PREFIX, Deal, Metrics, Turn
from marl.models.tiny_build import make_tiny_tokenizer
from marl.protocols import ImitationWarmUp
from marl.scenario.load import validate
from marl.scenario.schema import Scenario
from marl.training.build import prepare_models
from marl.training.placement import LocalPlacement
from marl.training.warm_up import random_play, random_play_texts, warm_up_scenario_data

TOOL = 'call {"name":"calculator","arguments":{"expression":"{{ question }}"}}'


def scenario(lessons: int = 30, **schedule: int) -> Scenario:
    """Return a scenario of a solver with the default format that may call a calculator, and whose prompts continue."""
    solver = {"kind": "solver", "policy": "solver", "history": "append", "tools": [{"name": "calculator"}]}
    warm_up = {"steps": lessons, "episodes": 256, "batch": 32, "lr": 1e-2}
    verifier = {"engine": {"kind": "verifiers", "checks": {"correct": {"kind": "numeric"}}}}
    stages = [
        {"role": "solver", "tools": "toolbox", "calls": 1, "examples": [TOOL, "{{ answer }}"]},
        {"role": "checker", "verifies": "solver", "scores": ["correct"]},
    ]
    return validate(
        {
            "game": {
                "kind": "team",
                "task": {"kind": "arithmetic", "digits": [1, 1], "operators": ["+"], "train": 40, "held_out": 8},
                "stages": stages,
                "rewards": {"solver": {"right": "own.correct"}},
                "measures": {"success": "solver.correct"},
            },
            "roles": {
                "solver": solver | {"sampling": {"max_tokens": 40}},
                "toolbox": {"kind": "toolbox", "policy": "bench"},
                "checker": {"kind": "verifier", "policy": "checks"},
            },
            "policies": {
                "solver": {
                    "model": {"kind": "tiny", "hidden": 32, "warm_up": warm_up},
                    "learner": {"kind": "grpo", "lr": 1e-3, "schedule": "linear", "betas": [0.9, 0.99]},
                },
                "bench": {"engine": {"kind": "tools", "tools": {"calculator": {"kind": "calculator"}}}},
                "checks": verifier,
            },
            "schedule": {"steps": 1, "groups": 4, "group_size": 4, "threads": 1} | schedule,
        }
    )


def spoken(settings: Scenario, episodes: int) -> list[Turn]:
    """Return what the solver says when it has been taught."""
    simulator = LocalPlacement().build_simulator(settings, prepare_models(settings, settings.policies))
    games = simulator.play([Deal(f"{i}", f"{i}", i, settings.seats) for i in range(episodes)])
    return [turn for game in games for turn in game.turns if turn.role == "solver"]


def share(turns: Sequence[Turn], kind: str) -> float:
    return sum((turn.action or "").startswith(kind) for turn in turns if turn.action) / len(turns)


def test_all_that_random_play_reads_and_writes_is_in_the_vocabulary_of_words() -> None:
    settings = scenario()
    texts = random_play_texts(settings, ("solver",), 0)
    tokenizer = make_tiny_tokenizer("words", texts)
    assert all(tokenizer.decode(tokenizer(text).input_ids) == text for text in texts)
    said = {
        turn.completion.text for game in random_play(settings, 20, 0) for turn in game.turns if turn.role == "solver"
    }
    assert said <= texts
    role = settings.roles["solver"]
    read = [role.parse(str(tokenizer.decode(tokenizer(text).input_ids)), None) for text in said]
    assert {move[:5] for move in read if move} > {TOOL_CALL_PREFIX}
    assert None not in read


def test_random_play_that_waits_says_for_whom(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marl.training.warm_up._FIRST_REPORT_S", 0.0)
    with pytest.warns(
        UserNotice, match=r"^warm-up: 0 of 20 random episodes in \d s; open requests by policy: bench: 12, checks: 8"
    ):
        episodes = random_play(scenario(), 20, 0)
    assert [episode.deal.episode for episode in episodes] == [f"random.{number}" for number in range(20)]


def test_who_answers_by_rule_does_so_in_the_lesson_too(tmp_path: Path) -> None:
    data = warm_up_scenario_data(scenario(), ("solver",), ImitationWarmUp(), tmp_path, tmp_path / "play.jsonl.zst")
    kinds = {name: policy.get("engine", {}).get("kind") for name, policy in data["policies"].items()}
    assert kinds == {"solver": None, "bench": "tools", "checks": "verifiers"}


@pytest.mark.slow
def test_a_tiny_model_learns_tags_calls_and_prompts_that_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARL_CACHE", str(tmp_path))
    taught = spoken(scenario(lessons=200), 60)
    assert sum(turn.action is not None for turn in taught) / len(taught) > 0.8
    assert share(taught, TOOL_CALL_PREFIX) > 0.2
    assert any(turn.request.continues and turn.action for turn in taught)


@pytest.mark.slow
def test_a_tiny_model_with_the_default_format_learns_by_reinforcement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARL_CACHE", str(tmp_path / "made"))
    data = scenario(lessons=60, steps=60, groups=16, group_size=8).model_dump(mode="json")
    data["roles"]["solver"] |= {"instructions": "", "history": "fresh", "tools": [], "sampling": {"max_tokens": 14}}
    data["game"]["task"]["train"] = 12
    data["game"]["stages"][0] |= {"tools": None, "examples": ["{{ answer }}", "{{ wrong[0] }}", "{{ wrong[1] }}"]}
    data["policies"]["solver"]["learner"]["lr"] = 5e-3
    del data["roles"]["toolbox"], data["policies"]["bench"], data["seats"]
    rows: list[Metrics] = []
    marl.train(validate(data), tmp_path / "run", on_step=lambda _, row: rows.append(row))
    returns = [row["episode/return/solver"] for row in rows if "episode/return/solver" in row]
    assert sum(returns[:5]) / 5 < 0.35
    assert sum(returns[-5:]) / 5 > 0.5
