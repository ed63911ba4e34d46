"""Conversion of messages to token ids by a chat template, and of token ids to text."""

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

from marl.core.errors import Notice
from marl.core.types import Message, Request
from marl.models.markup_escaping import PLACEHOLDER_ANSWER, MarkupEscaper
from marl.models.text_markers import NONCHARACTERS, MessageSpan, RenderedPrompt, TextMarker, insert_markers
from marl.models.token_spans import CUT_CHARACTER, Range, TokenizedText

_CALLS = """\
To call a function, answer with <tool_call>{"name": its name, "arguments": {its arguments}}</tool_call>. Functions:"""
_REMEMBERED = 16384
"""Size of each cache, in entries."""
_LEAST_TO_THINK = 1024
"""Minimum number of completion tokens in which a reasoning model can be expected to think and to answer."""
_PROBES = (Message("system", "marl-probe-system"), Message("user", "marl-probe-user"))
_OPENED = re.compile(r"<think>\s*\Z")


@dataclass(eq=False, slots=True, weakref_slot=True)
class Prompt:
    """Token ids of a prompt and the policy that reads them.

    Equal prompts are one object while one is in use, so that they can be compared by identity.
    """

    ids: tuple[int, ...]
    policy: int = 0
    """Index of the policy whose weights read the prompt, see `PolicyWeights`."""


class _TokenizedPrompt(NamedTuple):
    """A rendered prompt and its tokens."""

    rendered: RenderedPrompt
    tokens: TokenizedText | None
    """None if the tokenizer puts special tokens around the prompt, which shift the positions of its tokens."""
    ids: tuple[int, ...]


