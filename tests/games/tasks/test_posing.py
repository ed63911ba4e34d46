"""Problems that a challenger poses: every task says what it reads, and a workflow on one that reads none is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from marl.core.plugins import find_plugin, known_kinds
from marl.games.tasks.base import TaskWithHeldOutSplit
from marl.games.team.settings import TeamConfig

POSE = {"role": "challenger", "poses": True, "when": "split == 'train'"}
SETTINGS: list[dict[str, Any]] = [
    {"kind": "arithmetic"},
    {"kind": "arithmetic", "numbers": [10, 49], "style": "expanded", "operators": ["-", "*"]},
    {"kind": "arithmetic", "digits": [3, 3], "style": "digits", "terms": 3},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=map(str, SETTINGS))
def test_the_example_of_a_sum_in_the_words_on_posing_is_one(settings: dict[str, Any]) -> None:
    task: Any = find_plugin("tasks", "arithmetic").model_validate({**settings, "held_out": 0, "train": 20})
    (example,) = re.findall(r"such as '(.*)';", task.problem_posing_instructions)
    posed = task.build().parse_posed_problem(example)
    assert posed is not None
    assert posed.question == example


@pytest.mark.parametrize(
    ("kind", "text"),
    [("countdown", "Make 22 from the numbers 3 5 7"), ("strings", "Apply in order: reverse; uppercase. Text: tamo")],
)
def test_a_problem_in_the_form_that_the_words_on_posing_tell_is_posed(kind: str, text: str) -> None:
    task: Any = find_plugin("tasks", kind).model_validate({"kind": kind, "held_out": 0, "train": 20})
    assert task.problem_posing_instructions.startswith(f"'{text.split()[0]} ")
    assert task.build().parse_posed_problem(text) is not None


def table(path: Path, **settings: Any) -> dict[str, Any]:
    path.write_text("".join(json.dumps({"question": f"{n}?", "answer": n}) + "\n" for n in range(20)))
    return {"kind": "file", "path": str(path), **settings}


def test_a_file_says_what_is_posed_if_it_lets_problems_be_posed(tmp_path: Path) -> None:
    task: Any = find_plugin("tasks", "file").model_validate(table(tmp_path / "a.jsonl", poses=True))
    (example,) = re.findall(r"\{.*\}", task.problem_posing_instructions)
    posed = task.build().parse_posed_problem(example)
    assert (posed.question, posed.answer) == ("2 + 2?", "4")


def test_a_stage_that_poses_on_a_task_that_reads_nothing_is_refused(tmp_path: Path) -> None:
    silent = [table(tmp_path / "a.jsonl"), {"kind": "code"}, {"kind": "logic_grids"}]
    for task in silent:
        with pytest.raises(
            ValueError,
            match=rf"stages\.0\.poses: true, but nothing can be posed on task '{task['kind']}' .*poses: true",
        ):
            TeamConfig.model_validate({"kind": "team", "task": task, "stages": [POSE]})
    TeamConfig.model_validate({"kind": "team", "task": table(tmp_path / "a.jsonl", poses=True), "stages": [POSE]})


def test_every_task_that_reads_problems_says_how_they_are_written() -> None:
    tasks: dict[str, Any] = {kind: find_plugin("tasks", kind) for kind in known_kinds("tasks")}
    reading = set()
    for kind, task in tasks.items():
        if task.read_posed_problem is not TaskWithHeldOutSplit.read_posed_problem:
            reading.add(kind)
    saying = {
        kind
        for kind, task in tasks.items()
        if task.problem_posing_instructions is not tasks["code"].problem_posing_instructions
    }
    assert reading == saying == {"arithmetic", "countdown", "strings", "file", "dataset"}
