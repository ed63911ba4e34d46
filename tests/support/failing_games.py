"""Kuhn poker as it should not be."""

import random
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from marl.games.base import FinalRewards, NextAgent
from marl.games.kuhn_poker import KuhnPoker, KuhnPokerConfig
from marl.games.tic_tac_toe import TicTacToe, TicTacToeConfig


class FailingKuhnConfig(KuhnPokerConfig):
    """Some hands raise at the first bet."""

    kind: str = "tests.support.failing_games:FailingKuhnConfig"
    share: float = 0.01
    exits: bool = False
    """They call `sys.exit` in place of raising an error."""

    def build(self) -> KuhnPoker:
        return FailingKuhn(self)


class FailingKuhn(KuhnPoker):
    def __init__(self, settings: FailingKuhnConfig) -> None:
        super().__init__(settings.illegal)
        self.share, self.exits = settings.share, settings.exits

    def start_new_game(self, rng: random.Random, options: Mapping[str, Any]) -> NextAgent:
        first = super().start_new_game(rng, options)
        self.breaks = "cards" not in options and rng.random() < self.share
        return first

    def apply_action(self, action: str) -> NextAgent | FinalRewards:
        if self.breaks and action == "bet":
            if self.exits:
                sys.exit(0)
            raise ZeroDivisionError("the pot has gone")
        return super().apply_action(action)


class FailingTicTacToeConfig(TicTacToeConfig):
    """One game in ten raises at its first move."""

    kind: str = "tests.support.failing_games:FailingTicTacToeConfig"

    def build(self) -> TicTacToe:
        return FailingTicTacToe(self)


class FailingTicTacToe(TicTacToe):
    def start_new_game(self, rng: random.Random, options: Mapping[str, Any]) -> NextAgent:
        first = super().start_new_game(rng, options)
        self.breaks = rng.random() < 0.1
        return first

    def apply_action(self, action: str) -> NextAgent | FinalRewards:
        if self.breaks:
            raise ZeroDivisionError("the board is torn")
        return super().apply_action(action)


class Rich(KuhnPokerConfig):
    """Some hands pay all the money there is."""

    kind: str = "tests.support.failing_games:Rich"

    def build(self) -> KuhnPoker:
        return RichGame(self.illegal)


class RichGame(KuhnPoker):
    def start_new_game(self, rng: random.Random, options: Mapping[str, Any]) -> NextAgent:
        first = super().start_new_game(rng, options)
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

    def start_new_game(self, rng: random.Random, options: Mapping[str, Any]) -> NextAgent:
        LateGame.dealt += 1
        if LateGame.dealt > 40 + 5 * 32 + 20:
            raise ZeroDivisionError("the pot has gone")
        return super().start_new_game(rng, options)


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

    def start_new_game(self, rng: random.Random, options: Mapping[str, Any]) -> NextAgent:
        WaitingGame.dealt += 1
        while WaitingGame.dealt == self.nth and (self.folder / "halt").exists():
            (self.folder / "halted").touch()
            time.sleep(0.01)
        return super().start_new_game(rng, options)
