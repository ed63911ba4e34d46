"""Tool calls in the formats of model families: reading them from answers by Transformers' `ResponseParser`.

A format is a response template of Transformers. A tokenizer may bring its own; else the formats of
`tool_call_formats.json` are tried. A format is used only if it reads back exactly a call that the chat template has
rendered. A call is never repaired: JSON that is malformed, cut off or repeats a key is text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from transformers.utils.chat_parsing import ResponseParser
from transformers.utils.chat_parsing.response_templates import load_response_template

from marl.core.types import Message, ToolCall
from marl.text.json_text import parse_strict_json
from marl.text.tool_calls import MAX_CALLS, join_tool_calls, to_tool_call

_SENTINEL = "\ufdd3"
"""Text after an answer. The parser otherwise waits for more of a closing mark, or takes the end for the mark."""
_THOUGHT_FIELDS = ("thought", "thinking", "reasoning", "reasoning_content")
"""Names under which response templates have thoughts."""
PROBE_TOOL = {
    "type": "function",
    "function": {
        "name": "probe_tool",
        "description": "A tool.",
        "parameters": {"type": "object", "properties": {"text": {"type": "string", "description": "A text."}}},
    },
}
"""Schema of the tool that probes call."""
PROBE_TOOL_SCHEMA = json.dumps(PROBE_TOOL)
_PROBE_CALL = to_tool_call("probe_tool", {"text": "a b"})
_PROBE_QUESTION = Message("user", "marl-probe-question")
Render = Callable[..., str]
"""Function `(messages, tool_schemas, *, ends_with_answer)` that renders a chat by the chat template."""
RenderCalls = Callable[[tuple[ToolCall, ...]], str]
"""Function that renders an assistant's answer that consists of these calls."""


class AnswerWithCalls(NamedTuple):
    """Answer of a model, taken apart."""

    thought: str
    content: str
    calls: tuple[ToolCall, ...]

    def to_text(self) -> str:
        """Return the answer in the spelling that roles read: `<think>`, content and `<tool_call>`."""
        thought = f"<think>\n{self.thought}\n</think>\n\n" if self.thought else ""
        return thought + join_tool_calls(self.content, self.calls)


class ToolCallFormat:
    """Format of the tool calls in a model's answers."""

    def __init__(self, response_template: Mapping[str, Any], *, reads_whole_prompt: bool) -> None:
        """`reads_whole_prompt`: the response template finds the answer's beginning in the prompt by itself.

        Raises:
            ValueError: if `response_template` is no response template, or reads no calls.
        """
        self._template = load_response_template(dict(response_template))
        self.reads_whole_prompt = reads_whole_prompt
        field = self._template.fields.get("tool_calls")
        if field is None or field.open_re is None:
            raise ValueError("its response template has no tool_calls")
        self._calls_begin = field.open_re
        self._is_json = field.content == "json" and not field.content_args
        """True if calls are standard JSON. Other parsers accept malformed calls, which must be found out otherwise."""

    def read(
        self, answer: str, prompt_end: str, render_calls: RenderCalls, tools: Sequence[Any] = ()
    ) -> AnswerWithCalls | None:
        """Return `answer` taken apart, or None if it has no call or an invalid one.

        Args:
            answer: answer of the model, decoded with special tokens.
            prompt_end: end of the prompt, in which the template may have begun a thought.
            render_calls: function that renders an answer that consists of calls.
            tools: schemas of the tools, which give arguments their types in formats without types.
        """
        try:
            parser = ResponseParser(self._template, prefix=prompt_end, tools=list(tools))
            events = [*parser.initial_events, *parser.feed(answer + _SENTINEL)]
            # A call that ends with the answer instead of its closing mark was cut off.
            cut_off = [event for event in parser.finalize()[1] if event["field"] == "tool_calls"]
            found = None if cut_off else _answer_from_events(events, is_json=self._is_json)
            if found is None or self._is_json or self._calls_in(answer) == self._calls_in(render_calls(found.calls)):
                return found
        except (ValueError, KeyError, TypeError, RecursionError):
            pass
        return None

    def _calls_in(self, answer: str) -> str:
        """Return `answer` from its first call on."""
        begin = self._calls_begin.search(answer)
        return answer[begin.start() :].strip() if begin else ""


