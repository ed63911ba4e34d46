"""What roles share that give an answer in a form which is agreed upon."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from marl.types import CALL
from roles import parsing
from roles.base import BaseRole, TemplateText
from roles.schemas import check_schema

_TAKEN = ("think", "tool_call")


class AnsweringRole(BaseRole):
    """Thinks aloud if it likes, then gives one answer in the form `answer`.

    A role with `tools` may call one instead, `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: its move is
    then `call ` and that JSON.
    """

    shown: ClassVar[tuple[str, ...]] = ("answer", "tag", "language", "schema_text")
    prompt: TemplateText = "{% extends 'prompt.jinja2' %}"
    answer: Literal["tag", "boxed", "bracket", "json", "code", "last_line", "whole"] = "tag"
    """`tag`: in `<tag>...</tag>`. `boxed`: in the last `\\boxed{}`. `bracket`: in `[...]`. `json`: the first object.
    `code`: the last fenced block. `last_line`, `whole`: as it stands."""
    tag: str = Field(default="answer", pattern=r"^[A-Za-z][\w-]*$")
    """The mark's name, and what the instructions call the answer."""
    language: str = Field(default="python", pattern=r"^[\w+#.-]*$")
    """Of `code`: the label of its blocks."""
    json_schema: dict[str, Any] | None = None
    """Of `json`: what the object must fit (JSON schema, draft 2020-12)."""

    @field_validator("tag")
    @classmethod
    def _free(cls, tag: str) -> str:
        if tag in _TAKEN:
            raise ValueError(f"{tag!r} marks something else; choose another name")
        return tag

    @field_validator("json_schema")
    @classmethod
    def _is_a_schema(cls, schema: dict[str, Any] | None) -> dict[str, Any] | None:
        if schema is not None:
            check_schema(schema)
        return schema

    @property
    def schema_text(self) -> str:
        """The schema as a template shows it; empty if there is none."""
        return parsing.compact(self.json_schema) if self.json_schema is not None else ""

    def parse(self, text: str, legal: tuple[str, ...] | None) -> str | None:
        if self.tools and parsing.calls(text):
            call = parsing.tool_call(text)
            move = None if call is None else CALL + parsing.compact(call)
        else:
            said = self.read(text)
            move = None if said is None else self.meant(said)
        return move if move is None or legal is None else parsing.choice(move, legal)

    def phrase(self, move: str) -> str:
        if self.tools and _is_call(move):
            return f"<tool_call>{move.removeprefix(CALL)}</tool_call>"
        return self.write(self.worded(move))

    def meant(self, said: str) -> str | None:
        """The move that the answer `said` is; None if it is none."""
        return said

    def worded(self, move: str) -> str:
        """The answer that gives `move`: `meant(worded(move)) == move`."""
        return move

    def read(self, text: str) -> str | None:
        """The answer in `text`."""
        match self.answer:
            case "tag":
                return parsing.tag(text, self.tag)
            case "json":
                found = parsing.json_object(text, self.json_schema)
                return None if found is None else parsing.compact(found)
            case "code":
                return parsing.code_block(text, self.language)
        return _PLAIN[self.answer](text)

    def write(self, said: str) -> str:
        """The shortest text that gives the answer `said`."""
        match self.answer:
            case "tag":
                return f"<{self.tag}>{said}</{self.tag}>"
            case "boxed":
                return rf"\boxed{{{said}}}"
            case "bracket":
                return f"[{said}]"
            case "code":
                return parsing.fenced(said, self.language)
        return said


_PLAIN = {
    "boxed": parsing.boxed,
    "bracket": parsing.bracketed,
    "last_line": parsing.last_line,
    "whole": parsing.whole,
}


def _is_call(move: str) -> bool:
    """Whether the move is a call just as `parse` hands it on; an answer may begin with the same word."""
    text = move.removeprefix(CALL)
    if text == move:
        return False
    call = parsing.tool_call(f"<tool_call>{text}</tool_call>")
    return call is not None and parsing.compact(call) == text
