"""Teams whose members all move at once, hear nobody and are all paid alike."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, ClassVar

from games.base import IllegalMove, TextGame


def named(agents: int) -> tuple[str, ...]:
    """`agent_0`, `agent_1`, ..."""
    return tuple(f"agent_{place}" for place in range(agents))


class Simultaneous(TextGame):
    """One or more rounds; in each, all move at once. Subclasses write `settle`, `menu` and what there is to see.

    An agent hears its own turns only, so that no one's move depends on another's of the same round.
    """

    common: ClassVar[bool] = True

    def __init__(self, agents: tuple[str, ...], illegal: IllegalMove, menus: Mapping[str, tuple[str, ...]]) -> None:
        """`menus`: agent -> its moves, in every round."""
        super().__init__(agents, illegal, tuple(dict.fromkeys(move for menu in menus.values() for move in menu)))
        self.menus = menus

    def settle(self, joint: tuple[str, ...]) -> float | None:
        """What the joint move, one for each agent in seat order, pays everybody at the end; None: another round."""
        raise NotImplementedError

    def situation(self) -> str:
        """What all can see, in words; "" if that is nothing."""
        return ""

    def deal(self, rng: random.Random, options: Mapping[str, Any]) -> str:
        self.joint: tuple[str, ...] = ()
        """The moves of this round so far."""
        return self.seats[0]

    def start_key(self) -> str:
        return self.name

    def legal(self) -> tuple[str, ...]:
        return self.menus[self.agent_selection]

    def hears(self, agent: str) -> tuple[str, ...]:
        return (agent,)

    def together(self, agent: str) -> tuple[str, ...]:
        return self.seats[self.seats.index(agent) :]

    def describe(self, agent: str) -> str:
        menu = " ".join(f"[{move}]" for move in self.menus[agent])
        return " . ".join(filter(None, (agent, self.situation(), f"choose {menu}")))

    def state_of(self, agent: str) -> str:
        return " ".join(filter(None, (agent, self.situation())))

    def move(self, action: str) -> str | Mapping[str, float]:
        joint = (*self.joint, action)
        if len(joint) < len(self.seats):
            self.joint = joint
            return self.seats[len(joint)]
        paid = self.settle(joint)
        self.joint = ()
        return self.seats[0] if paid is None else dict.fromkeys(self.seats, paid)
