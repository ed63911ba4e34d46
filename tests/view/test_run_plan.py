"""A run in prospect, as text: who learns from what, how much, and what each role reads."""

from __future__ import annotations

import re
from typing import Any

import pytest

from marl.evaluation.dry_run import play_dry_run
from marl.scenario.load import load
from marl.view.run_plan import _abbreviate_number, format_bytes, render_plan
from tests.support.paths import SCENARIOS


def text(name: str, *overrides: str, **options: Any) -> str:
    return render_plan(play_dry_run(load(SCENARIOS / f"{name}.yaml", overrides)), **options)


def rows(shown: str) -> dict[str, list[str]]:
    """Role -> the cells of its row."""
    table = shown.split("\nturns:")[0].split("\n")[1:]
    return {cells[0]: cells[1:] for line in table if (cells := [cell.strip() for cell in line.split("  ") if cell])}


def test_learning_frozen_and_shared_weights_are_told_apart() -> None:
    frozen = text("train_solver_only_adapters")
    base = "adapter of rank 16 on tiny llama (109k), 41k weights"
    assert rows(frozen)["solver"][1:4] == ["solver", base, "grpo"]
    assert rows(frozen)["planner"][1:4] == ["planner", base, "frozen"]
    assert "        planner + solver + critic: 18 MB always, 15 MB while it plays\n        solver: " in frozen
    shared = rows(text("train_solver_only_shared"))
    assert shared["solver"][1:4] == ["team", "tiny llama, 109k weights", "grpo"]
    assert shared["critic"][1:4] == ["team", "tiny llama, 109k weights", "grpo, from others"]
    assert shared["verifier"][1:4] == ["checker", "verifiers", "-"]


def test_the_parts_of_the_memory_add_up_to_its_peak() -> None:
    shown = text("train_solver_only_adapters")
    sizes = {"kB": 1e3, "MB": 1e6, "GB": 1e9}
    lines = re.findall(r"^        [a-z +]+: (\d.*)$", shown, re.MULTILINE)
    amounts = [re.findall(r"([\d.]+) (.B) ([a-z ]+)", line) for line in lines]
    always = sum(float(n) * sizes[unit] for line in amounts for n, unit, when in line if when == "always")
    most = max(float(n) * sizes[unit] for line in amounts for n, unit, when in line if when != "always")
    (total, unit) = re.findall(r"^memory  about ([\d.]+) (.B)", shown, re.MULTILINE)[0]
    assert always + most == pytest.approx(float(total) * sizes[unit], rel=0.06)


def test_roles_with_many_seats_take_one_line() -> None:
    shown = rows(text("mae"))
    assert shown["solver"][0] == "solver_0 ... solver_4 (5)"
    assert shown["solver"][4] == "320", "five turns in each of 64 episodes"


def test_an_experience_that_plays_more_or_others_is_named() -> None:
    assert "step    16 episodes of 3 turns: 16 starts, 1 from each; experience 'tree' may play more" in text(
        "tree_sampling"
    )


def test_rules_have_no_prompt_to_show() -> None:
    assert "verifier reads first" not in text("solver_critic")


def test_of_a_model_that_is_not_here_neither_tokens_nor_memory_are_made_up() -> None:
    shown = text("kuhn_self_play", "policies.actor.model=someone/model")
    assert rows(shown)["player"][2:] == ["someone/model", "grpo", rows(text("kuhn_self_play"))["player"][4]]
    assert "        actor: unknown: not on this machine" in shown
    assert "tokens read" not in shown
    assert "player reads first\n" in shown


@pytest.mark.parametrize(
    ("number", "shown"),
    [(7, "7"), (999, "999"), (1000, "1k"), (84_321, "84k"), (123_456, "123k"), (1.26e6, "1.3M"), (7e9, "7B")],
)
def test_large_numbers_are_rounded(number: float, shown: str) -> None:
    assert _abbreviate_number(number) == shown


@pytest.mark.parametrize(
    ("size", "shown"), [(0, "0 B"), (56_000, "56 kB"), (432_100, "432 kB"), (1.7e6, "1.7 MB"), (1.4e13, "14 TB")]
)
def test_bytes_have_units(size: float, shown: str) -> None:
    assert format_bytes(size) == shown
