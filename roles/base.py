"""Base of all roles: instructions and prompt are jinja2 templates, a scenario's own or built on `roles/prompts`."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

from jinja2 import FileSystemLoader, TemplateError, TemplateNotFound, TemplateSyntaxError, meta
from pydantic import BeforeValidator, WithJsonSchema, field_validator

from marl.answer_text import public_text, without_thoughts
from marl.config import nearest
from marl.places import current
from marl.protocols import RoleConfig, View
from marl.protocols.roles import MarkedPrompt
from marl.provenance import Marked, Origin, Span, WatchedDict, origins_of, plain, remade, spans_of
from marl.templating import BoundedEnvironment, CompiledTemplate
from marl.types import Message, Turn

_PRESENT_NAMES = ("agent", "observation", "legal", "attempt", "rules", "continued", "tools")
_PAST_NAMES = ("heard", "before", "mine", "last")

_BACKTICKS = re.compile("`{3,}+")


def fenced(text: str) -> str:
    """Return what somebody wrote between two lines of backticks; `(nothing)` if that is blank.

    There are more of them than stand together anywhere in the text. So it cannot close them, and whatever it lists or
    demands is seen to be its own.
    """
    fence = "`" * max([3, *(len(run) + 1 for run in _BACKTICKS.findall(text))])
    return f"{fence}\n{text}\n{fence}" if text.strip() else "(nothing)"


_environment = BoundedEnvironment(
    {"spoken": without_thoughts, "fenced": fenced},
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
    """Return the names that a template and those it extends or includes read.

    Raises:
        ValueError: if it is no jinja2 template, or refers to one that is not in `roles/prompts`.
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
    choices = _environment.list_templates()
    if name is None:
        raise ValueError(f"a template to extend or include must be named in quotes; {nearest('', choices)}")
    try:
        return _environment.loader.get_source(_environment, name)[0]  # type: ignore[union-attr]
    except TemplateNotFound as error:
        raise ValueError(f"no template {name!r} to extend or include; {nearest(name, choices)}") from error


def _read_source(value: Any) -> Any:
    """Return the text of `{file: PATH}`, relative to the scenario's folder; any other value as it is.

    A run's folder holds the text, so that the run stays the same when the file is edited.

    Raises:
        ValueError: if there is no such file, or it is no text.
    """
    if not isinstance(value, Mapping):
        return value
    if list(value) != ["file"] or not isinstance(value["file"], str):
        raise ValueError(f"must be text or {{file: PATH}}; got {dict(value)}")
    places = current()
    file = places.absolute("file", value["file"]) if places else value["file"]
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
    """Templates of a role, and the names of its own settings that they may use."""

    instructions: str
    prompt: str
    fields: tuple[str, ...]


@lru_cache(maxsize=256)
def _past_names(*templates: str) -> frozenset[str]:
    """Return the names of the facts of earlier turns that templates use."""
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
    """Fill in a template that uses nothing but these facts; the observation is not among them."""
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
    """Fill in the templates: `present` holds the values of `_PRESENT_NAMES` and of `templates.fields`, in order;
    `spans` are those of the observation."""
    facts: dict[str, Any] = {**dict(zip((*_PRESENT_NAMES, *templates.fields), present, strict=True)), **past}
    if spans:
        facts["observation"] = Marked(facts["observation"], spans)
    user = _fill(templates.prompt, facts, facts["agent"])
    system = _instructions(templates, facts)
    return (Message("system", system), Message("user", user)) if system else (Message("user", user),)


@lru_cache(maxsize=4096)
def _render_cached(
    templates: _Templates, present: tuple[Hashable, ...], spans: tuple[Span, ...]
) -> tuple[Message, ...]:
    """Fill in templates that use nothing of the past: in a small game the same prompt comes again and again."""
    return MarkedPrompt.of(_render(templates, present, spans, {}))


def _facts(turns: Iterable[Turn]) -> list[Mapping[str, str | None]]:
    return [_fact(turn) for turn in turns]


def _fact(turn: Turn) -> Mapping[str, str | None]:
    facts = {"agent": turn.agent, "role": turn.role, "text": turn.completion.text, "move": turn.action}
    if turn.action is not None:
        return facts
    # That it could not be read depends on what was said.
    return WatchedDict(facts, {"move": origins_of(turn.completion.text)})


