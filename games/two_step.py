"""QMIX's two-step game (arXiv 1803.11485, section 5): what must be chosen first to reach the better second step."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from games.base import TextGameConfig
from games.simultaneous import Simultaneous, named
from marl.protocols import Start

MOVES = ("a", "b")
PAYS = {"2A": ((7.0, 7.0), (7.0, 7.0)), "2B": ((0.0, 1.0), (1.0, 8.0))}
"""State of the second step -> what `agent_0`'s (row) and `agent_1`'s (column) moves pay."""


class TwoStepConfig(TextGameConfig):
    """QMIX's two-step game. An illegal move ends it at a cost of 1."""

    kind: str = "two_step"

    def build(self) -> TwoStep:
        return TwoStep(self)

    def starts(self) -> tuple[Start, ...]:
        return (Start(1.0, {}),)


class TwoStep(Simultaneous):
    """In state 1, `agent_0` decides: `a` leads to 2A, `b` to 2B. Both see the state; only the second step pays."""

    name = "two_step"

    def __init__(self, config: TwoStepConfig) -> None:
        agents = named(2)
        super().__init__(agents, config.illegal, dict.fromkeys(agents, MOVES))

    def deal(self, rng: random.Random, options: Mapping[str, Any]) -> str:
        self.state_name = "1"
        return super().deal(rng, options)

    def situation(self) -> str:
        return f"state {self.state_name}"

    def settle(self, joint: tuple[str, ...]) -> float | None:
        if self.state_name == "1":
            self.state_name = "2A" if joint[0] == "a" else "2B"
            return None
        return PAYS[self.state_name][MOVES.index(joint[0])][MOVES.index(joint[1])]
