"""Rounds as tensors: the training data of the networks, stored for recent steps.

Shapes in docstrings: N turns, M rounds, A seats, K legal moves of a turn, C distinct legal moves, D numbers of a hashed
text.
"""

from __future__ import annotations

import re
import struct
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from hashlib import blake2b
from itertools import accumulate, compress, pairwise
from operator import attrgetter
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
"""Norm of a text's vector among the features of a turn; in a round's state the norm is 1.

Measured with norms 1 to 3: QMIX's weights for some states go to 0 in up to half of the seeds and stay there (the hint
game), and VDN takes several times as many updates. With norm 8, QMIX ends in another local optimum of the climbing game
than pymarl does, in a quarter of the seeds.
"""
_WORDS = re.compile(r"\w+|[^\w\s]+")
_INDICES = 4
"""Number of vector indices that a word changes. Two words that collide at one index still differ at other indices."""


@lru_cache(maxsize=8192)
def hashed_text_features(text: str, dimensions: int) -> np.ndarray:
    """Return the features of a text: a float32 vector of norm 1, or zeros for a text without words.

    The vector is the sum of a signed pattern for each word and each pair of neighbouring words, in lower case (feature
    hashing, arXiv 0902.2206). Hashing learns nothing, so equal texts always have equal vectors. Callers must not write
    to the vector, since the vector is cached.
    """
    words = _WORDS.findall(text.lower())
    sums = [0.0] * dimensions
    for token in (*words, *map("\n".join, pairwise(words))):
        for index, sign in _signed_feature_indices_of_word(token, dimensions):
            sums[index] += sign
    vector = np.array(sums)
    return (vector / max(np.linalg.norm(vector), 1e-9)).astype(np.float32)


@lru_cache(maxsize=65536)
def _signed_feature_indices_of_word(word: str, dimensions: int) -> tuple[tuple[int, float], ...]:
    """Return the vector indices that a word changes, each with the sign of the change."""
    digest = blake2b(word.encode(), digest_size=4 * _INDICES).digest()
    # Each 4-byte number of the hash gives one index; its lowest bit gives the sign.
    numbers = struct.unpack(f"<{_INDICES}I", digest)
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
    """Kind of turn: turns of one role with one size of features, which share the input layers of a network."""

    role: str
    hidden: int
    """Size of the turns' hidden states; 0 if hashed texts are the features of the turns."""


@dataclass(frozen=True, slots=True)
class FeatureLayout:
    """Agents, roles and number of text features of the first step, which determine the sizes of the networks."""

    seats: tuple[str, ...]
    """Agents that are not rule-based, in the order of their first seats."""
    roles: tuple[str, ...]
    dimensions: int
    """Number of features of a hashed text."""

    @property
    def position_feature_count(self) -> int:
        """Number of features of a turn's seat and position."""
        return len(self.seats) + POSITION

    @property
    def round_state_feature_count(self) -> int:
        """Number of features of a round's state.

        The state consists of the mean observation, the mean of earlier turns, an indicator for each pair of agent and
        role, and `Round.graph_features`.
        """
        return 2 * self.dimensions + len(self.seats) * len(self.roles) + GRAPH_FEATURES

    def completion_feature_count(self, kind: TurnKind) -> int:
        """Return the number of features of a turn's completion, and of its prompt without seat and position."""
        return kind.hidden or self.dimensions


_STATE_KEYS = {"prompts": "asked", "completions": "said"}
"""Fields of a record -> their keys in checkpoints, where these differ."""


