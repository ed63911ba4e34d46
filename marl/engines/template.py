"""Engine that answers by a jinja2 template of the prompt: a speaker whose behaviour is known exactly."""

from __future__ import annotations

from typing import ClassVar

from jinja2 import TemplateError, TemplateSyntaxError, meta
from pydantic import field_validator

from marl.core.config import choices_hint
from marl.core.errors import EngineError
from marl.core.types import Completion, Request
from marl.engines.scripted import ImmediateEngine
from marl.protocols import Engine, EngineConfig, ModelSource
from marl.text.templates import BoundedEnvironment, CompiledTemplate

_VARIABLES = ("system", "user", "seed")
_environment = BoundedEnvironment(trim_blocks=True)


class TemplateAnswers(EngineConfig):
    """Answers by a jinja2 template of the prompt, for scenarios with a known best behaviour.

    The template may use `system` (the system messages), `user` (the last message) and `seed` (a whole number that
    differs from request to request).
    """

    kind: str = "template"
    example = "answer: '{{ user|upper }}'"
    token_level: ClassVar[bool] = False
    answer: str
    """Template of the answer."""

    @field_validator("answer")
    @classmethod
    def _check_template(cls, source: str) -> str:
        try:
            names = meta.find_undeclared_variables(_environment.parse(source))
            _environment.from_string(source)
        except TemplateSyntaxError as error:
            raise ValueError(f"not a jinja2 template: {error.message} (line {error.lineno})") from error
        if unknown := sorted(names - {*_VARIABLES, *_environment.globals}):
            problem = f"the template uses {unknown[0]!r}, which does not exist"
            raise ValueError(f"{problem}; {choices_hint(unknown[0], _VARIABLES)}")
        return source

    def build(self, source: ModelSource | None) -> Engine:
        return TemplateEngine(CompiledTemplate(_environment.from_string(self.answer)))


class TemplateEngine(ImmediateEngine):
    """Engine of the kind `template`."""

    reason = "answers by a template: it has no weights to load"

    def __init__(self, template: CompiledTemplate) -> None:
        super().__init__()
        self._template = template

    def answer(self, request: Request) -> Completion:
        """Return the filled-in template; raise EngineError if it cannot be filled in."""
        system = [message.content for message in request.messages if message.role == "system"]
        user = request.messages[-1].content if request.messages else ""
        try:
            text = self._template.render({"system": "\n".join(system), "user": user, "seed": request.seed})
        except TemplateError as error:
            raise EngineError(f"policy {request.policy!r}: its template cannot be filled in: {error}") from error
        return Completion(text.strip(), (), (), (), "stop")
