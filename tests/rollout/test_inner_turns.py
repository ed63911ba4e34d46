"""Inner turns: calls of programs become turns, whatever the order of their arrival, and forks replay them."""

from __future__ import annotations

import random
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from marl.core.graph import Trajectory, read_trajectories, write_trajectories
from marl.core.types import CompletionFailure, Fork, Request
from marl.credit.assign.counterfactual import LeaveOneAgentOut
from marl.protocols import Evidence
from marl.rollout.game_errors import EpisodeLimits
from tests.support.addition_task import team_deal
from tests.support.calling_programs import (
    CHECK,
    CREW,
    Ask,
    GeneratorEngine,
    GeneratorProgram,
    crew_game,
    crew_simulator,
    reported,
)
from tests.support.small_games import FunctionEngine

Run = Generator[list[Ask], list[str], Any]


def chain(task: dict[str, Any]) -> Run:
    """The solver reads the plan."""
    [plan] = yield [("planner", f"plan {task['question']}")]
    [answer] = yield [("solver", f"{task['question']}\n{plan}\nsum")]
    return answer


def fan(task: dict[str, Any]) -> Run:
    """Four plans at once; the solver reads all."""
    plans = yield [("planner", f"{task['question']} {part}") for part in ("units", "hundreds", "tens", "carry")]
    [answer] = yield [("solver", "\n".join([task["question"], *plans]))]
    return answer


def echo(request: Request) -> str:
    """An answer that differs from request to request."""
    return "4" if "sum" in request.messages[-1].content else f"thought number {request.seed % 10**9}"


def play(program: GeneratorProgram, say: Any = echo, **more: Any) -> Trajectory:
    game = crew_game()
    engine = GeneratorEngine(program, **more)
    return crew_simulator(game, engine, say).play([team_deal(game)])[0]


def named_edges(trajectory: Trajectory) -> set[tuple[int, int, str]]:
    return {(u[1], v[1], kind) for u, v, kinds in trajectory.graph.edges(data="kinds") for kind in kinds}


def test_calls_of_a_program_become_turns_before_its_own_turn_and_no_step_of_the_game_plays_them() -> None:
    trajectory = play(chain)
    assert [(turn.agent, turn.inner) for turn in trajectory.turns] == [
        ("planner", True),
        ("solver", True),
        ("crew", False),
        ("verifier", False),
    ]
    assert named_edges(trajectory) == {(0, 1, "heard"), (1, 2, "heard"), (1, 3, "heard")}
    assert trajectory.turns[1].action == "4"
    assert {turn.problem for turn in trajectory.turns} == {"2 + 2"}


def test_callers_facts_pay_rewards_like_those_of_agents_that_move() -> None:
    rewards = {"planner": {"team": "0.5 * solver.correct"}, "solver": {"right": "own.correct", "calls": "own.spoke"}}
    game = crew_game(rewards=rewards, measures={"failed": "crew.failed"})
    trajectory = crew_simulator(game, GeneratorEngine(chain), echo).play([team_deal(game)])[0]
    assert trajectory.returns == {"planner": 0.5, "solver": 2.0}
    assert {reward.turn[1] for reward in trajectory.rewards} == {3}
    assert trajectory.findings.measures == {"failed": 0.0}


@pytest.mark.parametrize("shuffle", range(5))
def test_turns_seeds_and_edges_do_not_depend_on_the_order_in_which_parallel_calls_arrive(shuffle: int) -> None:
    def order(asks: list[Any]) -> list[Any]:
        return random.Random(shuffle).sample(asks, len(asks))

    usual = play(fan)
    assert play(fan, order=order) == usual
    assert {(u, v) for u, v, _ in named_edges(usual) if v == 4} == {(0, 4), (1, 4), (2, 4), (3, 4)}


def test_equal_prompts_have_seeds_of_their_own() -> None:
    def samples(task: dict[str, Any]) -> Run:
        return " ".join((yield [("solver", "add"), ("solver", "add"), ("planner", "add")]))

    trajectory = play(samples)
    assert len({turn.request.seed for turn in trajectory.turns if turn.inner}) == 3
    assert [turn.nth for turn in trajectory.turns if turn.agent == "solver"] == [0, 1]