@dataclass(frozen=True, slots=True)
class RoundTensors:
    """The rounds of one or several steps as tensors: training data of the networks."""

    prompts: tuple[Tensor, ...]
    """For each kind of turn, [turns of the kind, size + position]: features of the prompt, and of seat and position."""
    completions: tuple[Tensor, ...]
    """For each kind of turn, [turns of the kind, size]: features of the completion."""
    kind: Tensor
    """[N] index of each turn's kind in `prompts` and `completions`."""
    row: Tensor
    """[N] row of each turn in the tensors of its kind."""
    choices: Tensor
    """[C, D] features of the texts of legal moves."""
    options: Tensor
    """[N, K] rows in `choices` of each turn's legal moves; -1 pads turns with fewer than K moves."""
    turns: Tensor
    """[M, A] index of the turn at each seat of each round; -1 where the agent had no turn."""
    state: Tensor
    """[M, FeatureLayout.round_state_feature_count] features of each round that do not depend on the seat."""
    reward: Tensor
    """[M] the team's reward in each round, in float64."""
    more: Tensor
    """[M] True if the next row is a round of the same team and episode."""
    cut: Tensor
    """[M] True for the last round of a truncated episode, whose later rewards are unknown."""

    def state_dict(self) -> dict[str, Any]:
        return {_STATE_KEYS.get(f.name, f.name): getattr(self, f.name) for f in fields(self)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Return the record with the given `state_dict`."""
        values: dict[str, Any] = {}
        for f in fields(cls):
            value = state[_STATE_KEYS.get(f.name, f.name)]
            values[f.name] = tuple(value) if f.name in _STATE_KEYS else value
        return cls(**values)


def concatenate_round_tensors(records: Sequence[RoundTensors]) -> RoundTensors:
    """Return one record with the rounds of all `records`. Later records may have more kinds of turns."""
    if len(records) == 1:
        return records[0]
    kinds = len(records[-1].prompts)
    width = max(record.options.shape[1] for record in records)
    prompts: dict[int, list[Tensor]] = defaultdict(list)
    completions: dict[int, list[Tensor]] = defaultdict(list)
    columns: dict[str, list[Tensor]] = {"row": [], "options": [], "turns": []}
    # Indices of a later record are shifted, because its rows are appended to those of the earlier records.
    first_turn = first_choice = 0
    first_rows = [0] * kinds
    for record in records:
        columns["row"].append(record.row + torch.tensor(first_rows)[record.kind])
        options = functional.pad(record.options, (0, width - record.options.shape[1]), value=-1)
        columns["options"].append(_shift_indices(options, first_choice))
        columns["turns"].append(_shift_indices(record.turns, first_turn))
        for kind, (kind_prompts, kind_completions) in enumerate(zip(record.prompts, record.completions, strict=True)):
            prompts[kind].append(kind_prompts)
            completions[kind].append(kind_completions)
            first_rows[kind] += len(kind_prompts)
        first_turn += len(record.kind)
        first_choice += len(record.choices)
    for name in ("kind", "choices", "state", "reward", "more", "cut"):
        columns[name] = list(map(attrgetter(name), records))
    joined = {name: torch.cat(tensors) for name, tensors in columns.items()}
    return RoundTensors(
        prompts=tuple(map(torch.cat, prompts.values())),
        completions=tuple(map(torch.cat, completions.values())),
        **joined,
    )


def _shift_indices(indices: Tensor, offset: int) -> Tensor:
    """Return `indices` increased by `offset`, except the padding -1."""
    return torch.where(indices >= 0, indices + offset, indices)


class _TurnTableColumns(NamedTuple):
    """Columns [N] of a table of turns."""

    round: Tensor
    """Index of the turn's round among the encoded rounds."""
    seat: Tensor
    """Index of the turn's agent in `FeatureLayout.seats`."""
    role: Tensor
    """Index of the turn's role in `FeatureLayout.roles`."""
    nth: Tensor
    """Number of earlier turns of the agent in the episode."""
    order: Tensor
    """Index of the turn in its round, in playing order."""
    kind: Tensor
    """Index of the turn's kind in `RoundEncoder.kinds`."""
    row: Tensor
    """Index of the turn among the turns of its kind."""
    observation: Tensor
    """Row of the observation's text in the table of texts."""
    action: Tensor
    """Row of the action's text in the table of texts."""


class RoundEncoder:
    """Encoder of rounds as tensors. It collects the kinds of turns that occur in the run."""

    def __init__(self, layout: FeatureLayout, hidden: bool, kinds: Sequence[TurnKind] = ()) -> None:
        """`hidden`: True to use the hidden states of turns with a reading and without a list of moves as features."""
        self.layout, self.kinds = layout, list(kinds)
        self._hidden = hidden

    def __call__(
        self, rounds: Sequence[Round], readings: Mapping[TurnId, Reading], *, options: bool = False
    ) -> tuple[RoundTensors, list[Turn]]:
        """Return the record of `rounds`, sorted by team and then by time, and its turns, [N].

        `options`: True to record the legal moves of turns.

        Raises:
            ValueError: if an agent or a role is new.
        """
        turns: list[Turn] = []
        for round_ in rounds:
            turns += round_.turns
        text_rows: dict[str, int] = {}
        for turn in turns:
            for text in (observation_text(turn), action_text(turn)):
                text_rows.setdefault(text, len(text_rows))
        moves: list[list[int]] = []
        for turn in turns:
            move_texts = (turn.request.options or {}).values() if options else ()
            moves.append([text_rows.setdefault(text, len(text_rows)) for text in move_texts])
        most_moves = max(map(len, moves))
        for row in moves:
            row += [-1] * (most_moves - len(row))
        texts = self.text_features(text_rows)
        columns, hidden = self._turns_as_table_columns(rounds, readings, text_rows)
        prompts: list[Tensor] = []
        completions: list[Tensor] = []
        for kind in range(len(self.kinds)):
            kind_prompts, kind_completions = self._prompt_and_completion_features(kind, columns, hidden, texts)
            prompts.append(kind_prompts)
            completions.append(kind_completions)
        seat_table = torch.full((len(rounds), len(self.layout.seats)), -1)
        seat_table[columns.round, columns.seat] = torch.arange(len(turns))
        return RoundTensors(
            prompts=tuple(prompts),
            completions=tuple(completions),
            kind=columns.kind,
            row=columns.row,
            choices=TEXT_LENGTH * (texts if options else texts[:0]),
            options=torch.tensor(moves, dtype=torch.int64),
            turns=seat_table,
            state=self._round_state_features(rounds, columns, texts),
            reward=torch.tensor(list(map(attrgetter("reward"), rounds)), dtype=torch.float64),
            more=torch.tensor([not round_.last for round_ in rounds]),
            cut=torch.tensor(list(map(attrgetter("truncated"), rounds))),
        ), turns

    def text_features(self, texts: Iterable[str]) -> Tensor:
        """Return the features of `texts`, [texts, D]."""
        return torch.from_numpy(np.stack([hashed_text_features(text, self.layout.dimensions) for text in texts]))

    def _turns_as_table_columns(
        self, rounds: Sequence[Round], readings: Mapping[TurnId, Reading], row_by_text: Mapping[str, int]
    ) -> tuple[_TurnTableColumns, list[Tensor | None]]:
        """Return the table of all turns, and the hidden states [2, H] of each turn (None: the turn has text features).

        New kinds of turns are added to `kinds`.
        """
        table: list[tuple[int, ...]] = []
        hidden: list[Tensor | None] = []
        count = Counter[int]()
        seats, roles = self.layout.seats, self.layout.roles
        for number, round_ in enumerate(rounds):
            for order, turn in enumerate(round_.turns):
                if turn.agent not in seats or turn.role not in roles:
                    raise ValueError(
                        f"turn {turn.id}: {turn.agent!r} as {turn.role!r} was not at the table before; agents: "
                        f"{', '.join(seats)}; roles: {', '.join(roles)}; networks have a place for each and no more"
                    )
                states: Tensor | None = None
                if self._hidden and not turn.request.options and turn.id in readings:
                    states = readings[turn.id].hidden
                hidden.append(states)
                turn_kind = TurnKind(turn.role, 0 if states is None else int(states.shape[1]))
                if turn_kind not in self.kinds:
                    self.kinds.append(turn_kind)
                kind, seat, role = self.kinds.index(turn_kind), seats.index(turn.agent), roles.index(turn.role)
                texts = row_by_text[observation_text(turn)], row_by_text[action_text(turn)]
                table.append((number, seat, role, turn.nth, order, kind, count[kind], *texts))
                count[kind] += 1
        return _TurnTableColumns(*torch.tensor(table).unbind(1)), hidden

    def _prompt_and_completion_features(
        self,
        kind_index: int,
        columns: _TurnTableColumns,
        hidden_states: Sequence[Tensor | None],
        text_feature_table: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return the features of a kind's prompts (with seat and position) and of its completions."""
        mask, size = columns.kind == kind_index, self.kinds[kind_index].hidden
        seats = functional.one_hot(columns.seat[mask], len(self.layout.seats))
        position = torch.cat([seats, torch.stack([columns.nth[mask], columns.order[mask]], 1).log1p()], 1)
        if not size:
            observed = TEXT_LENGTH * text_feature_table[columns.observation[mask]]
            return torch.cat([observed, position], 1), TEXT_LENGTH * text_feature_table[columns.action[mask]]
        states = [state for state in compress(hidden_states, mask.tolist()) if state is not None]
        # Hidden states are normalised, because models differ in their scale.
        stacked = torch.stack(states) if states else torch.zeros(0, 2, size)
        observed, done = functional.layer_norm(stacked, (size,)).unbind(1)
        return torch.cat([observed, position], 1), done

    def _round_state_features(
        self, rounds: Sequence[Round], columns: _TurnTableColumns, text_feature_table: Tensor
    ) -> Tensor:
        """Return the features of the rounds, [M, FeatureLayout.round_state_feature_count]."""
        layout, turns = self.layout, columns.round.bincount()[:, None]
        zeros = torch.zeros(len(rounds), layout.dimensions)
        observed = zeros.index_add(0, columns.round, text_feature_table[columns.observation])
        done = zeros.index_add(0, columns.round, text_feature_table[columns.action])
        present = torch.zeros(len(rounds), len(layout.seats) * len(layout.roles))
        present[columns.round, columns.seat * len(layout.roles) + columns.role] = 1.0
        graph = torch.tensor(list(map(attrgetter("graph_features"), rounds)))
        # The mean over the episode's earlier rounds is computed as a difference of cumulative sums.
        first_rounds = [0 if round_.number else index for index, round_ in enumerate(rounds)]
        start = torch.tensor(list(accumulate(first_rounds, max)))
        sums = torch.cat([observed + done, turns], 1)
        before = torch.cat([torch.zeros(1, layout.dimensions + 1), sums]).double().cumsum(0)
        past = (before[:-1] - before[start]).float()
        past_mean = past[:, :-1] / past[:, -1:].clamp(min=1)
        return torch.cat([observed / turns, past_mean, present, graph], 1)
