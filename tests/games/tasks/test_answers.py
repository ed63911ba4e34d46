"""The answers of made problems, checked by other means than those that made them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from itertools import permutations, product
from typing import Any

import pytest

from marl.core.types import Problem, VerifierCase
from marl.games.tasks.arithmetic import ArithmeticTask, parse_number, spell_number
from marl.games.tasks.base import GeneratedTask
from marl.games.tasks.code import FUNCTION_FAMILIES, CodeTask
from marl.games.tasks.countdown import CountdownTask, find_expression_for_target
from marl.games.tasks.logic_grids import LogicGridsTask
from marl.games.tasks.strings import StringsTask
from marl.games.verifiers.countdown import CountdownVerifier
from marl.games.verifiers.text_verifiers import ChoiceVerifier
from marl.games.verifiers.unit_tests import parse_tests
from marl.protocols.tasks import overall_score


def every(settings: GeneratedTask) -> Iterator[Problem]:
    tasks = settings.build()
    for split in ("train", "held_out"):
        yield from (tasks.problem(split, index) for index in range(tasks.problem_count(split)))


# --- arithmetic -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("terms", [2, 3, 4])
@pytest.mark.parametrize("operators", [("+",), ("-",), ("*",), ("+", "-", "*")])
def test_python_finds_the_same_results(operators: Any, terms: int) -> None:
    for problem in every(ArithmeticTask(operators=operators, terms=terms, train=300, held_out=50)):
        assert eval(problem.question) == int(problem.answer) == problem.facts["value"] >= 0
        assert all(int(wrong) >= 0 for wrong in problem.wrong)


def test_expanded_numbers_are_read_as_sums() -> None:
    for problem in every(ArithmeticTask(style="expanded", digits=(1, 3))):
        left, right = problem.question.split(" + ")
        total = sum(map(int, left.split())) + sum(map(int, right.split()))
        assert sum(map(int, problem.answer.split())) == total
        assert len(problem.answer.split()) == max(1, sum(digit != "0" for digit in str(total)))


@pytest.mark.parametrize(
    ("number", "expanded", "digits"),
    [(85, "80 5", "8 5"), (125, "100 20 5", "1 2 5"), (105, "100 5", "1 0 5"), (40, "40", "4 0"), (0, "0", "0")],
)
def test_a_number_in_three_styles(number: int, expanded: str, digits: str) -> None:
    texts: dict[Any, str] = {"plain": str(number), "expanded": expanded, "digits": digits}
    for style, text in texts.items():
        assert spell_number(number, style) == text
        assert parse_number(text.split(), style) == number


@pytest.mark.parametrize("text", ["5 80", "80 05", "80 5 0", "8 5", "", "80 -5", "80 5.0", "100 80 5 20"])
def test_a_number_spelled_otherwise_is_none(text: str) -> None:
    assert parse_number(text.split(), "expanded") is None


def test_forty_seven_and_thirty_eight() -> None:
    tasks = ArithmeticTask(style="expanded", train=100, held_out=0).build()
    problem = tasks.parse_posed_problem("40 7 + 30 8")
    assert problem is not None
    assert (problem.key, problem.answer) == ("38+47", "80 5")
    assert (problem.facts["left"], problem.facts["right"], problem.facts["carry"]) == (47, 38, True)
    assert problem.facts["steps"] == ["10 5", "70"]
    assert problem.wrong[0] == "70 5", "the carry forgotten"


@pytest.mark.parametrize(
    ("text", "steps", "carry"),
    [
        ("41 + 38", ["9", "70"], False),
        ("47 - 38", ["17", "9"], True),
        ("47 * 38", ["376", "1410"], True),
        ("40 + 30", ["0", "70"], False),
        ("99 + 1", ["10", "90"], True),
    ],
)
def test_the_steps_of_a_problem(text: str, steps: list[str], carry: bool) -> None:
    problem = ArithmeticTask(operators=("+", "-", "*"), train=10, held_out=0).build().parse_posed_problem(text)
    assert problem is not None
    assert (problem.facts["steps"], problem.facts["carry"]) == (steps, carry)


@pytest.mark.parametrize("text", ["47 / 38", "38 - 47", "100 + 1", "1 + 2 + 3", "07 + 3", "+ 4 7", "4 7 +", "4 - 3"])
def test_a_problem_of_another_kind_is_not_posed(text: str) -> None:
    assert ArithmeticTask(operators=("+",), train=100, held_out=0).build().parse_posed_problem(text) is None


def test_the_order_of_what_is_added_makes_no_other_problem() -> None:
    tasks = ArithmeticTask(operators=("+", "-", "*"), train=100, held_out=0, terms=3).build()

    def key(text: str) -> str:
        problem = tasks.parse_posed_problem(text)
        assert problem is not None
        return problem.key

    assert key("3 + 4 * 5") == key("5 * 4 + 3")
    assert key("9 - 3 + 1") == key("1 + 9 - 3")
    assert key("9 - 3 + 1") != key("9 + 3 - 1")


def test_who_poses_a_held_out_problem_the_other_way_round_is_refused_too() -> None:
    settings = ArithmeticTask(train=50, held_out=50)
    tasks = settings.build()
    for index in range(50):
        left, right = tasks.problem("held_out", index).question.split(" + ")
        assert tasks.parse_posed_problem(f"{right} + {left}") is None


@pytest.mark.parametrize("field", [{"digits": [2, 1]}, {"digits": [0, 1]}, {"numbers": [5, 3]}])
def test_ranges_that_are_none_are_refused(field: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(field))}: .* is no range; choices"):
        ArithmeticTask.model_validate(field)


# --- countdown ------------------------------------------------------------------------------------------------------


def reachable(numbers: list[Fraction]) -> set[Fraction]:
    """Return every value that all or some of the numbers can make."""
    values = set(numbers)
    for i, j in permutations(range(len(numbers)), 2):
        rest = [n for k, n in enumerate(numbers) if k not in (i, j)]
        a, b = numbers[i], numbers[j]
        for value in (a + b, a - b, a * b, *([a / b] if b else [])):
            values |= reachable([*rest, value])
    return values


def verdict(problem: Problem, answer: str | None) -> float:
    verdict = CountdownVerifier()(VerifierCase(problem, answer or "", answer))
    return overall_score(verdict.score)


def test_every_countdown_answer_is_right_and_no_wrong_one_is() -> None:
    for problem in every(CountdownTask(train=400, count=(2, 6))):
        assert verdict(problem, problem.answer) == 1
        assert eval(problem.answer) == problem.facts["target"]
        assert [verdict(problem, wrong) for wrong in problem.wrong] == [0] * len(problem.wrong)


def test_the_search_finds_what_brute_force_finds() -> None:
    for numbers in ([2, 3, 7], [1, 5, 25], [4, 4, 6]):
        brute = {int(v) for v in reachable([Fraction(n) for n in numbers]) if v == int(v) and v > 0}
        solved = {
            target
            for target in range(1, 200)
            if (solution := find_expression_for_target(numbers, target)) and eval(solution) == target
        }
        assert solved == {target for target in brute if target < 200}
    assert find_expression_for_target([25, 50, 75, 100, 3, 6], 952) is not None, "the famous one"


def test_a_posed_countdown_is_solved_and_one_without_a_solution_is_none() -> None:
    tasks = CountdownTask(train=10, held_out=0, count=(3, 3)).build()
    posed = tasks.parse_posed_problem("Make 22 from the numbers 3 5 7")
    assert posed is not None
    assert verdict(posed, posed.answer) == 1
    assert tasks.parse_posed_problem("Make 97 from the numbers 1 1 1") is None
    assert tasks.parse_posed_problem("Make 22 from the numbers 3 5") is None
    assert tasks.parse_posed_problem("Make 22 from the numbers 3 5 7000") is None


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ("3 * 5 + 7", 1),
        ("(3*5)+7", 1),
        ("7 + 5 \N{MULTIPLICATION SIGN} 3 = 22", 1),
        ("3 * 5 + 7 = 23", 0),
        ("22", 0),
        ("3 * 5 + 7 + 0", 0),
        ("3 + 3 + 5 + 7 + 4", 0),
        ("3 * 5 * 7", 0),
        ("7 / (5 - 5)", 0),
        ("3 * (5 + 7", 0),
        ("-3 * -5 + 7", 0),
        ("3 ** 5 - 7", 0),
        ("9 ** 9 ** 9 ** 9", 0),
        ("__import__('os').system('true')", 0),
        ("(lambda: 22)()", 0),
        ("3.0 * 5 + 7", 0),
        ("True * 22", 0),
        ("3 * 5 + 7; 1", 0),
        ("3 * 5 +\x00 7", 0),
        ("(" * 150 + "3" + ")" * 150, 0),
        ("3" * 10_000, 0),
        ("-" * 5_000 + "3", 0),
        ("", 0),
        (None, 0),
    ],
)
def test_countdown_answers_are_judged_by_value_and_by_the_numbers_used(answer: str | None, score: float) -> None:
    assert verdict(Problem("k", "q", facts={"numbers": [3, 5, 7], "target": 22}), answer) == score


# --- strings --------------------------------------------------------------------------------------------------------

BY_HAND = {
    "reverse": "iban omat",
    "uppercase": "TAMO NABI",
    "rotate left by 1": "amo nabit",
    "rotate left by 2": "mo nabita",
    "remove vowels": "tm nb",
    "sort letters": "aabimnot",
    "double letters": "ttaammoo nnaabbii",
    "repeat twice": "tamo nabitamo nabi",
    "reverse words": "nabi tamo",
    "join with -": "tamo-nabi",
    "initials": "tn",
}


@pytest.mark.parametrize("transform", BY_HAND)
def test_a_transform_by_hand(transform: str) -> None:
    tasks = StringsTask(train=10, held_out=0).build()
    problem = tasks.parse_posed_problem(f"Apply in order: {transform}. Text: tamo nabi")
    assert problem is not None
    assert problem.answer == BY_HAND[transform]


def test_transforms_are_applied_in_order() -> None:
    problem = (
        StringsTask(train=10, held_out=0)
        .build()
        .parse_posed_problem("Apply in order: reverse; uppercase; initials. Text: tamo nabi")
    )
    assert problem is not None
    assert (problem.answer, problem.facts["steps"]) == ("IO", ["iban omat", "IBAN OMAT", "IO"])


def test_a_transform_with_nothing_to_do_poses_no_problem() -> None:
    tasks = StringsTask(train=10, held_out=0).build()
    assert tasks.parse_posed_problem("Apply in order: reverse words. Text: tamo") is None
    with pytest.raises(ValueError, match="leave texts of these settings as they are"):
        StringsTask(transforms=("join with -",), words=(1, 1)).build()


# --- logic grids ----------------------------------------------------------------------------------------------------

RELATIONS = {
    "same": lambda a, b: a == b,
    "other": lambda a, b: a != b,
    "next": lambda a, b: abs(a - b) == 1,
    "left": lambda a, b: a < b,
    "at": lambda a, b: a == b,
    "not at": lambda a, b: a != b,
}


def grids(problem: Problem) -> list[Mapping[str, tuple[str, ...]]]:
    """Return every arrangement that the clues allow, by brute force."""
    attributes = problem.facts["grid"]
    solutions = []
    for rows in product(*(permutations(values) for values in attributes.values())):
        house = {value: number for row in rows for number, value in enumerate(row, 1)}
        if all(RELATIONS[says](house[a], house[b] if b in house else int(b)) for says, a, b in problem.facts["clues"]):
            solutions.append(dict(zip(attributes, rows, strict=True)))
    return solutions


@pytest.mark.parametrize("spare", [0, 2])
def test_a_logic_grid_has_one_solution_and_misses_every_clue_it_loses(spare: int) -> None:
    for problem in every(LogicGridsTask(train=60, held_out=20, spare=spare)):
        assert grids(problem) == [{name: tuple(values) for name, values in problem.facts["grid"].items()}]
        if not spare:
            clues = problem.facts["clues"]
            for i in range(len(clues)):
                fewer = Problem("k", "q", facts={**problem.facts, "clues": clues[:i] + clues[i + 1 :]})
                assert len(grids(fewer)) > 1


def test_the_answer_of_a_logic_grid_is_where_the_question_points() -> None:
    for problem in every(LogicGridsTask(train=60, held_out=20)):
        question = problem.question.splitlines()[-1]
        grid = problem.facts["grid"]
        column = {"Who": "person", "Which colour": "colour", "Which pet": "pet", "What": "drink"}
        name = next(name for start, name in column.items() if question.startswith(start))
        (who_value,) = [value for values in grid.values() for value in values if re.search(rf"\b{value}\b", question)]
        house = next(values.index(who_value) for values in grid.values() if who_value in values)
        assert grid[name][house] == problem.answer
        assert problem.answer in problem.facts["choices"]


def test_the_verifier_of_choices_can_judge_a_logic_grid() -> None:
    for problem in every(LogicGridsTask(train=60, held_out=20)):
        assert ChoiceVerifier()(VerifierCase(problem, "", problem.answer)).score == 1
        assert [ChoiceVerifier()(VerifierCase(problem, "", wrong)).score for wrong in problem.wrong] == [0] * len(
            problem.wrong
        )


def test_a_logic_grid_too_large_to_be_looked_through_is_refused() -> None:
    with pytest.raises(ValueError, match="houses: 5 with attributes: 3 is too much to be searched; choices"):
        LogicGridsTask(houses=(3, 5), attributes=(2, 3))


# --- code -----------------------------------------------------------------------------------------------------------


def passes(problem: Problem, source: str) -> bool:
    """Run our own reference solutions, never code of a model."""
    names: dict[str, Any] = {}
    exec(source, names)
    try:
        return all(repr(eval(test["call"], names)) == test["expect"] for test in problem.facts["tests"])
    except (ArithmeticError, IndexError, TypeError, ValueError):
        return False


@pytest.mark.parametrize("tests", [4, 8])
def test_reference_solutions_pass_their_tests_and_usual_mistakes_fail(tests: int) -> None:
    families = set()
    for problem in every(CodeTask(train=400, held_out=100, tests=tests)):
        families.add(problem.key.split()[0])
        assert len(problem.facts["tests"]) == tests
        assert len({test["call"] for test in problem.facts["tests"]}) == tests
        assert passes(problem, problem.answer)
        assert not [wrong for wrong in problem.wrong if passes(problem, wrong)]
    assert families == set(FUNCTION_FAMILIES)


def test_the_verifier_of_code_can_read_the_tests() -> None:
    for problem in every(CodeTask(train=100, held_out=20)):
        assert len(parse_tests(problem)) == len(problem.facts["tests"])


def test_knowing_the_shown_examples_is_not_enough() -> None:
    for problem in every(CodeTask(train=100, held_out=0)):
        shown = problem.facts["tests"][: problem.facts["shown"]]
        assert all(f"{test['call']} == {test['expect']}" in problem.question for test in shown)
        table = {test["call"][2:-1]: test["expect"] for test in shown}
        learned_by_heart = (
            f"def f(x):\n    return {{{', '.join(f'{k!r}: {v}' for k, v in table.items())}}}.get(repr(x))\n"
        )
        assert not passes(problem, learned_by_heart)