def test_a_program_that_starts_again_leaves_the_turns_of_its_last_attempt_alone() -> None:
    assert play(fan, crashes=2) == play(fan)


def test_a_recorded_episode_with_inner_turns_is_read_as_it_was_written(tmp_path: Path) -> None:
    trajectory = play(fan)
    write_trajectories(tmp_path / "e.jsonl.zst", [trajectory])
    assert list(read_trajectories(tmp_path / "e.jsonl.zst")) == [trajectory]


# --- edges ------------------------------------------------------------------------------------------------------------

LONG = "a plan of many words"


def vote(task: dict[str, Any]) -> Run:
    answers = yield [("planner", f"try {number}") for number in range(3)]
    return max(answers, key=answers.count)


def dialogue(task: dict[str, Any]) -> Run:
    [first] = yield [("solver", "begin")]
    chat = [("user", "begin"), ("assistant", first), ("user", "go on")]
    [second] = yield [("solver", chat)]
    return second


def edited_history(task: dict[str, Any]) -> Run:
    [first] = yield [("solver", "begin")]
    [second] = yield [("solver", [("user", "something else"), ("assistant", first), ("user", "go on")])]
    return second


def quoted_inline(task: dict[str, Any]) -> Run:
    [plan] = yield [("planner", "plan")]
    [answer] = yield [("solver", f"the plan is {plan}, so add")]
    return answer


def quoted_quote(task: dict[str, Any]) -> Run:
    [plan] = yield [("planner", "plan")]
    [longer] = yield [("planner", f"repeat:\n{plan}")]
    [answer] = yield [("solver", f"read:\n{longer}")]
    return answer


def ignored(task: dict[str, Any]) -> Run:
    yield [("planner", "plan")]
    [answer] = yield [("solver", "add")]
    return answer


def two_readers(task: dict[str, Any]) -> Run:
    [plan] = yield [("planner", "plan")]
    answers = yield [("solver", f"{plan}\nunits"), ("solver", f"{plan}\ntens")]
    return " ".join(answers)


def silent(task: dict[str, Any]) -> Run:
    yield from ()
    return "nothing was asked"


@pytest.mark.parametrize(
    ("program", "answers", "expected"),
    [
        (vote, ["7", "7", "8"], {(1, 3, "heard")}),
        (dialogue, ["one", "two"], {(0, 1, "self"), (1, 2, "heard")}),
        (edited_history, ["one", "two"], {(0, 1, "self"), (1, 2, "heard")}),
        (quoted_inline, [LONG, "4"], {(0, 1, "heard"), (1, 2, "heard")}),
        (quoted_inline, ["short", "4"], {(1, 2, "heard")}),
        (quoted_quote, [LONG, f"{LONG}, longer", "4"], {(0, 1, "self"), (1, 2, "heard"), (2, 3, "heard")}),
        (ignored, ["9", "4"], {(1, 2, "heard")}),
        (two_readers, [LONG, "4", "5"], {(0, 1, "heard"), (0, 2, "heard")}),
        (silent, [], set()),
        (chain, ["", "4"], {(1, 2, "heard")}),
    ],
)
def test_edges_lead_from_answers_to_the_prompts_that_quote_them(
    program: GeneratorProgram, answers: list[str], expected: set[tuple[int, int, str]]
) -> None:
    remaining = iter(answers)
    game = crew_game(CREW)
    simulator = crew_simulator(game, GeneratorEngine(program), lambda _: next(remaining))
    found = named_edges(simulator.play([team_deal(game)])[0])
    if program is vote:
        # Turns without edges are numbered by prompt, so either of the equal answers may be the quoted one.
        assert len(found) == 1
        assert {(v, kind) for _, v, kind in found} == {(3, "heard")}
    else:
        assert found == expected


