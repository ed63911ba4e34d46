"""Every source of made problems: the same everywhere, two splits that share nothing, the easiest first."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from typing import Any, get_args

import pytest

from marl.core.plugins import find_plugin
from marl.core.types import Problem
from marl.games.tasks.arithmetic import ArithmeticTask
from marl.games.tasks.base import GeneratedTask, ProblemSource
from marl.games.tasks.code import CodeTask
from marl.games.tasks.countdown import CountdownTask
from marl.games.tasks.logic_grids import LogicGridsTask
from marl.games.tasks.records import RecordsTask
from marl.games.tasks.strings import StringsTask
from marl.protocols import Split, Tasks

GENERATORS: tuple[GeneratedTask, ...] = (
    ArithmeticTask(train=800, held_out=200),
    ArithmeticTask(train=300, held_out=100, style="expanded", operators=("+", "-", "*"), terms=3),
    RecordsTask(train=300, held_out=80),
    CountdownTask(train=300, held_out=100),
    StringsTask(train=300, held_out=100),
    LogicGridsTask(train=150, held_out=50),
    CodeTask(train=300, held_out=100),
)


def told(problem: Problem) -> tuple[str, str]:
    """All that a team is told of a problem."""
    return problem.question, json.dumps(problem.facts.get("evidence"))


every_generator = pytest.mark.parametrize("settings", GENERATORS, ids=lambda settings: settings.kind)


def problems(tasks: Tasks, split: Split) -> list[Problem]:
    return [tasks.problem(split, index) for index in range(tasks.size(split))]


@every_generator
def test_the_splits_have_the_asked_sizes_and_share_no_problem(settings: GeneratedTask) -> None:
    tasks = settings.build()
    train, held_out = problems(tasks, "train"), problems(tasks, "held_out")
    assert (len(train), len(held_out)) == (settings.train, settings.held_out)
    assert len({problem.key for problem in (*train, *held_out)}) == len(train) + len(held_out)
    assert not {told(problem) for problem in train} & {told(problem) for problem in held_out}


@every_generator
def test_a_problem_is_always_the_same(settings: GeneratedTask) -> None:
    one, other = settings.build(), type(settings).model_validate_json(settings.model_dump_json()).build()
    for split in get_args(Split):
        assert problems(one, split) == problems(other, split)
    assert one.problem("train", 3) == one.problem("train", 3)


def test_a_problem_is_the_same_in_another_process() -> None:
    code = (
        "from marl.games.tasks.{0} import {1}\nimport json\nfrom dataclasses import asdict\n"
        "tasks = {1}(train=50, held_out=10).build()\n"
        "print(json.dumps([asdict(tasks.problem('train', i)) for i in range(50)]))"
    )
    for module, name, kind in (
        ("strings", "StringsTask", StringsTask),
        ("logic_grids", "LogicGridsTask", LogicGridsTask),
    ):
        done = subprocess.run(
            [sys.executable, "-c", code.format(module, name)], capture_output=True, text=True, check=True
        )
        here = problems(kind(train=50, held_out=10).build(), "train")
        assert json.loads(done.stdout) == json.loads(json.dumps([asdict(problem) for problem in here]))


@every_generator
def test_another_seed_makes_other_problems(settings: GeneratedTask) -> None:
    other = settings.model_copy(update={"seed": 1}).build()
    assert problems(other, "train")[:50] != problems(settings.build(), "train")[:50]


@every_generator
def test_the_easiest_come_first(settings: GeneratedTask) -> None:
    tasks = settings.build()
    assert isinstance(tasks, ProblemSource)
    lengths = [len(p.question) + len(p.answer) for p in problems(tasks, "train")]
    third = len(lengths) // 3
    assert sum(lengths[:third]) < sum(lengths[-third:])


@every_generator
def test_wrong_answers_are_different_and_none_is_the_answer(settings: GeneratedTask) -> None:
    fewest = 2 if isinstance(settings, LogicGridsTask) else 3
    for problem in problems(settings.build(), "train"):
        assert len(set(problem.wrong)) == len(problem.wrong) >= fewest
        assert problem.answer
        assert problem.answer not in problem.wrong


@every_generator
def test_a_problem_is_plain_json(settings: GeneratedTask) -> None:
    for problem in problems(settings.build(), "held_out"):
        assert json.loads(json.dumps(dict(problem.facts))) == problem.facts


@every_generator
def test_a_held_out_problem_cannot_be_posed(settings: GeneratedTask) -> None:
    tasks = settings.build()
    assert all(tasks.parse_posed_problem(problem.question) is None for problem in problems(tasks, "held_out"))
    if isinstance(settings, ArithmeticTask | StringsTask | CountdownTask):
        for problem in problems(tasks, "train"):
            posed = tasks.parse_posed_problem(problem.question)
            assert posed is not None
            assert (posed.key, posed.question) == (problem.key, problem.question)


@pytest.mark.parametrize(
    "text", ["", "47", "what is 47 + 38", "47 + + 38", "\x00", "9" * 5000, "{" * 10_000, "\N{FULLWIDTH DIGIT FOUR} + 3"]
)
@every_generator
def test_what_poses_no_problem_is_none(settings: GeneratedTask, text: str) -> None:
    assert settings.build().parse_posed_problem(text) is None


@every_generator
def test_splits_and_numbers_that_are_not_there_are_named(settings: Any) -> None:
    tasks = settings.build()
    with pytest.raises(ValueError, match=f"index: {settings.train} in split 'train', which has {settings.train}"):
        tasks.problem("train", settings.train)
    with pytest.raises(ValueError, match="index: -1"):
        tasks.problem("train", -1)
    with pytest.raises(ValueError, match=r"split: 'test'; .*choices: held_out, train"):
        tasks.size("test")


def test_sizes_that_the_settings_cannot_make_say_what_is_possible() -> None:
    with pytest.raises(
        ValueError, match=r"train: 50 and held_out: 10 .* make only 55; choices: train \+ held_out <= 55"
    ):
        ArithmeticTask(digits=(1, 1), train=50, held_out=10).build()
    assert ArithmeticTask(digits=(1, 1), train=45, held_out=10).build().size("held_out") == 10


def test_no_problem_need_be_held_out() -> None:
    assert StringsTask(train=10, held_out=0).build().size("held_out") == 0


@every_generator
def test_a_generator_is_found_by_its_kind(settings: GeneratedTask) -> None:
    assert find_plugin("tasks", settings.kind) is type(settings)