class ChatTokenizer:
    """A tokenizer and its chat template, with caches of earlier results.

    Only the template begins turns: control tokens that a content spells stay text, see `MarkupEscaper`. Without a
    template, messages are joined by newlines. If the template ignores system messages, the system message is put before
    the user's. If the template ignores tools, their schemas are lines of the system message. Schemas are in the agent's
    first prompt only, which later prompts continue.
    """

    def __init__(self, tokenizer: Any, ends: frozenset[int]) -> None:
        """`ends` are the tokens that end a completion."""
        self.tokenizer, self.ends = tokenizer, ends
        self.escaper = MarkupEscaper(tokenizer, self._render)
        self._prompts: WeakValueDictionary[tuple[tuple[int, ...], int], Prompt] = WeakValueDictionary()
        self._cached_prompt = lru_cache(_REMEMBERED)(self._make_prompt)
        self._cached_spans = lru_cache(_REMEMBERED)(self._find_spans)
        # One entry is enough: the spans of a prompt are requested right after the prompt.
        self._cached_tokens = lru_cache(1)(self._tokenize)
        self.text = lru_cache(_REMEMBERED)(self._decode)
        """Cached function: token ids -> text without special tokens."""
        self.forced_ids = lru_cache(_REMEMBERED)(self._forced_ids)
        """Cached function: text to score as the model's answer -> token ids with the end token."""
        self._may_complete_stop = lru_cache(_REMEMBERED)(self._may_complete)
        self._warned_of_unknown = self._warned_of_short = False

    @cached_property
    def thought_opening(self) -> str:
        """Opening tag of a thought with which the template begins every answer, such as `<think>` and a line break.

        Texts of completions begin with the tag. Empty if the template has none.
        """
        if self.tokenizer.chat_template is None:
            return ""
        opened = _OPENED.search(self._render(self._merge_system(_PROBES)))
        return opened[0] if opened else ""

    @cached_property
    def supports_system_message(self) -> bool:
        """True if the template renders system messages."""
        try:
            return self.tokenizer.chat_template is None or _PROBES[0].content in self._render(_PROBES)
        except ValueError:
            return False

    def prompt(self, request: Request, policy: int = 0) -> Prompt:
        """Return the prompt of `request`.

        Raises:
            ValueError: if the prompt has no token, or if the chat template refuses the messages.
        """
        sampling = request.sampling
        thinks = self.thought_opening and request.forced is None and sampling.thinking_tokens is None
        if thinks and sampling.max_tokens < _LEAST_TO_THINK and not self._warned_of_short:
            self._warned_of_short = True
            warnings.warn(
                f"policy {request.policy!r}: its chat template begins every answer with a thought, which "
                f"sampling.max_tokens: {sampling.max_tokens} may cut off before the answer; give more, such as 4096, "
                "or a limit of thoughts, sampling.thinking_tokens",
                Notice,
                stacklevel=1,
            )
        return self._cached_prompt(request.messages, request.continues, request.tools, policy)

    def mark_token_spans(self, request: Request) -> tuple[Range, ...]:
        """Return the token range (begin, end) in the prompt of each of the request's marks.

        A range covers all tokens that overlap the mark. The range is empty if the mark has no length, or if the
        template renders none of its characters. Return an empty tuple if the positions are unknown, which happens with
        slow tokenizers.
        """
        if not request.marks:
            return ()
        marks = tuple([MessageSpan(mark.message, mark.begin, mark.end) for mark in request.marks])
        spans = self._cached_spans(request.messages, request.continues[-1:], request.tools, marks)
        offset = len(request.continues)
        return tuple([(begin + offset, end + offset) for begin, end in spans]) if offset else spans

    def encode_conversation(self, chat: Sequence[Message]) -> tuple[int, ...]:
        """Return the token ids of a finished chat, without the beginning of another answer.

        Raises:
            ValueError: if the chat template refuses the messages.
        """
        chat = self._escape(self._merge_system(chat))
        if self.tokenizer.chat_template is None:
            return tuple(self.escaper.framed_ids("\n".join(message.content for message in chat)))
        return tuple(self.escaper.ids(self._render(chat, answered=True)))

    def reaches_stop(self, stop: tuple[str, ...], ids: Sequence[int]) -> bool:
        """Return True if the last token of `ids` completes a stop text; earlier tokens contain none."""
        if not self._may_complete_stop(stop, ids[-1]):
            return False
        # A character takes at most 4 tokens (its bytes), and special tokens are few.
        tail = 4 * max(map(len, stop)) + 8
        text = self.text(tuple(ids[-tail:]))
        return any(end in text for end in stop)

    def cut_at_stop(self, stop: tuple[str, ...], text: str) -> str:
        """Return `text` up to its first stop text."""
        found = [position for position in map(text.find, stop) if position >= 0]
        return text[: min(found)] if found else text

    def _may_complete(self, stop: tuple[str, ...], token: int) -> bool:
        """Return False if no stop text can end with `token`, which is cheaper than decoding the tail."""
        text = self.text((token,))
        # Part of a character decodes to a replacement character, and decoders may add spaces between tokens.
        return "�" in text or any(end[-1] in text or end[-1].isspace() for end in stop)

    def _make_prompt(
        self, messages: tuple[Message, ...], continues: tuple[int, ...], tools: tuple[str, ...], policy: int
    ) -> Prompt:
        ids = (*continues, *self._cached_tokens(messages, continues[-1:], tools).ids)
        if not ids:
            raise ValueError("a prompt without a single token: give the role a message to start from")
        # Not setdefault: the weak dictionary would drop a new prompt before anything refers to it.
        prompt = self._prompts.get((ids, policy)) or Prompt(ids, policy)
        self._prompts[ids, policy] = prompt
        return prompt

    def _tokenize(
        self, messages: tuple[Message, ...], last: tuple[int, ...], tools: tuple[str, ...]
    ) -> _TokenizedPrompt:
        """Return the tokens of `messages`; `last` is the last token of the prompt that they continue, if any."""
        arranged, schemas = self._arrange(messages, last, tools)
        escaped = self._escape(arranged)

        def write(messages: Sequence[Message]) -> str:
            if last:
                return self._continuation(messages, last[0])
            return _join(messages) if self.tokenizer.chat_template is None else self._render(messages, schemas)

        rendered = RenderedPrompt(escaped, write, write(escaped))
        if self.tokenizer.chat_template is None and not last:
            ids = self.escaper.framed_ids(rendered.text)
            return _TokenizedPrompt(rendered, None, self._checked(rendered.text, ids))
        tokens = self.escaper.tokenized(rendered.text)
        return _TokenizedPrompt(rendered, tokens, self._checked(rendered.text, tokens.ids))

    def _arrange(
        self, messages: Sequence[Message], last: tuple[int, ...], tools: tuple[str, ...]
    ) -> tuple[Sequence[Message], list[Any]]:
        """Return the messages and the tool schemas in the form that the template supports."""
        if last:  # the first prompt has shown the schemas and the system message
            return messages, []
        schemas = [json.loads(tool) for tool in tools]
        template = self.tokenizer.chat_template
        if tools and (template is None or "tools" not in self.tokenizer.get_chat_template(tools=schemas)):
            lines, schemas = "\n".join([_CALLS, *tools]), []
            if messages and messages[0].role == "system":
                messages = (Message("system", f"{messages[0].content}\n\n{lines}"), *messages[1:])
            else:
                messages = (Message("system", lines), *messages)
        return self._merge_system(messages), schemas

    def _find_spans(
        self,
        messages: tuple[Message, ...],
        last: tuple[int, ...],
        tools: tuple[str, ...],
        marks: tuple[MessageSpan, ...],
    ) -> tuple[Range, ...]:
        """Return the token range of each mark, counted from the first token of `messages`."""
        rendered, tokens, ids = self._cached_tokens(messages, last, tools)
        # Markers in the contents survive merging of messages and escaping, which move the marks.
        arranged, _ = self._arrange(_with_markers(messages, marks), last, tools)
        positions: dict[int, tuple[int, int]] = {}
        for index, (message, escaped) in enumerate(zip(arranged, rendered.messages, strict=True)):
            for marker in self.escaper.moved_markers(message.content, escaped.content):
                positions[marker.number] = index, marker.position
        moved: list[MessageSpan] = []
        for number in range(0, len(positions), 2):
            (index, begin), (_, end) = positions[number], positions[number + 1]
            moved.append(MessageSpan(index, begin, max(begin, end)))
        spans = rendered.spans(moved)
        if tokens is not None:
            return tuple(tokens.token_spans(spans) or ())
        # The special tokens around the prompt shift its own tokens, which are searched among all.
        tokens = self.escaper.tokenized(rendered.text)
        inner = tuple(tokens.ids)
        shift = next(begin for begin in range(len(ids)) if ids[begin : begin + len(inner)] == inner)
        return tuple([(begin + shift, end + shift) for begin, end in tokens.token_spans(spans) or ()])

    def _merge_system(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return the messages, with the system message put before the user's if the template ignores it."""
        if [message.role for message in messages[:2]] != ["system", "user"] or self.supports_system_message:
            return messages
        return (Message("user", f"{messages[0].content}\n\n{messages[1].content}"), *messages[2:])

    def _continuation(self, messages: Sequence[Message], last: int) -> str:
        """Return the text that the template puts after an earlier answer with the last token `last`."""
        if self.tokenizer.chat_template is None:
            return "\n" + _join(messages)
        before = (Message("user", "."), Message("assistant", PLACEHOLDER_ANSWER))
        text = self._render((*before, *messages)).rpartition(PLACEHOLDER_ANSWER)[2]
        end = self.tokenizer.decode([last], skip_special_tokens=False) if last in self.ends else ""
        # A sampled end token is in `continues` already.
        return text.lstrip()[len(end) :] if end and text.lstrip().startswith(end) else text

    def _escape(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        return tuple([Message(message.role, self.escaper.escape(message.content)) for message in messages])

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

    def _decode(self, ids: tuple[int, ...]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def ids(self, text: str) -> tuple[int, ...]:
        """Return the token ids of a rendered text, or of a text with cuts, without adding special tokens."""
        return self._checked(text, self.escaper.ids(text))

    def _checked(self, text: str, ids: Sequence[int]) -> tuple[int, ...]:
        """Return the `ids` of `text`, with one warning for the first words that the vocabulary lacks."""
        tokenizer, unknown = self.tokenizer, self.tokenizer.unk_token_id
        # In some vocabularies the unknown word and the end of a text are one token.
        if unknown in ids and not self._warned_of_unknown and unknown != tokenizer.eos_token_id:
            self._warned_of_unknown = True
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
        text = text.replace(CUT_CHARACTER, "")
        read = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        words: dict[str, None] = {}
        for token, (begin, end) in zip(read.input_ids, read.offset_mapping, strict=True):
            if token == self.tokenizer.unk_token_id:
                words[text[begin:end]] = None
        return list(words)[:5]

    def _forced_ids(self, text: str) -> tuple[int, ...]:
        ids = self.ids(self.escaper.with_cuts(text.removeprefix(self.thought_opening)))
        return ids if self.tokenizer.eos_token_id is None else (*ids, self.tokenizer.eos_token_id)


def _with_markers(messages: tuple[Message, ...], marks: Sequence[MessageSpan]) -> tuple[Message, ...]:
    """Return the messages with markers 2n and 2n + 1 at the ends of the n-th mark."""
    markers: list[list[TextMarker]] = [[] for _ in messages]
    for index, (message, begin, end) in enumerate(marks):
        markers[message] += TextMarker(begin, 2 * index), TextMarker(end, 2 * index + 1)
    marked: list[Message] = []
    for message, inner in zip(messages, markers, strict=True):
        # A content must not contain markers of its own.
        content = NONCHARACTERS.sub("\ufffd", message.content)
        marked.append(Message(message.role, insert_markers(content, inner)))
    return tuple(marked)


def _join(messages: Sequence[Message]) -> str:
    return "\n".join(message.content for message in messages) + "\n"
