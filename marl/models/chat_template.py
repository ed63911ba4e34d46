"""Messages to token ids, and token ids to text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from weakref import WeakValueDictionary

from jinja2 import TemplateError

from marl.types import Message, Request

_EARLIER = "THE-EARLIER-ANSWER"
_CALLS = """\
To call a function, answer with <tool_call>{"name": its name, "arguments": {its arguments}}</tool_call>. Functions:"""
_REMEMBERED = 16384


@dataclass(eq=False, slots=True, weakref_slot=True)
class Prompt:
    """Token ids and who reads them, compared by identity: equal ones are one object for as long as anyone holds it."""

    ids: tuple[int, ...]
    voice: int = 0
    """The weights that read it."""


class Prompts:
    """A tokenizer and its chat template, remembering what it was asked.

    Without a template, messages are joined by newlines. A template that does not take tools gets their schemas as
    lines of the system message. They are said where the agent's first prompt is: what continues it has read them.
    """

    def __init__(self, tokenizer: Any, ends: frozenset[int]) -> None:
        self.tokenizer, self.ends = tokenizer, ends
        self._known: WeakValueDictionary[tuple[tuple[int, ...], int], Prompt] = WeakValueDictionary()
        self._encoded = lru_cache(_REMEMBERED)(self._encode)
        self.text = lru_cache(_REMEMBERED)(self._text)
        """Text of token ids without special tokens."""
        self.forced = lru_cache(_REMEMBERED)(self._forced)
        """Token ids of a text that the model is made to say, the end token included."""

    def prompt(self, request: Request, voice: int = 0) -> Prompt:
        """What the model reads."""
        return self._encoded(request.messages, request.continues, request.tools, voice)

    def _encode(
        self, messages: tuple[Message, ...], continues: tuple[int, ...], tools: tuple[str, ...], voice: int
    ) -> Prompt:
        ids = (*continues, *self._delta(messages, continues[-1])) if continues else self._whole(messages, tools)
        if not ids:
            raise ValueError("a prompt without a single token: give the role a message to start from")
        # Not setdefault: it would drop a new prompt before it is held.
        prompt = self._known.get((ids, voice)) or Prompt(ids, voice)
        self._known[ids, voice] = prompt
        return prompt

    def _whole(self, messages: tuple[Message, ...], tools: tuple[str, ...]) -> tuple[int, ...]:
        schemas = [json.loads(tool) for tool in tools]
        if tools and not self._takes(schemas):
            messages, schemas = _told(messages, tools), []
        if self.tokenizer.chat_template is None:
            return tuple(self.tokenizer(_joined(messages)).input_ids)
        return tuple(self.tokenizer(self._rendered(messages, schemas), add_special_tokens=False).input_ids)

    def _takes(self, schemas: list[Any]) -> bool:
        """Whether the chat template speaks of tools."""
        template = self.tokenizer.chat_template
        return template is not None and "tools" in self.tokenizer.get_chat_template(tools=schemas)

    def _delta(self, messages: tuple[Message, ...], last: int) -> tuple[int, ...]:
        """Ids of what the template puts after an earlier answer that ended with the token `last`."""
        if self.tokenizer.chat_template is None:
            return tuple(self.tokenizer("\n" + _joined(messages), add_special_tokens=False).input_ids)
        before = (Message("user", "."), Message("assistant", _EARLIER))
        text = self._rendered((*before, *messages)).rpartition(_EARLIER)[2]
        end = self.tokenizer.decode([last], skip_special_tokens=False) if last in self.ends else ""
        # The end token was sampled: it stands in `continues` already.
        if end and text.lstrip().startswith(end):
            text = text.lstrip()[len(end) :]
        return tuple(self.tokenizer(text, add_special_tokens=False).input_ids)

    def _rendered(self, messages: Sequence[Message], schemas: list[Any] | None = None) -> str:
        said = [message._asdict() for message in messages]
        try:
            return self.tokenizer.apply_chat_template(
                said, tools=schemas or None, add_generation_prompt=True, tokenize=False
            )
        except TemplateError as error:
            roles = [message.role for message in messages]
            raise ValueError(f"the chat template refuses messages with roles {roles}: {error}") from error

    def _text(self, ids: tuple[int, ...]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def _forced(self, text: str) -> tuple[int, ...]:
        said = tuple(self.tokenizer(text, add_special_tokens=False).input_ids)
        return said if self.tokenizer.eos_token_id is None else (*said, self.tokenizer.eos_token_id)


class Stops:
    """Finds texts that end a completion, decoding only when the last token could complete one."""

    def __init__(self, prompts: Prompts) -> None:
        self._text = prompts.text
        self._may_end = lru_cache(_REMEMBERED)(self._ends)

    def found(self, stop: tuple[str, ...], ids: Sequence[int]) -> bool:
        """Whether the text of `ids`, which did not hold a stop text before its last token, holds one now."""
        if not self._may_end(stop, ids[-1]):
            return False
        # A character takes at most 4 tokens (its bytes), and special tokens are few.
        tail = 4 * max(map(len, stop)) + 8
        text = self._text(tuple(ids[-tail:]))
        return any(end in text for end in stop)

    def cut(self, stop: tuple[str, ...], text: str) -> str:
        """`text` before the first stop text."""
        places = [place for place in (text.find(end) for end in stop) if place >= 0]
        return text[: min(places)] if places else text

    def _ends(self, stop: tuple[str, ...], token: int) -> bool:
        text = self._text((token,))
        # Part of a character decodes to a replacement character, and decoders may add spaces between tokens.
        return "�" in text or any(end[-1] in text or end[-1].isspace() for end in stop)


def _told(messages: tuple[Message, ...], tools: tuple[str, ...]) -> tuple[Message, ...]:
    """The same messages with the schemas of tools in the system message."""
    lines = "\n".join([_CALLS, *tools])
    if messages and messages[0].role == "system":
        return (Message("system", f"{messages[0].content}\n\n{lines}"), *messages[1:])
    return (Message("system", lines), *messages)


def _joined(messages: Sequence[Message]) -> str:
    return "\n".join(message.content for message in messages) + "\n"
