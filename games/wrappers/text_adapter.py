"""Text for numeric environments: observations by a template or as rows of numbers, and names of actions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from math import prod
from typing import Annotated, Any, Literal, Self

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Text
from gymnasium.spaces import Tuple as TupleSpace
from jinja2 import TemplateError, TemplateSyntaxError
from pettingzoo import AECEnv
from pydantic import AfterValidator

from marl.games.aec import action_mask, numbered
from marl.games.wrappers.classic_actions import names_of_actions
from marl.text.templates import BoundedEnvironment, CompiledTemplate

LARGEST_SHOWN = 256
"""Maximum size of an observation that is shown without a template [numbers]."""
FACTS = "observation, mask, legal, agent, seat, name, rendering"
_HIGHLIGHT = re.compile(r"\x1b\[[\d;]*m(.*?)\x1b\[0?m", re.DOTALL)
_CONTROL = re.compile(r"\x1b\[[\d;]*[A-Za-z]|[^\n\t -~\u00a0-\ud7ff\ue000-\U0010ffff]")
_environment = BoundedEnvironment()


def _checked(source: str) -> str:
    template(source)
    return source


TemplateText = Annotated[str, AfterValidator(_checked)]


def template(source: str) -> CompiledTemplate:
    """Return the compiled jinja2 template; raise ValueError if `source` is no valid template."""
    try:
        return CompiledTemplate(_environment.from_string(source))
    except TemplateSyntaxError as error:
        raise ValueError(f"{source!r} is no valid jinja2 template: {error.message}") from error


def one_line(text: str) -> str:
    """Return the name of a move on one line and without square brackets, as players name moves in square brackets."""
    return " ".join(text.translate({ord("["): "(", ord("]"): ")"}).split())


class TemplateTextAdapter:
    """Text of observations and names of actions of an environment, by a scenario's settings or by defaults."""

    def __init__(
        self, describe: str | None, actions: Sequence[str] | str | None, hears: Literal["own", "all"] = "own"
    ) -> None:
        """Set the templates.

        Args:
            describe: template of an observation, or None for the environment's text rendering or else its numbers.
            actions: names of actions, a template of a name, or None for known names or else numbers.
            hears: agents read the moves of all agents, or only their own moves.
        """
        self._source, self._actions, self._hears = describe, actions, hears
        self._names: dict[str, Sequence[str]] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return the adapter itself: it depends on no game's state, and compiled templates cannot be copied."""
        return self

    @cached_property
    def _template(self) -> CompiledTemplate | None:
        return None if self._source is None else template(self._source)

    def hears(self, env: AECEnv[str, Any, Any], agent: str) -> tuple[str, ...]:
        return tuple(env.possible_agents) if self._hears == "all" else (agent,)

    def action_names(self, env: AECEnv[str, Any, Any], agent: str) -> Sequence[str]:
        if agent not in self._names:
            self._names[agent] = self._make_names(env, agent)
        return self._names[agent]

    def _make_names(self, env: AECEnv[str, Any, Any], agent: str) -> Sequence[str]:
        numbers, seat = numbered(env, agent), env.possible_agents.index(agent)
        if self._actions is None:
            return names_of_actions(str(env.metadata.get("name", "")), seat, len(numbers)) or numbers
        if not isinstance(self._actions, str):
            return self._actions
        name_template = template(self._actions)
        names: list[str] = []
        for index, number in enumerate(numbers):
            facts = {"agent": agent, "seat": seat, "action": index, "number": number}
            names.append(one_line(_rendered(name_template, facts, "actions")))
        return names

    def describe(self, env: AECEnv[str, Any, Any], agent: str) -> str:
        ansi = renders_text(env)
        if self._template is None:
            return clean_rendering(env.render()).strip("\n") if ansi else format_observation(env.observe(agent))
        observation, mask = env.observe(agent), action_mask(env, agent)
        names = self.action_names(env, agent)
        facts = {
            "observation": to_plain_data(_content(observation)),
            "mask": [1] * len(names) if mask is None else [int(legal) for legal in mask],
            "legal": [name for index, name in enumerate(names) if mask is None or mask[index]],
            "agent": agent,
            "seat": env.possible_agents.index(agent),
            "name": str(env.metadata.get("name", "")),
            "rendering": clean_rendering(env.render()) if ansi else "",
        }
        return clean_rendering(_rendered(self._template, facts, "describe")).strip("\n")

    def check(self, env: AECEnv[str, Any, Any]) -> None:
        """Raise ValueError if an observation of the environment is too large to be shown without a template."""
        if self._template is not None or renders_text(env):
            return
        for agent in env.possible_agents:
            count = _count(env.observation_space(agent))
            if count is None or count > LARGEST_SHOWN:
                size = (
                    "no numbers" if count is None else f"{count:,} numbers; at most {LARGEST_SHOWN} are shown as such"
                )
                raise ValueError(
                    f"describe: an observation of {agent!r} has {size}; give a template of {FACTS}, "
                    "or settings: {render_mode: ansi} if the environment has it"
                )