def _answer_from_events(events: Sequence[Mapping[str, Any]], *, is_json: bool) -> AnswerWithCalls | None:
    """Return the answer that the parser's `events` describe, or None if it has no call or an invalid one."""
    texts: dict[str, str] = {}
    calls: list[ToolCall] = []
    body = ""
    for event in events:
        field = event["field"]
        if event["type"] == "region_open":
            body = ""
        elif event["type"] == "region_chunk":
            body += event["text"]
        elif field == "tool_calls":
            found = _calls_of_region(body if is_json else "{}", event["value"])
            if not found or len(calls) + len(found) > MAX_CALLS:
                return None
            calls += found
            continue
        if event["type"] == "region_chunk" and field != "tool_calls":
            texts[field] = texts.get(field, "") + event["text"]
    if not calls:
        return None
    thought = next((texts[field].strip() for field in _THOUGHT_FIELDS if field in texts), "")
    return AnswerWithCalls(thought, texts.get("content", "").replace(_SENTINEL, "").strip(), tuple(calls))


def _calls_of_region(body: str, value: Any) -> list[ToolCall]:
    """Return the calls in a region with the text `body` and the parsed `value`, or [] if one is invalid."""
    calls: list[ToolCall] = []
    try:
        parse_strict_json(body)
    except ValueError:
        return []
    for item in value if isinstance(value, list) else [value]:
        function = item.get("function", item) if isinstance(item, dict) else None
        match function:
            case {"name": str(name), "arguments": dict(arguments)} if name:
                calls.append(to_tool_call(name, arguments))
            case _:
                return []
    return calls


@lru_cache(1)
def shipped_formats() -> Mapping[str, ToolCallFormat]:
    """Return family -> format, in the order in which they are tried."""
    formats: dict[str, ToolCallFormat] = {}
    for family, template in json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8")).items():
        formats[family] = ToolCallFormat({"start_anchor_pattern": "(?!)", **template}, reads_whole_prompt=False)
    return formats


def find_tool_call_format(
    render: Render, response_template: Mapping[str, Any] | None, thinking_prefix: str
) -> ToolCallFormat:
    """Return the format of the calls that a chat template renders.

    Args:
        render: function that renders a chat by the template.
        response_template: response template that comes with the tokenizer, or None to try the shipped formats.
        thinking_prefix: beginning of a thought that the template writes before every answer, or "".

    Raises:
        ValueError: with the reason, if no format reads back a rendered call.
    """
    answer, prompt = render_answer(render, Message("assistant", "", (_PROBE_CALL,)))
    if response_template is not None:
        formats = [ToolCallFormat(response_template, reads_whole_prompt=True)]
    else:
        formats = list(shipped_formats().values())
    for candidate in formats:
        prompt_end = prompt if candidate.reads_whole_prompt else thinking_prefix
        if candidate.read(answer, prompt_end, lambda _: answer) == AnswerWithCalls("", "", (_PROBE_CALL,)):
            return candidate
    names = "its response template" if response_template is not None else f"none of {', '.join(shipped_formats())}"
    raise ValueError(f"{names} reads back the call that the chat template renders as {answer[:200]!r}")


def render_answer(render: Render, answer: Message) -> tuple[str, str]:
    """Return (the assistant's message `answer` as rendered, prompt before it).

    Raises:
        ValueError: if the template refuses the message, leaves out a call, or renders the prompt differently before an
            answer.
    """
    prompt = render([_PROBE_QUESTION], [PROBE_TOOL])
    chat = render([_PROBE_QUESTION, answer], [PROBE_TOOL], ends_with_answer=True)
    if not chat.startswith(prompt):
        raise ValueError("the chat template renders an answer with a call differently from the prompt before it")
    rendered = chat[len(prompt) :]
    if any(call.name not in rendered for call in answer.calls):
        raise ValueError("the chat template does not render calls")
    return rendered, prompt
