"""Nim that is sometimes cut off before its end."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from marl.games.base import FinalRewards, NextAgent
from marl.games.nim import Nim, NimConfig


class TruncatedNimConfig(NimConfig):
    """Ends after so many moves, whether somebody has won or not; then nobody is paid."""

    kind: str = "tests.support.truncated_games:TruncatedNimConfig"
    moves: int = 3

    def build(self) -> Nim:
        return TruncatedNim(self)


class TruncatedNim(Nim):
    def __init__(self, settings: TruncatedNimConfig) -> None:
        super().__init__(settings)
        self.most = settings.moves

    def start_new_game(self, rng: random.Random, options: Mapping[str, Any]) -> NextAgent:
        self.made = 0
        return super().start_new_game(rng, options)

    def apply_action(self, action: str) -> NextAgent | FinalRewards:
        outcome = super().apply_action(action)
        self.made += 1
        self.cut = isinstance(outcome, str) and self.made == self.most
        return {} if self.cut else outcome

    def _end_game(self) -> None:
        super()._end_game()
        if self.cut:
            self.terminations, self.truncations = self.truncations, self.terminations
