"""Base of all roles: instructions and prompt are jinja2 templates, which may extend those in `roles/prompts`."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

from jinja2 import FileSystemLoader, TemplateError, TemplateNotFound, TemplateSyntaxError, meta
from pydantic import BeforeValidator, WithJsonSchema, field_validator

from marl.core.config import choices_hint
from marl.core.types import Message, Turn
from marl.host.paths import current_resolver
from marl.protocols import PromptContext, RoleConfig
from marl.protocols.roles import MarkedPrompt
from marl.text.answers import public_text, without_thoughts
from marl.text.origins import MarkedText, Origin, Span, WatchedDict, apply_cached, origins_of, spans_of, without_origins
from marl.text.templates import BoundedEnvironment, CompiledTemplate

_PRESENT_NAMES = ("agent", "observation", "legal", "attempt", "rules", "continued", "tools")
_PAST_NAMES = ("heard", "before", "mine", "last")

_BACKTICKS = re.compile("`{3,}+")


def fence_text(text: str) -> str:
    """Return `text` as a block between two lines of backticks, or `(nothing)` for a blank text.

    The fence is longer than any run of backticks in the text. The text therefore cannot close the block, and a reader
    can tell that instructions inside it are quoted.
    """
    fence = "`" * max([3, *(len(run) + 1 for run in _BACKTICKS.findall(text))])
    return f"{fence}\n{text}\n{fence}" if text.strip() else "(nothing)"


_environment = BoundedEnvironment(
    {"spoken": without_thoughts, "fenced": fence_text},
    marked=("observation", *_PAST_NAMES),
    loader=FileSystemLoader(Path(__file__).parent / "prompts"),
    trim_blocks=True,
    keep_trailing_newline=False,
    auto_reload=False,
)


@lru_cache(maxsize=256)
def _compile(source: str) -> CompiledTemplate:
    return CompiledTemplate(_environment.from_string(source))


@lru_cache(maxsize=256)
def _names_in(source: str) -> frozenset[str]:
    """Return the variables of a template and of all templates that it extends or includes.

    Raises:
        ValueError: if `source` is no jinja2 template, or refers to a template that is not in `roles/prompts`.
    """
    try:
        tree = _environment.parse(source)
        _compile(source)
    except TemplateSyntaxError as error:
        raise ValueError(f"not a jinja2 template: {error.message} (line {error.lineno})") from error
    names = meta.find_undeclared_variables(tree)
    for name in meta.find_referenced_templates(tree):
        names |= _names_in(_packaged_source(name))
    return frozenset(names)


def _packaged_source(name: str | None) -> str:
    """Return the source of a template in `roles/prompts`; None stands for a name that is computed when rendering."""
    choices = _environment.list_templates()
    if name is None:
        raise ValueError(f"a template to extend or include must be named in quotes; {choices_hint('', choices)}")
    try:
        return _environment.loader.get_source(_environment, name)[0]  # type: ignore[union-attr]
    except TemplateNotFound as error:
        raise ValueError(f"no template {name!r} to extend or include; {choices_hint(name, choices)}") from error


def _read_source(value: Any) -> Any:
    """Return the content of the file for `{file: PATH}`, relative to the scenario's folder; other values unchanged.

    The resolved scenario in a run's folder contains the text, so the run stays the same when the file is edited.

    Raises:
        ValueError: if the file does not exist or is no text file.
    """
    if not isinstance(value, Mapping):
        return value
    if list(value) != ["file"] or not isinstance(value["file"], str):
        raise ValueError(f"must be text or {{file: PATH}}; got {dict(value)}")
    resolver = current_resolver()
    file = resolver.resolve_recorded("file", value["file"]) if resolver else value["file"]
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
    str, BeforeValidator(_read_source), WithJsonSchema({"anyOf": [{"type": "string"}, _FILE_SCHEMA]})
]
"""A jinja2 template, or `{file: PATH}` of one."""


class _Templates(NamedTuple):
    """Templates of a role, and the names of the role's settings that the templates may use."""

    instructions: str
    prompt: str
    fields: tuple[str, ...]


@lru_cache(maxsize=256)
def _past_names(*templates: str) -> frozenset[str]:
    """Return the variables about earlier turns that the templates use."""
    return frozenset().union(*map(_names_in, templates)).intersection(_PAST_NAMES)


@lru_cache(maxsize=256)
def _present_names(instructions: str, fields: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(_names_in(instructions).intersection((*_PRESENT_NAMES, *fields))))


def _fill(template: str, facts: Mapping[str, Any], agent: str) -> str:
    try:
        return _compile(template).render(facts).strip("\n")
    except TemplateError as error:
        raise ValueError(f"a role's template cannot be filled in for {agent}: {error.message}") from error


@lru_cache(maxsize=4096)
def _fill_cached(template: str, names: tuple[str, ...], values: tuple[Hashable, ...], agent: str) -> str:
    """Render a template whose only variables are `names` with `values`; the observation must not be among them."""
    return _fill(template, dict(zip(names, values, strict=True)), agent)


def _instructions(templates: _Templates, facts: Mapping[str, Any]) -> str:
    if facts["continued"]:
        return ""
    names = _present_names(templates.instructions, templates.fields)
    if _past_names(templates.instructions) or "observation" in names:
        return _fill(templates.instructions, facts, facts["agent"])
    return _fill_cached(templates.instructions, names, tuple([facts[name] for name in names]), facts["agent"])


