"""Budget of thoughts: after a maximum number of tokens inside `<think>`, the end tag is imposed on the completion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from marl.core.types import Request
from marl.models.chat_template import ChatTokenizer

_BEGIN, _END = ("<think>",), ("</think>",)


class ThinkingBudget:
    """Tracks the thoughts of one completion and imposes the tokens of their end once the budget is used up."""

    def __init__(self, chat: ChatTokenizer, tokens: int, end: Sequence[int]) -> None:
        """`tokens`: maximum number of tokens of all thoughts together; `end`: token ids of the end tag."""
        self._chat, self._remaining, self._end = chat, tokens, end
        # A template may open the thought itself, before the first sampled token.
        self._inside, self._tag_search_start = bool(chat.thought_opening), 0
        self._pending: list[int] = []
        self.imposed: list[int] = []
        """Positions of tokens written for the model instead of sampled."""
        self._impose_end()

    @classmethod
    def of(cls, request: Request, chat: ChatTokenizer) -> Self | None:
        """Return the budget of `request`, or None if thoughts are unlimited.

        Raises:
            ValueError: if the vocabulary cannot spell the end tag.
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
        """Token to impose next, or None if the next token is sampled."""
        return self._pending[0] if self._pending else None

    def update(self, ids: Sequence[int]) -> None:
        """Account for the last token of `ids`, the completion so far. Call once per token."""
        if self._pending:
            self.imposed.append(len(ids) - 1)
            del self._pending[0]
            self._inside = bool(self._pending)
            self._tag_search_start = len(ids)
            return
        self._remaining -= self._inside
        # Text before the last tag is not searched again: an old tag would toggle the state a second time.
        if self._chat.reaches_stop(_END if self._inside else _BEGIN, ids[self._tag_search_start :]):
            self._inside, self._tag_search_start = not self._inside, len(ids)
        self._impose_end()

    def _impose_end(self) -> None:
        if self._inside and self._remaining <= 0:
            self._pending = list(self._end)