def test_a_history_that_ends_with_an_own_answer_continues_its_tokens() -> None:
    voice = FunctionEngine(lambda request: f"<think>hm</think> {len(request.continues)}")
    game = crew_game(CREW)

    def stripped(task: dict[str, Any]) -> Run:
        [first] = yield [("solver", "begin")]
        visible = first.rpartition("</think>")[2].strip()
        [second] = yield [("solver", [("user", "begin"), ("assistant", visible), ("user", "go on")])]
        return second

    [trajectory] = crew_simulator(game, GeneratorEngine(stripped), voice, history="append").play([team_deal(game)])
    first, second = trajectory.turns[:2]
    assert second.request.continues == (*first.completion.prompt_ids, *first.completion.token_ids)
    assert [message.content for message in second.request.messages] == ["go on"]
    assert (0, 1, "self") in named_edges(trajectory)


# --- rewards that programs report -------------------------------------------------------------------------------------


def test_a_reported_reward_is_paid_and_a_missing_one_leaves_the_episode_unjudged() -> None:
    game = crew_game(CREW, rewards={"solver": {"brief": "own.reported.brief"}})

    def reporting(task: dict[str, Any]) -> Run:
        yield [("solver", "add")]
        return reported("4", solver={"brief": 0.25})

    simulator = crew_simulator(game, GeneratorEngine(reporting), echo)
    assert simulator.play([team_deal(game)])[0].returns == {"solver": 0.25}
    forgetful = crew_simulator(game, GeneratorEngine(chain), echo)
    assert forgetful.play([team_deal(game)]) == []
    assert forgetful.unverified == 1
    assert "the reward 'brief'" in forgetful.take_failure_messages()[0]


# --- forks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("index", range(5))
def test_a_fork_repeats_the_turns_before_it_with_their_ids(index: int) -> None:
    game = crew_game(CREW, CHECK, rewards={"solver": {"right": "own.correct"}})
    simulator = crew_simulator(game, GeneratorEngine(fan), lambda request: f"thought number {request.seed % 10**9}")
    [past] = simulator.play([team_deal(game)])
    [[fork]] = simulator.play_forks([Fork(past, index)])
    assert fork.turns[:index] == past.turns[:index]
    assert [turn.agent for turn in fork.turns] == [turn.agent for turn in past.turns]
    assert fork.turns[index].id == (fork.id, index)
    assert fork.turns[index].completion.text != past.turns[index].completion.text
    assert {(u[1], v[1]) for u, v in fork.graph.edges} == {(u[1], v[1]) for u, v in past.graph.edges}


def test_a_fork_with_a_scripted_caller_keeps_the_other_answers_to_equal_prompts() -> None:
    game = crew_game()
    simulator = crew_simulator(game, GeneratorEngine(chain), lambda request: f"thought number {request.seed % 10**9}")
    [past] = simulator.play([team_deal(game)])
    moves = (("planner", "nothing"),)
    [[fork]] = simulator.play_forks([Fork(past, 0, scripted_moves=moves, keeps_unchanged_answers=True)])
    assert fork.turns[0].action == "nothing"
    assert fork.turns[1].completion.text != past.turns[1].completion.text, "its prompt has changed"
    [[same]] = simulator.play_forks([Fork(past, 2, keeps_unchanged_answers=True)])
    assert [turn.completion.text for turn in same.turns] == [turn.completion.text for turn in past.turns]


def test_a_program_that_asks_something_else_in_a_fork_has_diverged_and_is_not_judged() -> None:
    clock = iter(range(100))

    def with_clock(task: dict[str, Any]) -> Run:
        [plan] = yield [("planner", f"it is {next(clock)} o'clock")]
        [answer] = yield [("solver", plan)]
        return answer

    game = crew_game()
    simulator = crew_simulator(game, GeneratorEngine(with_clock), echo)
    [past] = simulator.play([team_deal(game)])
    assert simulator.play_forks([Fork(past, 1)]) == [[]]
    assert simulator.unverified == 1
    assert "diverged" in simulator.take_failure_messages()[-1]
    [activity] = simulator.process_activities()
    assert activity.doing == "2 attempts started, 1 diverged, 0 running"


