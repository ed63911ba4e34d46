"""Warm-up: uniformly random legal play, and the scenario in which a model learns to imitate it.

Reinforcement learning from random weights never discovers the format of a game's answers. Imitation of random play
teaches the format within seconds, and nothing about good play. The warm-up is an ordinary scenario with recorded play
and the learner `sft`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from marl.core.graph import Trajectory
from marl.core.seeds import seed_of
from marl.core.types import Deal, Request
from marl.engines.scripted import Random
from marl.protocols import WarmUp
from marl.scenario.schema import Scenario
from marl.training.placement import make_simulator

_EXAMPLES = 256
"""Number of random episodes from whose texts a word vocabulary is built."""


def random_play(scenario: Scenario, episodes: int, seed: int) -> list[Trajectory]:
    """Return `episodes` episodes of each game in which every role plays uniformly random legal moves.

    Rule-based roles, such as verifiers, keep their own engines. The games take turns.
    """
    players = dict.fromkeys(scenario.policies, Random().build(None))
    simulator = make_simulator(scenario, players | scenario.rule_engines(), seed)
    seats = {game: view.seats for game, view in scenario.by_game().items()}
    deals: list[Deal] = []
    for number in range(episodes):
        name = f"random.{number}"
        for game, game_seats in seats.items():
            episode = f"{name}.{game}" if game else name
            deals.append(Deal(episode, name, seed_of(seed, name), game_seats, game=game))
    return simulator.play(deals)


@lru_cache(maxsize=1)
def _examples(scenario_json: str, seed: int) -> list[Trajectory]:
    # Cached, as every policy of a scenario takes its vocabulary from the same episodes.
    return random_play(Scenario.model_validate_json(scenario_json), _EXAMPLES, seed)


def corpus(scenario: Scenario, policies: Sequence[str], seed: int) -> set[str]:
    """Return prompts and answers of `policies` in random play."""
    roles = {name for name, role in scenario.roles.items() if role.policy in policies}
    texts: set[str] = set()
    for trajectory in _examples(scenario.model_dump_json(), seed):
        for turn in trajectory.turns:
            if turn.role in roles:
                texts |= {turn.completion.text, _prompt(turn.request)}
    return texts


def _prompt(request: Request) -> str:
    """Return the prompt as the chat template of tiny models writes it."""
    tools = " ".join(json.loads(tool)["function"]["name"] for tool in request.tools)
    return "\n".join(filter(None, [tools, *(message.content for message in request.messages)]))


def warm_up_scenario_data(
    scenario: Scenario, policies: Sequence[str], settings: WarmUp, base: Path, recorded: Path
) -> dict[str, Any]:
    """Return the data of the warm-up scenario: same games and roles, learning from the episodes in `recorded`.

    The model in `base` becomes the first of `policies`, and learns the answers of all of them.
    """
    data = scenario.play_data()
    pupil = policies[0]
    seated: set[str] = set()
    for view in scenario.by_game().values():
        seated |= {*view.seats.values()}
    data["roles"] = {name: role for name, role in data["roles"].items() if name in seated}
    used_policies = {role["policy"] for role in data["roles"].values()}
    for role in data["roles"].values():
        role["trainable"] = role["policy"] in policies
        if role["trainable"]:
            role["policy"] = pupil
    policy_data: dict[str, Any] = {}
    for name, policy in scenario.policies.items():
        if name in used_policies and name not in policies:
            # As in `random_play`: rule-based policies keep their engine, all others play at random.
            engine = policy.engine.model_dump(mode="json") if policy.engine.is_rule_based else {"kind": "random"}
            policy_data[name] = {"engine": engine}
    learner = {"kind": "sft", "lr": settings.lr, "schedule": "linear", "betas": [0.9, 0.99]}
    policy_data[pupil] = {"model": {"kind": "pretrained", "path": str(base)}, "learner": learner}
    return data | {
        "policies": policy_data,
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
