"""Scenarios with two games that one tiny policy plays against itself."""

from typing import Any

from tests.support.run_processes import kuhn_scenario, tiny_model

SEATS = {"player_0": "player", "player_1": "player"}


def two_games(**more: Any) -> dict[str, Any]:
    """Kuhn poker and twice as much Nim, in runs of a few seconds."""
    whole = kuhn_scenario(
        credit={"baseline": {"kind": "role_average"}}, evaluate={"every": 3, "against": {"random": 4}}
    ) | {
        "games": {
            "kuhn": {"game": {"kind": "kuhn_poker"}, "seats": SEATS, "evaluate": {"nashconv": True}},
            "nim": {"game": {"kind": "nim", "piles": [3, 5]}, "seats": SEATS, "weight": 2},
        },
        "schedule": {"steps": 5, "groups": 6, "group_size": 2, "threads": 1},
        "checkpoint": {"every": 2},
    }
    del whole["game"], whole["seats"]
    return whole | more


def untrained_two_games(**more: Any) -> dict[str, Any]:
    """The same with a model that was not warmed up, so that it is made in no time."""
    actor = {"model": tiny_model(warm_up=None), "learner": {"kind": "grpo", "lr": 1e-3}}
    return two_games(policies={"actor": actor}, **more)