@pytest.mark.parametrize("has_clock", [False, True])
def test_credit_leaves_a_program_with_a_clock_in_its_prompt_out_and_reports_it(has_clock: bool) -> None:
    clock = iter(range(100))

    def program(task: dict[str, Any]) -> Run:
        time = next(clock) if has_clock else 12
        [plan] = yield [("planner", f"it is {time} o'clock")]
        [answer] = yield [("solver", f"{plan}\nsum")]
        return answer

    game = crew_game(CREW, CHECK, rewards={"solver": {"right": "own.correct"}})
    simulator = crew_simulator(game, GeneratorEngine(program), echo)
    [past] = simulator.play([team_deal(game)])
    roles = frozenset({"crew", "verifier"})
    credit = LeaveOneAgentOut().build()(Evidence([past], "solver", simulator=simulator, rule_based_roles=roles))
    messages = " ".join(simulator.take_failure_messages())
    if has_clock:
        assert not credit
        assert simulator.unverified > 0
        assert "diverged" in messages
    else:
        assert {turn: advantage.value for turn, advantage in credit.items()} == {("e", 0): 0.0, ("e", 1): 1.0}
        assert (simulator.unverified, messages) == (0, "")


def test_an_absent_agent_gives_its_scripted_answer_to_equal_calls_too() -> None:
    def samples(task: dict[str, Any]) -> Run:
        plans = yield [("planner", "plan"), ("planner", "plan")]
        [answer] = yield [("solver", "\n".join(plans))]
        return answer

    game = crew_game(CREW)
    simulator = crew_simulator(game, GeneratorEngine(samples), lambda request: f"thought {request.seed % 10**9}")
    [past] = simulator.play([team_deal(game)])
    moves = (("planner", "nothing"),)
    [[fork]] = simulator.play_forks([Fork(past, 0, scripted_moves=moves, keeps_unchanged_answers=True)])
    assert [turn.action for turn in fork.turns[:2]] == ["nothing", "nothing"]


def test_later_stages_read_the_moves_of_a_program_by_the_step_that_played_them() -> None:
    tell = {"role": "writer", "tell": "{{ crew.move }} of {{ question }}"}
    game = crew_game(CREW, tell)
    simulator = crew_simulator(game, GeneratorEngine(chain), echo)
    simulator.casting.roles["writer"] = simulator.casting.roles["solver"].model_copy()  # type: ignore[index]
    [trajectory] = simulator.play([team_deal(game)])
    assert trajectory.turns[3].request.messages[-1].content.startswith("4 of 2 + 2")
    assert trajectory.edge_kinds(trajectory.turns[2].id, trajectory.turns[3].id) == {"told"}


def test_a_failed_call_is_a_turn_without_an_action() -> None:
    def overflow(request: Request) -> Any:
        return CompletionFailure("overflow", "too long") if "plan" in request.messages[-1].content else "4"

    trajectory = play(chain, overflow)
    assert (trajectory.turns[0].completion.finish, trajectory.turns[0].action) == ("overflow", None)


def test_the_status_of_a_simulator_counts_the_attempts_of_programs() -> None:
    game = crew_game(CREW)
    simulator = crew_simulator(game, GeneratorEngine(chain), echo)
    simulator.play([team_deal(game)])
    [activity] = simulator.process_activities()
    assert activity.name == "programs of program"
    assert activity.doing == "1 attempts started, 0 running"
    assert activity.open == 0


def test_a_program_may_make_as_many_calls_as_an_episode_has_turns() -> None:
    game = crew_game()

    def many(task: dict[str, Any]) -> Run:
        texts = []
        for number in range(6):
            texts += yield [("solver", f"try {number}")]
        return " ".join(texts)

    simulator = crew_simulator(game, GeneratorEngine(many), lambda _: "4")
    simulator._limits = EpisodeLimits(max_turns=4)
    [trajectory] = simulator.play([team_deal(game)])
    assert [turn.agent for turn in trajectory.turns] == ["solver"] * 4 + ["crew", "verifier"]
