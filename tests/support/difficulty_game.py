"""A game of questions of known difficulty."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from marl.core.types import EpisodeMeasuresAndNewStarts, Request
from marl.games.base import NextAgent, TextGame, TextGameConfig


class DifficultyGameConfig(TextGameConfig):
    """One question of ten, of difficulty 0 to 9; `yes` solves it, and `next` poses a question of ten more."""

    kind: str = "drill"
    poses: bool = False

    def build(self) -> DifficultyGame:
        return DifficultyGame(self)


class DifficultyGame(TextGame):
    name = "drill"
    reset_options = ("open", "problem")

    def __init__(self, config: DifficultyGameConfig) -> None:
        super().__init__(("solver",), config.illegal, ("yes", "no"))
        self.poses = config.poses

    def start_new_game(self, rng: random.Random, options: Mapping[str, Any]) -> NextAgent:
        self.opened = options.get("open", 1.0)
        known = options.get("problem")
        self.number = int(known["key"]) if known else rng.randrange(round(10 * self.opened))
        return "solver"

    def start_state_key(self) -> str:
        return f"number {self.number}"

    def describe_observation(self, agent: str) -> str:
        return f"question {self.number}"

    def information_state(self, agent: str) -> str:
        return str(self.number)

    def apply_action(self, action: str) -> Mapping[str, float]:
        self.solved = float(action == "yes")
        return {"solver": self.solved}

    def episode_measures(self) -> EpisodeMeasuresAndNewStarts:
        other = {"problem": {"key": str(self.number + 10), "wrong": ("a", "b")}}
        return EpisodeMeasuresAndNewStarts(
            {"success": self.solved}, (other,) if self.poses and self.number < 10 else ()
        )


def answer_by_difficulty(request: Request) -> str:
    """Question n is solved with probability 1 - n / 9; those above 9 like n - 10."""
    return "[yes]" if request.seed / 2**64 < 1 - int(request.state) % 10 / 9 else "[no]"
