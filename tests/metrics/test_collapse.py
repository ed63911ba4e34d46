"""A critic that says yes or no and is paid for its verdict collapses to the commoner answer; the alarm catches that."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from marl.core.graph import Trajectory
from marl.core.seeds import hash_to_seed
from marl.core.types import Deal, Request
from marl.metrics.alarms import AlarmMonitor, WatchedRole
from marl.metrics.collapse import most_common_move
from marl.metrics.trajectory_metrics import summarize_trajectories
from marl.rollout.casting import RoleRequestBuilder
from marl.rollout.simulator import RolloutSimulator
from marl.scenario.alarms import AlarmSettings
from marl.scenario.load import load, validate
from marl.training.session import NewOrResumedRunStart, train_in_folder
from tests.support.addition_task import AdditionTask, team_config, team_deal, team_simulator
from tests.support.paths import PLUG_IN, SCENARIOS
from tests.support.small_games import FunctionEngine
from tests.support.solver_critic_game import RecordingMonitor

AGREEMENT = "own.readable * ((own.move == 'yes') == solver.correct)"
CRITIC = {"role": "critic", "hears": ["solver"], "legal": ["yes", "no"]}
GAME = team_config(
    {"role": "solver", "examples": ["{{ answer }}"]},
    CRITIC,
    {"role": "verifier", "verifies": "solver", "scores": ["correct"]},
    rewards={"critic": {"agreement": AGREEMENT}},
)


@pytest.fixture(autouse=True)
def outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(PLUG_IN)


# --- what is said ----------------------------------------------------------------------------------------------------


def one_in(n: int, request: Request) -> bool:
    return request.seed % n == 0


def judging(verdict: Callable[[Request], str]) -> Callable[[Request], str]:
    """A team whose solver is right nine times out of ten, and whose critic says what `verdict` says."""

    def say(request: Request) -> str:
        if request.options:
            return verdict(request)
        left, _, right = request.messages[-1].content.split()
        return str(int(left) + int(right) + one_in(10, request))

    return say


def step(number: int, verdict: Callable[[Request], str]) -> list[Trajectory]:
    """Ten episodes on each of the fifteen problems."""
    deals = [team_deal(GAME, f"{number}.{i}", index=i % 15) for i in range(150)]
    return team_simulator(GAME, judging(verdict)).play(deals)


def shouted(verdict: Callable[[Request], str], steps: int = 7) -> list[tuple[int, str]]:
    """The alarms of a run: the step, and what is told to a person."""
    roles = dict.fromkeys(GAME.team_seats.agents_of, WatchedRole(False)) | {"critic": WatchedRole(True)}
    watch, shown = AlarmMonitor(AlarmSettings(), roles), []
    for number in range(1, steps + 1):
        trajectories = step(number, verdict)
        for alarm in watch(summarize_trajectories(trajectories))[1]:
            turns = (turn for trajectory in trajectories for turn in trajectory.turns if turn.role == alarm.role)
            shown.append((number, alarm.message(most_common_move(turns))))
    return shown


def always(request: Request) -> str:
    return "yes"


def test_a_critic_that_is_constant_in_one_of_its_stages_does_not_hide_behind_the_other() -> None:
    game = team_config({"role": "solver", "examples": ["{{ answer }}"]}, CRITIC, CRITIC | {"name": "second"})

    def say(request: Request) -> str:
        if not request.options:
            return "4"
        return "yes" if request.state.startswith("second") else ("yes", "no")[request.seed % 2]

    deals = [team_deal(game, f"{index}", index=index % 15) for index in range(30)]
    played = team_simulator(game, say).play(deals)
    turns = [turn for trajectory in played for turn in trajectory.turns if turn.role == "critic"]
    assert {turn.stage for turn in turns} == {"critic", "second"}
    share = sum(turn.action == "yes" for turn in turns) / len(turns)
    assert 0.6 < share < 0.9, "over both stages it looks varied"
    assert summarize_trajectories(played)["role/critic/constant"] == 1.0
    assert most_common_move(turns) == "yes"


def almost_always(request: Request) -> str:
    return "no" if one_in(150, request) else "yes"


def varied(request: Request) -> str:
    return "no" if one_in(5, request) else "yes"


@pytest.mark.parametrize("verdict", [always, almost_always])
def test_a_critic_that_says_yes_to_everything_is_the_one_thing_the_alarm_tells(
    verdict: Callable[[Request], str],
) -> None:
    [(number, message)] = shouted(verdict)
    assert number == AlarmSettings().patience
    assert message.startswith("ALARM role critic: says 'yes' in ")
    assert message.endswith(" of its choices (150 turns a step) (constant >= 0.98) for 5 steps")


def test_a_critic_with_verdicts_of_both_kinds_raises_no_alarm() -> None:
    assert shouted(varied) == []


def test_what_it_is_paid_does_not_tell_that_it_collapsed() -> None:
    paid = {
        verdict: summarize_trajectories(step(1, verdict))["role/critic/reward/agreement"]
        for verdict in (always, varied)
    }
    assert paid[always] > paid[varied] > 0.5


# --- what is learnt --------------------------------------------------------------------------------------------------


def scenario(**critic: Any) -> dict[str, Any]:
    """A solver that is right three times out of four, and a critic that learns from nothing but agreement."""
    stages = [
        {"role": "solver", "examples": ["{{ answer }}", "{{ wrong[0] }}"]},
        {"role": "verifier", "verifies": "solver", "scores": ["correct"]},
        {**CRITIC, **critic},
    ]
    problems = [AdditionTask().problem("train", index) for index in range(15)]
    answers = {f"solver\n{each.question}": {each.answer: 0.75, each.wrong[0]: 0.25} for each in problems}
    return {
        "game": {
            "kind": "team",
            "task": AdditionTask().kind,
            "stages": stages,
            "rewards": {"critic": {"agreement": AGREEMENT}},
            "measures": {"success": AGREEMENT.replace("own", "critic")},
        },
        "roles": {
            "solver": {"kind": "solver", "policy": "solver", "answer": "whole"},
            "critic": {"kind": "critic", "policy": "critic", "answer": "whole"},
            "verifier": {"kind": "verifier", "policy": "checker"},
        },
        "policies": {
            "solver": {"engine": {"kind": "tabular", "table": answers}},
            "critic": {
                "model": {"kind": "outside.softmax:TableModel"},
                "engine": "outside.softmax:Softmax",
                "learner": {"kind": "outside.softmax:Reinforce", "lr": 8.0},
            },
            "checker": {"engine": {"kind": "verifiers", "checks": {"correct": "exact"}}},
        },
        "credit": {"baseline": {"kind": "role_average"}},
        "schedule": {"steps": 30, "groups": 150, "group_size": 1},
    }


def learnt(folder: Path, **critic: Any) -> tuple[list[str], dict[str, float]]:
    """What a person was told, and the last step's metrics."""
    shown = RecordingMonitor()
    assert train_in_folder(validate(scenario(**critic)), folder, NewOrResumedRunStart(), [shown])
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in shown.messages if line.startswith("ALARM")], rows[-1]


