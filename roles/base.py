"""Base of all roles: instructions and prompt are jinja2 templates, which may extend those in `roles/prompts`."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from jinja2 import FileSystemLoader, TemplateError, TemplateNotFound, TemplateSyntaxError, meta
from pydantic import BeforeValidator, WithJsonSchema, field_validator

from marl.core.config import choices_hint
from marl.core.types import Message, Turn
from marl.host.paths import current_resolver
from marl.protocols import PromptContext, RoleConfig
from marl.protocols.roles import PromptWithOrigins, RoleTemplateError
from marl.text.answers import remove_thoughts, remove_thoughts_and_strip
from marl.text.origins import (
    OriginRecordingDict,
    Span,
    TextOrigin,
    TextWithOrigins,
    apply_cached_with_origins,
    origin_spans_of_text,
    origins_of,
    without_origins,
)
from marl.text.templates import BoundedEnvironment, CompiledTemplate

_CURRENT_VARIABLES = ("agent", "observation", "legal", "attempt", "rules", "continued", "tools")
_HISTORY_VARIABLES = ("heard", "before", "mine", "last")

_UNREAD_TURNS = TextOrigin(None, "told")
_BACKTICKS = re.compile("`{3,}+")


def fence_text(text: str) -> str:
    """Return `text` as a block between two lines of backticks, or `(nothing)` for a blank text.

    The fence is longer than any run of backticks in the text. The text therefore cannot close the block, and its reader
    can tell that instructions inside of the block are quoted.
    """
    fence = "`" + max(["``", *_BACKTICKS.findall(text)], key=len)
    return f"{fence}\n{text}\n{fence}" if text.strip() else "(nothing)"


_loader = FileSystemLoader(Path(__file__).parent / "prompts")
_environment = BoundedEnvironment(
    {"spoken": remove_thoughts_and_strip, "fenced": fence_text},
    marked=("observation", *_HISTORY_VARIABLES),
    loader=_loader,
    trim_blocks=True,
    keep_trailing_newline=False,
    auto_reload=False,
)


@lru_cache(maxsize=256)
def _compile_template(template_source: str) -> CompiledTemplate:
    """Return a compiled template; cached, because compiling takes much longer than rendering."""
    return CompiledTemplate(_environment.from_string(template_source))


@lru_cache(maxsize=256)
def _template_variables(template_source: str) -> frozenset[str]:
    """Return the names of the variables in a template, and in all templates that it extends or includes.

    Raises:
        ValueError: if `template_source` is no jinja2 template, or refers to a template that is not in `roles/prompts`.
    """
    try:
        tree = _environment.parse(template_source)
        _compile_template(template_source)
    except TemplateSyntaxError as error:
        raise ValueError(f"not a jinja2 template: {error.message} (line {error.lineno})") from error
    variables = meta.find_undeclared_variables(tree)
    for name in meta.find_referenced_templates(tree):
        choices = _environment.list_templates()
        if name is None:  # the name is an expression, whose template cannot be checked before rendering
            raise ValueError(f"a template to extend or include must be named in quotes; {choices_hint('', choices)}")
        try:
            included = _loader.get_source(_environment, name)[0]
        except TemplateNotFound as error:
            raise ValueError(f"no template {name!r} to extend or include; {choices_hint(name, choices)}") from error
        variables |= _template_variables(included)
    return frozenset(variables)


def is_variable_in_template(variable_name: str, template_source: str) -> bool:
    """Return True if a template, or one that it extends or includes, uses the variable `variable_name`."""
    return variable_name in _template_variables(template_source)


def _read_file_of_template_setting(setting: Any) -> Any:
    """Return the text of the file that a setting `{file: PATH}` names; return any other setting unchanged.

    The path is relative to the scenario's folder. The resolved scenario in a run's folder contains the text, so the run
    stays the same when the file is edited.

    Raises:
        ValueError: if the file does not exist or is no text file.
    """
    if not isinstance(setting, Mapping):
        return setting
    if list(setting) != ["file"] or not isinstance(setting["file"], str):
        raise ValueError(f"must be text or {{file: PATH}}; got {dict(setting)}")
    resolver = current_resolver.get()
    file = resolver.resolve_path_and_record_original("file", setting["file"]) if resolver else setting["file"]
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"file {file!r} cannot be read: {error}") from error


_FILE_SCHEMA = {
    "type": "object",
    "properties": {"file": {"type": "string"}},
    "required": ["file"],
    "additionalProperties": False,
}
TemplateText = Annotated[
    str, BeforeValidator(_read_file_of_template_setting), WithJsonSchema({"anyOf": [{"type": "string"}, _FILE_SCHEMA]})
]
"""Setting that is a jinja2 template, or `{file: PATH}` of a file with a template."""


@dataclass(frozen=True, slots=True, eq=False)
class _RoleTemplates:
    """Templates of a role. They are compared by identity, so that they are hashed fast as a part of a cache's key."""

    instructions: str
    """Source of the template of the system message."""
    prompt: str
    """Source of the template of the user message."""
    fields: tuple[str, ...]
    """Names of the role's settings that the templates may use."""
    history_variables: frozenset[str]
    """Names of the variables about earlier turns that the templates use."""


