"""Colonel Blotto: two players divide troops among battlefields at the same time (Borel, 1921)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Literal, Self

import numpy as np
from pydantic import Field, field_validator, model_validator

from marl.core.zero_sum import MatrixEquilibrium, nash_equilibrium
from marl.engines.scripted import Tabular
from marl.games.matrix_games import SimultaneousConfig, SimultaneousGame
from marl.games.two_player import AGENTS
from marl.protocols import EngineConfig

Division = tuple[int, ...]
"""Number of troops that a player sends to each battlefield."""
MAX_DIVISIONS = 300
"""Maximum number of moves of a player, so that the equilibrium is found within a few seconds."""


def troop_divisions(troops: int, battlefields: int) -> tuple[Division, ...]:
    """Return the divisions of `troops` among `battlefields`."""
    if battlefields == 1:
        return ((troops,),)
    divisions: list[Division] = []
    for first in range(troops + 1):
        divisions += [(first, *others) for others in troop_divisions(troops - first, battlefields - 1)]
    return tuple(divisions)


def net_battlefields_won(own: Division, other: Division) -> int:
    """Return the number of battlefields with more own troops minus the number with more troops of the other player."""
    won = sum(mine > theirs for mine, theirs in zip(own, other, strict=True))
    lost = sum(mine < theirs for mine, theirs in zip(own, other, strict=True))
    return won - lost


class ColonelBlottoConfig(SimultaneousConfig):
    """Colonel Blotto. By default an illegal move costs more than the worst regular loss."""

    kind: str = "colonel_blotto"
    troops: int | tuple[int, int] = 5
    """Number of troops of each player, or of `player_0` and of `player_1`. All troops must be sent."""
    battlefields: int = Field(default=3, ge=2, le=6)
    """Number of battlefields. A battlefield is won by the player who sends more troops to it."""
    pays: Literal["win", "battlefields"] = "win"
    """Reward: `win` pays 1 for more battlefields than the opponent, 0 for as many and -1 for fewer; `battlefields` pays
    the number of won battlefields minus the number of lost ones."""

    @field_validator("troops")
    @classmethod
    def _check_troops(cls, troops: int | tuple[int, int]) -> int | tuple[int, int]:
        if min(troops if isinstance(troops, tuple) else (troops,)) < 1:
            raise ValueError(f"{troops} is too few; choices: 1 or more for each player")
        return troops

    @model_validator(mode="after")
    def _check_number_of_moves(self) -> Self:
        for troops in self.troops_by_player:
            moves = math.comb(troops + self.battlefields - 1, self.battlefields - 1)
            if moves > MAX_DIVISIONS:
                raise ValueError(
                    f"troops: {troops} can be divided among {self.battlefields} battlefields in {moves} ways; choices: "
                    f"fewer troops or battlefields, for at most {MAX_DIVISIONS}"
                )
        return self

    @property
    def troops_by_player(self) -> tuple[int, int]:
        """Number of troops of `player_0` and of `player_1`."""
        return self.troops if isinstance(self.troops, tuple) else (self.troops, self.troops)

    @cached_property
    def divisions_by_player(self) -> tuple[tuple[Division, ...], ...]:
        """All divisions of each player's troops, in the order of the player's moves."""
        return tuple(troop_divisions(troops, self.battlefields) for troops in self.troops_by_player)

    def reward(self, own_division: Division, opponent_division: Division) -> float:
        """Return the reward of the player with `own_division`. The opponent's reward is its negative."""
        lead = net_battlefields_won(own_division, opponent_division)
        return float(lead if self.pays == "battlefields" else np.sign(lead))

    @cached_property
    def equilibrium(self) -> MatrixEquilibrium:
        """Nash equilibrium over `divisions_by_player`, by linear programming, with its value to `player_0`."""
        rows, columns = self.divisions_by_player
        payoffs: list[list[float]] = []
        for own in rows:
            payoffs.append([self.reward(own, other) for other in columns])
        return nash_equilibrium(payoffs)

    def build(self) -> ColonelBlotto:
        return ColonelBlotto(self)

    def reference_players(self) -> Mapping[str, EngineConfig]:
        """Return one player, `nash`, which draws its division of troops from the Nash equilibrium."""
        table: dict[str, dict[str, float]] = {}
        mixtures = (self.equilibrium.row, self.equilibrium.column)
        for agent, divisions, mixture in zip(AGENTS, self.divisions_by_player, mixtures, strict=True):
            moves = map(format_division, divisions)
            # The information state of a player is its name, as nothing else is known before the only move.
            table[agent] = {move: float(chance) for move, chance in zip(moves, mixture, strict=True) if chance > 0}
        return {"nash": Tabular(table=table)}


def format_division(division: Division) -> str:
    """Return a division of troops as the text of a move, such as `3 1 1`."""
    return " ".join(map(str, division))


class ColonelBlotto(SimultaneousGame):
    """Colonel Blotto with OpenSpiel's rules: equal numbers of troops leave a battlefield to nobody."""

    name = "colonel_blotto"
    agent_prefix = "player"
    common_reward = False
    zero_sum = True
    # An illegal move costs more than a loss, so that a hopeless division is no reason to break the rules.
    default_penalty = 1.5

    def __init__(self, config: ColonelBlottoConfig) -> None:
        self.config = config
        menus: list[tuple[str, ...]] = []
        for divisions in config.divisions_by_player:
            menus.append(tuple(map(format_division, divisions)))
        worst = -0.5 - config.battlefields if config.pays == "battlefields" else 0.0
        super().__init__(config.illegal, menus, worst)
        first, second = config.troops_by_player
        example = format_division((first, *[0] * (config.battlefields - 1)))
        aim = {
            "win": "Who wins more battlefields wins the game.",
            "battlefields": "You are paid the battlefields that you win minus those that you lose.",
        }[config.pays]
        self.rules = (
            f"This is Colonel Blotto for two. `player_0` has {first} troops and `player_1` has {second}. At the same "
            f"time, each divides all its troops among {config.battlefields} battlefields, and none sees the division "
            "of the other before. A battlefield is won by the player with more troops there; equal numbers leave it to "
            f"nobody. {aim} Your move is the number of troops on each battlefield in order, with spaces between: "
            f"`{example}` sends all of `player_0` to the first. You are told who you are and how many troops you have."
        )

    def describe_observation(self, agent: str) -> str:
        # The observation does not list the legal moves: they follow from the two numbers, and would fill the prompt.
        troops = self.config.troops_by_player[AGENTS.index(agent)]
        return f"{agent} . {troops} troops . {self.config.battlefields} battlefields"

    def payoff(self, joint_move: tuple[str, ...]) -> Mapping[str, float]:
        own, other = (tuple(map(int, move.split(" "))) for move in joint_move)
        reward = self.config.reward(own, other)
        return {AGENTS[0]: reward, AGENTS[1]: -reward}
