"""Words for environments that have none: observations through a template, or as rows of numbers; names of actions."""

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

from games.aec import action_mask, numbered
from games.wrappers.classic import names_of_actions
from marl.templating import BoundedEnvironment, CompiledTemplate

LARGEST_SHOWN = 256
"""Numbers of an observation that are shown without a template."""
FACTS = "observation, mask, legal, agent, seat, name, rendering"
_HIGHLIGHT = re.compile(r"\x1b\[[\d;]*m(.*?)\x1b\[0?m", re.DOTALL)
_CONTROL = re.compile(r"\x1b\[[\d;]*[A-Za-z]|[^\n\t -~\u00a0-\ud7ff\ue000-\U0010ffff]")
_environment = BoundedEnvironment()


def _checked(source: str) -> str:
    template(source)
    return source


TemplateText = Annotated[str, AfterValidator(_checked)]


def template(source: str) -> CompiledTemplate:
    """Return a jinja2 template of a scenario; raise ValueError if it is none."""
    try:
        return CompiledTemplate(_environment.from_string(source))
    except TemplateSyntaxError as error:
        raise ValueError(f"{source!r} is no valid jinja2 template: {error.message}") from error


def one_line(text: str) -> str:
    """Return the name of a move so that it can stand in square brackets: one line, and no brackets within."""
    return " ".join(text.translate({ord("["): "(", ord("]"): ")"}).split())


class TemplateWords:
    """The words of a scenario for an environment: `describe` and `actions`, each with a default."""

    def __init__(
        self, describe: str | None, actions: Sequence[str] | str | None, hears: Literal["own", "all"] = "own"
    ) -> None:
        """`describe`: template; None: the text that the environment renders, or else the numbers of the observation.

        `actions`: names, a template of them, or None: those that are known of the environment, or else numbers.
        `hears`: agents read the moves of all, or only their own.
        """
        self._source, self._actions, self._hears = describe, actions, hears
        self._names: dict[str, Sequence[str]] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return itself: copies of a game speak with the same words, and a template cannot be copied."""
        return self

    @cached_property
    def _template(self) -> CompiledTemplate | None:
        return None if self._source is None else template(self._source)

    def hears(self, env: AECEnv[str, Any, Any], agent: str) -> tuple[str, ...]:
        return tuple(env.possible_agents) if self._hears == "all" else (agent,)

    def moves(self, env: AECEnv[str, Any, Any], agent: str) -> Sequence[str]:
        if agent not in self._names:
            self._names[agent] = self._make_names(env, agent)
        return self._names[agent]

    def _make_names(self, env: AECEnv[str, Any, Any], agent: str) -> Sequence[str]:
        numbers, seat = numbered(env, agent), env.possible_agents.index(agent)
        if self._actions is None:
            return names_of_actions(str(env.metadata.get("name", "")), seat, len(numbers)) or numbers
        if not isinstance(self._actions, str):
            return self._actions
        made, facts = template(self._actions), {"agent": agent, "seat": seat}
        return [
            one_line(_rendered(made, facts | {"action": index, "number": number}, "actions"))
            for index, number in enumerate(numbers)
        ]

    def describe(self, env: AECEnv[str, Any, Any], agent: str) -> str:
        ansi = renders_text(env)
        if self._template is None:
            return printable(env.render()).strip("\n") if ansi else in_words(env.observe(agent))
        observation, mask = env.observe(agent), action_mask(env, agent)
        names = self.moves(env, agent)
        facts = {
            "observation": plain(_content(observation)),
            "mask": [1] * len(names) if mask is None else [int(legal) for legal in mask],
            "legal": [name for index, name in enumerate(names) if mask is None or mask[index]],
            "agent": agent,
            "seat": env.possible_agents.index(agent),
            "name": str(env.metadata.get("name", "")),
            "rendering": printable(env.render()) if ansi else "",
        }
        return printable(_rendered(self._template, facts, "describe")).strip("\n")

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


def _rendered(made: CompiledTemplate, facts: Mapping[str, Any], field: str) -> str:
    try:
        return made.render(facts)
    except TemplateError as error:
        raise ValueError(f"{field}: {error.message}; it may use {', '.join(facts)}") from error


def printable(text: Any) -> str:
    """Return what an environment rendered as text: [...] around what it highlights by colours, no control characters.

    Raises ValueError if it is no text.
    """
    if not isinstance(text, str):
        raise ValueError(f"describe: the environment rendered {type(text).__name__}; choices: a template of {FACTS}")
    return _CONTROL.sub("", _HIGHLIGHT.sub(r"[\1]", text))


def in_words(observation: Any) -> str:
    """Return an observation as text: rows of numbers, of several parts each after its name."""
    if isinstance(observation, Mapping):
        parts = {name: part for name, part in observation.items() if name != "action_mask"}
        if len(parts) == 1:
            return in_words(next(iter(parts.values())))
        return "\n".join(f"{name}: {in_words(part)}" for name, part in parts.items())
    if isinstance(observation, str):
        return printable(observation)
    if isinstance(observation, tuple):
        return " ".join(map(in_words, observation))
    values = plain(observation)
    return _rows(values) if isinstance(values, list) else _number(values)


def _rows(values: list[Any]) -> str:
    """Return `1 2` for a list, a line for each row of a table, and `1,2 3,4` for cells of several numbers each."""
    if not any(isinstance(value, list) for value in values):
        return " ".join(map(_number, values))
    return "\n".join(" ".join(_cell(cell) for cell in row) for row in values)


def _cell(cell: Any) -> str:
    return ",".join(map(_cell, cell)) if isinstance(cell, list) else _number(cell)


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) and not value.is_integer() else str(int(value))


def plain(value: Any) -> Any:
    """Return an observation as numbers, texts, lists and mappings, for templates."""
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, tuple | list):
        return [plain(part) for part in value]
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _content(observation: Any) -> Any:
    """Return what PettingZoo's observations hold beside the mask."""
    if not isinstance(observation, Mapping) or "action_mask" not in observation:
        return observation
    parts = {name: part for name, part in observation.items() if name != "action_mask"}
    return next(iter(parts.values())) if len(parts) == 1 else parts


def _count(space: Space[Any]) -> int | None:
    """Return how many numbers an observation has; None if it has anything else."""
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
            known = [count for count in counts if count is not None]
            return sum(known) if len(known) == len(counts) else None
    return None
