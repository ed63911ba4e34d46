"""Rounds as tensors: what networks are fitted on, and what is kept of recent steps.

Shapes in docstrings: N turns, M rounds, A seats, K moves that a turn could have made, C distinct such moves, D numbers
of a hashed text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.nn import functional

from credit.mixing.rounds import SHAPE

POSITION = 2
"""Numbers that say where in the episode a turn is, beside its seat."""


class Kind(NamedTuple):
    """Turns that the same part of a network understands."""

    role: str
    hidden: int
    """Size of the hidden states that are read of them; 0 where their texts are."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Who can be at the table: fixed when the first step is seen, since it decides the sizes of networks."""

    seats: tuple[str, ...]
    roles: tuple[str, ...]
    dimensions: int
    """Of hashed texts."""

    @property
    def place(self) -> int:
        """How many numbers say whose turn it is."""
        return len(self.seats) + POSITION

    @property
    def state(self) -> int:
        """How many numbers describe a round: what its agents knew, what the team had known and said before, who is in
        it as what, its shape in the graph."""
        return 2 * self.dimensions + len(self.seats) * len(self.roles) + SHAPE

    def size(self, kind: Kind) -> int:
        """Numbers that describe what a turn was asked, without its place, and as many what it said."""
        return kind.hidden or self.dimensions


@dataclass(frozen=True, slots=True)
class Record:
    """The rounds of one step or of several."""

    asked: tuple[Tensor, ...]
    """For each kind, [turns of that kind, size + place]: what they knew, and whose turn it was."""
    said: tuple[Tensor, ...]
    """For each kind, [turns of that kind, size]: what they did."""
    kind: Tensor
    """[N] each turn's kind ..."""
    row: Tensor
    """[N] ... and its row there."""
    choices: Tensor
    """[C, D] moves."""
    options: Tensor
    """[N, K] rows of `choices`: the moves that each turn could have made; -1 where there are fewer than K."""
    turns: Tensor
    """[M, A] the turn at each seat; -1 where there was none."""
    state: Tensor
    """[M, Layout.state] what is known of a round whoever is in it."""
    reward: Tensor
    """[M] in float64."""
    more: Tensor
    """[M] whether the next round here is of the same team and episode."""

    def state_dict(self) -> dict[str, Any]:
        """As plain as a checkpoint needs it."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Self:
        """What `state_dict` gave."""
        values = dict(state)
        return cls(asked=tuple(values.pop("asked")), said=tuple(values.pop("said")), **values)


def join(records: Sequence[Record]) -> Record:
    """All their rounds, one after the other. Later records may know more kinds."""
    if len(records) == 1:
        return records[0]
    kinds = len(records[-1].asked)
    turns = _before([len(r.kind) for r in records])
    choices = _before([len(r.choices) for r in records])
    rows = [_before([len(r.asked[kind]) if kind < len(r.asked) else 0 for r in records]) for kind in range(kinds)]
    wide = max(r.options.shape[1] for r in records)
    return Record(
        asked=tuple(torch.cat([r.asked[kind] for r in records if kind < len(r.asked)]) for kind in range(kinds)),
        said=tuple(torch.cat([r.said[kind] for r in records if kind < len(r.said)]) for kind in range(kinds)),
        row=torch.cat([r.row + torch.tensor([row[i] for row in rows])[r.kind] for i, r in enumerate(records)]),
        options=torch.cat([_shifted(_widened(r.options, wide), choices[i]) for i, r in enumerate(records)]),
        turns=torch.cat([_shifted(r.turns, turns[i]) for i, r in enumerate(records)]),
        **{name: torch.cat([getattr(r, name) for r in records]) for name in _AS_THEY_ARE},
    )


_AS_THEY_ARE = ("kind", "choices", "state", "reward", "more")


def _before(counts: Sequence[int]) -> list[int]:
    """How many come before each."""
    return list(accumulate(counts, initial=0))


def _shifted(places: Tensor, by: int) -> Tensor:
    return torch.where(places >= 0, places + by, places)


def _widened(options: Tensor, wide: int) -> Tensor:
    return functional.pad(options, (0, wide - options.shape[1]), value=-1)
