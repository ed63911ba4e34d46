"""Nim that is sometimes cut off before its end."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

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

    def deal(self, rng: random.Random, options: Mapping[str, Any]) -> str:
        self.made = 0
        return super().deal(rng, options)

    def apply_action(self, action: str) -> str | Mapping[str, float]:
        outcome = super().apply_action(action)
        self.made += 1
        self.cut = isinstance(outcome, str) and self.made == self.most
        return {} if self.cut else outcome

    def _end(self) -> None:
        super()._end()
        if self.cut:
            self.terminations, self.truncations = self.truncations, self.terminations
