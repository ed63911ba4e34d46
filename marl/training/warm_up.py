"""Warm-up: uniformly random legal play, and the scenario in which a model learns to imitate it.

From random weights reinforcement learning never finds the format of a game's answers. Imitation teaches that within
seconds, and nothing about playing well. It is an ordinary scenario: recorded play and the learner `sft`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from marl.engines.scripted import Random
from marl.graph import Trajectory
from marl.protocols import EngineConfig, WarmUp
from marl.scenario.schema import Scenario
from marl.seeds import seed_of
from marl.training.placement import make_simulator
from marl.types import Deal, Request

_EXAMPLES = 256
"""Episodes of random play from whose texts a vocabulary of words is taken."""


def random_play(scenario: Scenario, episodes: int, seed: int) -> list[Trajectory]:
    """Return episodes in which every role plays uniformly random legal moves: so many of each game, in turns."""
    players = dict.fromkeys(scenario.policies, Random().build(None))
    simulator = make_simulator(scenario, players | scenario.rule_engines(), seed)
    names, seats = [f"random.{i}" for i in range(episodes)], _seats_by_name(scenario)
    deals = [
        Deal(f"{name}{game and '.'}{game}", name, seed_of(seed, name), seats[game], game=game)
        for name in names
        for game in seats
    ]
    return simulator.play(deals)


def _seats_by_name(scenario: Scenario) -> dict[str, dict[str, str]]:
    return {name: view.seats for name, view in scenario.by_game().items()}


@lru_cache(maxsize=1)
def _examples(scenario_json: str, seed: int) -> list[Trajectory]:
    # Remembered, since every policy of a scenario needs the same.
    return random_play(Scenario.model_validate_json(scenario_json), _EXAMPLES, seed)


def corpus(scenario: Scenario, policies: Sequence[str], seed: int) -> set[str]:
    """Return all texts that `policies` read and write in random play with this seed."""
    roles = {name for name, role in scenario.roles.items() if role.policy in policies}
    played = _examples(scenario.model_dump_json(), seed)
    turns = [turn for trajectory in played for turn in trajectory.turns if turn.role in roles]
    return {turn.completion.text for turn in turns} | {_prompt(turn.request) for turn in turns}


def _prompt(request: Request) -> str:
    """Return a prompt as the template of tiny models writes it."""
    tools = " ".join(json.loads(tool)["function"]["name"] for tool in request.tools)
    return "\n".join(filter(None, [tools, *(message.content for message in request.messages)]))


def lesson(scenario: Scenario, policies: Sequence[str], settings: WarmUp, base: Path, recorded: Path) -> dict[str, Any]:
    """Return the data of a scenario with the same game and roles, in which the model in `base` learns from `recorded`.

    The first of `policies` learns the answers of all of them.
    """
    data = scenario.play_data()
    learner = {"kind": "sft", "lr": settings.lr, "schedule": "linear", "betas": [0.9, 0.99]}
    pupil = {"model": {"kind": "pretrained", "path": str(base)}, "learner": learner}
    seated = {role for seats in _seats_by_name(scenario).values() for role in seats.values()}
    data["roles"] = {name: role for name, role in data["roles"].items() if name in seated}
    speaking = {role["policy"] for role in data["roles"].values()}
    for role in data["roles"].values():
        role["trainable"] = role["policy"] in policies
        role["policy"] = policies[0] if role["trainable"] else role["policy"]
    engines = {name: scenario.policies[name].engine for name in scenario.policies if name in speaking - {*policies}}
    return data | {
        "policies": {name: {"engine": _seat(engine)} for name, engine in engines.items()} | {policies[0]: pupil},
        "credit": {"baseline": {"kind": "none"}},
        "experience": {"kind": "recorded", "path": str(recorded)},
        "schedule": {
            "steps": settings.steps,
            "groups": settings.batch,
            "group_size": 1,
            "seed": settings.seed,
            "threads": scenario.schedule.threads,
        },
        "checkpoint": {"every": settings.steps, "trajectories": 0.0},
    }


def _seat(engine: EngineConfig) -> dict[str, Any]:
    """Return the engine of a policy that does not learn: its own if it answers by rule, as random play has it."""
    return engine.model_dump(mode="json") if engine.rule_bound else {"kind": "random"}
