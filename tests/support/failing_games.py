"""Kuhn poker as it should not be."""

import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from marl.games.kuhn_poker import KuhnPoker, KuhnPokerConfig


class FailingKuhnConfig(KuhnPokerConfig):
    """Some hands raise at the first bet."""

    kind: str = "tests.support.failing_games:FailingKuhnConfig"
    share: float = 0.01

    def build(self) -> KuhnPoker:
        return FailingKuhn(self)


class FailingKuhn(KuhnPoker):
    def __init__(self, settings: FailingKuhnConfig) -> None:
        super().__init__(settings.illegal)
        self.share = settings.share

    def deal(self, rng: random.Random, options: Mapping[str, Any]) -> str:
        first = super().deal(rng, options)
        self.breaks = "cards" not in options and rng.random() < self.share
        return first

    def apply_action(self, action: str) -> str | Mapping[str, float]:
        if self.breaks and action == "bet":
            raise ZeroDivisionError("the pot has gone")
        return super().apply_action(action)


class Rich(KuhnPokerConfig):
    """Some hands pay all the money there is."""

    kind: str = "tests.support.failing_games:Rich"

    def build(self) -> KuhnPoker:
        return RichGame(self.illegal)


class RichGame(KuhnPoker):
    def deal(self, rng: random.Random, options: Mapping[str, Any]) -> str:
        first = super().deal(rng, options)
        self.rich = "cards" not in options and rng.random() < 0.02
        return first

    def step(self, action: str | None) -> None:
        super().step(action)
        if self.rich and self.reward_components:
            # Past `pay`, which refuses such rewards, as a game of another library can.
            self.reward_components = {
                agent: {name: paid * float("inf") for name, paid in parts.items()}
                for agent, parts in self.reward_components.items()
            }


class SlowKuhnConfig(KuhnPokerConfig):
    """Raises in a second evaluation: after as many games as the first one and five steps have."""

    kind: str = "tests.support.failing_games:SlowKuhnConfig"

    def build(self) -> KuhnPoker:
        return LateGame(self.illegal)


class LateGame(KuhnPoker):
    dealt = 0

    def deal(self, rng: random.Random, options: Mapping[str, Any]) -> str:
        LateGame.dealt += 1
        if LateGame.dealt > 40 + 5 * 32 + 20:
            raise ZeroDivisionError("the pot has gone")
        return super().deal(rng, options)


class Waiting(KuhnPokerConfig):
    """Does not go on at its `nth` deal as long as a file `halt` exists, beside which it then writes `halted`."""

    kind: str = "tests.support.failing_games:Waiting"
    folder: str
    nth: int

    def build(self) -> KuhnPoker:
        return WaitingGame(self)


class WaitingGame(KuhnPoker):
    dealt = 0

    def __init__(self, settings: Waiting) -> None:
        super().__init__(settings.illegal)
        self.folder, self.nth = Path(settings.folder), settings.nth

    def deal(self, rng: random.Random, options: Mapping[str, Any]) -> str:
        WaitingGame.dealt += 1
        while WaitingGame.dealt == self.nth and (self.folder / "halt").exists():
            (self.folder / "halted").touch()
            time.sleep(0.01)
        return super().deal(rng, options)