def _render(
    templates: _Templates, present: tuple[Hashable, ...], spans: tuple[Span, ...], past: dict[str, Any]
) -> tuple[Message, ...]:
    """Render the templates of a role.

    `present` holds the values of `_PRESENT_NAMES` and of `templates.fields`, in this order. `spans` are the origins of
    parts of the observation, and `past` maps a variable about earlier turns to its value.
    """
    facts: dict[str, Any] = {**dict(zip((*_PRESENT_NAMES, *templates.fields), present, strict=True)), **past}
    if spans:
        facts["observation"] = MarkedText(facts["observation"], spans)
    user = _fill(templates.prompt, facts, facts["agent"])
    system = _instructions(templates, facts)
    return (Message("system", system), Message("user", user)) if system else (Message("user", user),)


@lru_cache(maxsize=4096)
def _render_cached(
    templates: _Templates, present: tuple[Hashable, ...], spans: tuple[Span, ...]
) -> tuple[Message, ...]:
    """Render templates without variables about earlier turns; cached, as small games repeat the same few prompts."""
    return MarkedPrompt.of(_render(templates, present, spans, {}))


def _turn_facts(turn: Turn) -> Mapping[str, str | None]:
    """Return the facts of a turn as templates see them."""
    facts = {"agent": turn.agent, "role": turn.role, "text": turn.completion.text, "move": turn.action}
    if turn.action is not None:
        return facts
    # A missing move carries no text, but a template that tests for it depends on the turn's text.
    return WatchedDict(facts, {"move": origins_of(turn.completion.text)})


def _own_text(turn: Turn, thinking: str) -> str:
    """Return the text of an agent's own turn for its later prompts, without thoughts for `thinking: hide`."""
    text = turn.completion.text
    return apply_cached(text, public_text) if thinking == "hide" else text


def _past(view: PromptContext, thinking: str, names: frozenset[str]) -> dict[str, Any]:
    """Return variable -> value for the variables about earlier turns in `names`."""
    past: dict[str, Any] = {}
    if "heard" in names:
        past["heard"] = [_turn_facts(turn) for turn in view.new_turns]
    if "before" in names:
        past["before"] = [_turn_facts(turn) for turn in view.read_turns if turn.agent in view.info["hears"]]
    if "mine" in names:
        past["mine"] = [_own_text(turn, thinking) for turn in view.own_turns]
    if "last" in names:
        past["last"] = _own_text(view.own_turns[-1], thinking) if view.own_turns else None
    return past


_UNREAD = Origin(None, "told")


def _observation_spans(text: str) -> tuple[Span, ...]:
    """Return the origins of the parts of an observation.

    Without marks by the game, all of the observation originates from the turns that the agent had not read yet.
    """
    return spans_of(text) if isinstance(text, MarkedText) else ((0, len(text), _UNREAD),)


class BaseRole(RoleConfig):
    """Role prompted by a system message (`instructions`) and a user message (`prompt`), both jinja2 templates.

    A template is a text, which may extend or include those in `roles/prompts`, or `{file: PATH}`. It may use

    - `observation`, `agent`, `legal` (legal moves or none), `attempt` (number of refused answers so far), `rules` (of
      the game, or ""), `tools` (pairs of name and description), `continued` (true if the prompt continues this agent's
      last turn, so that earlier text need not be repeated);
    - `heard`: the turns heard since this agent's last turn, a list of `agent`, `role`, `text` and `move` (parsed from
      the text, or none); `before`: the turns heard until then, from agents that this agent still hears;
    - `mine`: the texts of this agent's own turns; `last`: the latest of these texts, or none;
    - the role's own settings named in `template_fields`;
    - the filters `spoken`, which removes thoughts, and `fenced`, which puts the texts of others between lines of
      backticks that the text cannot close.
    """

    template_fields: ClassVar[tuple[str, ...]] = ()
    """Settings of the role that templates may use; their values must be hashable."""
    instructions: TemplateText = ""
    """System message, a jinja2 template with `agent`, `legal`, `attempt` and the role's settings. `{% extends
    'solver.jinja2' %}` builds on a template of `roles/prompts`. Empty: no system message."""
    prompt: TemplateText = "{{ observation }}"
    """User message, a jinja2 template, which may also use `observation` and the turns that the role heard."""

    @field_validator("instructions", "prompt")
    @classmethod
    def _uses_known_names(cls, source: str) -> str:
        names = (*_PRESENT_NAMES, *_PAST_NAMES, *cls.template_fields)
        if unknown := sorted(_names_in(source) - {*names, *_environment.globals}):
            raise ValueError(
                f"the template uses {unknown[0]!r}, which does not exist; {choices_hint(unknown[0], names)}"
            )
        return source

    def messages(self, view: PromptContext) -> tuple[Message, ...]:
        tools = tuple([(tool.name, tool.description) for tool in self.tools]) if self.tools else ()
        continued = self.history == "append" and bool(view.own_turns)
        info, observation = view.info, view.observation["text"]
        situation = view.agent, without_origins(observation), info["legal"], info["attempt"], info.get("rules", "")
        present = (*situation, continued, tools)
        if self.template_fields:
            present += tuple([getattr(self, name) for name in self.template_fields])
        templates = _Templates(self.instructions, self.prompt, self.template_fields)
        if names := _past_names(self.instructions, self.prompt):
            return _render(templates, present, _observation_spans(observation), _past(view, self.thinking, names))
        return _render_cached(templates, present, _observation_spans(observation))

    def continues(self, view: PromptContext) -> tuple[int, ...]:
        if self.history == "fresh" or not view.own_turns:
            return ()
        last = view.own_turns[-1].completion
        return (*last.prompt_ids, *last.token_ids)

    def parse(self, text: str, legal: tuple[str, ...] | None) -> str | None:
        move = without_thoughts(text)
        return move if move and (legal is None or move in legal) else None

    def phrase(self, move: str) -> str:
        return move
