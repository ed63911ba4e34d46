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
from marl.games.tasks.base import GeneratedTask, LazyProblemSplits
from marl.games.tasks.citations import CitationsTask
from marl.games.tasks.code import CodeTask
from marl.games.tasks.countdown import CountdownTask
from marl.games.tasks.logic_grids import LogicGridsTask
from marl.games.tasks.records import RecordsTask
from marl.games.tasks.strings import StringsTask
from marl.protocols import Split, TaskProblems

GENERATORS: tuple[GeneratedTask | CitationsTask, ...] = (
    ArithmeticTask(train=800, held_out=200),
    ArithmeticTask(train=300, held_out=100, style="expanded", operators=("+", "-", "*"), terms=3),
    RecordsTask(train=300, held_out=80),
    CountdownTask(train=300, held_out=100),
    StringsTask(train=300, held_out=100),
    LogicGridsTask(train=150, held_out=50),
    CodeTask(train=300, held_out=100),
    CitationsTask(papers=600, train=600, held_out=100),
)


def told(problem: Problem) -> tuple[str, str]:
    """All that a team is told of a problem."""
    return problem.question, json.dumps(problem.facts.get("evidence"))


every_generator = pytest.mark.parametrize("settings", GENERATORS, ids=lambda settings: settings.kind)


def problems(tasks: TaskProblems, split: Split) -> list[Problem]:
    return [tasks.problem(split, index) for index in range(tasks.problem_count(split))]


@every_generator
def test_the_splits_have_the_asked_sizes_and_share_no_problem(settings: GeneratedTask | CitationsTask) -> None:
    tasks = settings.build()
    train, held_out = problems(tasks, "train"), problems(tasks, "held_out")
    assert (len(train), len(held_out)) == (settings.train, settings.held_out)
    assert len({problem.key for problem in (*train, *held_out)}) == len(train) + len(held_out)
    assert not {told(problem) for problem in train} & {told(problem) for problem in held_out}


@every_generator
def test_a_problem_is_always_the_same(settings: GeneratedTask | CitationsTask) -> None:
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
def test_another_seed_makes_other_problems(settings: GeneratedTask | CitationsTask) -> None:
    other = settings.model_copy(update={"seed": 1}).build()
    assert problems(other, "train")[:50] != problems(settings.build(), "train")[:50]


@every_generator
def test_the_easiest_come_first(settings: GeneratedTask | CitationsTask) -> None:
    tasks = settings.build()
    assert isinstance(tasks, LazyProblemSplits)
    lengths = [len(p.question) + len(p.answer) for p in problems(tasks, "train")]
    third = len(lengths) // 3
    assert sum(lengths[:third]) < sum(lengths[-third:])


@every_generator
def test_wrong_answers_are_different_and_none_is_the_answer(settings: GeneratedTask | CitationsTask) -> None:
    fewest = 2 if isinstance(settings, LogicGridsTask) else 3
    for problem in problems(settings.build(), "train"):
        assert len(set(problem.wrong)) == len(problem.wrong) >= fewest
        assert problem.answer
        assert problem.answer not in problem.wrong


@every_generator
def test_a_problem_is_plain_json(settings: GeneratedTask | CitationsTask) -> None:
    for problem in problems(settings.build(), "held_out"):
        assert json.loads(json.dumps(dict(problem.facts))) == problem.facts


@every_generator
def test_a_held_out_problem_cannot_be_posed(settings: GeneratedTask | CitationsTask) -> None:
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
def test_what_poses_no_problem_is_none(settings: GeneratedTask | CitationsTask, text: str) -> None:
    assert settings.build().parse_posed_problem(text) is None


@every_generator
def test_splits_and_numbers_that_are_not_there_are_named(settings: Any) -> None:
    tasks = settings.build()
    with pytest.raises(ValueError, match=f"index: {settings.train} in split 'train', which has {settings.train}"):
        tasks.problem("train", settings.train)
    with pytest.raises(ValueError, match="index: -1"):
        tasks.problem("train", -1)
    with pytest.raises(ValueError, match=r"split: 'test'; .*choices: held_out, train"):
        tasks.problem_count("test")


def test_sizes_that_the_settings_cannot_make_say_what_is_possible() -> None:
    with pytest.raises(
        ValueError, match=r"train: 50 and held_out: 10 .* make only 55; choices: train \+ held_out <= 55"
    ):
        ArithmeticTask(digits=(1, 1), train=50, held_out=10).build()
    assert ArithmeticTask(digits=(1, 1), train=45, held_out=10).build().problem_count("held_out") == 10


