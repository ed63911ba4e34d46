"""Stopping game: both actions have the same return, so a correct credit rule gives both the same advantage."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from marl.games.base import FinalRewards, NextAgent, TextGame, TextGameConfig
from marl.protocols import GameStart

AGENT = "agent_0"
MOVES = ("stop", "go")


class StoppingConfig(TextGameConfig):
    """Stopping game: one agent gets a return of 1, at once for `stop`, in two parts for `go`. Illegal moves cost 1."""

    kind: str = "stopping"
    intermediate: float = Field(default=0.4, allow_inf_nan=False)
    """Immediate reward of `go`. The agent's next move, whatever it is, earns 1 - `intermediate`."""

    def build(self) -> StoppingGame:
        return StoppingGame(self)

    def all_start_states(self) -> tuple[GameStart, ...]:
        return (GameStart(1.0, {}),)


class StoppingGame(TextGame):
    """Game of one agent in one or two steps; `stop` and `go` have equal returns."""

    name = "stopping"

    def __init__(self, config: StoppingConfig) -> None:
        super().__init__((AGENT,), config.illegal, MOVES)
        self.intermediate = config.intermediate

    def start_new_game(self, rng: random.Random, options: Mapping[str, Any]) -> NextAgent:
        self.went_on = False
        return AGENT

    def start_state_key(self) -> str:
        return self.name

    def describe_observation(self, agent: str) -> str:
        return f"step {1 + self.went_on} . choose [stop] [go]"

    def information_state(self, agent: str) -> str:
        return str(1 + self.went_on)

    def apply_action(self, action: str) -> NextAgent | FinalRewards:
        if self.went_on:
            return {AGENT: 1.0 - self.intermediate}
        if action == "stop":
            return {AGENT: 1.0}
        # Both actions have a return of 1: going on pays `intermediate` now and the remainder at the next move.
        self.went_on = True
        self.add_rewards({AGENT: self.intermediate}, "intermediate")
        return AGENT
