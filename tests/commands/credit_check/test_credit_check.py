"""`marl credit-check` finds rules right that are right, and broken ones broken."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from marl.commands.credit_check import estimands, report
from marl.commands.credit_check.command import credit_check
from marl.commands.credit_check.enumeration import EnumeratedGame, Playthrough
from marl.commands.credit_check.known_answers import ExpectedAndComputedCredit, compute_credit_of_known_cases
from marl.commands.credit_check.measure import CheckedCreditMethod, CreditMethodResult
from marl.commands.credit_check.methods import (
    CreditCheckPlan,
    CreditCheckResults,
    find_credit_check_tasks,
    run_credit_check,
)
from marl.core.types import Advantage, Credit, Fork
from marl.protocols import AssignConfig, Evidence

HONEST = ("outcome", "flow", "graph_gae", "shapley", "leave_one_out", "difference (policy)", "replay", "outcome / rloo")


class Muddled(AssignConfig):
    """A replay that is broken: it plays on from the episode's first turn, whichever turn it judges."""

    kind: str = "muddled"

    def __call__(self, evidence: Evidence) -> Credit:
        assert evidence.simulator
        credit: Credit = {}
        for trajectory in evidence.trajectories:
            [other] = evidence.simulator.play([Fork(trajectory, 0)], evidence.reward_transform)
            gain = sum(r.value for r in trajectory.rewards) / 2 - sum(r.value for r in other.rewards) / 2
            credit.update((turn.id, Advantage(gain)) for turn in trajectory.turns)
        return credit


def broken(claims: estimands.Estimand) -> CheckedCreditMethod:
    rule = {"assign": {"kind": f"{__name__}:Muddled"}, "baseline": {"kind": "none"}}
    return CheckedCreditMethod("muddled", rule, claims)


@pytest.fixture(scope="module")
def rows() -> dict[str, CreditMethodResult]:
    plan = CreditCheckPlan(find_credit_check_tasks(["2B"]), HONEST, (broken(estimands.exact_advantages),))
    return {row.method: row for row in run_credit_check(plan).methods}


def test_rules_that_do_what_they_say_are_recovered(rows: dict[str, CreditMethodResult]) -> None:
    for name in HONEST:
        assert rows[name].recovered, name
        assert rows[name].fewest >= 48


def test_a_broken_rule_is_reported_as_not_recovered(rows: dict[str, CreditMethodResult]) -> None:
    muddled = rows["muddled"]
    assert muddled.recovered is False
    assert muddled.own_pearson is not None
    assert muddled.own_pearson < 0.95
    # It is no noise: the same rule is right about what it really estimates.
    plan = CreditCheckPlan(find_credit_check_tasks(["2B"]), ("outcome",), (broken(_gain),))
    assert [row.recovered for row in run_credit_check(plan).methods] == [True, True]


def _gain(game: EnumeratedGame, play: Playthrough) -> estimands.CreditPerTurn:
    """Return the return minus the expected one when the game began."""
    return [play.team_return - game.history_value(play.initial_history)] * len(play.decisions)


def test_what_a_rule_spends_is_counted_for_each_turn(rows: dict[str, CreditMethodResult]) -> None:
    assert rows["outcome"].generations == rows["outcome"].tokens == 0
    # Two agents move at once, so coalitions are settled without asking anybody.
    assert rows["shapley"].generations == rows["shapley"].tokens == 0
    # One course from before each turn, and the second turn's is also the one after the first: 2 + 1 answers.
    assert rows["replay"].generations == 1.5
    # Three tokens an answer and the end of it.
    assert rows["replay"].tokens == pytest.approx(6, abs=0.05)
    # Only probabilities are asked for: two texts of each of two questions, once a step or once a turn.
    assert rows["difference (policy)"].generations == 0
    assert rows["difference (policy)"].tokens > 0


def test_a_check_is_the_same_each_time(rows: dict[str, CreditMethodResult]) -> None:
    again = run_credit_check(CreditCheckPlan(find_credit_check_tasks(["2B"]), ("replay", "shapley")))
    assert again.methods == [rows["shapley"], rows["replay"]]


@pytest.fixture(scope="module")
def known() -> list[ExpectedAndComputedCredit]:
    return list(compute_credit_of_known_cases((0,)))


@pytest.mark.slow
def test_every_known_answer_is_recovered_but_for_two_rules_that_do_pay_for_going_on(
    known: list[ExpectedAndComputedCredit],
) -> None:
    missed = {(answer.case, answer.method) for answer in known if not answer.recovered}
    assert missed == {("stopping bias", "process (prime_paper)"), ("stopping bias", "process (decoupled)")}
    kinds = {answer.method for answer in known}
    assert {"shapley", "leave_one_out", "coma", "role_average", "vdn", "qmix", "difference"} <= kinds


def test_a_fact_is_missed_by_one_wrong_number() -> None:
    assert ExpectedAndComputedCredit("case", "rule", (1.0, 2.0), (1.0, 2.0), 1e-9).recovered
    assert not ExpectedAndComputedCredit("case", "rule", (1.0, 2.0), (1.0, 2.1), 1e-9).recovered
    assert not ExpectedAndComputedCredit("case", "rule", (1.0, 2.0), (1.0,), 1e-9).recovered
    assert not ExpectedAndComputedCredit("case", "rule", (1.0,), (float("nan"),), 1e-9).recovered


@pytest.mark.slow
def test_the_report_names_what_was_missed_and_where_it_was_measured(
    rows: dict[str, CreditMethodResult], known: list[ExpectedAndComputedCredit], tmp_path: Path
) -> None:
    results = CreditCheckResults(known, list(rows.values()))
    text = report.results_as_text(results)
    assert text.endswith("not recovered: " + "; ".join(_missed(known)))
    assert f"{len(known) - 2} of {len(known)} known answers and {len(HONEST)} of {len(HONEST) + 1} estimands" in text
    table = report.results_as_markdown(results)
    assert "| `muddled` | 0 of 1 (not 2B " in table
    assert "| `shapley` | 1 of 1 | " in table
    report.write_results(
        tmp_path / "figures.json", results, CreditCheckPlan(find_credit_check_tasks(["2B"])), "marl credit-check"
    )
    written = json.loads((tmp_path / "figures.json").read_text())
    assert set(written) == {"command", "commit", "seeds", "machine", "settings", "figures"}
    assert len(written["figures"]["methods"]) == len(rows)


def _missed(known: list[ExpectedAndComputedCredit]) -> Iterator[str]:
    yield from (f"{answer.case} ({answer.method})" for answer in known if not answer.recovered)
    yield "muddled on 2B"


def test_what_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match="no task 'climb'; did you mean 'climbing'"):
        find_credit_check_tasks(["climb"])
    with pytest.raises(ValueError, match="no method 'shaply'; did you mean 'shapley'"):
        run_credit_check(CreditCheckPlan(only=("shaply",)))


def test_the_command_prints_tables_and_writes_figures(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(credit_check)
    words = ["--task", "2B", "--method", "shapley", "--markdown", "--out", str(tmp_path / "figures.json")]
    ended = CliRunner().invoke(app, words)
    assert ended.exit_code == 0, ended.output
    assert "| `shapley` | 1 of 1 | " in ended.stdout
    [row] = json.loads((tmp_path / "figures.json").read_text())["figures"]["methods"]
    assert (row["method"], row["task"], row["recovered"]) == ("shapley", "2B", True)