@lru_cache(maxsize=256)
def _role_templates(instructions: str, prompt: str, fields: tuple[str, ...]) -> _RoleTemplates:
    variables = _template_variables(instructions) | _template_variables(prompt)
    return _RoleTemplates(instructions, prompt, fields, variables.intersection(_HISTORY_VARIABLES))


def _render_template(setting: str, template: str, facts: Mapping[str, Any], agent: str) -> str:
    """Return the text of `template`, the value of the role's setting `setting`, for `agent`."""
    try:
        return _compile_template(template).render(facts).strip("\n")
    except TemplateError as error:
        raise RoleTemplateError(f"{setting}: the template cannot be filled in for {agent}: {error.message}") from error


@lru_cache(maxsize=4096)
def _render_instructions_cached(template: str, names: tuple[str, ...], values: tuple[Hashable, ...], agent: str) -> str:
    """Render instructions whose only variables are `names` with `values`; the observation must not be among them."""
    return _render_template("instructions", template, dict(zip(names, values, strict=True)), agent)


def _render_messages(
    templates: _RoleTemplates,
    current_values: tuple[Hashable, ...],
    observation_spans: tuple[Span, ...] | None,
    history_values: dict[str, Any],
) -> tuple[Message, ...]:
    """Return the system message and the user message of a role.

    Args:
        current_values: values of `_CURRENT_VARIABLES` and of `templates.fields`, in this order.
        observation_spans: origins of parts of the observation, or None if the game marks none.
        history_values: values of the variables about earlier turns, by name.
    """
    facts: dict[str, Any] = {
        **dict(zip((*_CURRENT_VARIABLES, *templates.fields), current_values, strict=True)),
        **history_values,
    }
    if observation_spans is None:
        # A game without marks may use any turn that the agent has not read, so all of these may be origins.
        observation_spans = ((0, len(facts["observation"]), _UNREAD_TURNS),)
    if observation_spans:
        facts["observation"] = TextWithOrigins(facts["observation"], observation_spans)
    user = Message("user", _render_template("prompt", templates.prompt, facts, facts["agent"]))
    if facts["continued"]:
        return (user,)  # the conversation that this prompt continues has a system message already
    variables = _template_variables(templates.instructions)
    if variables.isdisjoint((*_HISTORY_VARIABLES, "observation")):
        # The system message is cached, because it is the same in most turns.
        names = tuple(sorted(variables.intersection(facts)))
        values = tuple(map(facts.__getitem__, names))
        system = _render_instructions_cached(templates.instructions, names, values, facts["agent"])
    else:
        system = _render_template("instructions", templates.instructions, facts, facts["agent"])
    return (Message("system", system), user) if system else (user,)


@lru_cache(maxsize=4096)
def _render_messages_cached(
    templates: _RoleTemplates, current_values: tuple[Hashable, ...], observation_spans: tuple[Span, ...] | None
) -> tuple[Message, ...]:
    """Render templates for an agent with no earlier turn; cached, as small games repeat the same few prompts."""
    history: dict[str, Any] = {name: None if name == "last" else [] for name in templates.history_variables}
    return PromptWithOrigins.from_messages(_render_messages(templates, current_values, observation_spans, history))


def _template_variables_of_turn(turn: Turn) -> Mapping[str, str | None]:
    """Return agent, role, text and move of a turn, by the names that templates use."""
    facts = {"agent": turn.agent, "role": turn.role, "text": turn.completion.text, "move": turn.action}
    if turn.action is not None:
        return facts
    # The move None cannot carry its origin, so the origin of the turn's text is recorded for the key "move".
    return OriginRecordingDict(facts, {"move": origins_of(turn.completion.text)})


