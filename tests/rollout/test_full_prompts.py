"""Prompts above a role's limit: older results or answers are left out, or the agent writes a summary of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import marl
from marl.core.config import ContextLimit
from marl.core.graph import Trajectory, read_trajectories, write_trajectories
from marl.core.types import Completion, CompletionFailure, Fork, Request
from marl.protocols import Tool
from marl.roles.answering import SolverRole
from marl.roles.rule_based import ToolboxRole
from marl.rollout.simulator import RolloutSimulator
from marl.runs.run_folder import RunFolder
from marl.scenario.load import validate
from marl.scenario.schema import Scenario
from tests.support.addition_task import team_config, team_deal
from tests.support.small_games import FunctionEngine, make_simulator

GAME = team_config({"role": "solver", "tools": "box", "calls": 4})
ASK = "Sum up."


class WordEngine(FunctionEngine):
    """Engine with one token a word, which refuses a prompt above the limit of its request."""

    def _answer(self, request: Request) -> Completion | CompletionFailure:
        words = " ".join(message.content for message in request.messages).split()
        prompt = (*request.continues, *map(len, words))
        if request.max_prompt_tokens is not None and len(prompt) > request.max_prompt_tokens:
            return CompletionFailure("overflow", "too long")
        text = self._say(request)
        assert isinstance(text, str)
        tokens = tuple(map(len, text.split()))
        return Completion(text, prompt, tokens, (-0.5,) * len(tokens), "stop")


def call(number: int) -> str:
    return f'<tool_call>{{"name":"look","arguments":{{"at":{number}}}}}</tool_call>'


def script(calls: int) -> Callable[[Request], str]:
    """Makes `calls` calls and then answers 4; a summary says how many words it is of."""

    def say(request: Request) -> str:
        text = request.messages[-1].content
        if text == ASK:
            return f"Read {len(request.continues)} words."
        seen = int(text.partition("saw ")[2][:1] or 0)
        return call(seen + 1) if seen < calls else "4"

    return say


def simulator(when_full: str, limit: int, calls: int, **context: Any) -> RolloutSimulator:
    settings = {"when_full": when_full, "limit": limit, "ask": ASK} | context
    solver = SolverRole(
        policy="actor",
        instructions="",
        prompt="{{ observation }}",
        answer="last_line",
        history="append",
        tools=(Tool(name="look"),),
        context=ContextLimit.model_validate(settings),
    )
    seen = FunctionEngine(lambda request: f"saw {request.state[-3]} a b c d")
    engines = {"actor": WordEngine(script(calls)), "box": seen}
    return make_simulator(GAME, engines, solver=solver, box=ToolboxRole(policy="box"))


def play(when_full: str, limit: int, calls: int, **context: Any) -> Trajectory:
    return simulator(when_full, limit, calls, **context).play([team_deal(GAME)])[0]


def edges_to(trajectory: Trajectory, index: int) -> dict[int, set[str]]:
    incoming = trajectory.incoming_edge_kinds(trajectory.turns[index].id)
    return {source: {*kinds} for (_, source), kinds in incoming.items()}


def chat(request: Request) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in request.messages]


# A question has 3 words, a call 1 and a result 6: the third prompt has 3 + 2 * 7 = 17 words.


@pytest.mark.parametrize("when_full", ["overflow", "drop_tool_results", "truncate", "summarize"])
def test_a_prompt_within_the_limit_stays_as_it_is(when_full: str) -> None:
    trajectory, free = play(when_full, 17, calls=2), play("overflow", 1000, calls=2)
    assert [turn.completion for turn in trajectory.turns] == [turn.completion for turn in free.turns]
    assert [edges_to(trajectory, index) for index in range(5)] == [edges_to(free, index) for index in range(5)]


def test_without_a_shorter_prompt_the_answer_is_empty() -> None:
    trajectory = play("overflow", 16, calls=2)
    assert [turn.completion.finish for turn in trajectory.turns] == ["stop"] * 4 + ["overflow"]


def test_the_oldest_results_are_dropped_until_the_prompt_fits() -> None:
    trajectory = play("drop_tool_results", 12, calls=2)
    last = trajectory.turns[-1]
    assert chat(last.request) == [
        ("user", "2 + 2"),
        ("assistant", ""),
        ("tool", "(dropped)"),
        ("assistant", ""),
        ("tool", "saw 2 a b c d"),
    ]
    assert [len(message.calls) for message in last.request.messages] == [0, 1, 0, 1, 0]
    assert (last.request.continues, last.action) == ((), "4")
    assert edges_to(trajectory, 4) == {0: {"self"}, 2: {"self"}, 3: {"tool"}}, "the first result is read no more"


def test_what_was_dropped_stays_dropped_and_the_next_prompt_continues() -> None:
    trajectory = play("drop_tool_results", 12, calls=4)
    assert [message.content for message in trajectory.turns[6].request.messages][2::2] == ["(dropped)"] * 2 + [
        "saw 3 a b c d"
    ]
    wide = play("drop_tool_results", 17, calls=3)
    assert wide.turns[-1].request.continues == ()
    assert wide.turns[4].request.continues


def test_if_no_result_is_left_to_drop_the_answer_is_empty() -> None:
    assert play("drop_tool_results", 3, calls=1).turns[-1].completion.finish == "overflow"


def test_the_oldest_answers_are_left_out_with_what_followed_them() -> None:
    trajectory = play("truncate", 10, calls=3)
    assert chat(trajectory.turns[-1].request) == [("user", "2 + 2"), ("assistant", ""), ("tool", "saw 3 a b c d")]
    assert edges_to(trajectory, 6) == {4: {"self"}, 5: {"tool"}}
    assert [turn.action for turn in trajectory.turns][-1] == "4"


def test_a_summary_is_an_inner_turn_that_the_shorter_prompt_reads() -> None:
    trajectory = play("summarize", 16, calls=2)
    summary, last = trajectory.turns[4:]
    assert [turn.inner for turn in trajectory.turns] == [False] * 4 + [True, False]
    assert (summary.agent, summary.nth, summary.action) == ("solver", 2, "Read 11 words.")
    assert len(summary.completion.prompt_ids) == 3 + 1 + 6 + 1 + 2, "the conversation up to the last call, and the ask"
    assert chat(last.request) == [("user", "2 + 2\n\nRead 11 words.\n\nsaw 2 a b c d")]
    assert edges_to(trajectory, 4) == {2: {"self"}}
    assert edges_to(trajectory, 5) == {2: {"self"}, 3: {"tool"}, 4: {"self"}}, (
        "the result is that of the call in turn 2"
    )
    assert last.nth == 3


def test_prompts_after_a_summary_continue_from_it_until_the_next_one() -> None:
    trajectory = play("summarize", 16, calls=4)
    own = [turn for turn in trajectory.turns if turn.agent == "solver"]
    assert [turn.inner for turn in own] == [False, False, True, False, True, False, True, False]
    assert chat(own[-1].request) == [("user", "2 + 2\n\nRead 13 words.\n\nsaw 4 a b c d")], "not a summary of summaries"


def test_a_summary_that_leaves_the_prompt_too_long_leads_to_an_empty_answer() -> None:
    trajectory = play("summarize", 9, calls=1)
    assert [turn.inner for turn in trajectory.turns] == [False, False, True, False]
    assert trajectory.turns[-1].completion.finish == "overflow"


def test_a_conversation_too_long_for_a_summary_leads_to_an_empty_answer() -> None:
    class Refusing(WordEngine):
        def _answer(self, request: Request) -> Completion | CompletionFailure:
            is_summary = request.messages[-1].content == ASK
            return CompletionFailure("overflow", "too long") if is_summary else super()._answer(request)

    table = simulator("summarize", 9, calls=1)
    table.engines["actor"].__class__ = Refusing
    trajectory = table.play([team_deal(GAME)])[0]
    assert [(turn.inner, turn.completion.finish) for turn in trajectory.turns][1:] == [
        (False, "stop"),
        (False, "overflow"),
    ]
    assert chat(trajectory.turns[-1].request) == [("tool", "saw 1 a b c d")]


def test_a_summary_is_read_back_from_a_file(tmp_path: Path) -> None:
    trajectory = play("summarize", 16, calls=3)
    write_trajectories(tmp_path / "played.jsonl.zst", [trajectory])
    [read] = read_trajectories(tmp_path / "played.jsonl.zst")
    assert read.turns == trajectory.turns
    assert dict(read.graph.edges) == dict(trajectory.graph.edges)


@pytest.mark.parametrize("when_full", ["drop_tool_results", "truncate", "summarize"])
@pytest.mark.parametrize("keeps", [False, True])
def test_a_fork_that_changes_nothing_repeats_every_turn(when_full: str, keeps: bool) -> None:
    past = play(when_full, 16, calls=3)
    forks = [Fork(past, index, keeps_unchanged_answers=keeps) for index in range(len(past.turns))]
    for [fork] in simulator(when_full, 16, calls=3).play_forks(forks):
        for old, new in zip(past.turns, fork.turns, strict=True):
            assert (new.agent, new.inner, new.nth, new.completion) == (old.agent, old.inner, old.nth, old.completion)
            assert (new.request.messages, new.request.continues) == (old.request.messages, old.request.continues)
            assert edges_to(fork, new.id[1]) == edges_to(past, old.id[1])


def test_a_fork_after_a_summary_keeps_it() -> None:
    past = play("summarize", 16, calls=2)
    anew, given = simulator("summarize", 16, calls=3).play_forks([Fork(past, 5), Fork(past, 5, action="5")])
    for [fork] in (anew, given):
        assert fork.turns[:5] == past.turns[:5]
        assert fork.turns[5].request.messages == past.turns[5].request.messages
        assert edges_to(fork, 5) == edges_to(past, 5)
    assert anew[0].turns[5].action == 'call {"name":"look","arguments":{"at":3}}'
    assert [turn.action for turn in given[0].turns[5:]] == ["5"]


def test_a_fork_at_a_summary_can_prescribe_it() -> None:
    past = play("summarize", 16, calls=2)
    [[fork]] = simulator("summarize", 16, calls=2).play_forks([Fork(past, 4, action="Nothing new.")])
    assert [(turn.inner, turn.action) for turn in fork.turns[4:]] == [(True, "Nothing new."), (False, "4")]
    assert chat(fork.turns[-1].request) == [("user", "2 + 2\n\nNothing new.\n\nsaw 2 a b c d")]


def scenario(role: dict[str, Any], **policy: Any) -> Scenario:
    """A solver with a tiny model of the words of its game, which may call a calculator twice."""
    word = 'call {"name":"calculator","arguments":{"expression":"{{ question }}"}}'
    solver = {"kind": "solver", "policy": "solver", "history": "append", "answer": "last_line", "tools": "auto"}
    return validate(
        {
            "game": {
                "kind": "team",
                "task": {"kind": "arithmetic", "digits": [1, 1], "train": 40, "held_out": 8},
                "stages": [
                    {"role": "solver", "tools": "box", "calls": 2, "examples": [word, word, "{{ answer }}"]},
                    {"role": "checker", "verifies": "solver", "scores": ["correct"]},
                ],
                "rewards": {"solver": {"right": "own.correct"}},
            },
            "roles": {
                "solver": solver
                | {"prompt": "{{ observation }}", "instructions": "", "sampling": {"max_tokens": 60}}
                | role,
                "box": {"kind": "toolbox", "policy": "box"},
                "checker": {"kind": "verifier", "policy": "checks"},
            },
            "policies": {
                "solver": {
                    "model": {"kind": "tiny", "warm_up": {"steps": 40, "episodes": 128, "batch": 32, "lr": 1e-2}},
                    "learner": {"kind": "grpo", "lr": 1e-3},
                }
                | policy,
                "box": {"engine": {"kind": "tools", "tools": {"calculator": {"kind": "calculator"}}}},
                "checks": {"engine": {"kind": "verifiers", "checks": {"correct": {"kind": "exact"}}}},
            },
            "schedule": {"steps": 1, "groups": 4, "group_size": 4, "threads": 1},
            "checkpoint": {"trajectories": 1.0},
        }
    )


@pytest.mark.parametrize(
    ("role", "fault"),
    [
        (
            {"context": {"when_full": "shorten"}},
            r"roles\.solver\.context\.when_full: unknown; choices: drop_tool_results, overflow, summarize, truncate",
        ),
        ({"context": {"limit": 0}}, r"roles\.solver\.context\.limit"),
        ({"context": {}}, r"roles\.solver\.context: without `limit` and `when_full` it changes nothing"),
        (
            {"context": {"when_full": "truncate"}, "history": "fresh"},
            r"roles\.solver\.context\.when_full: 'truncate'.*choose history: append",
        ),
        (
            {"context": {"when_full": "drop_tool_results"}, "tools": []},
            r"roles\.solver\.context\.when_full: 'drop_tool_results', but the role has no `tools`; choices: truncate",
        ),
    ],
)
def test_a_context_without_effect_is_named_before_play(role: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        scenario(role)


def test_an_engine_that_counts_no_tokens_has_no_limit_of_context() -> None:
    endpoint = {"engine": {"kind": "openai", "base_url": "http://127.0.0.1:1/v1", "model": "m"}}
    with pytest.raises(ValueError, match=r"roles\.solver\.context: engine 'openai'.*counts no tokens of prompts"):
        scenario({"context": {"limit": 9}, "history": "fresh"}, model=None, learner=None, **endpoint)


@pytest.mark.slow
def test_a_tiny_model_learns_from_its_summaries(tmp_path: Path) -> None:
    """The limit is below the length of a prompt with a call, so that every answer after a call needs a summary."""
    limited = scenario({"context": {"limit": 30, "when_full": "summarize", "ask": "+"}})
    assert marl.train(limited, tmp_path / "run")
    run = RunFolder(tmp_path / "run")
    turns = [turn for trajectory in run.load_trajectories(1) for turn in trajectory.turns if turn.role == "solver"]
    summaries = {turn.id for turn in turns if turn.inner}
    assert summaries & run.read_credit_of_step(1).turns().keys()
    for turn in turns:
        # The limit does not hold for the question for a summary.
        assert (len(turn.completion.prompt_ids) > 30) == turn.inner
