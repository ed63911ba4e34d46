"""Numeric environments as text: observations by a template or as rows of numbers, and names of actions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import compress
from math import prod
from typing import Annotated, Any, Literal, Self

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Text
from gymnasium.spaces import Tuple as TupleSpace
from jinja2 import TemplateError, TemplateSyntaxError
from pettingzoo import AECEnv
from pydantic import AfterValidator

from marl.games.aec import EnvTextAdapter, action_mask, format_action_numbers
from marl.games.wrappers.classic_actions import classic_action_names
from marl.text.templates import BoundedEnvironment, CompiledTemplate

MAX_SHOWN_NUMBERS = 256
"""Maximum number of numbers in an observation that is shown without a template."""
TEMPLATE_FACTS = "observation, mask, legal, agent, seat, name, rendering"
"""Names that a template of an observation can use."""
_HIGHLIGHT = re.compile(r"\x1b\[[\d;]*m(.*?)\x1b\[0?m", re.DOTALL)
_CONTROL = re.compile(r"\x1b\[[\d;]*[A-Za-z]|[^\n\t -~\u00a0-\ud7ff\ue000-\U0010ffff]")
_environment = BoundedEnvironment()


def _check_template_syntax(template_source: str) -> str:
    compile_template(template_source)
    return template_source


TemplateText = Annotated[str, AfterValidator(_check_template_syntax)]


def compile_template(template_source: str) -> CompiledTemplate:
    """Return the compiled jinja2 template `template_source`; raise ValueError if its syntax is wrong."""
    try:
        return CompiledTemplate(_environment.from_string(template_source))
    except TemplateSyntaxError as error:
        raise ValueError(f"{template_source!r} is no valid jinja2 template: {error.message}") from error


def to_move_name(text: str) -> str:
    """Return `text` as a move's name: on one line, with round brackets, as players put moves in square brackets."""
    return " ".join(text.translate({ord("["): "(", ord("]"): ")"}).split())


class TemplateEnvTextAdapter(EnvTextAdapter):
    """Adapter from an environment's observations and actions to text, by templates or by defaults."""

    def __init__(
        self,
        observation_template: str | None,
        action_names_or_template: Sequence[str] | str | None,
        heard_moves: Literal["own", "all"] = "own",
    ) -> None:
        """Set the templates.

        Args:
            observation_template: template of an observation (default: the environment's text rendering, else its
                numbers).
            action_names_or_template: names of actions, or a template of a name (default: known names, else numbers).
            heard_moves: whether agents read the moves of all agents, or only their own.
        """
        self._source, self._actions, self._hears = observation_template, action_names_or_template, heard_moves
        self._names: dict[str, Sequence[str]] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return the adapter itself: it depends on no game's state, and compiled templates cannot be copied."""
        return self

    @cached_property
    def _observation_template(self) -> CompiledTemplate | None:
        return None if self._source is None else compile_template(self._source)

    def heard_agents(self, env: AECEnv[str, Any, Any], agent: str) -> tuple[str, ...]:
        return tuple(env.possible_agents) if self._hears == "all" else (agent,)

    def action_names(self, env: AECEnv[str, Any, Any], agent: str) -> Sequence[str]:
        if agent in self._names:
            return self._names[agent]
        numbers, seat = format_action_numbers(env, agent), env.possible_agents.index(agent)
        if isinstance(self._actions, str):
            template = compile_template(self._actions)
            names: list[str] = []
            for index, number in enumerate(numbers):
                facts = {"agent": agent, "seat": seat, "action": index, "number": number}
                names.append(to_move_name(_render_template(template, facts, "actions")))
            self._names[agent] = names
        elif self._actions is None:
            self._names[agent] = classic_action_names(str(env.metadata.get("name", "")), seat, len(numbers)) or numbers
        else:
            self._names[agent] = self._actions
        return self._names[agent]

    def describe_observation(self, env: AECEnv[str, Any, Any], agent: str) -> str:
        ansi = renders_text(env)
        if self._observation_template is None:
            return strip_terminal_codes(env.render()).strip("\n") if ansi else format_observation(env.observe(agent))
        observation, mask = env.observe(agent), action_mask(env, agent)
        # PettingZoo wraps an observation in a mapping only to add the action mask.
        if isinstance(observation, Mapping) and "action_mask" in observation:
            observation = _without_action_mask(observation)
            observation = next(iter(observation.values())) if len(observation) == 1 else observation
        names = self.action_names(env, agent)
        facts = {
            "observation": to_plain_data(observation),
            "mask": [1] * len(names) if mask is None else list(map(int, mask)),
            "legal": list(names if mask is None else compress(names, mask)),
            "agent": agent,
            "seat": env.possible_agents.index(agent),
            "name": str(env.metadata.get("name", "")),
            "rendering": strip_terminal_codes(env.render()) if ansi else "",
        }
        return strip_terminal_codes(_render_template(self._observation_template, facts, "describe")).strip("\n")

    def check_observation_sizes(self, env: AECEnv[str, Any, Any]) -> None:
        """Raise ValueError if an observation of the environment is too large to be shown without a template."""
        if self._observation_template is not None or renders_text(env):
            return
        for agent in env.possible_agents:
            count = _count_numbers_in_space(env.observation_space(agent))
            if count is None or count > MAX_SHOWN_NUMBERS:
                limit = f"{count:,} numbers; at most {MAX_SHOWN_NUMBERS} are shown as such"
                size = "no numbers" if count is None else limit
                raise ValueError(
                    f"describe: an observation of {agent!r} has {size}; give a template of {TEMPLATE_FACTS}, "
                    "or settings: {render_mode: ansi} if the environment has it"
                )


