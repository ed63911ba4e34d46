"""Stop or go on, for the same return: shows whether a credit rule pays for going on as such."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from games.base import TextGame, TextGameConfig
from marl.protocols import Start

AGENT = "agent_0"
MOVES = ("stop", "go")


class StoppingConfig(TextGameConfig):
    """One agent, which may `stop` for 1 or `go` for the same in two parts. An illegal move ends it at a cost of 1."""

    kind: str = "stopping"
    intermediate: float = Field(default=0.4, allow_inf_nan=False)
    """What `go` pays at once; the rest, 1 - `intermediate`, is paid for any move after it."""

    def build(self) -> Stopping:
        return Stopping(self)

    def starts(self) -> tuple[Start, ...]:
        return (Start(1.0, {}),)


class Stopping(TextGame):
    """`stop` and `go` have the same value, so that no move is better than another."""

    name = "stopping"

    def __init__(self, config: StoppingConfig) -> None:
        super().__init__((AGENT,), config.illegal, MOVES)
        self.intermediate = config.intermediate

    def deal(self, rng: random.Random, options: Mapping[str, Any]) -> str:
        self.gone = False
        return AGENT

    def start_key(self) -> str:
        return self.name

    def describe(self, agent: str) -> str:
        return f"step {1 + self.gone} . choose [stop] [go]"

    def state_of(self, agent: str) -> str:
        return str(1 + self.gone)

    def move(self, action: str) -> str | Mapping[str, float]:
        if self.gone:
            return {AGENT: 1.0 - self.intermediate}
        if action == "stop":
            return {AGENT: 1.0}
        self.gone = True
        self.pay({AGENT: self.intermediate}, "intermediate")
        return AGENT
