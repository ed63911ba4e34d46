"""Conversion of messages to token ids by a chat template, and of token ids to text."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import takewhile
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from marl.core.errors import UserNotice
from marl.core.types import Message, Request, ToolCall
from marl.core.watchdog import CallWatchdog
from marl.models.bounded_chat_template import render_chat_template
from marl.models.markup_escaping import PLACEHOLDER_ANSWER, MarkupEscaper
from marl.models.text_markers import (
    NONCHARACTERS,
    MessageSpan,
    RenderedPrompt,
    begin_and_end_offsets_of_spans,
    insert_markers,
)
from marl.models.token_spans import CUT_CHARACTER, Range, TokenizedText
from marl.models.tool_call_formats import (
    PROBE_TOOL,
    ToolCallFormat,
    find_tool_call_format,
    render_answer,
)
from marl.text.answers import remove_thoughts
from marl.text.tool_calls import split_tool_calls, to_tool_call, with_call_ids, with_tool_fields_as_text

_TOOL_CALL_INSTRUCTIONS = """\
To call a function, answer with <tool_call>{"name": its name, "arguments": {its arguments}}</tool_call>. Functions:"""
_CACHE_SIZE = 16384
"""Size of each cache, in entries."""
_MIN_MAX_TOKENS_FOR_THINKING = 1024
"""Minimum `max_tokens` with which a reasoning model can be expected to think and to answer."""
_RENDERING_S = 20.0
"""Maximum time of rendering one prompt, in seconds; templates take milliseconds."""
_PROBES = (Message("system", "marl-probe-system"), Message("user", "marl-probe-user"))
_PROMPT_END = 64
"""Number of tokens at the end of a prompt that hold the markup with which the template begins an answer."""
_OPEN_THINK_TAG = re.compile(r"<think>\s*\Z")


@dataclass(eq=False, slots=True, weakref_slot=True)
class Prompt:
    """Token ids of a prompt, with the policy that reads them.

    Equal prompts in use are the same object, so that they are compared by identity.
    """

    ids: tuple[int, ...]
    policy: int = 0
    """Index of the policy whose weights read the prompt, for an engine with several adapters."""


class _TokenizedPrompt(NamedTuple):
    """Rendered text of a prompt, with its tokens."""

    rendered: RenderedPrompt
    tokens: TokenizedText | None
    """Tokens of the rendered text, or None if the tokenizer puts special tokens around the prompt."""
    ids: tuple[int, ...]
    """Token ids of the prompt, including special tokens around it."""


class ChatTokenizer:
    """A tokenizer with its chat template, which converts messages to token ids and caches the results.

    Only the template begins turns: control tokens in the content of a message are read as text (see `MarkupEscaper`).
    Without a template, messages are joined by newlines. If the template ignores system messages, the system message is
    put before the user's. If the template ignores tools, their schemas are lines of the system message. Schemas are in
    the agent's first prompt only, which later prompts continue.
    """

    def __init__(self, tokenizer: Any, ends: frozenset[int]) -> None:
        """`ends`: ids of the tokens that end a completion."""
        self.tokenizer, self.ends = tokenizer, ends
        self.escaper = MarkupEscaper(tokenizer, self._render)
        self._prompts: WeakValueDictionary[tuple[tuple[int, ...], int], Prompt] = WeakValueDictionary()
        self._cached_prompt = lru_cache(_CACHE_SIZE)(self._make_prompt)
        self._cached_spans = lru_cache(_CACHE_SIZE)(self._find_token_spans_of_marks)
        # A single entry suffices, because the spans of a prompt are requested right after the prompt itself.
        self._cached_tokens = lru_cache(1)(self._tokenize)
        decode = partial(tokenizer.decode, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        self.decode: Callable[[tuple[int, ...]], str] = decode
        self.text: Callable[[tuple[int, ...]], str] = lru_cache(_CACHE_SIZE)(decode)
        """Function with a cache (`decode`: without): token ids -> text without special tokens."""
        self.forced_ids = lru_cache(_CACHE_SIZE)(self._encode_answer)
        """Cached function: text to score as the model's answer -> token ids with the end token."""
        self._may_complete_stop = lru_cache(_CACHE_SIZE)(self._may_end_stop_text)
        self._warned_of_unknown = self._warned_of_short = False

    @cached_property
    def thinking_prefix(self) -> str:
        """Tag `<think>` and a line break, if the template begins every answer with a thought, else "".

        Texts of completions begin with this tag, too.
        """
        if self.tokenizer.chat_template is None:
            return ""
        opened = _OPEN_THINK_TAG.search(self._render(self._merge_unsupported_system_message(_PROBES)))
        return opened[0] if opened else ""

    @cached_property
    def supports_system_message(self) -> bool:
        """True if the chat template renders system messages."""
        try:
            return self.tokenizer.chat_template is None or _PROBES[0].content in self._render(_PROBES)
        except ValueError:
            return False

    @cached_property
    def renders_tool_calls(self) -> bool:
        """True if the chat template renders an assistant's tool calls and, after them, the results."""
        call, result = to_tool_call(PROBE_TOOL["function"]["name"], {"text": _PROBES[0].content}), _PROBES[1].content
        text = self._render_if_accepted((_PROBES[1], Message("assistant", "", (call,)), Message("tool", result)))
        return call.name in text and _PROBES[0].content in text and text.count(result) == 2

    @cached_property
    def _renders_tool_results(self) -> bool:
        """True if the chat template renders the message of a tool after an answer without tool calls."""
        chat = (_PROBES[1], Message("assistant", "."), Message("tool", _PROBES[0].content))
        return self.tokenizer.chat_template is None or _PROBES[0].content in self._render_if_accepted(chat)

    def _render_if_accepted(self, messages: Sequence[Message]) -> str:
        """Return the rendered chat with the schema of a tool, or "" if the template refuses it or does not exist."""
        try:
            return "" if self.tokenizer.chat_template is None else self._render(messages, [PROBE_TOOL])
        except ValueError:
            return ""

    @cached_property
    def tool_call_format(self) -> ToolCallFormat | str:
        """Format of the model's tool calls, or the reason why there is none."""
        if not self.supports_tools:
            return "the chat template takes no tools, so the system message says how a call is written"
        try:
            return find_tool_call_format(self._render, self.tokenizer.response_template, self.thinking_prefix)
        except ValueError as error:
            return str(error)

    @property
    def supports_tools(self) -> bool:
        """True if the chat template renders the schemas of tools."""
        template = self.tokenizer.chat_template
        return template is not None and "tools" in self.tokenizer.get_chat_template(tools=[PROBE_TOOL])

    def canonical_answer(self, text: str, ids: Sequence[int], prompt_ids: Sequence[int], tools: Sequence[str]) -> str:
        """Return `text`, the answer with token ids `ids`, with its tool calls in the spelling that roles read.

        An answer without a valid call is returned unchanged. `tools` has the JSON schemas of the tools.
        """
        call_format = self.tool_call_format
        if isinstance(call_format, str):
            return text
        prompt_end = self.thinking_prefix
        if call_format.reads_whole_prompt:
            prompt_end = self.tokenizer.decode(prompt_ids[-_PROMPT_END:], skip_special_tokens=False)
        spelled = self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        answer = call_format.read(
            spelled,
            prompt_end,
            lambda calls: render_answer(self._render, Message("assistant", "", calls))[0],
            list(map(json.loads, tools)),
        )
        if answer is None or split_tool_calls(remove_thoughts(text)) == (answer.content, answer.calls):
            return text
        return answer.to_text()

    def prompt(self, request: Request, policy_index: int = 0) -> Prompt:
        """Return the prompt of `request`, read by the policy with index `policy_index`.

        Raises:
            ValueError: if the prompt has no token, or if the chat template refuses the messages.
        """
        sampling = request.sampling
        thinks = self.thinking_prefix and request.forced is None and sampling.thinking_tokens is None
        if thinks and sampling.max_tokens < _MIN_MAX_TOKENS_FOR_THINKING and not self._warned_of_short:
            self._warned_of_short = True
            warnings.warn(
                f"policy {request.policy!r}: its chat template begins every answer with a thought, which "
                f"sampling.max_tokens: {sampling.max_tokens} may cut off before the answer; give more, such as 4096, "
                "or a limit of thoughts, sampling.thinking_tokens",
                UserNotice,
                stacklevel=1,
            )
        return self._cached_prompt(request.messages, request.continues, request.tools, policy_index)

    def prompt_with_prefix(self, request: Request, policy_index: int = 0) -> Prompt:
        """Return the prompt of `request`, followed by its prefix: the tokens with which the completion begins."""
        prompt = self.prompt(request, policy_index)
        return self._shared_prompt((*prompt.ids, *request.prefix), policy_index) if request.prefix else prompt

    def token_spans_of_marks(self, request: Request) -> tuple[Range, ...]:
        """Return, for each of the request's marks, the range (begin, end) of the prompt's tokens that overlap the mark.

        A mark is a span of a message's content. The range is empty if the mark has no length, or if the template
        renders none of its characters. The result is an empty tuple if the positions of the tokens are unknown, which
        happens with slow tokenizers.
        """
        if not request.marks:
            return ()
        marks = tuple([MessageSpan(mark.message, mark.begin, mark.end) for mark in request.marks])
        spans = self._cached_spans(request.messages, request.continues[-1:], request.tools, marks)
        offset = len(request.continues)
        return tuple([(begin + offset, end + offset) for begin, end in spans]) if offset else spans

    def render_conversation(self, finished_chat: Sequence[Message]) -> RenderedPrompt:
        """Return a finished chat as the template renders it, without the markup that begins another answer.

        Raises:
            ValueError: if the chat template refuses the messages.
        """
        merged = self._merge_unsupported_system_message(finished_chat)
        escaped = self._escape_messages(self._adapt_tool_messages(merged))

        def render(messages: Sequence[Message]) -> str:
            if self.tokenizer.chat_template is None:
                return "\n".join(message.content for message in messages)
            return self._render(messages, ends_with_answer=True)

        return RenderedPrompt(escaped, render, render(escaped))

    def encode_conversation(self, finished_chat: Sequence[Message]) -> tuple[int, ...]:
        """Return the token ids of `render_conversation(finished_chat)`."""
        text = self.render_conversation(finished_chat).text
        if self.tokenizer.chat_template is None:
            return tuple(self.escaper.encode_with_special_tokens(text))
        return tuple(self.escaper.encode(text))

    def ends_with_stop_text(self, stop_texts: tuple[str, ...], ids: Sequence[int]) -> bool:
        """Return True if the last token of `ids` completes a text of `stop_texts`. Earlier tokens complete none."""
        if not self._may_complete_stop(stop_texts, ids[-1]):
            return False
        # A character has at most 4 bytes, hence 4 tokens. 8 more tokens leave room for special tokens.
        tail = 4 * max(map(len, stop_texts)) + 8
        text = self.text(tuple(ids[-tail:]))
        return any(map(text.__contains__, stop_texts))

    def truncate_at_stop_text(self, stop_texts: tuple[str, ...], text: str) -> str:
        """Return `text` up to the first occurrence of one of the `stop_texts`."""
        found = [position for position in map(text.find, stop_texts) if position >= 0]
        return text[: min(found)] if found else text

    def _may_end_stop_text(self, stop_texts: tuple[str, ...], token_id: int) -> bool:
        """Return False if no text of `stop_texts` can end with `token_id`: a fast check that decodes one token."""
        text = self.text((token_id,))
        # One token cannot exclude a stop text if it is part of a character (U+FFFD), or if the text ends with a space,
        # which decoders may insert between tokens.
        return "�" in text or any(end[-1] in text or end[-1].isspace() for end in stop_texts)

    def _make_prompt(
        self, messages: tuple[Message, ...], continued_ids: tuple[int, ...], tools: tuple[str, ...], policy_index: int
    ) -> Prompt:
        """Return the prompt that consists of the token ids `continued_ids` and the rendered `messages`."""
        ids = (*continued_ids, *self._cached_tokens(messages, continued_ids[-1:], tools).ids)
        if not ids:
            raise ValueError("a prompt without a single token: give the role a message to start from")
        return self._shared_prompt(ids, policy_index)

    def _shared_prompt(self, ids: tuple[int, ...], policy_index: int) -> Prompt:
        """Return the prompt in use with the tokens `ids`, or a new one."""
        # `setdefault` is not used: the weak dictionary would drop the new prompt before anything refers to it.
        prompt = self._prompts.get((ids, policy_index)) or Prompt(ids, policy_index)
        self._prompts[ids, policy_index] = prompt
        return prompt

    def _tokenize(
        self, messages: tuple[Message, ...], last_token: tuple[int, ...], tools: tuple[str, ...]
    ) -> _TokenizedPrompt:
        """Return the tokens of `messages`. `last_token` ends the prompt to continue; () begins a new prompt."""
        arranged, schemas = self._adapt_to_template(messages, tools, bool(last_token))
        escaped = self._escape_messages(arranged)

        def render(messages: Sequence[Message]) -> str:
            if last_token:
                return self._render_continuation(messages, last_token[0])
            return (
                _render_without_template(messages)
                if self.tokenizer.chat_template is None
                else self._render(messages, schemas)
            )

        rendered = RenderedPrompt(escaped, render, render(escaped))
        if self.tokenizer.chat_template is None and not last_token:
            ids = self.escaper.encode_with_special_tokens(rendered.text)
            return _TokenizedPrompt(rendered, None, self._warn_of_unknown_words(rendered.text, ids))
        tokens = self.escaper.tokenize_with_positions(rendered.text)
        return _TokenizedPrompt(rendered, tokens, self._warn_of_unknown_words(rendered.text, tokens.ids))

    def _adapt_to_template(
        self, messages: Sequence[Message], tools: tuple[str, ...], continues_prompt: bool
    ) -> tuple[Sequence[Message], list[Any]]:
        """Return messages and tool schemas for the chat template.

        Tool schemas or a system message that the template would ignore are moved into the first message.
        """
        messages = self._adapt_tool_messages(messages)
        # A prompt that continues another one has tool schemas and system message in the tokens before it.
        if continues_prompt:
            return messages, []
        schemas = list(map(json.loads, tools))
        if tools and not self.supports_tools:
            lines, schemas = "\n".join([_TOOL_CALL_INSTRUCTIONS, *tools]), []
            if messages and messages[0].role == "system":
                messages = (Message("system", f"{messages[0].content}\n\n{lines}"), *messages[1:])
            else:
                messages = (Message("system", lines), *messages)
        return self._merge_unsupported_system_message(messages), schemas

    def _find_token_spans_of_marks(
        self,
        messages: tuple[Message, ...],
        last_token: tuple[int, ...],
        tools: tuple[str, ...],
        message_spans: tuple[MessageSpan, ...],
    ) -> tuple[Range, ...]:
        """Return the token range of each of `message_spans`, counted from the first token of `messages`."""
        rendered, tokens, ids = self._cached_tokens(messages, last_token, tools)
        # Noncharacters in a message would be mistaken for markers.
        clean = [message._replace(content=NONCHARACTERS.sub("\ufffd", message.content)) for message in messages]
        # Markers are inserted before the template moves texts between messages, so that they move along.
        marked = insert_markers(clean, begin_and_end_offsets_of_spans(message_spans))
        arranged, _ = self._adapt_to_template(marked, tools, bool(last_token))
        positions: dict[int, tuple[int, int]] = {}
        for index, (message, escaped) in enumerate(zip(arranged, rendered.messages, strict=True)):
            for marker in self.escaper.markers_in_escaped_content(message.content, escaped.content):
                positions[marker.number] = index, marker.position
        moved: list[MessageSpan] = []
        for number in range(0, len(positions), 2):
            (index, begin), (_, end) = positions[number], positions[number + 1]
            moved.append(MessageSpan(index, begin, max(begin, end)))
        spans = rendered.rendered_ranges(moved)
        if tokens is not None:
            return tuple(tokens.token_spans(spans) or ())
        # If the tokenizer adds special tokens at the front, all positions are shifted by their number.
        tokens = self.escaper.tokenize_with_positions(rendered.text)
        inner = tuple(tokens.ids)
        shift = next(begin for begin in range(len(ids)) if ids[begin : begin + len(inner)] == inner)
        return tuple([(begin + shift, end + shift) for begin, end in tokens.token_spans(spans) or ()])

    def _merge_unsupported_system_message(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return `messages`, with the system message merged into the user's if the template would ignore it."""
        if [message.role for message in messages[:2]] != ["system", "user"] or self.supports_system_message:
            return messages
        return (Message("user", f"{messages[0].content}\n\n{messages[1].content}"), *messages[2:])

    def _render_continuation(self, messages: Sequence[Message], last_token: int) -> str:
        """Return `messages` as the template renders them after an earlier answer that ends with `last_token`."""
        if self.tokenizer.chat_template is None:
            return "\n" + _render_without_template(messages)
        results = list(takewhile(lambda message: message.role == "tool", messages))
        before = (Message("user", "."), self._placeholder_answer(len(results)))
        text = self._render((*before, *messages)).rpartition(PLACEHOLDER_ANSWER)[2]
        if results and self.renders_tool_calls:
            # The earlier answer ends behind the last call, whose closing marks belong to it.
            ends = [self.tokenizer.decode([token], skip_special_tokens=False) for token in self.ends]
            text = text[min([place for place in map(text.find, ends) if place >= 0], default=0) :]
        end = self.tokenizer.decode([last_token], skip_special_tokens=False) if last_token in self.ends else ""
        # The earlier answer may already end with a sampled end token, which must not be repeated.
        return text.lstrip()[len(end) :] if end and text.lstrip().startswith(end) else text

    def _placeholder_answer(self, call_count: int) -> Message:
        """Return an assistant's message with as many tool calls, whose last text is `PLACEHOLDER_ANSWER`."""
        if not (call_count and self.renders_tool_calls):
            return Message("assistant", PLACEHOLDER_ANSWER)
        call = to_tool_call(PROBE_TOOL["function"]["name"], {"text": PLACEHOLDER_ANSWER})
        return Message("assistant", "", (call,) * call_count)

    def _escape_messages(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        escaped: list[Message] = []
        for message in messages:
            calls = tuple([self._escape_call(call) for call in message.calls])
            escaped.append(message._replace(content=self.escaper.escape(message.content), calls=calls))
        return tuple(escaped)

    def _escape_call(self, call: ToolCall) -> ToolCall:
        # Control tokens within the JSON lie in its strings, and cutting them leaves it valid JSON.
        name, arguments = map(self.escaper.break_up_control_tokens, (call.name, call.arguments))
        return call._replace(name=name, arguments=arguments)

    def _adapt_tool_messages(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return `messages`, with tool calls and their results as text where the template would not render them."""
        if not any(message.calls or message.role == "tool" for message in messages):
            return messages
        if self.renders_tool_calls:
            return messages
        adapted: list[Message] = []
        for message in messages:
            is_rendered = message.role == "tool" and self._renders_tool_results
            adapted.append(message if is_rendered else with_tool_fields_as_text(message))
        return adapted

    def _render(
        self, messages: Sequence[Message], tool_schemas: list[Any] | None = None, *, ends_with_answer: bool = False
    ) -> str:
        # The chat template comes with the model and may contain an endless loop.
        with CallWatchdog(self._template_name_for_messages, _RENDERING_S, "a limit of marl"):
            chat = [message.to_dict() for message in with_call_ids(messages)]
            return render_chat_template(self.tokenizer, chat, tool_schemas, ends_with_answer=ends_with_answer)

    def _template_name_for_messages(self) -> str:
        return f"the chat template of {self.tokenizer.name_or_path}"

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the token ids of `text`, tokenized piece by piece between `CUT_CHARACTER`s, without special tokens."""
        return self._warn_of_unknown_words(text, self.escaper.encode(text))

    def _warn_of_unknown_words(self, text: str, ids: Sequence[int]) -> tuple[int, ...]:
        """Return the token ids `ids` of `text`. Warn once if the vocabulary lacks words of `text`."""
        tokenizer, unknown = self.tokenizer, self.tokenizer.unk_token_id
        # If unknown words have the same token as the end of a text, they cannot be told apart.
        if unknown not in ids or self._warned_of_unknown or unknown == tokenizer.eos_token_id:
            return tuple(ids)
        self._warned_of_unknown = True
        words: dict[str, None] = {}
        if tokenizer.is_fast:
            text = text.replace(CUT_CHARACTER, "")
            read = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
            for token, (begin, end) in zip(read.input_ids, read.offset_mapping, strict=True):
                if token == unknown:
                    words[text[begin:end]] = None
        listed = ", ".join(map(repr, list(words)[:5])) or "a character"
        warnings.warn(
            f"the vocabulary of {tokenizer.name_or_path!r} lacks {listed}: {tokenizer.unk_token} stands for it",
            UserNotice,
            stacklevel=2,
        )
        return tuple(ids)

    def _encode_answer(self, text: str) -> tuple[int, ...]:
        """Return the token ids of `text` as a model's answer, with the end token."""
        ids = self.encode(self.escaper.break_up_control_tokens(text.removeprefix(self.thinking_prefix)))
        return ids if self.tokenizer.eos_token_id is None else (*ids, self.tokenizer.eos_token_id)


def _render_without_template(messages: Sequence[Message]) -> str:
    return "\n".join(message.content for message in messages) + "\n"
