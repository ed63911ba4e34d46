"""Cooperative games in the sense of Shapley: who is in is worth something together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Self

from pydantic import Field, model_validator

from games.base import TextGameConfig
from games.simultaneous import Simultaneous, named
from marl.config import nearest
from marl.protocols import Start

Worth = Callable[[frozenset[int]], float]
"""Coalition -> what it is worth; agents by number."""
IN, OUT = "in", "out"


def _voting(weights: Sequence[float], quota: float) -> Worth:
    return lambda coalition: float(sum(weights[agent] for agent in coalition) >= quota)


PRESETS: dict[str, tuple[int, Worth]] = {
    "majority": (3, _voting((1, 1, 1), 2)),
    "glove": (3, lambda coalition: float(min(len(coalition & {0}), len(coalition & {1, 2})))),
    "voting": (4, _voting((4, 3, 2, 1), 6)),
    "veto": (3, _voting((50, 49, 1), 51)),
    "dummy": (4, _voting((40, 22, 30, 9), 51)),
    "airport": (3, lambda coalition: max((agent + 1.0 for agent in coalition), default=0.0)),
    "additive": (3, lambda coalition: sum(agent + 1.0 for agent in coalition)),
}
"""Name -> (agents, worth). glove: agent_0 has a left one, the others right ones. voting: weights 4, 3, 2, 1, quota 6.
veto: 50, 49, 1, quota 51. dummy: 40, 22, 30, 9, quota 51. airport: a runway for the longest need of 1, 2, 3.
additive: 1, 2, 3."""


class CoalitionConfig(TextGameConfig):
    """A cooperative game. Give `preset`, or `weights` and `quota`, or `values`. Illegal moves cost all at least 1."""

    kind: str = "coalition"
    preset: str | None = None
    """majority, glove, voting, veto, dummy, airport, additive."""
    weights: tuple[float, ...] | None = Field(default=None, min_length=1)
    """Of each agent's vote: a coalition is worth 1 if its weights reach `quota`, else 0."""
    quota: float | None = None
    values: tuple[float, ...] | None = None
    """What each coalition is worth, all 2^n of them: number `c` holds `agent_i` if bit i of `c` is set, so that the
    first is the empty one, the second `agent_0` alone, the third `agent_1` alone, the fourth both."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        given = [name for name in ("preset", "weights", "values") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give one of preset, weights, values (got {', '.join(given) or 'none'})")
        if (self.weights is None) != (self.quota is None):
            raise ValueError(f"quota: {self.quota} with weights: {self.weights}; choices: both or neither")
        if self.preset is not None and self.preset not in PRESETS:
            raise ValueError(f"preset: no preset {self.preset!r}; {nearest(self.preset, PRESETS)}")
        many = len(self.values or (0, 0))
        if many < 2 or many & (many - 1):
            raise ValueError(f"values: {many} of them; choices: 2, 4, 8, ...: one for each coalition")
        return self

    @property
    def worth(self) -> tuple[int, Worth]:
        """How many agents there are, and what a coalition of them is worth."""
        if self.preset is not None:
            return PRESETS[self.preset]
        if self.weights is not None and self.quota is not None:
            return len(self.weights), _voting(self.weights, self.quota)
        values = self.values or ()
        return len(values).bit_length() - 1, lambda coalition: values[sum(1 << agent for agent in coalition)]

    def build(self) -> Coalition:
        return Coalition(self)

    def starts(self) -> tuple[Start, ...]:
        return (Start(1.0, {}),)


class Coalition(Simultaneous):
    """Each says `in` or `out` at once; everybody is paid what those who are in are worth."""

    name = "coalition"

    def __init__(self, config: CoalitionConfig) -> None:
        many, self.worth = config.worth
        menus: Mapping[str, tuple[str, ...]] = dict.fromkeys(named(many), (IN, OUT))
        super().__init__(tuple(menus), config.illegal, menus)
        if config.illegal.penalty is None:
            self.cost = max(self.foul, -min(config.values or (0.0,)))

    def settle(self, joint: tuple[str, ...]) -> float:
        return self.worth(frozenset(agent for agent, move in enumerate(joint) if move == IN))
