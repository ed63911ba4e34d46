"""Prompts of Q-networks: sequences of numbers from which the inputs of a network can be decoded.

A prompt is `OBSERVATION` and the ids of the agent's observation; `HEARD` and the ids of the words for each earlier
turn that the agent reads; `MOVES` and the legal moves; `ANSWER`. The completion is one number, the move. With
`history: append`, the agent's earlier decisions of the episode come first, so that the network's memory is computed
from the prompt alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from marl.core.types import Request, TurnId
from marl.protocols import TextEncoder

OBSERVATION, HEARD, MOVES, ANSWER = range(4)
_SIGNS = 4
Ids = tuple[int, ...]


class DecisionInput(NamedTuple):
    """Input of a Q-network for one decision."""

    observation: Ids
    """The encoder's ids of the observation."""
    heard: tuple[Ids, ...]
    """The encoder's ids of each earlier turn that the agent reads."""
    legal: Ids
    """Indices of the legal moves among all actions."""
    previous: int
    """Index of the agent's previous move in this prompt, or -1 for the first decision."""


class DecisionTokenizer:
    """Encoder of requests as prompts of numbers, and decoder of these prompts into decisions."""

    def __init__(self, actions: Sequence[str], encoder: TextEncoder) -> None:
        self._encoder, self._indices = encoder, {action: index for index, action in enumerate(actions)}
        self._first_word = _SIGNS + len(self._indices)
        self.decisions = lru_cache(maxsize=32768)(self._decode)
        """Cached function: prompt -> its decisions in order."""

    def prompt(self, request: Request) -> Ids:
        """Return the prompt of `request`.

        Raises:
            ValueError: if the request lists no moves, or if a move is not among the actions.
        """
        if not request.options:
            raise ValueError(f"policy {request.policy!r}: a Q-network chooses from listed moves, but any text is one")
        for move in request.options:
            if move not in self._indices:
                lacking = f"model.actions lacks the legal move {move!r}; it has {', '.join(self._indices)}"
                raise ValueError(f"policy {request.policy!r}: {lacking}")
        observation, heard = split_heard(request)
        ids = [*request.continues, OBSERVATION, *self._words(observation)]
        for text in heard:
            ids += [HEARD, *self._words(text)]
        return (*ids, MOVES, *map(self.action_token, request.options), ANSWER)

    def action_token(self, move: str) -> int:
        """Return the number of `move` in prompts and completions."""
        return _SIGNS + self._indices[move]

    def action_index(self, token: int) -> int:
        """Return the index of a move among the actions, given its number `token` in a prompt."""
        return token - _SIGNS

    def _words(self, text: str) -> list[int]:
        return [self._first_word + number for number in self._encoder.ids(text)]

    def _decode(self, prompt: Ids) -> tuple[DecisionInput, ...]:
        decisions: list[DecisionInput] = []
        previous = -1
        for decision in _split_at(prompt, OBSERVATION):
            middle = decision.index(MOVES)
            before, moves = decision[:middle], decision[middle + 1 :]
            texts: list[Ids] = []
            for words in _split_at((HEARD, *before), HEARD):
                texts.append(tuple([number - self._first_word for number in words]))
            end = moves.index(ANSWER)
            legal = tuple([self.action_index(token) for token in moves[:end]])
            decisions.append(DecisionInput(texts[0], tuple(texts[1:]), legal, previous))
            # Only the last decision of a prompt has no answer yet.
            previous = self.action_index(moves[end + 1]) if len(moves) > end + 1 else -1
        return tuple(decisions)


def _split_at(ids: Ids, sign: int) -> list[Ids]:
    """Return the segment after each `sign` in `ids`, which begins with a `sign`."""
    bounds = [index for index, number in enumerate(ids) if number == sign]
    return [ids[begin + 1 : end] for begin, end in pairwise([*bounds, len(ids)])]


def split_heard(request: Request) -> tuple[str, list[str]]:
    """Return the observation, which is the request's text without words of heard turns, and these words by turn.

    Text of the game about earlier turns, and the agent's own words, belong to the observation. The turns are in the
    order of their first words.
    """
    contents = [message.content for message in request.messages]
    heard: dict[TurnId, list[str]] = {}
    remaining, ends = [""] * len(contents), [0] * len(contents)
    for mark in request.marks:
        if mark.kind != "heard":
            continue
        content, end = contents[mark.message], ends[mark.message]
        heard.setdefault(mark.source, []).append(content[mark.begin : mark.end])
        remaining[mark.message] += content[end : mark.begin]
        # Marks may be nested: the end of an inner mark lies before the end of the outer one.
        ends[mark.message] = max(end, mark.end)
    texts = [text + content[end:] for text, content, end in zip(remaining, contents, ends, strict=True)]
    return "\n".join(filter(None, texts)), [" ".join(words) for words in heard.values()]