def renders_text(env: AECEnv[str, Any, Any]) -> bool:
    """Return True if the environment was made with `render_mode: ansi`."""
    return vars(env.unwrapped).get("render_mode") == "ansi"


def _render_template(template: CompiledTemplate, facts: Mapping[str, Any], setting_name: str) -> str:
    """Return the rendered `template`; a ValueError begins with `setting_name`, the name of the template's setting."""
    try:
        return template.render(facts)
    except TemplateError as error:
        raise ValueError(f"{setting_name}: {error.message}; it may use {', '.join(facts)}") from error


def strip_terminal_codes(text: Any) -> str:
    """Return a rendered text without control characters, and with [...] around text that a colour highlights.

    Raises:
        ValueError: if the environment rendered something other than text.
    """
    if not isinstance(text, str):
        raise ValueError(
            f"describe: the environment rendered {type(text).__name__}; choices: a template of {TEMPLATE_FACTS}"
        )
    return _CONTROL.sub("", _HIGHLIGHT.sub(r"[\1]", text))


def format_observation(observation: Any) -> str:
    """Return an observation as text: numbers in rows, and the entries of a mapping as `name: text`."""
    if isinstance(observation, Mapping):
        entries = _without_action_mask(observation)
        if len(entries) == 1:
            return format_observation(next(iter(entries.values())))
        return "\n".join(f"{name}: {format_observation(entry)}" for name, entry in entries.items())
    if isinstance(observation, str):
        return strip_terminal_codes(observation)
    if isinstance(observation, tuple):
        return " ".join(map(format_observation, observation))
    rows = to_plain_data(observation)
    # A list is one line `1 2`; a table has one line per row, with cells of several numbers as `1,2 3,4`.
    if not isinstance(rows, list) or list not in map(type, rows):
        return " ".join(map(_format_number_or_list, rows)) if isinstance(rows, list) else _format_number_or_list(rows)
    return "\n".join(" ".join(map(_format_number_or_list, row)) for row in rows)


def _format_number_or_list(number_or_list: Any) -> str:
    """Return a number as text with at most 4 significant digits, or nested lists of numbers as `1,2`."""
    if isinstance(number_or_list, list):
        return ",".join(map(_format_number_or_list, number_or_list))
    return (
        f"{number_or_list:.4g}"
        if isinstance(number_or_list, float) and not number_or_list.is_integer()
        else str(int(number_or_list))
    )


def _without_action_mask(observation: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return the entries of a PettingZoo observation other than its action mask."""
    return {name: entry for name, entry in observation.items() if name != "action_mask"}


def to_plain_data(observation: Any) -> Any:
    """Return an observation as plain numbers, texts, lists and mappings, which templates can use."""
    if isinstance(observation, Mapping):
        return {str(name): to_plain_data(entry) for name, entry in observation.items()}
    if isinstance(observation, tuple | list):
        return list(map(to_plain_data, observation))
    return observation.tolist() if isinstance(observation, np.ndarray | np.generic) else observation


def _count_numbers_in_space(space: Space[Any]) -> int | None:
    """Return the number of numbers in an observation of `space`, or None if it has other kinds of entries."""
    match space:
        case Box() | MultiBinary() | MultiDiscrete():
            return prod(space.shape)
        case Discrete():
            return 1
        case Text():
            return 0
        case Dict() | TupleSpace():
            entries = _without_action_mask(space.spaces) if isinstance(space, Dict) else dict(enumerate(space.spaces))
            counts = list(map(_count_numbers_in_space, entries.values()))
            return None if None in counts else sum(filter(None, counts))
    return None
