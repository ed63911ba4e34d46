"""Requests without an answer: episodes that nobody can judge are left out, and causes are told."""

from __future__ import annotations

import pytest

from marl.core.types import Completion, CompletionFailure, Deal, Fork, Request, Ticket
from marl.engines.workers.worker import WorkerPoolError
from marl.protocols import WorkerProcessEngine
from marl.roles.answering import PlayerRole
from marl.rollout.simulator import RolloutSimulator
from tests.support.small_games import PAIR, FunctionEngine, PenniesConfig, make_simulator, random_move

GAME = PenniesConfig(rounds=2)
SEATS = {PAIR[0]: "player", PAIR[1]: "checker"}
KILLED = CompletionFailure("unjudged", "says died by SIGKILL from outside")


class Checker(FunctionEngine, WorkerProcessEngine):
    """Worker processes of which those that are asked at certain turns are killed."""

    def __init__(self, *killed: int) -> None:
        super().__init__(self._judge)
        self._killed, self._asked = killed, 0

    def _judge(self, request: Request) -> str | CompletionFailure:
        self._asked += 1
        return KILLED if self._asked in self._killed else random_move(request)


class Silent(FunctionEngine):
    """Never answers."""

    def step(self, wait_s: float) -> list[tuple[Ticket, Completion | CompletionFailure]]:
        return []


def team(checker: FunctionEngine) -> RolloutSimulator:
    roles = {"player": PlayerRole(policy="actor"), "checker": PlayerRole(policy="checker")}
    return make_simulator(GAME, {"actor": FunctionEngine(random_move), "checker": checker}, **roles)


def deals(many: int) -> list[Deal]:
    return [Deal(f"e{i}", "g", i, SEATS) for i in range(many)]


def test_an_episode_whose_verdict_is_missing_is_left_out_and_counted() -> None:
    simulator = team(Checker(2))
    played = simulator.play(deals(5))
    assert [trajectory.id for trajectory in played] == ["e0", "e2", "e3", "e4"]
    assert (simulator.unverified, simulator.drops.count) == (1, 0)
    assert simulator.take_failure_messages() == [
        "policy 'checker' gave no answer (unjudged): says died by SIGKILL from outside"
    ]
    assert simulator.take_failure_messages() == []


def test_what_else_the_episode_had_asked_is_taken_back() -> None:
    slow, roles = Silent(random_move), {"player": PlayerRole(policy="slow"), "checker": PlayerRole(policy="checker")}
    assert make_simulator(GAME, {"slow": slow, "checker": Checker(1)}, **roles).play(deals(1)) == []
    assert slow.cancelled == [0]


def test_a_continuation_whose_verdict_is_missing_is_left_out_of_its_courses() -> None:
    simulator = team(Checker(4))
    [past] = simulator.play(deals(1))
    assert [len(courses) for courses in simulator.play_forks([Fork(past, 0, n=3)])] == [2]


def test_more_than_a_tenth_of_missing_verdicts_ends_the_run_and_names_the_cause() -> None:
    simulator = team(Checker(1, 2, 3))
    with pytest.raises(
        WorkerPoolError, match=r"^3 of the latest 3 .*policy 'checker': says died by SIGKILL from outside"
    ):
        simulator.play(deals(5))


def test_now_and_then_a_missing_verdict_does_not_end_a_run() -> None:
    simulator = team(Checker(*range(1, 1000, 20)))
    simulator.play(deals(200))
    assert simulator.unverified > 10


def test_missing_answers_of_other_engines_are_not_counted_against_workers() -> None:
    refused = CompletionFailure("aborted", "HTTP 500")
    simulator = team(FunctionEngine(lambda request: refused))
    played = simulator.play(deals(200))
    assert len(played) == 200
    assert simulator.unverified == 0


def test_first_causes_are_told_and_then_numbers() -> None:
    simulator = team(FunctionEngine(lambda request: CompletionFailure("aborted", f"HTTP {request.seed % 2 + 500}")))
    simulator.play(deals(120))
    *causes, ten, hundred = simulator.take_failure_messages()
    assert len(causes) == 3
    assert all(cause.startswith("policy 'checker' gave no answer (aborted): HTTP 50") for cause in causes)
    assert ten.startswith("policy 'checker': 10 requests without an answer; the last: HTTP 50")
    assert hundred.startswith("policy 'checker': 100 requests")


def test_the_cause_is_in_the_turn_s_record() -> None:
    simulator = team(FunctionEngine(lambda request: CompletionFailure("aborted", "HTTP 500")))
    [trajectory] = simulator.play(deals(1))
    assert [turn.completion.reason for turn in trajectory.turns if turn.agent == PAIR[1]] == ["HTTP 500"]
    assert [turn.completion.reason for turn in trajectory.turns if turn.agent == PAIR[0]] == [""]
