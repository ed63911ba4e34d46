"""Roles that may reason in free text and then give one answer in a fixed format."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, field_validator

from marl.core.types import TOOL_CALL_PREFIX, Message
from marl.protocols import PromptContext, Tool
from marl.roles import parsing
from marl.roles.base import BaseRole, TemplateText
from marl.text.origins import add_origins, origins_of, without_origins

AnswerFormat = Literal["tag", "boxed", "bracket", "json", "code", "last_line", "whole"]
_RESERVED_TAGS = ("think", "tool_call")
_TAG_NAME = re.compile(r"[A-Za-z][\w-]*")
_LANGUAGE_NAME = re.compile(r"[\w+#.-]*")


def _tag_name(name: str) -> str:
    """Return `name`, the name of a tag. Raise ValueError if a tag cannot have this name."""
    if not _TAG_NAME.fullmatch(name):
        raise ValueError("must begin with a letter from a to z and go on with letters, digits, _ or -")
    if name in _RESERVED_TAGS:
        raise ValueError(f"{name!r} marks something else; choose another name")
    return name


def _language_name(name: str) -> str:
    """Return `name`, the label of a fenced block. Raise ValueError if no block can have this label."""
    if not _LANGUAGE_NAME.fullmatch(name):
        raise ValueError("must have only letters, digits and the signs _ + # . -, such as python or c++")
    return name


TagName = Annotated[str, AfterValidator(_tag_name)]
_READERS = {
    "boxed": parsing.text_in_box,
    "bracket": parsing.text_in_brackets,
    "last_line": parsing.last_line,
    "whole": parsing.full_text_without_thoughts,
}


def _unpack_if_single(calls: list[dict[str, Any]]) -> Any:
    """Return the only call of `calls`, or the list if there are several."""
    return calls[0] if len(calls) == 1 else calls


def _results_of_last_calls(context: PromptContext) -> tuple[Message, ...]:
    """Return the results of the calls in the agent's last turn as messages, or () if nothing but results is new."""
    last_move = without_origins(context.own_turns[-1].action or "") if context.own_turns else ""
    if len(context.new_turns) != 1 or not last_move.startswith(TOOL_CALL_PREFIX):
        return ()
    answer, spelled = context.new_turns[0], last_move.removeprefix(TOOL_CALL_PREFIX)
    if answer.request.state != spelled or answer.action is None:
        return ()
    calls, results = parsing.parse_json_value(spelled), answer.action
    if not isinstance(calls, list):
        return (Message("tool", results, name=calls["name"]),)
    origins, texts = origins_of(results), parsing.parse_json_value(without_origins(results))
    if not isinstance(texts, list) or len(texts) != len(calls):
        return ()
    messages: list[Message] = []
    for call, text in zip(calls, texts, strict=True):
        messages.append(Message("tool", add_origins(str(text), origins), name=call["name"]))
    return tuple(messages)


def check_json_schema_supported(schema: dict[str, Any]) -> None:
    """Raise ValueError if `schema` is no JSON schema of draft 2020-12 that roles can check."""
    from marl.roles.json_schema import check_schema  # imported late, because the import is slow

    check_schema(schema)


class PlayerRole(BaseRole):
    """Player of a game: names exactly one legal move in square brackets, after any other text."""

    kind: str = "player"
    instructions: TemplateText = ""
    """System message, a jinja2 template. Default: the rules of the game and how to name a move (`player.jinja2`) for a
    pretrained model, and no system message for a tiny model, which knows no language."""
    prompt: TemplateText = "{{ observation }}"
    """User message, a jinja2 template. Default: the observation and the legal moves (`move.jinja2`) for a pretrained
    model, and the observation alone for a tiny model, which knows no language."""

    def with_default_prompts(self, understands_instructions: bool) -> Self:
        templates = {"instructions": "{% extends 'player.jinja2' %}", "prompt": "{% extends 'move.jinja2' %}"}
        for name in self.model_fields_set & templates.keys():
            del templates[name]
        return self.model_copy(update=templates) if understands_instructions else self

    def parse(self, text: str, legal: tuple[str, ...] | None) -> str | None:
        return parsing.move_in_brackets(text, legal)

    def phrase(self, move: str) -> str:
        return f"[{move}]"


