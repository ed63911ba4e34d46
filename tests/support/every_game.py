"""Settings with which each kind of game can be made, and random play of PettingZoo environments."""

from __future__ import annotations

import random
from typing import Any

from marl.core.plugins import find_plugin
from marl.scenario.yaml_text import read_yaml

EXAMPLES = {
    "trl_environment": "env: tests.support.third_party_environments:GuessEnvironment",
    "verifiers_environment": "env: tests.support.third_party_environments:load_environment, settings: {name: sums}",
}
"""Kind -> settings for kinds whose example names a module outside this repository."""


def example_settings(kind: str) -> dict[str, Any]:
    """Return the settings of the kind's own example."""
    example = EXAMPLES.get(kind, find_plugin("games", kind).example)
    return read_yaml(f"{{{example}}}", "example")


def random_move(env: Any, agent: str, rng: random.Random) -> str:
    """Return a random legal move or example of a move; "1" if any text is a move and the game has no examples."""
    info = env.infos[agent]
    return rng.choice(info["legal"] or info.get("examples") or ("1",))
