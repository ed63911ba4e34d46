"""Rounds as tensors: the data that networks are fitted to, and that is stored of recent steps.

Shapes in docstrings: N turns, M rounds, A seats, K moves that a turn could have made, C distinct such moves, D numbers
of a hashed text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from hashlib import blake2b
from itertools import accumulate, chain, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from credit.mixing.rounds import SHAPE

if TYPE_CHECKING:
    from credit.mixing.rounds import Round
    from marl.types import Reading, Turn, TurnId

POSITION = 2
"""Numbers that say where in the episode a turn is, in addition to its seat."""
TEXT_LENGTH = 5.0
"""Length of a text's vector among the features of a turn; in a round's state it is 1. Measured: with 1 to 3, QMIX's
weights for some states go to 0 in up to half of the seeds and stay there (the hint game), and VDN takes several times
as many updates; with 8, QMIX ends in another local optimum of the climbing game than pymarl does in a quarter of them.
"""
_WORDS = re.compile(r"\w+|[^\w\s]+")
_PLACES = 4
"""Numbers that a word changes. With several, two words that meet in one place still differ in the others."""


@lru_cache(maxsize=8192)
def hashed(text: str, dimensions: int) -> np.ndarray:
    """Return a float32 vector of length 1 (0 for a text without words); do not write to it.

    The sum of a signed pattern for each word and each pair of neighbouring words, upper and lower case alike (feature
    hashing, arXiv 0902.2206). Nothing is learnt, so equal texts stay equal.
    """
    words = _WORDS.findall(text.lower())
    sums = [0.0] * dimensions
    for token in (*words, *map("\n".join, pairwise(words))):
        for place, sign in _pattern(token, dimensions):
            sums[place] += sign
    vector = np.array(sums)
    return (vector / max(np.linalg.norm(vector), 1e-9)).astype(np.float32)


@lru_cache(maxsize=65536)
def _pattern(token: str, dimensions: int) -> tuple[tuple[int, float], ...]:
    digest = blake2b(token.encode(), digest_size=4 * _PLACES).digest()
    numbers = [int.from_bytes(digest[i : i + 4], "little") for i in range(0, len(digest), 4)]
    return tuple([((number >> 1) % dimensions, 1.0 if number & 1 else -1.0) for number in numbers])


def situation(turn: Turn) -> str:
    """Return what the agent knew: its information state, or its prompt where the game names no state."""
    request = turn.request
    return request.state or "\n".join(message.content for message in request.messages)


def decision(turn: Turn) -> str:
    """Return what the agent did: the canonical text of its move where moves are listed, else its completion."""
    options = turn.request.options
    return options.get(turn.action, "") if options and turn.action else turn.completion.text


class Kind(NamedTuple):
    """Turns that the same part of a network reads."""

    role: str
    hidden: int
    """Size of the hidden states that are read of them; 0 where their texts are."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Seats and roles: fixed when the first step is seen, since they decide the sizes of networks."""

    seats: tuple[str, ...]
    roles: tuple[str, ...]
    dimensions: int
    """Of hashed texts."""

    @property
    def place(self) -> int:
        """Return how many numbers say whose turn it is."""
        return len(self.seats) + POSITION

    @property
    def state(self) -> int:
        """Return how many numbers describe a round: what is known, the past, who is present as what, its shape."""
        return 2 * self.dimensions + len(self.seats) * len(self.roles) + SHAPE

    def size(self, kind: Kind) -> int:
        """Return how many numbers describe a turn's prompt, without its place; as many describe its completion."""
        return kind.hidden or self.dimensions


_STATE_KEYS = {"prompts": "asked", "completions": "said"}
"""Fields of a record -> their names in checkpoints, where these differ."""


