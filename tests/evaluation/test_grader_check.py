from __future__ import annotations

from typing import Any

import pytest

from marl.core.types import Problem
from marl.evaluation.grader_check import (
    _alternative_gold_answers,
    check_graders_and_count_verdicts,
    verdict_remarks_on_gold_answers,
)
from marl.games.verifiers.mathematics import MathVerifier
from marl.scenario.load import validate
from marl.scenario.schema import Scenario
from tests.support.command_line import run_marl
from tests.support.paths import SCENARIOS

FAIR = {"right": "numeric", "same": "exact", "formula": "math", "box": {"kind": "numeric", "read": "boxed"}}


def scenario(checks: dict[str, Any], game: str = "tests.support.faulty_graders:AdditionQuiz") -> dict[str, Any]:
    """Somebody learns, and somebody verifies; it is never played."""
    return {
        "game": game,
        "seats": {"player_0": "solver", "player_1": "checker"},
        "roles": {"solver": {"kind": "player", "policy": "actor"}, "checker": {"kind": "player", "policy": "judge"}},
        "policies": {
            "actor": {"model": {"kind": "tiny"}, "learner": "grpo"},
            "judge": {"engine": {"kind": "verifiers", "checks": checks, "workers": 1}},
        },
        "schedule": {"steps": 1, "groups": 1, "group_size": 2},
    }


def checked(checks: dict[str, Any]) -> Scenario:
    return validate(scenario(checks))


def test_fair_graders_pass_and_checks_of_form_need_not_tell_right_from_wrong() -> None:
    form = {"tags": {"kind": "format", "requires": ["<answer>"]}, "brief": {"kind": "length", "soft": 1, "hard": 2}}
    # empty, gibberish, gold and another problem's gold, for each of two problems
    assert check_graders_and_count_verdicts(checked(FAIR | form), problems_per_game=2) == 6 * 2 * 4


@pytest.mark.parametrize(
    ("accepts", "complaint"),
    [
        ("gold empty", r"accepts empty for problem 'sum-0' \(gold '1'\): answer '', score 1"),
        ("gold gibberish", r"accepts gibberish for problem 'sum-0' \(gold '1'\): answer 'zqx"),
        ("gold other", r"accepts the gold of problem 'sum-1' for problem 'sum-0' \(gold '1'\): answer '2', score 1"),
        ("nothing", r"rejects gold for problem 'sum-0' \(gold '1'\): answer '1', score 0"),
    ],
)
def test_a_grader_that_cannot_be_trusted_is_named_with_what_it_did(accepts: str, complaint: str) -> None:
    lenient = {"kind": "tests.support.faulty_graders:LenientVerifier", "accepts": accepts}
    with pytest.raises(
        ValueError,
        match=r"policies\.judge\.engine\.checks\.mine: 'tests.support.faulty_graders:LenientVerifier' " + complaint,
    ):
        check_graders_and_count_verdicts(checked({"mine": lenient}), problems_per_game=2)


@pytest.mark.parametrize(
    ("says", "complaint"),
    [
        ("no, {gold}", r"tells of the right answer: with another gold it says 'no, \d+', not 'no, \d+', of answer ''"),
        ("off by {size}", r"tells of the right answer: with another gold it says"),
        (
            "not like {fact}",
            r"tells the right answer: why 'not like f\(2\) == 4711' holds 'f\(2\) == 4711', of the answer",
        ),
    ],
)
def test_a_grader_whose_reasons_tell_of_the_right_answer_is_named(says: str, complaint: str) -> None:
    talkative = {"kind": "tests.support.faulty_graders:LeakingVerifier", "says": says}
    with pytest.raises(
        ValueError,
        match=r"policies\.judge\.engine\.checks\.mine: 'tests.support.faulty_graders:LeakingVerifier' " + complaint,
    ):
        check_graders_and_count_verdicts(checked({"mine": talkative}), problems_per_game=2)


@pytest.mark.parametrize("says", ["", "no", "'{answer}' is wrong", "not the answer to {question}"])
def test_a_grader_may_repeat_what_was_said_and_asked(says: str) -> None:
    assert (
        check_graders_and_count_verdicts(
            checked({"mine": {"kind": "tests.support.faulty_graders:LeakingVerifier", "says": says}}),
            problems_per_game=2,
        )
        == 2 * 4
    )


@pytest.mark.parametrize(
    ("gold", "others"),
    [
        ("12 km", ("918273645 km", "564738291 km")),
        (r"\frac{3}{4}", (r"\frac{918273645}{4}", r"\frac{564738291}{4}")),
        ("x + y", ("zarquonbleen + y", "frumiousbander + y")),
        ("blue", ("green", "red")),
    ],
)
def test_other_golds_have_the_form_of_the_gold(gold: str, others: tuple[str, str]) -> None:
    assert _alternative_gold_answers(Problem("k", "q", gold, facts={"choices": ["green", "red", "blue"]})) == others


def test_a_check_of_form_that_dies_is_found() -> None:
    with pytest.raises(
        ValueError,
        match=r"checks\.form: 'tests.support.faulty_graders:CrashingVerifier' fails on empty .*the process that ran it "
        "died",
    ):
        check_graders_and_count_verdicts(
            checked({"form": "tests.support.faulty_graders:CrashingVerifier"}), problems_per_game=2
        )


def test_a_game_without_problems_leaves_nothing_to_try() -> None:
    assert check_graders_and_count_verdicts(validate(scenario(FAIR, game="nim"))) == 0


def test_the_command_line_refuses_bad_graders_with_status_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def check(grader: str) -> tuple[int, str, str]:
        file = SCENARIOS / "solver_critic.yaml"
        override = f"policies.checker.engine.checks.correct={grader}"
        return run_marl(monkeypatch, capsys, "check", file, override, "policies.checker.engine.workers=1", "--graders")

    status, said, _ = check("exact")
    assert (status, "graders: 20 verdicts as they must be" in said) == (0, True)
    status, _, complaint = check("{kind: tests.support.faulty_graders:LenientVerifier, accepts: gold gibberish}")
    assert (status, "accepts gibberish for problem" in complaint) == (2, True)


def test_right_answers_that_could_be_read_as_arithmetic_are_named() -> None:
    problems = [Problem(name, "", gold) for name, gold in (("a", "3-2"), ("b", "2024-01-02"), ("c", "2+3"), ("d", "5"))]
    notes = [note for problem in problems for note in MathVerifier().notes_for_author(problem)]
    assert [note.split(" of problem ")[1].split()[0] for note in notes] == ["'a'", "'b'", "'c'"]
    assert "compared letter by letter" in notes[0]
    assert "compared by its value" in notes[2]
    assert verdict_remarks_on_gold_answers(checked({"formula": "math"}), problems_per_game=5) == []
