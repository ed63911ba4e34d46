"""Prompts of Q-networks: the inputs of a network for one or more decisions, encoded as a sequence of numbers.

A prompt consists of `OBSERVATION` and the ids of the agent's observation; then, for each earlier turn that the agent
reads, `HEARD` and the ids of its words; then `MOVES` and the legal moves; then `ANSWER`. The completion is one number,
the move. With `history: append`, the agent's earlier decisions of the episode come first, so that the network's memory
is computed from the prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from marl.core.types import Request, TurnId
from marl.protocols import TextEncoder

OBSERVATION, HEARD, MOVES, ANSWER = range(4)
_MARKERS = 4
Ids = tuple[int, ...]


class QNetworkInput(NamedTuple):
    """Input of a Q-network for one decision."""

    observation: Ids
    """Ids of the observation's text, as the text encoder gives them."""
    heard: tuple[Ids, ...]
    """Ids of the text of each earlier turn that the agent reads, as the text encoder gives them."""
    legal: Ids
    """Indices of the legal moves among all actions."""
    previous: int
    """Action index of the agent's previous move in this prompt, or -1 for the prompt's first decision."""


class DecisionTokenizer:
    """Encoder of requests as prompts of a Q-network, and decoder of these prompts into decisions."""

    def __init__(self, actions: Sequence[str], encoder: TextEncoder) -> None:
        """`actions`: all moves of the network; `encoder`: encoder of texts as ids."""
        self._encoder, self._indices = encoder, {action: index for index, action in enumerate(actions)}
        self._first_word = _MARKERS + len(self._indices)
        self.decisions = lru_cache(maxsize=32768)(self._decode_decisions)
        """Cached function: prompt -> inputs of its decisions, in order."""

    def prompt(self, request: Request) -> Ids:
        """Return the prompt of `request` as a sequence of numbers.

        Raises:
            ValueError: if the request lists no moves, or if a move is not among the network's actions.
        """
        if not request.options:
            raise ValueError(f"policy {request.policy!r}: a Q-network chooses from listed moves, but any text is one")
        for move in request.options:
            if move not in self._indices:
                lacking = f"model.actions lacks the legal move {move!r}; it has {', '.join(self._indices)}"
                raise ValueError(f"policy {request.policy!r}: {lacking}")
        observation, heard = split_observation_and_heard_texts(request)
        ids = [*request.continues, OBSERVATION, *self._encode_text(observation)]
        for text in heard:
            ids += [HEARD, *self._encode_text(text)]
        return (*ids, MOVES, *map(self.token_id_of_action, request.options), ANSWER)

    def token_id_of_action(self, move: str) -> int:
        """Return the number that encodes `move` in prompts and completions."""
        return _MARKERS + self._indices[move]

    def action_index_of_token_id(self, token_id: int) -> int:
        """Return the index, among the network's actions, of the move that the number `token_id` encodes."""
        return token_id - _MARKERS

    def _encode_text(self, text: str) -> list[int]:
        """Return the numbers that encode `text` in a prompt: the text encoder's ids, shifted past markers and moves."""
        return [self._first_word + number for number in self._encoder.encode(text)]

    def _decode_decisions(self, prompt: Ids) -> tuple[QNetworkInput, ...]:
        """Return the input of each decision in `prompt`."""
        decisions: list[QNetworkInput] = []
        previous = -1
        for decision in _split_at_marker_token(OBSERVATION, prompt):
            middle = decision.index(MOVES)
            before, moves = decision[:middle], decision[middle + 1 :]
            texts: list[Ids] = []
            for numbers in _split_at_marker_token(HEARD, (HEARD, *before)):
                texts.append(tuple([number - self._first_word for number in numbers]))
            end = moves.index(ANSWER)
            legal = tuple(map(self.action_index_of_token_id, moves[:end]))
            decisions.append(QNetworkInput(texts[0], tuple(texts[1:]), legal, previous))
            # All decisions but the last of a prompt are followed by the action that was taken.
            previous = self.action_index_of_token_id(moves[end + 1]) if len(moves) > end + 1 else -1
        return tuple(decisions)


def _split_at_marker_token(marker_id: int, token_ids: Ids) -> list[Ids]:
    """Return the segments of `token_ids` between occurrences of `marker_id`, with which `token_ids` begins."""
    bounds = [index for index, number in enumerate(token_ids) if number == marker_id]
    return [token_ids[begin + 1 : end] for begin, end in pairwise([*bounds, len(token_ids)])]


def split_observation_and_heard_texts(request: Request) -> tuple[str, list[str]]:
    """Return the observation in the prompt of `request`, and the words of each heard turn, in order of appearance.

    A heard turn is another agent's turn whose words the prompt quotes. All other text belongs to the observation: the
    game's own text and the agent's own words.
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
        # Spans of earlier turns may be nested: the end of an outer span must not be replaced by that of an inner one.
        ends[mark.message] = max(end, mark.end)
    texts = [text + content[end:] for text, content, end in zip(remaining, contents, ends, strict=True)]
    return "\n".join(filter(None, texts)), [" ".join(words) for words in heard.values()]
