"""What an agent had read when it spoke, and what it then said, as chats."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from marl.types import Message, Turn, TurnId

Chat = tuple[Message, ...]
"""Ends with what was said, as the assistant's."""


def conversations(turns: Iterable[Turn]) -> Iterator[tuple[TurnId, Chat]]:
    """The chat of each turn of one agent in one episode, in order. It holds those before where the prompt continues
    them."""
    before: Chat = ()
    for turn in turns:
        request = turn.request
        read = (*before, *request.messages) if request.continues else request.messages
        before = (*read, Message("assistant", turn.completion.text))
        yield turn.id, before
