"""A game, a role and a credit rule from outside."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from marl.core.types import Advantage, Credit, Message
from marl.games.base import FinalRewards, IllegalMoveHandling, NextAgent, TextGame, TextGameConfig
from marl.protocols import AssignConfig, Evidence, PromptContext, RoleConfig


class MatchingCoins(TextGameConfig):
    """Two players show a coin each; the first one wins if they match."""

    kind: str = "matching_coins"

    def build(self) -> Coins:
        return Coins(self.illegal)


class Coins(TextGame):
    """The second player does not see what the first one showed."""

    name = "matching_coins"
    zero_sum = True

    def __init__(self, illegal: IllegalMoveHandling) -> None:
        super().__init__(("even", "odd"), illegal, ("heads", "tails"))

    def start_new_game(self, rng: random.Random, options: Mapping[str, Any]) -> NextAgent:
        self.shown: list[str] = []
        return "even"

    def start_state_key(self) -> str:
        return "only"

    def describe_observation(self, agent: str) -> str:
        return "show a coin"

    def information_state(self, agent: str) -> str:
        return agent

    def apply_action(self, action: str) -> NextAgent | FinalRewards:
        self.shown.append(action)
        if len(self.shown) < 2:
            return "odd"
        gain = 1.0 if self.shown[0] == self.shown[1] else -1.0
        return {"even": gain, "odd": -gain}


class Terse(RoleConfig):
    """Says the move and nothing else."""

    kind: str = "terse"

    def messages(self, context: PromptContext) -> tuple[Message, ...]:
        return (Message("user", context.observation["text"]),)

    def parse(self, text: str, legal: tuple[str, ...] | None) -> str | None:
        return text if legal is None or text in legal else None

    def phrase(self, move: str) -> str:
        return move


class Last(AssignConfig):
    """Only an agent's last turn has earned what the agent is paid."""

    kind: str = "last"

    def __call__(self, evidence: Evidence) -> Credit:
        credit: Credit = {}
        for trajectory in evidence.trajectories:
            last = {turn.agent: turn.id for turn in trajectory.turns}
            for turn in trajectory.turns:
                paid = trajectory.returns.get(turn.agent, 0.0) if last[turn.agent] == turn.id else 0.0
                credit[turn.id] = Advantage(paid)
        return credit
