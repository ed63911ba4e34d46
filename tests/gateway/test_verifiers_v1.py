"""Environments of verifiers.v1 train as programs, in the environment of `make verifiers`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from marl import load
from marl.core.graph import Trajectory, read_trajectories
from marl.core.types import Message, Turn
from marl.engines.program.settings import Program
from marl.games.team.settings import TeamConfig
from marl.protocols import RoleConfig
from marl.protocols.programs import parse_program_answer
from marl.roles.programs import CallerRole, ProgramRole
from marl.rollout.casting import RoleRequestBuilder
from marl.rollout.simulator import RolloutSimulator
from marl.runs.run_folder import RunFolder
from marl.training.build import build
from marl.training.loop import StopRequest, TrainingLoop
from tests.support.addition_task import team_deal
from tests.support.paths import ROOT, SCENARIOS
from tests.support.small_games import FunctionEngine

PYTHON = ROOT / ".verifiers" / "bin" / "python"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON.is_file(), reason="no .verifiers: `make verifiers` sets it up"),
]


class Trained(NamedTuple):
    """What three steps of a scenario have left."""

    episodes: list[Trajectory]
    changed: dict[str, bool]
    """Policy with weights -> True if its weights have changed."""
    rows: list[dict[str, Any]]
    """Metrics of the three steps."""


def train(name: str, folder: Path) -> Trained:
    """Train three steps of a scenario in `scenarios/programs/` with small models."""
    changes = [f"policies.program.engine.python={PYTHON}", "policies.program.engine.workers=1"]
    changes += ["schedule.steps=3", "schedule.groups=3", "schedule.group_size=4", "evaluate.held_out=2"]
    changes += ["checkpoint.every=3", "checkpoint.trajectories=1"]
    file = SCENARIOS / "programs" / f"{name}.yaml"
    for policy, settings in load(file).policies.items():
        if settings.model:
            changes += [f"policies.{policy}.model.{field}" for field in ("hidden=16", "warm_up.steps=60")]
            changes += [f"policies.{policy}.model.warm_up.{field}" for field in ("episodes=64", "batch=32", "lr=0.02")]
    scenario, home = load(file, changes), RunFolder(folder / name)
    home.create(scenario)
    run: Any = build(scenario)

    def weights() -> dict[str, dict[str, torch.Tensor]]:
        engines = {
            policy: run.simulator.engines[policy] for policy, settings in scenario.policies.items() if settings.model
        }
        return {
            policy: {key: tensor.clone() for key, tensor in engine.network.model.state_dict().items()}
            for policy, engine in engines.items()
        }

    before = weights()
    assert TrainingLoop(run, home, [])(StopRequest())
    after = weights()
    changed = {
        policy: any(not torch.equal(tensor, after[policy][key]) for key, tensor in state.items())
        for policy, state in before.items()
    }
    files = sorted((folder / name / "trajectories").glob("*.jsonl.zst"))
    episodes = [episode for file in files for episode in read_trajectories(file)]
    return Trained(episodes, changed, [row for row in home.rows() if "episode/count" in row])


@pytest.fixture(autouse=True)
def cache(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MARL_CACHE", str(made))


class Episode:
    """One episode of the environment, read from its record: the right answer, the turns and the rewards."""

    def __init__(self, trajectory: Trajectory) -> None:
        *self.turns, program = trajectory.turns
        row = json.loads(program.request.state)["task"]["given"]["row"]
        self.number = 10 + row
        self.answer = str(10 - row % 10)
        self.trajectory = trajectory

    @property
    def speakers(self) -> list[str]:
        """Agents of the turns, in order."""
        return [turn.agent for turn in self.turns]

    def is_right(self, agent: str) -> bool:
        """Return True if the last turn of `agent` is the right answer."""
        return self.turns_of(agent)[-1].completion.text.strip() == self.answer

    def turns_of(self, agent: str) -> list[Turn]:
        """Return the turns of `agent`, in order."""
        return [turn for turn in self.turns if turn.agent == agent]

    def reward(self, agent: str, name: str) -> float:
        """Return the component `name` of the agent's reward."""
        return sum(reward.value for reward in self.trajectory.rewards if (reward.agent, reward.name) == (agent, name))


def check_all_played(trained: Trained) -> None:
    """No program failed, and no episode was left out."""
    assert [row["episode/measure/failed"] for row in trained.rows] == [0, 0, 0]
    assert [row["episode/unjudged"] + row["episode/dropped"] for row in trained.rows] == [0, 0, 0]
    assert len(trained.episodes) == 36


