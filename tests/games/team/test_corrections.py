"""How often a role corrects a wrong answer of the role before it, and how often it spoils a right one."""

from __future__ import annotations

import pytest

from marl.core.types import Request
from marl.evaluation.held_out import summarize_episodes
from marl.metrics.trajectory_metrics import held_out_metric_names
from marl.scenario.load import load
from marl.view.closing_report import _correction_lines
from tests.support.addition_task import team_config, team_deal, team_simulator
from tests.support.paths import SCENARIOS

SOLVE = {"role": "solver", "examples": ["{{ answer }}"]}
REVISE = {"role": "reviser", "hears": ["solver"], "examples": ["{{ answer }}"]}
CHECKS = [{"role": "verifier", "verifies": role, "scores": ["correct"]} for role in ("solver", "reviser")]
GAME = team_config(SOLVE, REVISE, *CHECKS, measures={"success": "reviser.correct"})


def test_a_reviser_is_measured_by_the_answers_that_it_turns_right_and_wrong() -> None:
    deals = [team_deal(GAME, f"{index}", index=index) for index in range(12)]
    answers: dict[str, int] = {}

    def say(request: Request) -> str:
        problem = request.messages[-1].content.split(" | ")[0]
        left, right = (int(number) for number in problem.split(" + "))
        place = answers.setdefault(problem, len(answers))
        is_reviser = "reviser" in request.state.splitlines()[0]
        # Of twelve problems the solver gets eight right; the reviser corrects one of four and spoils two of eight.
        wrong = place in (3, 8, 9) if is_reviser else place < 4
        wrong |= is_reviser and place in (0, 1)
        return str(left + right + wrong)

    played = team_simulator(GAME, say).play(deals)
    problems = {turn.problem for trajectory in played for turn in trajectory.turns}
    assert len(problems) == 12
    figures = summarize_episodes(played)
    assert figures["reviser_fixes"] == 1 / 4
    assert figures["reviser_fixes_episodes"] == 4
    assert figures["reviser_breaks"] == 2 / 8
    assert figures["reviser_breaks_episodes"] == 8
    assert "success_episodes" not in figures
    assert [*figures][1] == "success", "the main figure comes first"
    row = {"step": 5} | {f"eval/held_out/{name}": value for name, value in figures.items()}
    assert list(_correction_lines([{"step": 0}, row, {"step": 6}])) == [
        "role reviser corrected 1 of 4 wrong answers and spoilt 2 of 8 right answers of the role before it on held-out "
        "starts (step 5)"
    ]
    assert "eval/held_out/reviser_fixes_episodes" not in held_out_metric_names(row)


@pytest.mark.parametrize("repeats", [1, 2])
def test_an_answer_given_after_the_correction_is_not_the_one_that_was_corrected(repeats: int) -> None:
    rounds = {"repeat": repeats, "stages": [SOLVE, CHECKS[0], REVISE, CHECKS[1]]}
    game = team_config(rounds, SOLVE, CHECKS[0], measures={"success": "solver.correct"})
    tries = 0

    def say(request: Request) -> str:
        nonlocal tries
        left, right = (int(number) for number in request.messages[-1].content.split(" | ")[0].split(" + "))
        is_reviser = "reviser" in request.state.splitlines()[0]
        # The solver is wrong until the reviser has corrected it; its last answer is right.
        tries += not is_reviser
        return str(left + right + (not is_reviser and tries <= repeats))

    [episode] = team_simulator(game, say).play([team_deal(game)])
    assert episode.findings.measures == {"success": 1.0, "reviser_fixes": 1.0}


def test_roles_that_no_verifier_scores_have_no_such_measure() -> None:
    alone = team_config(SOLVE, REVISE, CHECKS[1], measures={"success": "reviser.correct"})
    assert [*alone.measure_names()] == ["success"]
    assert [*GAME.measure_names()] == ["success", "reviser_fixes", "reviser_breaks"]
    code = load(SCENARIOS / "code_team.yaml", random_play=True).game
    assert [*(code.measure_names() or ())][-2:] == ["fixer_fixes", "fixer_breaks"]


@pytest.mark.parametrize("spoke", [True, False])
def test_an_answer_without_a_verdict_counts_neither_as_right_nor_as_wrong(spoke: bool) -> None:
    checks = [CHECKS[0], CHECKS[1] | {"when": "solver.correct"}]
    game = team_config(SOLVE, REVISE, *checks)

    def say(request: Request) -> str:
        left, right = (int(number) for number in request.messages[-1].content.split(" | ")[0].split(" + "))
        return str(left + right + (not spoke))

    [trajectory] = team_simulator(game, say).play([team_deal(game, "e")])
    assert trajectory.findings.measures == ({"reviser_breaks": 0.0} if spoke else {})


def test_a_measure_with_the_name_of_a_roles_corrections_is_refused() -> None:
    with pytest.raises(ValueError, match=r"measures\.reviser_fixes: 'reviser_fixes' is the name under") as error:
        team_config(SOLVE, REVISE, *CHECKS, measures={"reviser_fixes": "1", "bug_fixes": "1"})
    assert "choose another, such as fixes_of_reviser" in str(error.value)
    assert "measures.bug_fixes" not in str(error.value)
