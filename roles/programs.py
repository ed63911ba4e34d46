"""Roles of programs written elsewhere, and of the agents that only such a program asks."""

from __future__ import annotations

import json
from typing import ClassVar

from marl.core.types import Completion, Message, Request
from marl.protocols import PromptContext
from marl.protocols.programs import parse_program_answer
from marl.roles.answering import AnswerFormat, AnsweringRole, check_json_schema_supported
from marl.roles.rule_based import RuleBasedRole


class ProgramRole(RuleBasedRole):
    """Runs a program by `engine: {kind: program}`; the move is the program's answer with its callers' results."""

    kind: str = "program"

    def messages(self, context: PromptContext) -> tuple[Message, ...]:
        return (Message("user", context.observation["text"]),)

    def parse(self, text: str, legal: tuple[str, ...] | None) -> str | None:
        answer = parse_program_answer(text)
        move = answer and answer.to_canonical_json()
        return move if legal is None or move in legal else None


class CallerRole(AnsweringRole):
    """Answers the calls of a program, which makes the prompts; by default the full text is the move.

    While the role is trained, its own `sampling` holds, with the smaller `max_tokens` of role and call. With
    `trainable: false`, the default if its policy has no learner, the program's sampling settings hold, up to a
    `max_tokens` that the role sets.

    A program may ask for JSON (`response_format`) if `answer` is `json`. The role then reads a move from an answer that
    satisfies its `json_schema`, or else the program's schema. Sampling is limited to such answers only with
    `sampling: {structured: json}`; otherwise, the program reads the answer as it was sampled.
    """

    kind: str = "caller"
    answers_programs: ClassVar[bool] = True
    answer: AnswerFormat = "whole"

    def reason_json_is_refused(self, schema: str) -> str:
        if self.answer != "json":
            return f"its role reads answers as text (answer: {self.answer}); set answer: json"
        if schema:
            try:
                check_json_schema_supported(json.loads(schema))
            except ValueError as error:
                return str(error)
        return ""

    def parse_completion(self, request: Request, completion: Completion, legal: tuple[str, ...] | None) -> str | None:
        role = self
        if self.answer == "json" and self.json_schema is None and request.answer_schema:
            role = self.model_copy(update={"json_schema": json.loads(request.answer_schema)})
        return role.parse(completion.text, legal)