class BaseRole(RoleConfig):
    """Role prompted by a system message (`instructions`) and a user message (`prompt`), both jinja2 templates.

    A template is a text, which may extend or include those in `roles/prompts`, or `{file: PATH}`. Templates may use

    - `observation`, `agent`, `legal` (legal moves or none), `attempt` (number of refused answers so far), `rules` (of
      the game, or ""), `tools` (pairs of name and description), `continued` (true if the prompt continues this agent's
      last turn, so that earlier text need not be repeated);
    - `heard`: the turns heard since this agent's last turn, each with `agent`, `role`, `text` and `move` (parsed from
      the text, or none); `before`: the earlier turns, from agents that this agent still hears;
    - `mine`: the texts of this agent's own turns; `last`: the latest of these texts, or none;
    - the role's own settings named in `template_fields`;
    - the filters `spoken`, which removes thoughts, and `fenced`, which puts the texts of others between lines of
      backticks that the text cannot close.
    """

    template_fields: ClassVar[tuple[str, ...]] = ()
    """Names of the role's settings that its templates may use; the values of these settings must be hashable."""
    instructions: TemplateText = ""
    """System message, a jinja2 template with `agent`, `legal`, `attempt` and the role's settings. `{% extends
    'solver.jinja2' %}` builds on a template of `roles/prompts` (default: no system message)."""
    prompt: TemplateText = "{{ observation }}"
    """User message, a jinja2 template with the variables of `instructions`, `observation`, and the earlier turns
    that the agent reads."""

    @field_validator("instructions", "prompt")
    @classmethod
    def _check_template_variables(cls, source: str) -> str:
        names = (*_CURRENT_VARIABLES, *_HISTORY_VARIABLES, *cls.template_fields)
        if unknown := sorted(_template_variables(source) - {*names, *_environment.globals}):
            raise ValueError(
                f"the template uses {unknown[0]!r}, which does not exist; {choices_hint(unknown[0], names)}"
            )
        return source

    def setting_value_in_templates(self, setting_name: str) -> Hashable:
        """Return the value of the setting `setting_name` that templates see. Subclasses may show another one."""
        return getattr(self, setting_name)

    @property
    def learnable_instructions(self) -> str | None:
        return None if self.answers_programs else self.instructions

    def with_instructions(self, instructions: str) -> Self:
        role = self.model_copy(update={"instructions": self._check_template_variables(instructions)})
        # A template may compile and still fail, so it is rendered once.
        role.messages(PromptContext.from_text("agent", "observation"))
        return role

    def messages(self, context: PromptContext) -> tuple[Message, ...]:
        templates = _role_templates(self.instructions, self.prompt, self.template_fields)
        tools = tuple([(tool.name, tool.description) for tool in self.listed_tools]) if self.tools else ()
        continued = self.history == "append" and bool(context.own_turns)
        info, observation = context.info, context.observation["text"]
        spans = None
        if isinstance(observation, TextWithOrigins):
            spans, observation = origin_spans_of_text(observation), without_origins(observation)
        current = context.agent, observation, info["legal"], info["attempt"], info.get("rules", ""), continued, tools
        if self.template_fields:
            current += tuple(map(self.setting_value_in_templates, self.template_fields))
        names = templates.history_variables
        if not (names and (context.new_turns or context.read_turns or context.own_turns)):
            return _render_messages_cached(templates, current, spans)
        history: dict[str, Any] = {}
        if "heard" in names:
            history["heard"] = list(map(_template_variables_of_turn, context.new_turns))
        if "before" in names:
            history["before"] = [
                _template_variables_of_turn(turn) for turn in context.read_turns if turn.agent in info["hears"]
            ]
        if "mine" in names or "last" in names:
            own_texts = [
                turn.completion.text for turn in (context.own_turns if "mine" in names else context.own_turns[-1:])
            ]
            if self.thinking == "hide":
                own_texts = [apply_cached_with_origins(text, remove_thoughts) for text in own_texts]
            history |= {"mine": own_texts, "last": own_texts[-1] if own_texts else None}
        return _render_messages(templates, current, spans, history)

    @property
    def ignores_earlier_turns(self) -> bool:
        role = type(self)
        # A subclass with its own way to build a part of a request may read any turn, or make each request differ.
        has_own_requests = (
            role.messages is not BaseRole.messages
            or role.continued_ids is not BaseRole.continued_ids
            or role.role_for_request is not RoleConfig.role_for_request
            or role.offsets_of_read_segments is not RoleConfig.offsets_of_read_segments
        )
        templates = _role_templates(self.instructions, self.prompt, self.template_fields)
        reads_turns = self.history == "append" or bool(templates.history_variables)
        return not (has_own_requests or reads_turns)

    def continued_ids(self, context: PromptContext) -> tuple[int, ...]:
        if self.history == "fresh" or not context.own_turns:
            return ()
        last = context.own_turns[-1].completion
        return (*last.prompt_ids, *last.token_ids)

    def parse(self, text: str, legal: tuple[str, ...] | None) -> str | None:
        move = remove_thoughts_and_strip(text)
        return move if move and (legal is None or move in legal) else None

    def phrase(self, move: str) -> str:
        return move
