"""The games on which credit is checked, played by the embedded tiny model in every seat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from credit.validation.world import World
from marl.evaluation.evaluate import move_probabilities
from marl.evaluation.game_tree import grow
from marl.scenario.schema import Scenario
from marl.training.run import Run, build

STEPS = 4
"""In how many steps of a run the judged episodes are played ..."""
GROUP = 8
"""... in groups of so many that begin alike."""


@dataclass(frozen=True, slots=True)
class Task:
    """A cooperative game that can be enumerated."""

    name: str
    game: Mapping[str, Any]
    default: Mapping[str, str]
    """Agent -> the move that stands for doing nothing, for rules that take agents away."""

    def scenario(self, episodes: int, seed: int) -> Scenario:
        """One policy speaks for everybody: the tiny model, taught the format of moves and nothing about the game.

        Sampled at temperature 0.5, it says hardly anything but moves in their canonical texts, so that their
        probabilities are those of the moves.
        """
        agents = tuple(self.default)
        model = {"kind": "tiny", "hidden": 32, "layers": 1, "warm_up": {"steps": 60, "lr": 1e-2}}
        sampling = {"max_tokens": 4, "temperature": 0.5}
        return Scenario.model_validate(
            {
                "game": self.game,
                "seats": dict.fromkeys(agents, "player"),
                "roles": {"player": {"kind": "player", "policy": "actor", "sampling": sampling}},
                "policies": {"actor": {"model": model, "learner": {"kind": "grpo"}}},
                "schedule": {
                    "steps": STEPS,
                    "groups": -(-episodes // (STEPS * GROUP)),
                    "group_size": GROUP,
                    "seed": seed,
                    "threads": 1,
                },
            }
        )


_TWO = {"agent_0": "a", "agent_1": "a"}
_THREE = {**_TWO, "agent_2": "a"}
TASKS = (
    Task("hint", {"kind": "hint"}, {"speaker": "one", "guesser": "red"}),
    Task("2B", {"kind": "matrix", "table": "qmix_2b"}, _TWO),
    Task("matching", {"kind": "matrix", "table": "matching"}, _TWO),
    Task("AND of 3", {"kind": "matrix", "table": "and"}, _THREE),
    Task("climbing", {"kind": "matrix", "table": "climbing"}, _TWO),
    Task("two-step", {"kind": "two_step"}, _TWO),
    Task("additive", {"kind": "matrix", "table": "additive"}, _TWO),
)


def enumerated(run: Run) -> World:
    """The world of a run's policies: every move's probability is that of its text."""
    scenario, table = run.scenario, run.table
    tree = grow(scenario.game, table.cast, scenario.seats)
    chances = move_probabilities(table, list(tree.requests.values()))
    strategy = dict(zip(tree.requests, chances, strict=True))
    return World(scenario.game, table.cast, scenario.seats, strategy)


def seated(task: Task, samples: int, seed: int) -> tuple[Run, World]:
    """A run that can play the task, and its world; so many episodes that each play comes up `samples` times."""
    world = enumerated(build(task.scenario(1, seed)))
    likely = [play for play in world.plays if all(choice.cell.move is not None for choice in play.choices)]
    return build(task.scenario(samples * len(likely), seed)), world
