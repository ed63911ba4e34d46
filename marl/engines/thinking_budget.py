"""Budget of thoughts: after a maximum number of tokens inside `<think>`, the engine writes the end tag itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from marl.core.types import Request
from marl.models.chat_template import ChatTokenizer

_BEGIN, _END = ("<think>",), ("</think>",)


class ThinkingBudget:
    """Tracker of the thoughts in one completion, which imposes the end tag once the budget is used up."""

    def __init__(self, chat: ChatTokenizer, tokens: int, end_tag: Sequence[int]) -> None:
        """`tokens`: maximum number of tokens of all thoughts together; `end_tag`: token ids of the end tag."""
        self._chat, self._remaining, self._end_tag = chat, tokens, end_tag
        # A chat template may begin the thought itself (`thinking_prefix`), so sampling may start inside of it.
        self._inside, self._tag_search_start = bool(chat.thinking_prefix), 0
        self._pending: list[int] = []
        """Tokens of the end tag to impose next."""
        self.imposed: list[int] = []
        """Indices of the completion's tokens that were imposed instead of sampled."""
        self._impose_end_tag_if_spent()

    @classmethod
    def from_request(cls, request: Request, chat: ChatTokenizer) -> Self | None:
        """Return the thinking budget of `request`, or None if thoughts are unlimited.

        Raises:
            ValueError: if the vocabulary cannot spell the end tag.
        """
        tokens = request.sampling.thinking_tokens
        if tokens is None:
            return None
        end = chat.encode(_END[0])
        if chat.text(end).strip() != _END[0]:
            raise ValueError(
                f"policy {request.policy!r}: sampling.thinking_tokens: the vocabulary of its model cannot spell "
                f"{_END[0]}, which ends a thought"
            )
        return cls(chat, tokens, end)

    @property
    def token_to_impose(self) -> int | None:
        """Id of the token to impose next, or None if the next token is sampled."""
        return self._pending[0] if self._pending else None

    def record_last_token(self, completion_ids: Sequence[int]) -> None:
        """Update the budget by the last of `completion_ids`, the tokens so far. Call once for each token."""
        if self._pending:
            self.imposed.append(len(completion_ids) - 1)
            del self._pending[0]
            self._inside = bool(self._pending)
            self._tag_search_start = len(completion_ids)
            return
        self._remaining -= self._inside
        # The search starts after the last tag, because finding an old tag again would toggle the state twice.
        if self._chat.ends_with_stop_text(_END if self._inside else _BEGIN, completion_ids[self._tag_search_start :]):
            self._inside, self._tag_search_start = not self._inside, len(completion_ids)
        self._impose_end_tag_if_spent()

    def _impose_end_tag_if_spent(self) -> None:
        """Impose the end tag if the completion is inside a thought and the budget is used up."""
        if self._inside and self._remaining <= 0:
            self._pending = list(self._end_tag)
