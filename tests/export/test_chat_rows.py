"""Rows of chats: right answers from what verifiers read, tools, chats that go on, answers that are none."""

from __future__ import annotations

import json
from dataclasses import replace

from marl.core.config import Sampling
from marl.core.graph import Trajectory
from marl.core.types import Completion, Deal, Finish, Message, Problem, Request, Reward, Turn
from marl.export.chat_rows import PreferencePairRule, dpo_rows, grpo_prompt_rows, openai_rows, sft_rows, verl_rows
from marl.export.turn_selection import RecordedTurn
from marl.protocols.tasks import encode_verifier_state

SUM = Problem("sum", "1 + 1", "2")
TOOL = json.dumps({"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}})


def turn(index: int, role: str, text: str, **request: object) -> Turn:
    asked = Request("actor", (Message("user", "1 + 1"),), Sampling())
    completion = Completion(text, (1,), (2,), (-0.5,), "stop")
    return Turn(("e", index), role, 0, 0, role, replace(asked, **request), completion, text, "sum")


def recorded(*turns: Turn, paid: float = 0.0, step: int = 1, start: str = "s") -> list[RecordedTurn]:
    trajectory = Trajectory(Deal("e", "g", 0, {}), start)
    for each in turns:
        trajectory.add(each, [])
    trajectory.rewards = [Reward(each.agent, paid, each.id) for each in turns]
    return [RecordedTurn(step, trajectory, each, each.request.messages, None) for each in turns]


def test_the_right_answer_is_what_a_verifier_read() -> None:
    solver, _ = recorded(turn(0, "solver", "3"), turn(1, "verifier", "{}", state=encode_verifier_state(SUM, "3")))
    [row] = verl_rows([solver], lambda _: "team/sums")
    assert row["reward_model"] == {"style": "rule", "ground_truth": "2"}
    assert (row["data_source"], row["ability"]) == ("team/sums", "team/sums")
    assert row["extra_info"] == {
        **{"split": "train", "index": 0, "step": 1, "role": "solver", "agent": "solver", "start": "s"},
        "problem": "sum",
    }
    [row] = grpo_prompt_rows([solver])
    assert row["answer"] == "2"
    # An answer to another problem is none of this one.
    other = recorded(
        turn(0, "solver", "3"), turn(1, "verifier", "{}", state=encode_verifier_state(replace(SUM, key="x"), "3"))
    )
    assert next(grpo_prompt_rows(other))["answer"] == ""


def test_tools_go_along() -> None:
    with_tools = recorded(turn(0, "solver", "2", tools=(TOOL,)))
    [row] = sft_rows(with_tools)
    assert json.loads(row["tools"]) == [json.loads(TOOL)]
    [row] = openai_rows(with_tools)
    assert row["tools"] == [json.loads(TOOL)]


def finished(turn: Turn, finish: Finish) -> Turn:
    return replace(turn, completion=replace(turn.completion, finish=finish))


def test_turns_without_an_answer_are_left_out() -> None:
    aborted, empty = finished(turn(0, "solver", "2"), "aborted"), turn(1, "solver", "")
    assert [*sft_rows(recorded(aborted, empty))] == []


def test_answers_that_were_cut_off_are_compared_but_not_imitated() -> None:
    cut, whole = finished(turn(0, "solver", "I thi"), "length"), turn(1, "solver", "2")
    for rows in (sft_rows, openai_rows):
        [row] = rows(recorded(cut, whole))
        assert "I thi" not in json.dumps(row)
    [pair] = dpo_rows([*recorded(cut), *recorded(whole, paid=1.0)], PreferencePairRule("return"))
    assert pair["rejected"] == [{"role": "assistant", "content": "I thi"}]


def test_only_the_last_answer_of_a_chat_has_weight_at_openai() -> None:
    [alone] = recorded(turn(0, "solver", "3"))
    earlier = (Message("user", "1 + 1"), Message("assistant", "2"), Message("user", "And one more?"))
    [row] = openai_rows([replace(alone, prompt=earlier)])
    assert row["messages"] == [
        {"role": "user", "content": "1 + 1"},
        {"role": "assistant", "content": "2", "weight": 0},
        {"role": "user", "content": "And one more?"},
        {"role": "assistant", "content": "3"},
    ]


def test_answers_of_other_starts_steps_and_policies_make_no_pair() -> None:
    good, bad = turn(0, "solver", "2"), turn(0, "solver", "3")
    by_return = PreferencePairRule("return")
    for worse in (
        recorded(bad, start="other"),
        recorded(bad, step=2),
        recorded(replace(bad, request=replace(bad.request, policy="other"))),
        recorded(replace(bad, role="critic")),
        recorded(bad, paid=1.0),
    ):
        assert [*dpo_rows([*recorded(good, paid=1.0), *worse], by_return)] == []
    turns = [*recorded(good, paid=1.0), *recorded(bad), *recorded(good, paid=0.5)]
    [pair] = dpo_rows(turns, by_return)
    assert (pair["chosen"][0]["content"], pair["rejected"][0]["content"]) == ("2", "3")
    assert (pair["score_chosen"], pair["score_rejected"]) == (0.75, 0.0)
    assert len([*dpo_rows(turns, PreferencePairRule("return", 0.75))]) == 1
    assert [*dpo_rows(turns, PreferencePairRule("return", 0.8))] == []