@pytest.mark.parametrize("kind", [ArithmeticTask, CodeTask, CountdownTask, LogicGridsTask, RecordsTask, StringsTask])
def test_more_problems_than_draws_are_refused_before_the_first_draw(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = kind().max_draws
    assert 10_000 <= limit <= 400_000
    monkeypatch.setattr(kind, "draw_problem", None)
    with pytest.raises(ValueError, match=f"at most {limit:,} are drawn with these settings .* held_out <= {limit}, or"):
        kind(train=10**6).build()


@pytest.mark.parametrize(
    "task",
    [
        *(ArithmeticTask(operators=("-",)), CountdownTask(), StringsTask(), LogicGridsTask(houses=(2, 3))),
        *(RecordsTask(records=2, values=9), CodeTask(families=("letters", "digits", "mask"))),
    ],
    ids=lambda task: task.kind,
)
def test_problems_that_repeat_are_refused_after_a_bounded_number_of_draws(
    task: GeneratedTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind: Any = type(task)
    monkeypatch.setattr(kind, "max_draws", 500)
    draws: list[object] = []
    draw = kind.draw_problem
    monkeypatch.setattr(kind, "draw_problem", lambda task, rng: draws.append(rng) or draw(task, rng))
    with pytest.raises(
        ValueError, match=r"make only \d+( in 500 draws)?; choices: train \+ held_out <= \d+, or"
    ) as error:
        task.model_copy(update={"train": 490, "held_out": 10}).build()
    assert len(draws) <= 500
    possible = int(str(error.value).split("make only ")[1].split()[0].rstrip(";"))
    smaller = task.model_copy(update={"train": possible, "held_out": 0})
    assert smaller.build().problem_count("train") == possible


@pytest.mark.parametrize(
    ("task", "limit"),
    [
        (CountdownTask(count=(6, 6)), 200_000),
        (LogicGridsTask(houses=(4, 4), attributes=(4, 4)), 3000),
        (StringsTask(words=(20, 20), letters=(20, 20), depth=(6, 6)), 4166),
        (RecordsTask(records=26), 46_153),
        (ArithmeticTask(terms=8), 100_000),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_the_number_of_draws_is_limited_by_the_size_of_a_problem(task: GeneratedTask, limit: int) -> None:
    assert task.max_draws == limit


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (ArithmeticTask(operators=("-",), terms=3, numbers=(5, 5)), r"operators: \['-'\] with terms: 3 make negative"),
        (CountdownTask(numbers=(1, 2), targets=(1000, 1000)), r"targets: \[1000, 1000\] is out of reach"),
        (StringsTask(transforms=("initials",), depth=(6, 6), words=(20, 20), letters=(20, 20)), "leave texts"),
        (
            RecordsTask(records=2, unseen=0.01, train=100, held_out=20),
            r"unseen: 0\.01 and seed: 0 leave one split without a question; choices",
        ),
    ],
    ids=["arithmetic", "countdown", "strings", "records"],
)
def test_settings_that_no_problem_fits_are_refused(task: GeneratedTask, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        task.build()


def test_questions_of_held_out_problems_may_be_unseen_in_training() -> None:
    task = RecordsTask(records=5, needs=(1, 3), unseen=0.25)
    splits = task.build()
    questions: dict[Split, set[str]] = {}
    for split in get_args(Split):
        questions[split] = {splits.problem(split, index).question for index in range(splits.problem_count(split))}
    assert not questions["train"] & questions["held_out"]
    # Each of five agents is asked for its own record and up to two of four others: 5 * (1 + 4 + 6) questions.
    assert len(questions["train"]) + len(questions["held_out"]) == 55
    assert len(questions["held_out"]) == pytest.approx(55 / 4, abs=2)


def test_unseen_questions_may_be_held_out_with_all_their_rotations() -> None:
    task = RecordsTask(records=5, needs=(1, 3), unseen=0.25, unseen_rotations=True)
    splits = task.build()
    distances: dict[Split, set[tuple[int, ...]]] = {}
    for split in get_args(Split):
        problems = [splits.problem(split, index) for index in range(splits.problem_count(split))]
        evidence = [problem.facts["evidence"] for problem in problems]
        distances[split] = {
            tuple(sorted((ord(name) - ord(each["respondent"])) % 5 for name in each["needs"])) for each in evidence
        }
    assert not distances["train"] & distances["held_out"]
    # The respondent and up to two of four other records: 1 + 4 + 6 questions up to rotation.
    assert len(distances["train"]) + len(distances["held_out"]) == 11


def test_no_problem_need_be_held_out() -> None:
    assert StringsTask(train=10, held_out=0).build().problem_count("held_out") == 0


@every_generator
def test_a_generator_is_found_by_its_kind(settings: GeneratedTask | CitationsTask) -> None:
    assert find_plugin("tasks", settings.kind) is type(settings)
