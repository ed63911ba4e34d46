"""Messages to token ids, and token ids to text."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from jinja2 import TemplateError

from marl.errors import Notice
from marl.models.borders import INTERNAL, Border, MarkedPart, WrittenPrompt, with_borders
from marl.models.token_places import CUT, Range, TokenizedText
from marl.models.turn_marks import EARLIER, TurnMarks
from marl.types import Message, Request

_CALLS = """\
To call a function, answer with <tool_call>{"name": its name, "arguments": {its arguments}}</tool_call>. Functions:"""
_REMEMBERED = 16384
_LEAST_TO_THINK = 1024
"""Tokens of a completion in which a reasoning model can be expected to think and to answer."""
_PROBES = (Message("system", "marl-probe-system"), Message("user", "marl-probe-user"))
_OPENED = re.compile(r"<think>\s*\Z")


@dataclass(eq=False, slots=True, weakref_slot=True)
class Prompt:
    """Token ids and the policy that reads them. Equal ones are one object while it is in use, compared by identity."""

    ids: tuple[int, ...]
    policy: int = 0
    """Index of the policy whose weights read it, see `PolicyWeights`."""


class _ReadPrompt(NamedTuple):
    """A prompt as it is read."""

    written: WrittenPrompt
    tokens: TokenizedText | None
    """None, if the tokenizer puts special tokens around it."""
    ids: tuple[int, ...]


class ChatTokenizer:
    """A tokenizer and its chat template, with a memory of earlier results.

    Only the template begins turns: marks of turns that a content spells stay text, see `TurnMarks`. Without a template,
    messages are joined by newlines. A system message that the template does not take begins the user's. If it does not
    take tools, their schemas are lines of the system message. They stand in the agent's first prompt only: later ones
    continue it.
    """

    def __init__(self, tokenizer: Any, ends: frozenset[int]) -> None:
        """`ends`: tokens that end a completion."""
        self.tokenizer, self.ends = tokenizer, ends
        self.marks = TurnMarks(tokenizer, self._render)
        self._known: WeakValueDictionary[tuple[tuple[int, ...], int], Prompt] = WeakValueDictionary()
        self._encoded = lru_cache(_REMEMBERED)(self._encode)
        self._found_tokens = lru_cache(_REMEMBERED)(self._find_tokens)
        # A prompt's marks are asked for right after it.
        self._read = lru_cache(1)(self._read_prompt)
        self.text = lru_cache(_REMEMBERED)(self._text)
        """Text of token ids without special tokens."""
        self.forced_ids = lru_cache(_REMEMBERED)(self._forced_ids)
        """Token ids of a text that is scored as the model's answer, the end token included."""
        self._may_end = lru_cache(_REMEMBERED)(self._may_complete)
        self._told_unknown = self._told_short = False

    @cached_property
    def opening(self) -> str:
        """Beginning of a thought that the template writes before every answer, such as `<think>` and a line break; the
        text of a completion begins with it. Empty, if there is none."""
        if self.tokenizer.chat_template is None:
            return ""
        opened = _OPENED.search(self._render(self._folded(_PROBES)))
        return opened[0] if opened else ""

    @cached_property
    def takes_system(self) -> bool:
        """True if the template shows a system message to the model."""
        try:
            return self.tokenizer.chat_template is None or _PROBES[0].content in self._render(_PROBES)
        except ValueError:
            return False

    def prompt(self, request: Request, policy: int = 0) -> Prompt:
        """Return what the model reads before it answers a request.

        Raises:
            ValueError: if that is nothing, or if the chat template refuses the messages.
        """
        if self.opening and request.forced is None and not self._told_short:
            self._tell_of_short_thoughts(request)
        return self._encoded(request.messages, request.continues, request.tools, policy)

    def mark_tokens(self, request: Request) -> tuple[Range, ...]:
        """Return the tokens of each of a request's marks in its prompt: the first, and the one after the last.

        They are the tokens that hold a character of the mark, though they may hold others, too. A mark of no length, or
        of which the template writes nothing, has none: it ends where it begins. Empty, if the places are unknown: a
        tokenizer that is not a fast one may not spell them.
        """
        if not request.marks:
            return ()
        parts = tuple([MarkedPart(mark.message, mark.begin, mark.end) for mark in request.marks])
        spans = self._found_tokens(request.messages, request.continues[-1:], request.tools, parts)
        earlier = len(request.continues)
        return tuple([(first + earlier, after + earlier) for first, after in spans]) if earlier else spans

    def conversation(self, chat: Sequence[Message]) -> tuple[int, ...]:
        """Return the token ids of a chat that is over: nobody is to answer.

        Raises:
            ValueError: if the chat template refuses the messages.
        """
        chat = self._disarmed(self._folded(chat))
        if self.tokenizer.chat_template is None:
            return tuple(self.marks.framed_ids("\n".join(message.content for message in chat)))
        return tuple(self.marks.ids(self._render(chat, answered=True)))

    def reaches_stop(self, stop: tuple[str, ...], ids: Sequence[int]) -> bool:
        """Return whether the text of `ids`, which held no stop text before its last token, holds one now."""
        if not self._may_end(stop, ids[-1]):
            return False
        # A character takes at most 4 tokens (its bytes), and special tokens are few.
        tail = 4 * max(map(len, stop)) + 8
        text = self.text(tuple(ids[-tail:]))
        return any(end in text for end in stop)

    def cut_at_stop(self, stop: tuple[str, ...], text: str) -> str:
        """Return `text` up to the first stop text."""
        places = [place for place in (text.find(end) for end in stop) if place >= 0]
        return text[: min(places)] if places else text

    def _may_complete(self, stop: tuple[str, ...], token: int) -> bool:
        text = self.text((token,))
        # Part of a character decodes to a replacement character, and decoders may add spaces between tokens.
        return "�" in text or any(end[-1] in text or end[-1].isspace() for end in stop)

    def _encode(
        self, messages: tuple[Message, ...], continues: tuple[int, ...], tools: tuple[str, ...], policy: int
    ) -> Prompt:
        ids = (*continues, *self._read(messages, continues[-1:], tools).ids)
        if not ids:
            raise ValueError("a prompt without a single token: give the role a message to start from")
        # Not setdefault: it would drop a new prompt before it is held.
        prompt = self._known.get((ids, policy)) or Prompt(ids, policy)
        self._known[ids, policy] = prompt
        return prompt

    def _read_prompt(self, messages: tuple[Message, ...], last: tuple[int, ...], tools: tuple[str, ...]) -> _ReadPrompt:
        """Return what is read of messages, which follow the token `last` if there is one."""
        arranged, schemas = self._arranged(messages, last, tools)
        disarmed = self._disarmed(arranged)

        def write(messages: Sequence[Message]) -> str:
            return self._written(messages, last, schemas)

        written = WrittenPrompt(disarmed, write, write(disarmed))
        if self.tokenizer.chat_template is None and not last:
            return _ReadPrompt(written, None, self._checked(written.text, self.marks.framed_ids(written.text)))
        tokens = self.marks.tokenized(written.text)
        return _ReadPrompt(written, tokens, self._checked(written.text, tokens.ids))

    def _arranged(
        self, messages: Sequence[Message], last: tuple[int, ...], tools: tuple[str, ...]
    ) -> tuple[Sequence[Message], list[Any]]:
        """Return the messages that the template takes, and schemas of tools. If they continue, it takes what comes."""
        if last:
            return messages, []
        schemas = [json.loads(tool) for tool in tools]
        if tools and not self._takes_tools(schemas):
            messages, schemas = _with_schemas(messages, tools), []
        return self._folded(messages), schemas

    def _written(self, messages: Sequence[Message], last: tuple[int, ...], schemas: list[Any]) -> str:
        """Return the text that the model reads of messages in which no mark is spelled."""
        if last:
            return self._continuation(messages, last[0])
        return _join(messages) if self.tokenizer.chat_template is None else self._render(messages, schemas)

    def _find_tokens(
        self,
        messages: tuple[Message, ...],
        last: tuple[int, ...],
        tools: tuple[str, ...],
        parts: tuple[MarkedPart, ...],
    ) -> tuple[Range, ...]:
        """Return the tokens of parts of the messages, counted from the first token of these."""
        written, tokens, ids = self._read(messages, last, tools)
        arranged, _ = self._arranged(_bordered(messages, parts), last, tools)
        places: dict[int, tuple[int, int]] = {}
        for index, (message, disarmed) in enumerate(zip(arranged, written.messages, strict=True)):
            borders = self.marks.borders(message.content, disarmed.content)
            places |= {border.number: (index, border.place) for border in borders}
        ends = [(*places[number], places[number + 1][1]) for number in range(0, len(places), 2)]
        spans = written.spans([MarkedPart(index, begin, max(begin, end)) for index, begin, end in ends])
        if tokens is not None:
            return tuple(tokens.tokens(spans) or ())
        tokens = self.marks.tokenized(written.text)
        count = len(tokens.ids)
        frame = next(place for place in range(len(ids)) if ids[place : place + count] == tuple(tokens.ids))
        return tuple([(first + frame, after + frame) for first, after in tokens.tokens(spans) or ()])

    def _folded(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return the messages, a system message at the beginning of the user's if the template does not take it."""
        if len(messages) < 2 or messages[0].role != "system" or messages[1].role != "user" or self.takes_system:
            return messages
        return (Message("user", f"{messages[0].content}\n\n{messages[1].content}"), *messages[2:])

    def _takes_tools(self, schemas: list[Any]) -> bool:
        template = self.tokenizer.chat_template
        return template is not None and "tools" in self.tokenizer.get_chat_template(tools=schemas)

    def _continuation(self, messages: Sequence[Message], last: int) -> str:
        """Return the text that the template puts after an earlier answer, which ended with the token `last`."""
        if self.tokenizer.chat_template is None:
            return "\n" + _join(messages)
        before = (Message("user", "."), Message("assistant", EARLIER))
        text = self._render((*before, *messages)).rpartition(EARLIER)[2]
        end = self.tokenizer.decode([last], skip_special_tokens=False) if last in self.ends else ""
        # The end token was sampled: it stands in `continues` already.
        return text.lstrip()[len(end) :] if end and text.lstrip().startswith(end) else text

    def _disarmed(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        return tuple([Message(message.role, self.marks.disarm(message.content)) for message in messages])

    def _render(self, messages: Sequence[Message], schemas: list[Any] | None = None, *, answered: bool = False) -> str:
        try:
            return self.tokenizer.apply_chat_template(
                [message._asdict() for message in messages],
                tools=schemas or None,
                add_generation_prompt=not answered,
                tokenize=False,
            )
        except TemplateError as error:
            roles = [message.role for message in messages]
            raise ValueError(f"the chat template refuses messages with roles {roles}: {error}") from error

    def _text(self, ids: tuple[int, ...]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def _tell_of_short_thoughts(self, request: Request) -> None:
        sampling = request.sampling
        if sampling.thinking_tokens is None and sampling.max_tokens < _LEAST_TO_THINK:
            self._told_short = True
            warnings.warn(
                f"policy {request.policy!r}: its chat template begins every answer with a thought, which "
                f"sampling.max_tokens: {sampling.max_tokens} may cut off before the answer; give more, such as 4096, "
                "or a limit of thoughts, sampling.thinking_tokens",
                Notice,
                stacklevel=2,
            )

    def ids(self, text: str) -> tuple[int, ...]:
        """Return the token ids of what a template wrote, or of a text in whose marks cuts were made."""
        return self._checked(text, self.marks.ids(text))

    def _checked(self, text: str, ids: Sequence[int]) -> tuple[int, ...]:
        """Return the ids of `text`; the first unknown words of a model are told."""
        tokenizer, unknown = self.tokenizer, self.tokenizer.unk_token_id
        # Some vocabularies write an unknown word as they end a text.
        if unknown in ids and not self._told_unknown and unknown != tokenizer.eos_token_id:
            self._told_unknown = True
            words = ", ".join(map(repr, self._unknown_words(text))) or "a character"
            warnings.warn(
                f"the vocabulary of {tokenizer.name_or_path!r} lacks {words}: {tokenizer.unk_token} stands for it",
                Notice,
                stacklevel=2,
            )
        return tuple(ids)

    def _unknown_words(self, text: str) -> list[str]:
        """Return up to five words of `text` that the vocabulary lacks."""
        if not self.tokenizer.is_fast:
            return []
        text = text.replace(CUT, "")
        read = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        places = zip(read.input_ids, read.offset_mapping, strict=True)
        return list({text[begin:end]: None for token, (begin, end) in places if token == self.tokenizer.unk_token_id})[
            :5
        ]

    def _forced_ids(self, text: str) -> tuple[int, ...]:
        ids = self.ids(self.marks.cut(text.removeprefix(self.opening)))
        return ids if self.tokenizer.eos_token_id is None else (*ids, self.tokenizer.eos_token_id)


def _bordered(messages: tuple[Message, ...], parts: Sequence[MarkedPart]) -> tuple[Message, ...]:
    """Return messages with borders: those of the part with index n have the numbers 2n and 2n + 1."""
    borders: list[list[Border]] = [[] for _ in messages]
    for nth, (message, begin, end) in enumerate(parts):
        borders[message] += Border(begin, 2 * nth), Border(end, 2 * nth + 1)
    return tuple(
        [
            Message(message.role, with_borders(INTERNAL.sub("\ufffd", message.content), inner))
            for message, inner in zip(messages, borders, strict=True)
        ]
    )


def _with_schemas(messages: Sequence[Message], tools: tuple[str, ...]) -> Sequence[Message]:
    """Return the messages with the schemas of tools in the system message."""
    lines = "\n".join([_CALLS, *tools])
    if messages and messages[0].role == "system":
        return (Message("system", f"{messages[0].content}\n\n{lines}"), *messages[1:])
    return (Message("system", lines), *messages)


def _join(messages: Sequence[Message]) -> str:
    return "\n".join(message.content for message in messages) + "\n"