class AnsweringRole(BaseRole):
    """Base of roles that give one answer in the form `answer`, after any other text.

    A role with `tools` may call tools instead: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`. Its move is
    then `call `, followed by the JSON of the call, or by a JSON list of several calls.
    """

    template_fields: ClassVar[tuple[str, ...]] = ("answer", "tag", "language", "schema_text")
    prompt: TemplateText = "{% extends 'prompt.jinja2' %}"
    answer: AnswerFormat = "tag"
    r"""Format of the answer. `tag`: in `<tag>...</tag>`. `boxed`: in `\boxed{}`. `bracket`: in `[...]`. `json`: the
    last JSON object. `code`: the last fenced block. `last_line`: the last line. `whole`: the full text."""
    tag: TagName = "answer"
    """Name of the tag of `answer: tag`. The default instructions also call the answer by this name."""
    language: Annotated[str, AfterValidator(_language_name)] = "python"
    """Programming language of `answer: code`, used as the label of its fenced blocks."""
    json_schema: dict[str, Any] | None = None
    """JSON schema (draft 2020-12) that the object of `answer: json` must satisfy (default: any object is accepted)."""

    @field_validator("tools")
    @classmethod
    def _check_tools(cls, tools: tuple[Tool, ...] | Literal["auto"]) -> tuple[Tool, ...] | Literal["auto"]:
        names = set[str]()
        for tool in () if tools == "auto" else tools:
            if tool.name in names:
                raise ValueError(f"{tool.name!r} names two tools; give each a name of its own")
            names.add(tool.name)
            if "parameters" in tool.model_fields_set:
                try:
                    check_json_schema_supported(tool.parameters)
                except ValueError as error:
                    raise ValueError(f"parameters of {tool.name!r}: {error}") from error
        return tools

    @field_validator("json_schema")
    @classmethod
    def _check_json_schema_supported(cls, schema: dict[str, Any] | None) -> dict[str, Any] | None:
        if schema is not None:
            check_json_schema_supported(schema)
        return schema

    @property
    def schema_text(self) -> str:
        """JSON text of `json_schema`, for templates, or "" if the role has no schema."""
        return parsing.compact_json(self.json_schema) if self.json_schema is not None else ""

    @property
    def answer_schema(self) -> str:
        return self.schema_text if self.answer == "json" else ""

    def messages(self, context: PromptContext) -> tuple[Message, ...]:
        if self.history == "append" and (results := _results_of_last_calls(context)):
            return results
        return super().messages(context)

    def parse(self, text: str, legal: tuple[str, ...] | None) -> str | None:
        if self.tools and parsing.has_tool_call(text):
            calls = parsing.parse_tool_calls(text)
            move = None if calls is None else TOOL_CALL_PREFIX + parsing.compact_json(_unpack_if_single(calls))
        else:
            answer = self.extract_answer(text)
            move = None if answer is None else self.answer_text_to_move(answer)
        return move if move is None or legal is None else parsing.match_option(move, legal)

    def phrase(self, move: str) -> str:
        if self.tools and move.startswith(TOOL_CALL_PREFIX):
            spelled = move.removeprefix(TOOL_CALL_PREFIX)
            value = parsing.parse_json_value(spelled)
            values = value if isinstance(value, list) else [value]
            text = "\n".join(f"<tool_call>{parsing.compact_json(call)}</tool_call>" for call in values)
            calls = parsing.parse_tool_calls(text)
            # Any answer may start with a tool call's prefix; parsing leaves only real tool calls unchanged.
            if calls is not None and parsing.compact_json(_unpack_if_single(calls)) == spelled:
                return text
        return self.format_answer(self.move_to_answer_text(move))

    def answer_text_to_move(self, answer: str) -> str | None:
        """Return the move that an answer stands for, or None if the answer is no move."""
        return answer

    def move_to_answer_text(self, move: str) -> str:
        """Return an answer that stands for `move`: the inverse of `answer_text_to_move`."""
        return move

    def extract_answer(self, text: str) -> str | None:
        """Return the answer in a model's text, or None if there is no answer or more than one."""
        match self.answer:
            case "tag":
                return parsing.text_in_tag(text, self.tag)
            case "json":
                value = parsing.last_json_object(text, self.json_schema)
                return None if value is None else parsing.compact_json(value)
            case "code":
                return parsing.last_code_block(text, self.language)
        return _READERS[self.answer](text)

    def format_answer(self, answer: str) -> str:
        """Return the shortest text from which `extract_answer` reads `answer`."""
        match self.answer:
            case "tag":
                return f"<{self.tag}>{answer}</{self.tag}>"
            case "boxed":
                return rf"\boxed{{{answer}}}"
            case "bracket":
                return f"[{answer}]"
            case "code":
                return parsing.format_code_block(answer, self.language)
        return answer


class ChallengerRole(AnsweringRole):
    """Poses a problem for other agents to solve."""

    kind: str = "challenger"
    instructions: TemplateText = "{% extends 'challenger.jinja2' %}"
    tag: TagName = "question"


class PlannerRole(AnsweringRole):
    """Plans how to solve a problem; by default the full text is the plan."""

    kind: str = "planner"
    instructions: TemplateText = "{% extends 'planner.jinja2' %}"
    answer: AnswerFormat = "whole"
    tag: TagName = "plan"


class SolverRole(AnsweringRole):
    """Answers a question: in tags, a box, brackets, JSON, code or as plain text."""

    kind: str = "solver"
    instructions: TemplateText = "{% extends 'solver.jinja2' %}"


class DebaterRole(AnsweringRole):
    """Answers a question in rounds and sees the other agents' answers each time."""

    kind: str = "debater"
    instructions: TemplateText = "{% extends 'debater.jinja2' %}"


class AggregatorRole(AnsweringRole):
    """Reads several numbered answers and gives one: the best of them, a summary, or a better one."""

    kind: str = "aggregator"
    instructions: TemplateText = "{% extends 'aggregator.jinja2' %}"
    prompt: TemplateText = "{% extends 'candidates.jinja2' %}"
