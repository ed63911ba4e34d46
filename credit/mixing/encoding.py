"""Rounds -> tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from credit.mixing.record import Kind, Layout, Record
from credit.mixing.texts import hashed, said, situation

if TYPE_CHECKING:
    from credit.mixing.rounds import Round
    from marl.types import Reading, Turn, TurnId

LOUD = 5.0
"""Length of a text's vector among what describes a turn; in a round's state it is 1. Measured: with 1 to 3, QMIX's
weights for some states go to 0 in up to half of the seeds and stay there (the hint game), and VDN takes several times
as many updates; with 8, QMIX ends in another local optimum of the climbing game than pymarl does in a quarter of them.
"""


class Encoder:
    """Knows who can be at the table and which kinds of turns there are; learns of new kinds as it meets them."""

    def __init__(self, layout: Layout, hidden: bool, kinds: Sequence[Kind] = ()) -> None:
        """`hidden`: describe a turn by its hidden states where there are any and its moves are not listed."""
        self.layout, self.kinds = layout, list(kinds)
        self._hidden = hidden

    def __call__(
        self, rounds: Sequence[Round], readings: Mapping[TurnId, Reading], *, options: bool = False
    ) -> tuple[Record, list[Turn]]:
        """The record of `rounds`, which stand team by team and first to last, and its turns, [N].

        Args:
            options: keep the moves that turns could have made.

        Raises:
            ValueError: if an agent or a role is new.
        """
        step = _Step(self, readings)
        for each in rounds:
            step.add(each)
        return step.record(options), step.said

    def hidden(self, turn: Turn, readings: Mapping[TurnId, Reading]) -> Tensor | None:
        """[2, H] the states that describe a turn; None if its texts do."""
        if not self._hidden or turn.request.options or turn.id not in readings:
            return None
        return readings[turn.id].hidden

    def kind(self, turn: Turn, hidden: Tensor | None) -> int:
        """The number of a turn's kind."""
        kind = Kind(turn.role, 0 if hidden is None else int(hidden.shape[1]))
        if kind not in self.kinds:
            self.kinds.append(kind)
        return self.kinds.index(kind)

    def texts(self, texts: Iterable[str]) -> Tensor:
        """[texts, D]"""
        return torch.from_numpy(np.stack([hashed(text, self.layout.dimensions) for text in texts]))

    def seat(self, turn: Turn) -> tuple[int, int]:
        """Places of a turn's agent and role."""
        seats, roles = self.layout.seats, self.layout.roles
        if turn.agent not in seats or turn.role not in roles:
            raise ValueError(
                f"turn {turn.id}: {turn.agent!r} as {turn.role!r} was not at the table before; agents: "
                f"{', '.join(seats)}; roles: {', '.join(roles)}; networks have a place for each and no more"
            )
        return seats.index(turn.agent), roles.index(turn.role)


class _Facts(NamedTuple):
    """What is known of turns, [N] each."""

    round: Tensor
    seat: Tensor
    role: Tensor
    nth: Tensor
    place: Tensor
    """In the round, in playing order."""
    kind: Tensor
    row: Tensor
    """Among the turns of its kind."""
    knew: Tensor
    """Place of the text that says what the agent knew ..."""
    did: Tensor
    """... and of what it said."""


