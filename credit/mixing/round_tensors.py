"""Rounds as tensors: the training data of the networks, stored for recent steps.

Shapes in docstrings: N turns, M rounds, A seats, K legal moves of a turn, C distinct legal moves, D numbers of a hashed
text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from hashlib import blake2b
from itertools import accumulate, chain, compress, pairwise
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from marl.core.types import Reading, Turn, TurnId
from marl.credit.mixing.rounds import GRAPH_FEATURES, Round

POSITION = 2
"""Number of features of a turn's position in the episode, in addition to its seat."""
TEXT_LENGTH = 5.0
"""Norm of a text's vector among the features of a turn; in a round's state the norm is 1. Measured: with 1 to 3, QMIX's
weights for some states go to 0 in up to half of the seeds and stay there (the hint game), and VDN takes several times
as many updates; with 8, QMIX ends in another local optimum of the climbing game than pymarl does in a quarter of them.
"""
_WORDS = re.compile(r"\w+|[^\w\s]+")
_INDICES = 4
"""Number of indices that a word changes. With several, two words that collide at one index differ at the others."""


@lru_cache(maxsize=8192)
def hashed(text: str, dimensions: int) -> np.ndarray:
    """Return a float32 vector of norm 1 (0 for a text without words). Callers must not write to it: it is cached.

    The sum of a signed pattern for each word and each pair of neighbouring words, upper and lower case alike (feature
    hashing, arXiv 0902.2206). Nothing is learnt, so equal texts always have equal vectors.
    """
    words = _WORDS.findall(text.lower())
    sums = [0.0] * dimensions
    for token in (*words, *map("\n".join, pairwise(words))):
        for index, sign in _pattern(token, dimensions):
            sums[index] += sign
    vector = np.array(sums)
    return (vector / max(np.linalg.norm(vector), 1e-9)).astype(np.float32)


@lru_cache(maxsize=65536)
def _pattern(token: str, dimensions: int) -> tuple[tuple[int, float], ...]:
    digest = blake2b(token.encode(), digest_size=4 * _INDICES).digest()
    numbers = [int.from_bytes(digest[i : i + 4], "little") for i in range(0, len(digest), 4)]
    return tuple([((number >> 1) % dimensions, 1.0 if number & 1 else -1.0) for number in numbers])


def observation_text(turn: Turn) -> str:
    """Return the agent's observation: its information state, or its prompt if the game names no state."""
    request = turn.request
    return request.state or "\n".join(message.content for message in request.messages)


def action_text(turn: Turn) -> str:
    """Return the agent's action: the canonical text of its move if moves are listed, else its completion."""
    options = turn.request.options
    return options.get(turn.action, "") if options and turn.action else turn.completion.text


class TurnKind(NamedTuple):
    """Kind of turns that share the input layers of a network."""

    role: str
    hidden: int
    """Size of their hidden states; 0 if hashed texts are their features."""


@dataclass(frozen=True, slots=True)
class FeatureLayout:
    """Seats and roles, fixed by the first step, since they decide the sizes of networks."""

    seats: tuple[str, ...]
    roles: tuple[str, ...]
    dimensions: int
    """Number of features of a hashed text."""

    @property
    def position_size(self) -> int:
        """Number of features of a turn's seat and position."""
        return len(self.seats) + POSITION

    @property
    def state_size(self) -> int:
        """Number of features of a round: observations, earlier turns, present agents with their roles, and the
        graph."""
        return 2 * self.dimensions + len(self.seats) * len(self.roles) + GRAPH_FEATURES

    def size(self, kind: TurnKind) -> int:
        """Return the number of features of a turn's prompt without its position, which is also that of its
        completion."""
        return kind.hidden or self.dimensions


_STATE_KEYS = {"prompts": "asked", "completions": "said"}
"""Fields of a record -> their keys in checkpoints, where these differ."""


