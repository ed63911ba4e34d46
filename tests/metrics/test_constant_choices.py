"""Choices that are always the same raise an alarm, though answers vary and though some moves are drawn at random."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch

from marl.core.types import Deal, Request
from marl.engines.epsilon_greedy.engine import EpsilonGreedyEngine
from marl.engines.scripted import Random
from marl.games.communication import CommunicationConfig
from marl.games.communication_graph import COMMUNICATION_ACTIONS
from marl.games.tasks.arithmetic import ArithmeticTask
from marl.games.tasks.records import RecordsTask
from marl.metrics.alarms import AlarmMonitor
from marl.metrics.trajectory_metrics import summarize_trajectories
from marl.protocols import Engine
from marl.roles.answering import PlayerRole
from marl.scenario.load import load
from tests.support.paths import SCENARIOS
from tests.support.q_samples import network
from tests.support.small_games import FunctionEngine, make_simulator


def alarms(
    scenario: str, game: CommunicationConfig, engines: Engine | Mapping[str, Engine], **roles: PlayerRole
) -> list[str]:
    """The kinds of alarm that five steps of 64 episodes raise in a run of a scenario."""
    loaded = load(SCENARIOS / scenario, to_train=False)
    simulator, monitor = make_simulator(game, engines, **roles), AlarmMonitor.from_scenario(loaded)
    raised = []
    for step in range(5):
        names = [f"{step}.{number}" for number in range(64)]
        played = simulator.play([Deal(name, name, hash_of(name), game.default_role_of_agent()) for name in names])
        raised += [f"{alarm.role} {alarm.kind}" for alarm in monitor(summarize_trajectories(played))[1]]
    return raised


def hash_of(name: str) -> int:
    """A seed of its own for each episode."""
    step, number = map(int, name.split("."))
    return 64 * step + number


def hardly_ever_talks(request: Request) -> str:
    """Chooses `alone` in all but one of 200 choices, and answers right or wrong."""
    if request.options:
        return request.options["alone" if request.seed % 200 else "query"]
    return request.examples[request.seed % len(request.examples)]


def test_a_team_that_never_talks_is_noticed_though_its_answers_vary() -> None:
    task = ArithmeticTask(train=40, held_out=15)
    game = CommunicationConfig.model_validate({"task": task, "agents": 3, "rounds": 1})
    heard = alarms("communication.yaml", game, FunctionEngine(hardly_ever_talks), speaker=PlayerRole(policy="actor"))
    assert heard == ["speaker constant"]


@pytest.mark.parametrize(("epsilon", "expected"), [(0.05, ["controller constant"]), (1.0, [])])
def test_a_constant_choice_is_noticed_though_one_in_twenty_is_drawn_at_random(
    epsilon: float, expected: list[str]
) -> None:
    settings = {"agents": 3, "rounds": 1, "evidence": "split", "controllers": True, "answer": "respondent"}
    game = CommunicationConfig.model_validate({"task": RecordsTask(train=40, held_out=15), **settings})
    source = network(actions=COMMUNICATION_ACTIONS)
    weights = {name: torch.zeros_like(tensor) for name, tensor in source.model().state_dict().items()}
    weights |= {"heads.2.bias": torch.arange(6.0).flip(0), "epsilon": torch.tensor(epsilon)}
    controllers = EpsilonGreedyEngine(source)
    controllers.load_weights("controller", weights.items(), 1)
    roles = {name: PlayerRole(policy=name) for name in ("controller", "speaker")}
    engines = {"controller": controllers, "speaker": Random().build(None)}
    assert alarms("agent_q_mix.yaml", game, engines, **roles) == expected
