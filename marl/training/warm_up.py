"""Warm-up: uniformly random legal play, and the scenario in which a tiny model learns to imitate it.

Reinforcement learning from random weights never discovers the format of a game's answers. Imitation of random play
teaches the format within seconds, and nothing about good play. The warm-up is a scenario with the experience
`recorded` and the learner `sft`.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

from marl.core.errors import UserNotice
from marl.core.graph import Trajectory
from marl.core.seeds import hash_to_seed
from marl.core.types import Deal, Ticket
from marl.engines.scripted import Random
from marl.protocols import ImitationWarmUp
from marl.rollout.base import WAIT_S
from marl.scenario.schema import Scenario
from marl.training.placement import simulator_from_engines

_VOCABULARY_EPISODES = 256
"""Number of random episodes whose texts give a tiny model its vocabulary of words."""
_FIRST_REPORT_S = 5.0
"""Time after which random play reports its progress, in seconds. Each later report comes after twice the time."""


def random_play(
    scenario: Scenario, episodes_per_game: int, seed: int, other_seatings: Sequence[Mapping[str, str]] = ()
) -> list[Trajectory]:
    """Return `episodes_per_game` episodes of each game of the scenario, in which roles play uniformly random legal
    moves.

    Episodes have the scenario's seats and, in a scenario with one game, in turn those of `other_seatings` (agent ->
    role). Rule-based roles, such as verifiers, keep their own engines. The episodes of the games alternate.
    """
    players = dict.fromkeys(scenario.policies, Random().build(None))
    simulator = simulator_from_engines(scenario, players | scenario.build_rule_based_engines(), seed)
    seats = {game: view.seats for game, view in scenario.scenario_by_game().items()}
    deals: list[Deal] = []
    for number in range(episodes_per_game):
        name = f"random.{number}"
        for game, game_seats in seats.items():
            seating = (game_seats, *other_seatings)[number % (1 + len(other_seatings))]
            episode = f"{name}.{game}" if game else name
            deals.append(Deal(episode, name, hash_to_seed(seed, name), seating, game=game))
    tickets = simulator.start(deals)
    finished: dict[Ticket, Trajectory | None] = {}
    began, report_after_s = time.monotonic(), _FIRST_REPORT_S
    try:
        while len(finished) < len(tickets):
            finished.update(simulator.poll(WAIT_S))
            if (elapsed_s := time.monotonic() - began) >= report_after_s:
                report_after_s = 2 * elapsed_s
                # The warning names the open requests: otherwise a verifier that hangs would look like a slow warm-up.
                waiting = ", ".join(
                    f"{policy}: {count}" for policy, count in simulator.router.open_requests_by_policy().items()
                )
                warnings.warn(
                    f"warm-up: {len(finished)} of {len(tickets)} random episodes in {elapsed_s:.0f} s; "
                    f"open requests by policy: {waiting or 'none'}",
                    UserNotice,
                    stacklevel=2,
                )
    finally:
        simulator.cancel(tickets)
    return [trajectory for ticket in tickets if (trajectory := finished[ticket])]


@lru_cache(maxsize=1)
def _random_episodes_for_vocabulary(scenario_json: str, seed: int, seatings_json: str) -> list[Trajectory]:
    # All policies of a scenario take their vocabulary from the same episodes, so these are cached.
    scenario, seatings = Scenario.model_validate_json(scenario_json), json.loads(seatings_json)
    return random_play(scenario, _VOCABULARY_EPISODES, seed, seatings)


def random_play_texts(
    scenario: Scenario, policies: Sequence[str], seed: int, *, other_seatings: Sequence[Mapping[str, str]] = ()
) -> set[str]:
    """Return the set of all prompts and answers of `policies` in random play, with the seats of `random_play`."""
    roles = {name for name, role in scenario.roles.items() if role.policy in policies}
    texts: set[str] = set()
    episodes = _random_episodes_for_vocabulary(scenario.model_dump_json(), seed, json.dumps(other_seatings))
    for turn in chain.from_iterable(episode.turns for episode in episodes):
        if turn.role in roles:
            # Tool names and contents are joined as by the chat template of tiny models.
            lines = [" ".join(json.loads(tool)["function"]["name"] for tool in turn.request.tools)]
            lines += [message.content for message in turn.request.messages]
            texts |= {turn.completion.text, "\n".join(filter(None, lines))}
    return texts


def warm_up_scenario_data(
    scenario: Scenario,
    policies: Sequence[str],
    settings: ImitationWarmUp,
    base_model_folder: Path,
    recorded_path: Path,
    other_seatings: Sequence[Mapping[str, str]] = (),
) -> dict[str, Any]:
    """Return the data of the warm-up scenario, which has the same games and learns from the episodes in
    `recorded_path`.

    The model in `base_model_folder` becomes the first of `policies`, and learns to imitate the answers of all
    `policies`. Prompts of roles that sit only in `other_seatings` are learned in a seated role of `policies`.
    """
    data = scenario.plain_data_for_random_play()
    pupil = policies[0]
    seated: set[str] = set()
    for view in scenario.scenario_by_game().values():
        seated |= {*view.seats.values()}
    data["roles"] = {name: role for name, role in data["roles"].items() if name in seated}
    renamed: dict[str, str] = {}
    if other_seatings:
        pupil_role = next(name for name, role in data["roles"].items() if role["policy"] in policies)
        for seating in other_seatings:
            renamed |= {role: pupil_role for role in seating.values() if role not in seated}
    used_policies: set[str] = set()
    for role in data["roles"].values():
        used_policies.add(role["policy"])
        role["trainable"] = role["policy"] in policies
        if role["trainable"]:
            role["policy"] = pupil
    policy_data: dict[str, Any] = {}
    for name, policy in scenario.policies.items():
        if name in used_policies and name not in policies:
            # Rule-based policies keep their engine and all others play at random, as in `random_play`.
            engine = policy.engine.model_dump(mode="json") if policy.engine.is_rule_based else {"kind": "random"}
            policy_data[name] = {"engine": engine}
    learner = {"kind": "sft", "lr": settings.lr, "schedule": "linear", "betas": [0.9, 0.99]}
    policy_data[pupil] = {"model": {"kind": "pretrained", "path": str(base_model_folder)}, "learner": learner}
    return data | {
        "policies": policy_data,
        "credit": {"baseline": {"kind": "none"}},
        "experience": {"kind": "recorded", "path": str(recorded_path), "roles": renamed},
        "schedule": {
            "steps": settings.steps,
            "groups": settings.batch,
            "group_size": 1,
            "seed": settings.seed,
            "threads": scenario.schedule.threads,
        },
        "checkpoint": {"every": settings.steps, "trajectories": 0.0},
    }