@pytest.mark.slow
def test_a_critic_that_cannot_tell_learns_the_commoner_verdict_and_the_alarm_says_so(tmp_path: Path) -> None:
    alarms, last = learnt(tmp_path, hears=[], tell="")
    assert len(alarms) == 1
    assert alarms[0].startswith("ALARM role critic: says 'yes' in ")
    assert last["alarm/critic/constant"] == 1.0
    assert last["episode/measure/success"] == pytest.approx(0.75, abs=0.12), "as often as the solver is right"


@pytest.mark.slow
def test_a_critic_that_can_tell_learns_to_and_raises_no_alarm(tmp_path: Path) -> None:
    alarms, last = learnt(tmp_path)
    assert alarms == []
    assert last["episode/measure/success"] > 0.9
    assert last["role/critic/constant"] < 0.9


# --- one role that decides in two ways -------------------------------------------------------------------------------


def told_of_talk(choose: Callable[[Request], str], steps: int = 6) -> list[tuple[int, str]]:
    """The alarms if all choose so whom to hear in the shipped scenario, and then are right four times out of five."""
    scenario = load(SCENARIOS / "communication.yaml")

    def say(request: Request) -> str:
        return f"[{choose(request)}]" if request.options else request.examples[one_in(5, request)]

    simulator = RolloutSimulator(scenario.game, RoleRequestBuilder(scenario.roles, 0), {"actor": FunctionEngine(say)})
    watch, shown = AlarmMonitor.from_scenario(scenario), []
    for number in range(1, steps + 1):
        names = [f"{number}.{episode}" for episode in range(48)]
        played = simulator.play([Deal(name, name, hash_to_seed(name), scenario.seats) for name in names])
        turns = [turn for trajectory in played for turn in trajectory.turns]
        shown += [
            (number, alarm.message(most_common_move(turns))) for alarm in watch(summarize_trajectories(played))[1]
        ]
    return shown


def test_silence_whatever_the_question_rings_though_the_answers_vary() -> None:
    [(number, message)] = told_of_talk(lambda request: "broadcast" if one_in(300, request) else "alone")
    assert number == AlarmSettings().patience
    assert message.startswith("ALARM role speaker: says 'alone' in ")
    assert "(constant >= 0.98)" in message


def test_talk_that_varies_raises_no_alarm() -> None:
    assert told_of_talk(lambda request: "broadcast" if one_in(10, request) else "alone") == []
