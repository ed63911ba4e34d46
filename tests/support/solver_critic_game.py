"""A quiz for a solver and a critic: problems, a held-out split, measures; small enough to be learnt in seconds."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import yaml

from marl.core.types import EpisodeMeasuresAndNewStarts, Metrics
from marl.games.base import FinalRewards, NextAgent, TextGame, TextGameConfig
from marl.scenario.load import validate
from marl.training.session import NewOrResumedRunStart, train_in_folder
from marl.view.console import RunMonitor
from tests.support.run_processes import metric_lines, tiny_model

SPLITS = {"train": range(12), "held_out": range(12, 18)}
SEATS = ("solver", "critic")


class Quiz(TextGameConfig):
    """Is a number odd? The solver is paid for the right answer, the critic for saying yes."""

    kind: str = "tests.support.solver_critic_game:Quiz"

    def build(self) -> QuizGame:
        return QuizGame(self)

    def default_role_of_agent(self) -> Mapping[str, str]:
        return {seat: seat for seat in SEATS}

    def held_out_reset_options(self, max_count: int) -> Sequence[Mapping[str, Any]]:
        return [{"split": "held_out", "index": index} for index in range(min(max_count, len(SPLITS["held_out"])))]


class QuizGame(TextGame):
    name = "quiz"
    reset_options = ("split", "index")

    def __init__(self, settings: Quiz) -> None:
        super().__init__(SEATS, settings.illegal, ("yes", "no"))

    def start_new_game(self, rng: random.Random, options: Mapping[str, Any]) -> NextAgent:
        numbers = SPLITS[options.get("split", "train")]
        self.number = numbers[options.get("index", rng.randrange(len(numbers)))]
        self.moves: list[str] = []
        return SEATS[0]

    def problem_key(self) -> str:
        return str(self.number)

    def start_state_key(self) -> str:
        return str(self.number)

    def describe_observation(self, agent: str) -> str:
        return " ".join((f"is {self.number} odd", *self.moves))

    def information_state(self, agent: str) -> str:
        return self.describe_observation(agent)

    def apply_action(self, action: str) -> NextAgent | FinalRewards:
        self.moves.append(action)
        if len(self.moves) == 1:
            return SEATS[1]
        right = (self.moves[0] == "yes") == (self.number % 2 == 1)
        return {"solver": float(right), "critic": float(action == "yes")}

    def episode_measures(self) -> EpisodeMeasuresAndNewStarts:
        if len(self.moves) < 2:
            return EpisodeMeasuresAndNewStarts()
        right = (self.moves[0] == "yes") == (self.number % 2 == 1)
        return EpisodeMeasuresAndNewStarts(
            {"success": float(right)} | ({"number": float(self.number)} if right else {})
        )


def quiz_scenario(**more: Any) -> dict[str, Any]:
    """Two policies that learn, a few steps of a few episodes."""
    learner = {"kind": "grpo", "lr": 3e-3, "schedule": "linear", "betas": [0.9, 0.99]}
    role = {"kind": "player", "instructions": "", "prompt": "{{ observation }}", "sampling": {"max_tokens": 6}}
    return {
        "game": {"kind": "tests.support.solver_critic_game:Quiz"},
        "roles": {seat: role | {"policy": seat} for seat in SEATS},
        "policies": {seat: {"model": tiny_model(number), "learner": learner} for number, seat in enumerate(SEATS)},
        "credit": {"baseline": {"kind": "group", "std": False}},
        "schedule": {"steps": 6, "groups": 6, "group_size": 4, "threads": 1},
        "evaluate": {"every": 2, "held_out": 6, "keep_best": "success"},
        "checkpoint": {"every": 2, "trajectories": 0.5},
    } | more


def policies(**changes: dict[str, Any]) -> dict[str, Any]:
    """The quiz's policies with changes: policy -> fields."""
    return {name: policy | changes.get(name, {}) for name, policy in quiz_scenario()["policies"].items()}


class RecordingMonitor(RunMonitor):
    """A monitor that records messages, and stops the run as if by a crash after a step."""

    tolerated_errors: ClassVar[tuple[type[Exception], ...]] = ()

    def __init__(self, crash_after: int = -1) -> None:
        self.messages: list[str] = []
        self._crash_after = crash_after

    def log_metrics(self, step: int, metrics: Metrics) -> None:
        if step == self._crash_after:
            raise InterruptedError

    def show_message(self, message: str) -> None:
        self.messages.append(message)


def train_in_process(folder: Path, scenario: dict[str, Any], *monitors: RunMonitor, resume: str | None = None) -> bool:
    """Train in this process."""
    return train_in_folder(
        validate(yaml.safe_load(yaml.safe_dump(scenario))), folder, NewOrResumedRunStart(resume), monitors
    )


def train_until_crash(folder: Path, scenario: dict[str, Any], after: int) -> None:
    """Train until the process dies right after the row of a step."""
    try:
        train_in_process(folder, scenario, RecordingMonitor(after))
    except InterruptedError:
        return
    raise AssertionError(f"it went on after step {after}: {metric_lines(folder)}")