def _repeated(turn: Turn, thinking: str) -> str:
    text = turn.completion.text
    return remade(text, public_text) if thinking == "hide" else text


def _past(view: View, thinking: str, names: frozenset[str]) -> dict[str, Any]:
    past: dict[str, Any] = {}
    if "heard" in names:
        past["heard"] = _facts(view.unread)
    if "before" in names:
        past["before"] = _facts(turn for turn in view.read if turn.agent in view.info["hears"])
    if "mine" in names:
        past["mine"] = [_repeated(turn, thinking) for turn in view.mine]
    if "last" in names:
        past["last"] = _repeated(view.mine[-1], thinking) if view.mine else None
    return past


_UNREAD = Origin(None, "told")


def _observed(text: str) -> tuple[Span, ...]:
    """Return the marks of an observation; a game that has none tells of all that the agent had not read yet."""
    return spans_of(text) if isinstance(text, Marked) else ((0, len(text), _UNREAD),)


class BaseRole(RoleConfig):
    """Role that speaks in a system message (`instructions`) and a user message (`prompt`), both jinja2 templates.

    A template is text, which may extend or include those in `roles/prompts`, or `{file: PATH}`. It may use

    - `observation`, `agent`, `legal` (moves or none), `attempt` (refused answers so far), `rules` (of the game, or ""),
      `tools` (pairs of name and description), `continued` (whether the prompt goes on from this agent's last turn,
      which it need not repeat);
    - `heard`: the turns that this agent can hear since its own last one: a list of `agent`, `role`, `text` and `move`
      (parsed from the text, or none); `before`: the same of what it had heard by then from agents that it still hears;
    - `mine`: the texts of this agent's own turns; `last`: the latest of them, or none;
    - the role's own settings that `template_fields` names;
    - the filters `spoken`, which leaves thoughts out, and `fenced`, for what others wrote: between lines of backticks,
      which it cannot close.
    """

    template_fields: ClassVar[tuple[str, ...]] = ()
    """Settings of the role that templates may use; their values must be hashable."""
    instructions: TemplateText = ""
    """System message, a jinja2 template. It reads `agent`, `legal`, `attempt` and the role's settings; `{% extends
    'solver.jinja2' %}` builds on one of `roles/prompts`. Empty: there is none."""
    prompt: TemplateText = "{{ observation }}"
    """User message, a jinja2 template, which may also read `observation` and the turns that the role heard."""

    @field_validator("instructions", "prompt")
    @classmethod
    def _uses_known_names(cls, source: str) -> str:
        names = (*_PRESENT_NAMES, *_PAST_NAMES, *cls.template_fields)
        if unknown := sorted(_names_in(source) - {*names, *_environment.globals}):
            raise ValueError(f"the template uses {unknown[0]!r}, which does not exist; {nearest(unknown[0], names)}")
        return source

    def messages(self, view: View) -> tuple[Message, ...]:
        tools = tuple([(tool.name, tool.description) for tool in self.tools]) if self.tools else ()
        continued = self.history == "append" and bool(view.mine)
        info, observation = view.info, view.observation["text"]
        situation = view.agent, plain(observation), info["legal"], info["attempt"], info.get("rules", "")
        present = (*situation, continued, tools)
        if self.template_fields:
            present += tuple([getattr(self, name) for name in self.template_fields])
        templates = _Templates(self.instructions, self.prompt, self.template_fields)
        if names := _past_names(self.instructions, self.prompt):
            return _render(templates, present, _observed(observation), _past(view, self.thinking, names))
        return _render_cached(templates, present, _observed(observation))

    def continues(self, view: View) -> tuple[int, ...]:
        if self.history == "fresh" or not view.mine:
            return ()
        last = view.mine[-1].completion
        return (*last.prompt_ids, *last.token_ids)

    def parse(self, text: str, legal: tuple[str, ...] | None) -> str | None:
        move = without_thoughts(text)
        return move if move and (legal is None or move in legal) else None

    def phrase(self, move: str) -> str:
        return move