class _Step:
    """A record under construction: lists by turn, until the tensors are made of all at once."""

    def __init__(self, encoder: Encoder, readings: Mapping[TurnId, Reading]) -> None:
        self._encoder, self._readings = encoder, readings
        self.said: list[Turn] = []
        self._rounds: list[Round] = []
        self._texts: dict[str, int] = {}
        self._hidden: dict[int, list[Tensor]] = {}
        self._facts: list[tuple[int, ...]] = []
        self._count: Counter[int] = Counter()

    def add(self, each: Round) -> None:
        for place, turn in enumerate(each.turns):
            self._turn(turn, place)
        self._rounds.append(each)

    def _turn(self, turn: Turn, place: int) -> None:
        hidden = self._encoder.hidden(turn, self._readings)
        kind = self._encoder.kind(turn, hidden)
        if hidden is not None:
            self._hidden.setdefault(kind, []).append(hidden)
        knew, did = self._text(situation(turn)), self._text(said(turn))
        row, (seat, role) = self._count[kind], self._encoder.seat(turn)
        self._facts.append((len(self._rounds), seat, role, turn.nth, place, kind, row, knew, did))
        self._count[kind] += 1
        self.said.append(turn)

    def _text(self, text: str) -> int:
        return self._texts.setdefault(text, len(self._texts))

    def record(self, options: bool) -> Record:
        listed = [[self._text(text) for text in _moves(turn)] if options else [] for turn in self.said]
        wide = max(map(len, listed))
        texts = self._encoder.texts(self._texts)
        facts = _Facts(*torch.tensor(self._facts).unbind(1))
        described = [self._described(kind, facts, texts) for kind in range(len(self._encoder.kinds))]
        turns = torch.full((len(self._rounds), len(self._encoder.layout.seats)), -1)
        turns[facts.round, facts.seat] = torch.arange(len(self.said))
        return Record(
            asked=tuple(asked for asked, _ in described),
            said=tuple(did for _, did in described),
            kind=facts.kind,
            row=facts.row,
            choices=LOUD * (texts if options else texts[:0]),
            options=torch.tensor([[*moves, *[-1] * (wide - len(moves))] for moves in listed], dtype=torch.int64),
            turns=turns,
            state=self._state(facts, texts),
            reward=torch.tensor([each.reward for each in self._rounds], dtype=torch.float64),
            more=torch.tensor([not each.last for each in self._rounds]),
        )

    def _described(self, kind: int, facts: _Facts, texts: Tensor) -> tuple[Tensor, Tensor]:
        """What turns of a kind were asked, with their place, and what they said."""
        here, hidden = facts.kind == kind, self._encoder.kinds[kind].hidden
        seats = functional.one_hot(facts.seat[here], len(self._encoder.layout.seats))
        place = torch.cat([seats, torch.stack([facts.nth[here], facts.place[here]], 1).log1p()], 1)
        if not hidden:
            return torch.cat([LOUD * texts[facts.knew[here]], place], 1), LOUD * texts[facts.did[here]]
        states = torch.stack(self._hidden[kind]) if kind in self._hidden else torch.zeros(0, 2, hidden)
        # Models differ in the scale of their states; here they do not.
        knew, did = functional.layer_norm(states, (hidden,)).unbind(1)
        return torch.cat([knew, place], 1), did

    def _state(self, facts: _Facts, texts: Tensor) -> Tensor:
        """[M, Layout.state]"""
        layout, rounds = self._encoder.layout, len(self._rounds)
        turns = facts.round.bincount()[:, None]
        knew, did = (
            torch.zeros(rounds, layout.dimensions).index_add(0, facts.round, texts[text])
            for text in (facts.knew, facts.did)
        )
        present = torch.zeros(rounds, len(layout.seats) * len(layout.roles))
        present[facts.round, facts.seat * len(layout.roles) + facts.role] = 1.0
        shape = torch.tensor([each.shape for each in self._rounds])
        return torch.cat([knew / turns, self._past(knew + did, turns), present, shape], 1)

    def _past(self, told: Tensor, turns: Tensor) -> Tensor:
        """[M, D] the mean over the team's turns in earlier rounds of the episode; 0 in its first."""
        first = [0 if each.number else place for place, each in enumerate(self._rounds)]
        start = torch.tensor(list(accumulate(first, max)))
        before = torch.cat([torch.zeros(1, told.shape[1] + 1), torch.cat([told, turns], 1)]).double().cumsum(0)
        sums = (before[:-1] - before[start]).float()
        return sums[:, :-1] / sums[:, -1:].clamp(min=1)


def _moves(turn: Turn) -> Iterable[str]:
    return (turn.request.options or {}).values()