def renders_text(env: AECEnv[str, Any, Any]) -> bool:
    """Return True if the environment was made with `render_mode: ansi`."""
    return vars(env.unwrapped).get("render_mode") == "ansi"


def _rendered(compiled: CompiledTemplate, facts: Mapping[str, Any], field: str) -> str:
    try:
        return compiled.render(facts)
    except TemplateError as error:
        raise ValueError(f"{field}: {error.message}; it may use {', '.join(facts)}") from error


def clean_rendering(text: Any) -> str:
    """Return a rendered text with [...] around text highlighted by colours, and without control characters.

    Raises:
        ValueError: if the environment rendered something other than text.
    """
    if not isinstance(text, str):
        raise ValueError(f"describe: the environment rendered {type(text).__name__}; choices: a template of {FACTS}")
    return _CONTROL.sub("", _HIGHLIGHT.sub(r"[\1]", text))


def format_observation(observation: Any) -> str:
    """Return an observation as text: rows of numbers, and for a mapping `name: text` of each entry."""
    if isinstance(observation, Mapping):
        parts = {name: part for name, part in observation.items() if name != "action_mask"}
        if len(parts) == 1:
            return format_observation(next(iter(parts.values())))
        return "\n".join(f"{name}: {format_observation(part)}" for name, part in parts.items())
    if isinstance(observation, str):
        return clean_rendering(observation)
    if isinstance(observation, tuple):
        return " ".join(map(format_observation, observation))
    values = to_plain_data(observation)
    return _rows(values) if isinstance(values, list) else _number(values)


def _rows(values: list[Any]) -> str:
    """Return `1 2` for a list, one line per row of a table, and `1,2 3,4` for cells of several numbers."""
    if not any(isinstance(value, list) for value in values):
        return " ".join(map(_number, values))
    return "\n".join(" ".join(_cell(cell) for cell in row) for row in values)


def _cell(cell: Any) -> str:
    return ",".join(map(_cell, cell)) if isinstance(cell, list) else _number(cell)


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) and not value.is_integer() else str(int(value))


def to_plain_data(value: Any) -> Any:
    """Return an observation as plain numbers, texts, lists and mappings, for templates."""
    if isinstance(value, Mapping):
        return {str(name): to_plain_data(part) for name, part in value.items()}
    if isinstance(value, tuple | list):
        return [to_plain_data(part) for part in value]
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _content(observation: Any) -> Any:
    """Return a PettingZoo observation without its action mask; a single remaining entry is unwrapped."""
    if not isinstance(observation, Mapping) or "action_mask" not in observation:
        return observation
    parts = {name: part for name, part in observation.items() if name != "action_mask"}
    return next(iter(parts.values())) if len(parts) == 1 else parts


def _count(space: Space[Any]) -> int | None:
    """Return the number of numbers in an observation, or None if it has other kinds of entries."""
    match space:
        case Box() | MultiBinary() | MultiDiscrete():
            return prod(space.shape)
        case Discrete():
            return 1
        case Text():
            return 0
        case Dict() | TupleSpace():
            parts = dict(space.spaces) if isinstance(space, Dict) else dict(enumerate(space.spaces))
            counts = [_count(part) for name, part in parts.items() if name != "action_mask"]
            return None if None in counts else sum(filter(None, counts))
    return None
