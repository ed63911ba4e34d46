"""Roles that may reason in free text and then give one answer in a fixed format."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator

from marl.core.types import TOOL_CALL_PREFIX
from marl.roles import parsing
from marl.roles.base import BaseRole, TemplateText

AnswerFormat = Literal["tag", "boxed", "bracket", "json", "code", "last_line", "whole"]
TagName = Annotated[str, Field(pattern=r"^[A-Za-z][\w-]*$")]
_RESERVED_TAGS = ("think", "tool_call")
_READERS = {
    "boxed": parsing.boxed,
    "bracket": parsing.bracketed,
    "last_line": parsing.last_line,
    "whole": parsing.whole,
}


class PlayerRole(BaseRole):
    """Player of a game: names exactly one legal move in square brackets, after any other text."""

    kind: str = "player"
    instructions: TemplateText = ""
    """System message, a jinja2 template. If it is not given, a model that knows language is told the rules of the game
    and how to name a move (`player.jinja2`), and a tiny model nothing."""
    prompt: TemplateText = "{{ observation }}"
    """User message, a jinja2 template. If it is not given, a model that knows language reads the observation and the
    legal moves (`move.jinja2`), and a tiny model the observation."""

    def with_default_prompts(self, knows_language: bool) -> Self:
        templates = {"instructions": "{% extends 'player.jinja2' %}", "prompt": "{% extends 'move.jinja2' %}"}
        unset = templates.keys() - self.model_fields_set
        return self.model_copy(update={name: templates[name] for name in unset}) if knows_language else self

    def parse(self, text: str, legal: tuple[str, ...] | None) -> str | None:
        moves = set(parsing.brackets(text))
        if legal is not None:
            # Letter case does not matter to the reader, but the game compares moves by its own spelling.
            spellings = {move.lower(): move for move in legal}
            moves = {spellings[move.lower()] for move in moves if move.lower() in spellings}
        return moves.pop() if len(moves) == 1 else None

    def phrase(self, move: str) -> str:
        return f"[{move}]"


class AnsweringRole(BaseRole):
    """Base of roles that give one answer in the form `answer`, after any other text.

    A role with `tools` may call one instead, `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: its move is
    then `call ` and that JSON.
    """

    template_fields: ClassVar[tuple[str, ...]] = ("answer", "tag", "language", "schema_text")
    prompt: TemplateText = "{% extends 'prompt.jinja2' %}"
    answer: AnswerFormat = "tag"
    r"""Format of the answer. `tag`: in `<tag>...</tag>`. `boxed`: in `\boxed{}`. `bracket`: in `[...]`. `json`: the
    last JSON object. `code`: the last fenced block. `last_line`: the last line. `whole`: the full text."""
    tag: TagName = "answer"
    """Name of the tag, and the name of the answer in the instructions."""
    language: str = Field(default="python", pattern=r"^[\w+#.-]*$")
    """Programming language of `answer: code`, used as the label of its fenced blocks."""
    json_schema: dict[str, Any] | None = None
    """Schema of the object of `answer: json` (JSON schema, draft 2020-12). None: any object."""

    @field_validator("tag")
    @classmethod
    def _is_not_reserved(cls, tag: str) -> str:
        if tag in _RESERVED_TAGS:
            raise ValueError(f"{tag!r} marks something else; choose another name")
        return tag

    @field_validator("json_schema")
    @classmethod
    def _is_schema(cls, schema: dict[str, Any] | None) -> dict[str, Any] | None:
        if schema is not None:
            from marl.roles.json_schema import check_schema  # takes long to import

            check_schema(schema)
        return schema

    @property
    def schema_text(self) -> str:
        """JSON text of the schema for templates, empty without a schema."""
        return parsing.compact_json(self.json_schema) if self.json_schema is not None else ""

    @property
    def answer_schema(self) -> str:
        return self.schema_text if self.answer == "json" else ""

    def parse(self, text: str, legal: tuple[str, ...] | None) -> str | None:
        if self.tools and parsing.has_tool_call(text):
            call = parsing.parse_tool_call(text)
            move = None if call is None else TOOL_CALL_PREFIX + parsing.compact_json(call)
        else:
            answer = self.extract_answer(text)
            move = None if answer is None else self.answer_to_move(answer)
        return move if move is None or legal is None else parsing.match_option(move, legal)

    def phrase(self, move: str) -> str:
        if self.tools and _is_call(move):
            return f"<tool_call>{move.removeprefix(TOOL_CALL_PREFIX)}</tool_call>"
        return self.format_answer(self.move_to_answer(move))

    def answer_to_move(self, answer: str) -> str | None:
        """Return the move for `answer`, or None if `answer` is no move."""
        return answer

    def move_to_answer(self, move: str) -> str:
        """Return the answer for `move`: the inverse of `answer_to_move`."""
        return move

    def extract_answer(self, text: str) -> str | None:
        """Return the answer in `text`, or None if there is no answer or more than one."""
        match self.answer:
            case "tag":
                return parsing.tag(text, self.tag)
            case "json":
                value = parsing.json_object(text, self.json_schema)
                return None if value is None else parsing.compact_json(value)
            case "code":
                return parsing.code_block(text, self.language)
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


def _is_call(move: str) -> bool:
    """Return True if `move` is a tool call exactly as `parse` returns it; an answer may start with the same prefix."""
    text = move.removeprefix(TOOL_CALL_PREFIX)
    if text == move:
        return False
    call = parsing.parse_tool_call(f"<tool_call>{text}</tool_call>")
    return call is not None and parsing.compact_json(call) == text


class ChallengerRole(AnsweringRole):
    """Poses a problem for others to solve."""

    kind: str = "challenger"
    instructions: TemplateText = "{% extends 'challenger.jinja2' %}"
    tag: TagName = "question"


class PlannerRole(AnsweringRole):
    """Plans how to solve a problem; by default its whole text is the plan."""

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