@dataclass(frozen=True, slots=True)
class RoundTensors:
    """The rounds of one step or of several."""

    prompts: tuple[Tensor, ...]
    """For each kind, [turns of that kind, size + position]: features of the prompt, and of seat and position."""
    completions: tuple[Tensor, ...]
    """For each kind, [turns of that kind, size]: features of the completion."""
    kind: Tensor
    """[N] index of each turn's kind."""
    row: Tensor
    """[N] row of each turn in the tensors of its kind."""
    choices: Tensor
    """[C, D] features of legal moves."""
    options: Tensor
    """[N, K] rows in `choices` of each turn's legal moves; -1 pads turns with fewer than K moves."""
    turns: Tensor
    """[M, A] index of the turn at each seat; -1 where there was no turn."""
    state: Tensor
    """[M, FeatureLayout.state_size] features of a round that do not depend on the seat."""
    reward: Tensor
    """[M] the team's reward in each round, in float64."""
    more: Tensor
    """[M] True if the next row is a round of the same team and episode."""
    cut: Tensor
    """[M] True for the last round of a truncated episode."""

    def state_dict(self) -> dict[str, Any]:
        return {_STATE_KEYS.get(f.name, f.name): getattr(self, f.name) for f in fields(self)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Return the record with the given `state_dict`."""
        values: dict[str, Any] = {f.name: state[_STATE_KEYS.get(f.name, f.name)] for f in fields(cls)}
        values |= {name: tuple(values[name]) for name in _STATE_KEYS}
        return cls(**values)


def join(records: Sequence[RoundTensors]) -> RoundTensors:
    """Return one record of the rounds of all records, concatenated. Later records may have more kinds of turns."""
    if len(records) == 1:
        return records[0]
    kinds = len(records[-1].prompts)
    width = max(record.options.shape[1] for record in records)
    prompts: list[list[Tensor]] = [[] for _ in range(kinds)]
    completions: list[list[Tensor]] = [[] for _ in range(kinds)]
    columns: dict[str, list[Tensor]] = {"row": [], "options": [], "turns": []}
    # Indices of a record are shifted by the number of rows from the records before it.
    first_turn = first_choice = 0
    first_rows = [0] * kinds
    for record in records:
        columns["row"].append(record.row + torch.tensor(first_rows)[record.kind])
        options = functional.pad(record.options, (0, width - record.options.shape[1]), value=-1)
        columns["options"].append(_shift(options, first_choice))
        columns["turns"].append(_shift(record.turns, first_turn))
        for kind, (kind_prompts, kind_completions) in enumerate(zip(record.prompts, record.completions, strict=True)):
            prompts[kind].append(kind_prompts)
            completions[kind].append(kind_completions)
            first_rows[kind] += len(kind_prompts)
        first_turn += len(record.kind)
        first_choice += len(record.choices)
    for name in ("kind", "choices", "state", "reward", "more", "cut"):
        columns[name] = [getattr(record, name) for record in records]
    joined = {name: torch.cat(tensors) for name, tensors in columns.items()}
    return RoundTensors(
        prompts=tuple(map(torch.cat, prompts)), completions=tuple(map(torch.cat, completions)), **joined
    )


def _shift(indices: Tensor, by: int) -> Tensor:
    """Return `indices` increased by `by`, except the padding -1."""
    return torch.where(indices >= 0, indices + by, indices)


class _TurnFacts(NamedTuple):
    """Columns of facts on turns, [N] each."""

    round: Tensor
    seat: Tensor
    role: Tensor
    nth: Tensor
    order: Tensor
    """Index in the round, in playing order."""
    kind: Tensor
    row: Tensor
    """Index among the turns of the kind."""
    situation: Tensor
    """Index of the observation's text."""
    decision: Tensor
    """Index of the action's text."""


class Encoder:
    """Encodes rounds as tensors, and collects the kinds of turns that occur."""

    def __init__(self, layout: FeatureLayout, hidden: bool, kinds: Sequence[TurnKind] = ()) -> None:
        """`hidden`: use the hidden states of a turn as features if there are any and its moves are not listed."""
        self.layout, self.kinds = layout, list(kinds)
        self._hidden = hidden

    def __call__(
        self, rounds: Sequence[Round], readings: Mapping[TurnId, Reading], *, options: bool = False
    ) -> tuple[RoundTensors, list[Turn]]:
        """Return the record of `rounds`, sorted by team and then by time, and its turns, [N].

        `options`: record the legal moves of turns.

        Raises:
            ValueError: if an agent or a role is new.
        """
        turns = list(chain.from_iterable(round_.turns for round_ in rounds))
        moves = [list((turn.request.options or {}).values()) if options else [] for turn in turns]
        index_of: dict[str, int] = {}
        for turn in turns:
            for text in (observation_text(turn), action_text(turn)):
                index_of.setdefault(text, len(index_of))
        for text in chain.from_iterable(moves):
            index_of.setdefault(text, len(index_of))
        texts, hidden = self.texts(index_of), [self._states(turn, readings) for turn in turns]
        facts = self._facts(rounds, hidden, index_of)
        features = [self._features(kind, facts, hidden, texts) for kind in range(len(self.kinds))]
        return RoundTensors(
            prompts=tuple(prompts for prompts, _ in features),
            completions=tuple(completions for _, completions in features),
            kind=facts.kind,
            row=facts.row,
            choices=TEXT_LENGTH * (texts if options else texts[:0]),
            options=_padded([[index_of[text] for text in row] for row in moves]),
            turns=self._seat_table(facts, len(rounds)),
            state=self._state(rounds, facts, texts),
            reward=torch.tensor([round_.reward for round_ in rounds], dtype=torch.float64),
            more=torch.tensor([not round_.last for round_ in rounds]),
            cut=torch.tensor([round_.truncated for round_ in rounds]),
        ), turns

    def texts(self, texts: Iterable[str]) -> Tensor:
        """Return the features of `texts`, [texts, D]."""
        return torch.from_numpy(np.stack([hashed(text, self.layout.dimensions) for text in texts]))

    def _states(self, turn: Turn, readings: Mapping[TurnId, Reading]) -> Tensor | None:
        """Return the hidden states [2, H] of a turn, or None if its texts are its features."""
        if not self._hidden or turn.request.options or turn.id not in readings:
            return None
        return readings[turn.id].hidden

    def _facts(
        self, rounds: Sequence[Round], hidden: Sequence[Tensor | None], index_of: Mapping[str, int]
    ) -> _TurnFacts:
        facts: list[tuple[int, ...]] = []
        states, count = iter(hidden), Counter[int]()
        for number, round_ in enumerate(rounds):
            for order, turn in enumerate(round_.turns):
                kind, (seat, role) = self._kind(turn, next(states)), self._seat(turn)
                texts = index_of[observation_text(turn)], index_of[action_text(turn)]
                facts.append((number, seat, role, turn.nth, order, kind, count[kind], *texts))
                count[kind] += 1
        return _TurnFacts(*torch.tensor(facts).unbind(1))

    def _kind(self, turn: Turn, hidden: Tensor | None) -> int:
        kind = TurnKind(turn.role, 0 if hidden is None else int(hidden.shape[1]))
        if kind not in self.kinds:
            self.kinds.append(kind)
        return self.kinds.index(kind)

    def _seat(self, turn: Turn) -> tuple[int, int]:
        """Return the indices of a turn's agent and role."""
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
        """Return the features of a kind's prompts (with seat and position) and of its completions."""
        mask, size = facts.kind == kind, self.kinds[kind].hidden
        seats = functional.one_hot(facts.seat[mask], len(self.layout.seats))
        position = torch.cat([seats, torch.stack([facts.nth[mask], facts.order[mask]], 1).log1p()], 1)
        if not size:
            observed = TEXT_LENGTH * texts[facts.situation[mask]]
            return torch.cat([observed, position], 1), TEXT_LENGTH * texts[facts.decision[mask]]
        states = [state for state in compress(hidden, mask.tolist()) if state is not None]
        # Models differ in the scale of their hidden states; the normalisation removes that.
        stacked = torch.stack(states) if states else torch.zeros(0, 2, size)
        observed, done = functional.layer_norm(stacked, (size,)).unbind(1)
        return torch.cat([observed, position], 1), done

    def _seat_table(self, facts: _TurnFacts, rounds: int) -> Tensor:
        """Return the index of the turn at each seat, [M, A]."""
        table = torch.full((rounds, len(self.layout.seats)), -1)
        table[facts.round, facts.seat] = torch.arange(len(facts.round))
        return table

    def _state(self, rounds: Sequence[Round], facts: _TurnFacts, texts: Tensor) -> Tensor:
        """Return the features of the rounds, [M, FeatureLayout.state_size]."""
        layout, turns = self.layout, facts.round.bincount()[:, None]
        zeros = torch.zeros(len(rounds), layout.dimensions)
        observed = zeros.index_add(0, facts.round, texts[facts.situation])
        done = zeros.index_add(0, facts.round, texts[facts.decision])
        present = torch.zeros(len(rounds), len(layout.seats) * len(layout.roles))
        present[facts.round, facts.seat * len(layout.roles) + facts.role] = 1.0
        graph = torch.tensor([round_.graph_features for round_ in rounds])
        return torch.cat([observed / turns, _past(rounds, observed + done, turns), present, graph], 1)


def _past(rounds: Sequence[Round], sums: Tensor, turns: Tensor) -> Tensor:
    """Return the mean over the team's turns in earlier rounds of the episode, [M, D]; 0 in its first round."""
    first = [0 if round_.number else index for index, round_ in enumerate(rounds)]
    start = torch.tensor(list(accumulate(first, max)))
    before = torch.cat([torch.zeros(1, sums.shape[1] + 1), torch.cat([sums, turns], 1)]).double().cumsum(0)
    past = (before[:-1] - before[start]).float()
    return past[:, :-1] / past[:, -1:].clamp(min=1)


def _padded(rows: Sequence[Sequence[int]]) -> Tensor:
    """Return the rows as one tensor [rows, longest row], padded with -1."""
    width = max(map(len, rows))
    return torch.tensor([[*row, *[-1] * (width - len(row))] for row in rows], dtype=torch.int64)