@dataclass(frozen=True, slots=True)
class Record:
    """The rounds of one step or of several."""

    prompts: tuple[Tensor, ...]
    """For each kind, [turns of that kind, size + place]: what they knew, and whose turn it was."""
    completions: tuple[Tensor, ...]
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
    """[M] True if the next round here is of the same team and episode."""
    cut: Tensor
    """[M] True if it is the last round of an episode that was truncated."""

    def state_dict(self) -> dict[str, Any]:
        return {_STATE_KEYS.get(f.name, f.name): getattr(self, f.name) for f in fields(self)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Return the record whose `state_dict` this is."""
        state = {"cut": torch.zeros_like(state["more"]), **state}  # records of earlier versions do not know it
        values: dict[str, Any] = {f.name: state[_STATE_KEYS.get(f.name, f.name)] for f in fields(cls)}
        values |= {name: tuple(values[name]) for name in _STATE_KEYS}
        return cls(**values)


def join(records: Sequence[Record]) -> Record:
    """Return a record of all their rounds, one after the other. Later records may know more kinds."""
    if len(records) == 1:
        return records[0]
    kinds = len(records[-1].prompts)
    turns = _starts([len(r.kind) for r in records])
    choices = _starts([len(r.choices) for r in records])
    rows = [_starts([len(r.prompts[kind]) if kind < len(r.prompts) else 0 for r in records]) for kind in range(kinds)]
    width = max(r.options.shape[1] for r in records)
    unchanged = ("kind", "choices", "state", "reward", "more", "cut")
    return Record(
        prompts=tuple(torch.cat([r.prompts[k] for r in records if k < len(r.prompts)]) for k in range(kinds)),
        completions=tuple(torch.cat([r.completions[k] for r in records if k < len(r.prompts)]) for k in range(kinds)),
        row=torch.cat([r.row + torch.tensor([row[i] for row in rows])[r.kind] for i, r in enumerate(records)]),
        options=torch.cat([_shift(_widen(r.options, width), choices[i]) for i, r in enumerate(records)]),
        turns=torch.cat([_shift(r.turns, turns[i]) for i, r in enumerate(records)]),
        **{name: torch.cat([getattr(r, name) for r in records]) for name in unchanged},
    )


def _starts(counts: Sequence[int]) -> list[int]:
    """Return how many come before each."""
    return list(accumulate(counts, initial=0))


def _shift(places: Tensor, by: int) -> Tensor:
    return torch.where(places >= 0, places + by, places)


def _widen(options: Tensor, width: int) -> Tensor:
    return functional.pad(options, (0, width - options.shape[1]), value=-1)


class _TurnFacts(NamedTuple):
    """Numbers that describe turns, [N] each."""

    round: Tensor
    seat: Tensor
    role: Tensor
    nth: Tensor
    place: Tensor
    """In the round, in playing order."""
    kind: Tensor
    row: Tensor
    """Among the turns of its kind."""
    situation: Tensor
    """Place of the text that says what the agent knew ..."""
    decision: Tensor
    """... and of what it did."""


class Encoder:
    """Makes records of rounds; knows the seats, and the kinds of turns, to which it adds new ones as it meets them."""

    def __init__(self, layout: Layout, hidden: bool, kinds: Sequence[Kind] = ()) -> None:
        """`hidden`: describe a turn by its hidden states where there are any and its moves are not listed."""
        self.layout, self.kinds = layout, list(kinds)
        self._hidden = hidden

    def __call__(
        self, rounds: Sequence[Round], readings: Mapping[TurnId, Reading], *, options: bool = False
    ) -> tuple[Record, list[Turn]]:
        """Return the record of `rounds`, which stand team by team and first to last, and its turns, [N].

        `options`: record the moves that turns could have made. Raises a ValueError if an agent or a role is new.
        """
        turns = [turn for each in rounds for turn in each.turns]
        moves = [list((turn.request.options or {}).values()) if options else [] for turn in turns]
        words = chain.from_iterable([*((situation(turn), decision(turn)) for turn in turns), *moves])
        places = {text: place for place, text in enumerate(dict.fromkeys(words))}
        texts, hidden = self.texts(places), [self._states(turn, readings) for turn in turns]
        facts = self._facts(rounds, hidden, places)
        features = [self._features(kind, facts, hidden, texts) for kind in range(len(self.kinds))]
        return Record(
            prompts=tuple(prompts for prompts, _ in features),
            completions=tuple(completions for _, completions in features),
            kind=facts.kind,
            row=facts.row,
            choices=TEXT_LENGTH * (texts if options else texts[:0]),
            options=_padded([[places[text] for text in row] for row in moves]),
            turns=self._seat_table(facts, len(rounds)),
            state=self._state(rounds, facts, texts),
            reward=torch.tensor([each.reward for each in rounds], dtype=torch.float64),
            more=torch.tensor([not each.last for each in rounds]),
            cut=torch.tensor([each.cut for each in rounds]),
        ), turns

    def texts(self, texts: Iterable[str]) -> Tensor:
        """Return [texts, D]."""
        return torch.from_numpy(np.stack([hashed(text, self.layout.dimensions) for text in texts]))

    def _states(self, turn: Turn, readings: Mapping[TurnId, Reading]) -> Tensor | None:
        """Return the hidden states [2, H] that describe a turn; None if its texts do."""
        if not self._hidden or turn.request.options or turn.id not in readings:
            return None
        return readings[turn.id].hidden

    def _facts(self, rounds: Sequence[Round], hidden: Sequence[Tensor | None], places: Mapping[str, int]) -> _TurnFacts:
        facts: list[tuple[int, ...]] = []
        states, count = iter(hidden), Counter[int]()
        for number, each in enumerate(rounds):
            for place, turn in enumerate(each.turns):
                kind, (seat, role) = self._kind(turn, next(states)), self._seat(turn)
                texts = places[situation(turn)], places[decision(turn)]
                facts.append((number, seat, role, turn.nth, place, kind, count[kind], *texts))
                count[kind] += 1
        return _TurnFacts(*torch.tensor(facts).unbind(1))

    def _kind(self, turn: Turn, hidden: Tensor | None) -> int:
        kind = Kind(turn.role, 0 if hidden is None else int(hidden.shape[1]))
        if kind not in self.kinds:
            self.kinds.append(kind)
        return self.kinds.index(kind)

    def _seat(self, turn: Turn) -> tuple[int, int]:
        """Return the places of a turn's agent and role."""
        seats, roles = self.layout.seats, self.layout.roles
        if turn.agent not in seats or turn.role not in roles:
            raise ValueError(
                f"turn {turn.id}: {turn.agent!r} as {turn.role!r} was not at the table before; agents: "
                f"{', '.join(seats)}; roles: {', '.join(roles)}; networks have a place for each and no more"
            )
        return seats.index(turn.agent), roles.index(turn.role)

    def _features(
        self, kind: int, facts: _TurnFacts, hidden: Sequence[Tensor | None], texts: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return what turns of a kind knew, with their place, and what they did."""
        mask, size = facts.kind == kind, self.kinds[kind].hidden
        seats = functional.one_hot(facts.seat[mask], len(self.layout.seats))
        place = torch.cat([seats, torch.stack([facts.nth[mask], facts.place[mask]], 1).log1p()], 1)
        if not size:
            known = TEXT_LENGTH * texts[facts.situation[mask]]
            return torch.cat([known, place], 1), TEXT_LENGTH * texts[facts.decision[mask]]
        states = [state for state, here in zip(hidden, mask.tolist(), strict=True) if here and state is not None]
        # Models differ in the scale of their states; here they do not.
        stacked = torch.stack(states) if states else torch.zeros(0, 2, size)
        known, done = functional.layer_norm(stacked, (size,)).unbind(1)
        return torch.cat([known, place], 1), done

    def _seat_table(self, facts: _TurnFacts, rounds: int) -> Tensor:
        """Return [M, A], the turn at each seat."""
        table = torch.full((rounds, len(self.layout.seats)), -1)
        table[facts.round, facts.seat] = torch.arange(len(facts.round))
        return table

    def _state(self, rounds: Sequence[Round], facts: _TurnFacts, texts: Tensor) -> Tensor:
        """Return [M, Layout.state]."""
        layout, turns = self.layout, facts.round.bincount()[:, None]
        known, done = (
            torch.zeros(len(rounds), layout.dimensions).index_add(0, facts.round, texts[text])
            for text in (facts.situation, facts.decision)
        )
        present = torch.zeros(len(rounds), len(layout.seats) * len(layout.roles))
        present[facts.round, facts.seat * len(layout.roles) + facts.role] = 1.0
        shape = torch.tensor([each.shape for each in rounds])
        return torch.cat([known / turns, _past(rounds, known + done, turns), present, shape], 1)


def _past(rounds: Sequence[Round], sums: Tensor, turns: Tensor) -> Tensor:
    """Return [M, D], the mean over the team's turns in earlier rounds of the episode; 0 in its first."""
    first = [0 if each.number else place for place, each in enumerate(rounds)]
    start = torch.tensor(list(accumulate(first, max)))
    before = torch.cat([torch.zeros(1, sums.shape[1] + 1), torch.cat([sums, turns], 1)]).double().cumsum(0)
    past = (before[:-1] - before[start]).float()
    return past[:, :-1] / past[:, -1:].clamp(min=1)


def _padded(rows: Sequence[Sequence[int]]) -> Tensor:
    """Return [rows, longest], with -1 after the end of each."""
    width = max(map(len, rows))
    return torch.tensor([[*row, *[-1] * (width - len(row))] for row in rows], dtype=torch.int64)
