"""Limit of thoughts: after so many tokens within `<think>`, its end is written for the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from marl.models.chat_template import ChatTokenizer
from marl.types import Request

_BEGIN, _END = ("<think>",), ("</think>",)


class ThoughtLimit:
    """Follows the tokens of one completion, and says which comes next where it is not to be sampled."""

    def __init__(self, chat: ChatTokenizer, tokens: int, end: Sequence[int]) -> None:
        """`tokens`: most tokens of all thoughts in the completion; `end`: the tokens that end a thought."""
        self._chat, self._left, self._end = chat, tokens, end
        self._within, self._since = bool(chat.opening), 0
        self._pending: list[int] = []
        self.imposed: list[int] = []
        """Positions of tokens that were not sampled."""
        self._impose()

    @classmethod
    def of(cls, request: Request, chat: ChatTokenizer) -> Self | None:
        """Return the limit of a request's completion; None if it has none.

        Raises:
            ValueError: if the vocabulary cannot spell the end of a thought.
        """
        tokens = request.sampling.thinking_tokens
        if tokens is None:
            return None
        end = chat.ids(_END[0])
        if chat.text(end).strip() != _END[0]:
            raise ValueError(
                f"policy {request.policy!r}: sampling.thinking_tokens: the vocabulary of its model cannot spell "
                f"{_END[0]}, which ends a thought"
            )
        return cls(chat, tokens, end)

    @property
    def next_token(self) -> int | None:
        """Return the token that comes next; None if it is to be sampled."""
        return self._pending[0] if self._pending else None

    def follow(self, ids: Sequence[int]) -> None:
        """Take note of a completion's tokens, of which the last is new."""
        if self._pending:
            self.imposed.append(len(ids) - 1)
            del self._pending[0]
            self._within = bool(self._pending)
            self._since = len(ids)
            return
        self._left -= self._within
        if self._chat.reaches_stop(_END if self._within else _BEGIN, ids[self._since :]):
            self._within, self._since = not self._within, len(ids)
        self._impose()

    def _impose(self) -> None:
        if self._within and self._left <= 0:
            self._pending = list(self._end)
