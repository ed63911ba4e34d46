"""Stopping game: both actions have the same return, so a fair credit rule prefers neither."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from marl.games.base import TextGame, TextGameConfig
from marl.protocols import GameStart

AGENT = "agent_0"
MOVES = ("stop", "go")


class StoppingConfig(TextGameConfig):
    """One agent gets a return of 1: at once for `stop`, in two parts for `go`. An illegal move costs 1."""

    kind: str = "stopping"
    intermediate: float = Field(default=0.4, allow_inf_nan=False)
    """Immediate reward of `go`; the agent's next move, whatever it is, pays the remaining 1 - `intermediate`."""

    def build(self) -> StoppingGame:
        return StoppingGame(self)

    def starts(self) -> tuple[GameStart, ...]:
        return (GameStart(1.0, {}),)


class StoppingGame(TextGame):
    """Game of one agent in one or two steps; `stop` and `go` have equal returns."""

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

    def information_state(self, agent: str) -> str:
        return str(1 + self.went_on)

    def apply_action(self, action: str) -> str | Mapping[str, float]:
        if self.went_on:
            return {AGENT: 1.0 - self.intermediate}
        if action == "stop":
            return {AGENT: 1.0}
        self.went_on = True
        self.add_rewards({AGENT: self.intermediate}, "intermediate")
        return AGENT
