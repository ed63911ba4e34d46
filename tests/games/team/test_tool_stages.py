"""Tool calls in the team game: their results are turns, which are counted, scored and paid."""

from __future__ import annotations

import json
from typing import Any

from marl.core.types import Request
from marl.protocols.tasks import decode_verifier_case
from tests.games.team.test_team import CHECK, edges, moves, payments, play
from tests.support.addition_task import team_config


def test_a_tool_call_is_answered_before_the_caller_goes_on() -> None:
    game = team_config({"role": "solver", "n": 2, "tools": "toolbox", "calls": 1}, CHECK)

    def say(request: Request) -> str:
        prompt = request.messages[-1].content
        return 'call {"name": "add"}' if "toolbox" not in prompt else "4"

    trajectory = play(game, lambda r: f"ran {r.state}" if r.state.startswith("{") else say(r))
    assert moves(trajectory)[:3] == [
        ("solver_0", 'call {"name": "add"}'),
        ("toolbox_0", 'ran {"name": "add"}'),
        ("solver_0", "4"),
    ]
    assert edges(trajectory) >= {(0, 1), (1, 2)}


def test_calls_beyond_the_limit_are_answers() -> None:
    game = team_config({"role": "solver", "tools": "toolbox", "calls": 2}, CHECK, measures={"right": "solver.correct"})
    trajectory = play(game, lambda request: "call {}" if not request.state.startswith("{") else "result")
    assert [turn.agent for turn in trajectory.turns] == ["solver", "toolbox"] * 2 + ["solver", "verifier"]
    assert trajectory.findings.measures == {"right": 0.0}


def test_several_calls_in_an_answer_are_answered_in_one_turn_and_count_one_by_one() -> None:
    game = team_config({"role": "solver", "tools": "toolbox", "calls": 3}, measures={"calls": "solver.calls"})
    both = 'call [{"name":"a","arguments":{}},{"name":"b","arguments":{}}]'

    def say(request: Request) -> str:
        return '["1", "2"]' if request.state.startswith("[") else both

    trajectory = play(game, say)
    assert moves(trajectory) == [("solver", both), ("toolbox", '["1", "2"]'), ("solver", both)]
    assert trajectory.findings.measures == {"calls": 2.0}


def test_every_call_is_scored_and_paid_at_once() -> None:
    calls = {"most": 2, "verifier": "verifier", "scores": ["correct"]}
    game = team_config(
        {"role": "solver", "tools": "toolbox", "calls": calls},
        rewards={"solver": {"new": {"value": "own.correct / 2", "after": "call"}, "calls": "own.calls"}},
    )
    results = iter(["3", "4"])
    cases: list[Any] = []

    def say(request: Request) -> str:
        if request.state.startswith("{") and "problem" in request.state:
            cases.append(decode_verifier_case(request))
            return json.dumps({"scores": {"correct": float(cases[-1].text == cases[-1].problem.answer)}})
        return next(results) if request.state.startswith("{") else 'call {"name":"add","arguments":{}}'

    trajectory = play(game, say)
    assert [turn.agent for turn in trajectory.turns] == ["solver", "toolbox", "verifier"] * 2 + ["solver"]
    assert [(case.answer, case.text, case.earlier) for case in cases] == [
        ('{"name":"add","arguments":{}}', "3", ()),
        ('{"name":"add","arguments":{}}', "4", ("3",)),
    ]
    assert payments(trajectory) == [("solver", "new", 0.5, 5), ("solver", "calls", 2.0, 6)]


def test_who_answers_a_tool_call_has_spoken() -> None:
    game = team_config({"role": "solver", "tools": "toolbox", "calls": 1}, rewards={"toolbox": {"use": "own.spoke"}})
    called = play(game, lambda request: "call {}" if not request.state.startswith("{") else "result")
    assert payments(called) == [("toolbox", "use", 1.0, 2)]
    assert payments(play(game, lambda request: "4")) == []
