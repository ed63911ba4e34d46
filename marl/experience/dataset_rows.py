"""What the rows of a file of answers say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args, get_type_hints

from marl.config import nearest
from marl.types import Message

SPEAKERS: tuple[str, ...] = get_args(get_type_hints(Message)["role"])


@dataclass(frozen=True, slots=True)
class Case:
    """A question with answers, and what each was worth."""

    asked: str | tuple[Message, ...]
    """A text, to be put in the role's own words, or messages as they are."""
    answers: tuple[str, ...]
    paid: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a row stands, for messages."""

    name: str

    def wrong(self, column: str, what: str) -> ValueError:
        """An error about one of its columns."""
        return ValueError(f"{self.name}, column {column!r}: {what}")


def asked(row: Mapping[str, Any], column: str, place: Place) -> str | tuple[Message, ...]:
    """A text, or a chat."""
    value = _value(row, column, place)
    if isinstance(value, str):
        return value
    chat = _chat(value, column, place)
    if not chat:
        raise place.wrong(column, "no messages")
    return chat


def answer(row: Mapping[str, Any], column: str, place: Place) -> str:
    """A text, or that of the one assistant message that the column holds."""
    value = _value(row, column, place)
    if not isinstance(value, str):
        chat = _chat(value, column, place)
        if len(chat) != 1 or chat[0].role != "assistant":
            raise place.wrong(column, f"must be one message of the assistant, got {[m.role for m in chat]}")
        value = chat[0].content
    if not value:
        raise place.wrong(column, "an empty answer")
    return value


def exchange(row: Mapping[str, Any], column: str, place: Place) -> tuple[tuple[Message, ...], str]:
    """A chat that ends with an answer of the assistant: (what came before, the answer)."""
    chat = _chat(_value(row, column, place), column, place)
    if len(chat) < 2 or chat[-1].role != "assistant" or not chat[-1].content:
        raise place.wrong(column, f"must end with an answer of the assistant, got {[m.role for m in chat]}")
    return chat[:-1], chat[-1].content


def _value(row: Mapping[str, Any], column: str, place: Place) -> Any:
    if row.get(column) is None:
        raise place.wrong(column, f"missing; {nearest(column, row)}")
    return row[column]


def _chat(value: Any, column: str, place: Place) -> tuple[Message, ...]:
    if not isinstance(value, Sequence):
        raise place.wrong(column, f"must be a text or a list of messages, got {type(value).__name__}")
    return tuple([_message(each, column, place) for each in value])


def _message(value: Any, column: str, place: Place) -> Message:
    if not isinstance(value, Mapping) or not isinstance(value.get("content"), str):
        raise place.wrong(column, f"a message is an object with `role` and `content`, a text; got {value!r}")
    if value.get("role") not in SPEAKERS:
        raise place.wrong(column, f"role {value.get('role')!r} is unknown; choices: {', '.join(SPEAKERS)}")
    return Message(value["role"], value["content"])
