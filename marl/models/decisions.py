"""Decisions as Q-networks read them: a prompt as numbers, from which all that a network sees can be made again.

A prompt is `OBSERVATION` and the ids of the agent's observation; for each earlier turn whose words it hears, `HEARD`
and the ids of those words; `MOVES` and the legal moves; `ANSWER`. The completion is one number, the move. With
`history: append`, all that came before in the episode stands in front, so that a memory is computed from the prompt
alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby, pairwise
from typing import NamedTuple

from marl.protocols import TextEncoder
from marl.types import Mark, Request, TurnId

OBSERVATION, HEARD, MOVES, ANSWER = range(4)
_SIGNS = 4
Ids = tuple[int, ...]


class DecisionInput(NamedTuple):
    """All that a network sees of one decision."""

    observation: Ids
    """Ids of the encoder."""
    heard: tuple[Ids, ...]
    """The same of each earlier turn that is heard."""
    legal: Ids
    """Places of the legal moves among all actions."""
    previous: int
    """Place of the agent's previous move in this prompt; -1 if there is none."""


class DecisionTokenizer:
    """Turns requests into prompts of numbers, and these into decisions."""

    def __init__(self, actions: Sequence[str], encoder: TextEncoder) -> None:
        self._encoder, self._places = encoder, {action: place for place, action in enumerate(actions)}
        self._first_word = _SIGNS + len(self._places)
        self.decisions = lru_cache(maxsize=32768)(self._decisions)
        """Return the decisions of a prompt, first to last."""

    def prompt(self, request: Request) -> Ids:
        """Return the prompt of a request.

        Raises:
            ValueError: if moves are not listed, or one of them is not among the actions.
        """
        if not request.options:
            raise ValueError(f"policy {request.policy!r}: a Q-network chooses from listed moves, but any text is one")
        if unknown := [move for move in request.options if move not in self._places]:
            lacking = f"model.actions lacks the legal move {unknown[0]!r}; it has {', '.join(self._places)}"
            raise ValueError(f"policy {request.policy!r}: {lacking}")
        observation, heard = split(request)
        ids = [*request.continues, OBSERVATION, *self._words(observation)]
        for text in heard:
            ids += [HEARD, *self._words(text)]
        return (*ids, MOVES, *map(self.id, request.options), ANSWER)

    def id(self, move: str) -> int:
        """Return the number that stands for a move."""
        return _SIGNS + self._places[move]

    def place(self, number: int) -> int:
        """Return the place among the actions of the move for which `number` stands."""
        return number - _SIGNS

    def _words(self, text: str) -> list[int]:
        return [self._first_word + number for number in self._encoder.ids(text)]

    def _decisions(self, prompt: Ids) -> tuple[DecisionInput, ...]:
        decisions: list[DecisionInput] = []
        previous = -1
        for part in _parts(prompt, OBSERVATION):
            middle = part.index(MOVES)
            before, moves = part[:middle], part[middle + 1 :]
            observation, *heard = (self._encoder_ids(text) for text in _parts((HEARD, *before), HEARD))
            end = moves.index(ANSWER)
            legal = tuple([self.place(number) for number in moves[:end]])
            decisions.append(DecisionInput(observation, tuple(heard), legal, previous))
            previous = self.place(moves[end + 1]) if len(moves) > end + 1 else -1
        return tuple(decisions)

    def _encoder_ids(self, words: Ids) -> Ids:
        return tuple([number - self._first_word for number in words])


def _parts(ids: Ids, sign: int) -> list[Ids]:
    """Return what follows each `sign`, with which `ids` begin."""
    bounds = [*(place for place, number in enumerate(ids) if number == sign), len(ids)]
    return [ids[begin + 1 : end] for begin, end in pairwise(bounds)]


def split(request: Request) -> tuple[str, list[str]]:
    """Return a request's text without the words of earlier turns that are heard in it, and those words by turn.

    What the game tells of earlier turns, and the agent's own, is a part of the observation. Turns stand in the order in
    which their first words do.
    """
    marks = [mark for mark in request.marks if mark.kind == "heard"]
    heard: dict[TurnId, list[str]] = {}
    for mark in marks:
        words = request.messages[mark.message].content[mark.begin : mark.end]
        heard.setdefault(mark.source, []).append(words)
    by_message = {number: list(group) for number, group in groupby(marks, lambda mark: mark.message)}
    rest = [_without(message.content, by_message.get(number, ())) for number, message in enumerate(request.messages)]
    return "\n".join(filter(None, rest)), [" ".join(words) for words in heard.values()]


def _without(text: str, marks: Sequence[Mark]) -> str:
    """Return a text without its marked parts, which may lie in one another."""
    remaining, end = "", 0
    for mark in marks:
        remaining += text[end : mark.begin]
        end = max(end, mark.end)
    return remaining + text[end:]