def test_an_agent_of_one_turn_learns_from_the_rewards_of_its_environment(tmp_path: Path) -> None:
    trained = train("verifiers_v1", tmp_path)
    check_all_played(trained)
    assert trained.changed == {"actor": True}
    for episode in map(Episode, trained.episodes):
        assert episode.speakers == ["agent"]
        assert episode.turns[0].request.messages == (Message("user", f"{episode.number} missing"),)
        assert episode.reward("agent", "correct") == episode.is_right("agent")
        words = len(episode.turns[0].completion.text.split())
        assert episode.reward("agent", "words") == pytest.approx(-0.1 * max(0, words - 1))


def test_an_assistant_learns_in_a_conversation_with_a_simulated_user(tmp_path: Path) -> None:
    trained = train("verifiers_user", tmp_path)
    check_all_played(trained)
    assert trained.changed == {"user": False, "actor": True}
    for episode in map(Episode, trained.episodes):
        assert sorted(episode.speakers) == ["assistant", "assistant", "user", "user"]
        questions, answers = episode.turns_of("user"), episode.turns_of("assistant")
        for asked, answered in zip(questions, answers, strict=True):
            assert asked.request.messages[0] == Message("system", f"You want to know: {episode.number} missing")
            assert answered.request.messages[-1] == Message("user", asked.completion.text.strip())
        assert answers[1].request.continues, "the second answer continues the tokens of the first"
        assert episode.reward("assistant", "correct") == episode.is_right("assistant")
    assert {row["episode/measure/user_turns"] for row in trained.rows} == {2}


def test_an_agent_learns_with_a_tool_that_its_environment_runs(tmp_path: Path) -> None:
    trained = train("verifiers_tool", tmp_path)
    check_all_played(trained)
    assert trained.changed == {"actor": True}
    results = 0
    for episode in map(Episode, trained.episodes):
        read = [message for turn in episode.turns for message in turn.request.messages if message.role == "tool"]
        results += len(read)
        looked_up = any(f"{episode.number} missing" in message.content for message in read)
        assert episode.reward("agent", "looked_up") == pytest.approx(0.2 * looked_up)
        assert episode.reward("agent", "correct") == episode.is_right("agent")
        assert all("look_up" in turn.request.tools[0] for turn in episode.turns)
    assert results, "the model has called the tool"


def test_two_agents_of_an_environment_learn_from_rewards_across_agents_and_a_judge(tmp_path: Path) -> None:
    trained = train("verifiers_agents", tmp_path)
    check_all_played(trained)
    assert trained.changed == {"solver": True, "critic": True}
    for episode in map(Episode, trained.episodes):
        assert sorted(episode.speakers) == ["critic", "judge", "judge", "solver"]
        solution, review = (
            next(turn for turn in episode.turns if turn.agent == agent) for agent in ("solver", "critic")
        )
        said = solution.completion.text.strip()
        assert review.request.messages == (Message("user", f"{episode.number} missing said {said}"),)
        right = {agent: episode.is_right(agent) for agent in ("solver", "critic")}
        assert episode.reward("critic", "gain") == right["critic"] - right["solver"]
        verdicts = {turn.request.messages[-1].content: turn.completion.text for turn in episode.turns_of("judge")}
        for agent, turn in (("solver", solution), ("critic", review)):
            verdict = verdicts[f"{turn.completion.text.strip()} plausible"]
            assert episode.reward(agent, "correct") == right[agent]
            assert episode.reward(agent, "team") == 0.5 * right["critic"]
            assert episode.reward(agent, "plausible") == pytest.approx(0.1 * (verdict == "yes"))


def test_a_row_beyond_the_taskset_and_an_agent_without_a_caller_are_named() -> None:
    def failure(callers: list[str], tell: str, row: int) -> str:
        stage = {"role": "environment", "tell": tell, "callers": {caller: {} for caller in callers}}
        rows = {"kind": "rows", "train": row + 1, "held_out": 0}
        game = TeamConfig.model_validate({"kind": "team", "task": rows, "stages": [stage]})
        roles: dict[str, RoleConfig] = {"environment": ProgramRole(policy="program")}
        roles |= {caller: CallerRole(policy="model") for caller in callers}
        engines = {"program": program, "model": FunctionEngine(lambda _: "3")}
        simulator = RolloutSimulator(game, RoleRequestBuilder(roles, 0), engines)
        [episode] = simulator.play([team_deal(game, index=row)])
        answer = parse_program_answer(episode.turns[-1].completion.text)
        assert answer is not None
        return answer.why

    program: Any = Program(call="verifiers_v1:main", python=PYTHON, folder=SCENARIOS / "programs", workers=1).build(
        None
    )
    try:
        assert "row 90: the taskset has 90 tasks" in failure(["agent"], 'taskset.id = "next-ten"', 90)
        block = 'id = "solver-and-critic"\ntaskset.id = "next-ten"'
        assert "no agent 'critic' here; agents: judge, solver" in failure(["solver", "judge"], block, 0)
    finally:
        program.close()
