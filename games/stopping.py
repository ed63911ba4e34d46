"""Stopping game: stopping and going on have the same return, so a fair credit rule prefers neither."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from games.base import TextGame, TextGameConfig
from marl.protocols import GameStart

AGENT = "agent_0"
MOVES = ("stop", "go")


class StoppingConfig(TextGameConfig):
    """One agent, which may `stop` for 1 or `go` for the same in two parts. An illegal move ends it at a cost of 1."""

    kind: str = "stopping"
    intermediate: float = Field(default=0.4, allow_inf_nan=False)
    """Reward of `go`, paid at once; the rest, 1 - `intermediate`, is paid for any move after it."""

    def build(self) -> Stopping:
        return Stopping(self)

    def starts(self) -> tuple[GameStart, ...]:
        return (GameStart(1.0, {}),)


class Stopping(TextGame):
    """One agent; `stop` and `go` have the same value."""

    name = "stopping"

    def __init__(self, config: StoppingConfig) -> None:
        super().__init__((AGENT,), config.illegal, MOVES)
        self.intermediate = config.intermediate

    def deal(self, rng: random.Random, options: Mapping[str, Any]) -> str:
        self.went_on = False
        return AGENT

    def start_key(self) -> str:
        return self.name

    def describe(self, agent: str) -> str:
        return f"step {1 + self.went_on} . choose [stop] [go]"

    def state_of(self, agent: str) -> str:
        return str(1 + self.went_on)

    def move(self, action: str) -> str | Mapping[str, float]:
        if self.went_on:
            return {AGENT: 1.0 - self.intermediate}
        if action == "stop":
            return {AGENT: 1.0}
        self.went_on = True
        self.pay({AGENT: self.intermediate}, "intermediate")
        return AGENT
