"""PettingZoo environments as games without code: an import path, a template for observations, names for actions."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from typing import Any, Literal

from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.utils import parallel_to_aec
from pydantic import Field, field_validator

from games.aec import AecGame, AecRules
from games.base import TextGameConfig
from games.global_random import GlobalRandom
from games.wrappers.imports import maker, package
from games.wrappers.words import TemplateText, TemplateWords
from marl.config import nearest


class DescribedConfig(TextGameConfig):
    """Settings of games whose environment speaks in numbers."""

    settings: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the environment's constructor. With `render_mode: ansi`, an environment that can renders text."""
    describe: TemplateText | None = None
    """jinja2 template of what an agent reads: `observation` (numbers as nested lists), `mask`, `legal` (names of the
    legal moves), `agent`, `seat` (its number from 0), `name` (of the environment), `rendering` (with `render_mode:
    ansi`). None: the rendering if there is one, or else up to 256 numbers in rows. A rendering is the same for all
    agents: where it shows what is hidden from some, give a template."""
    actions: tuple[str, ...] | TemplateText | None = None
    """Names of the actions in their order, or a template of a name: `action` (number from 0), `number` (as text; of a
    tuple all its numbers), `agent`, `seat`. None: known names of PettingZoo's classic games, or else numbers."""


class PettingZooConfig(DescribedConfig):
    """An environment of PettingZoo, or one with its AEC or Parallel interface; its actions are numbered."""

    kind: str = "pettingzoo"
    example = "env: pettingzoo.classic.connect_four_v3"
    env: str
    """A module of PettingZoo, such as `pettingzoo.classic.connect_four_v3`, or the import path of a class of
    environments, `my_package.my_module:MyEnv`, or of a function that makes one and is named env, raw_env, parallel_env,
    make_env or load_environment."""
    payoffs: Literal["general", "zero_sum", "common"] = "general"
    """`zero_sum`: what all agents are paid adds up to 0; `common`: all are paid the same. No environment says so
    itself, so it is declared, and checked at the end of each episode. It decides who pays for an illegal move."""
    hears: Literal["own", "all"] = "own"
    """`all`: agents read each other's moves as they were said, which is right where nothing is hidden. `own`: they know
    what the environment lets them observe."""

    @field_validator("env")
    @classmethod
    def _exists(cls, place: str) -> str:
        _maker(place)
        return place

    def build(self) -> AecGame:
        env = environment(_maker(self.env), self.settings)
        words = TemplateWords(self.describe, self.actions, self.hears)
        words.check(env)
        zero_sum, common = self.payoffs == "zero_sum", self.payoffs == "common"
        return AecGame(env, words, AecRules(self.kind, self.illegal, zero_sum, common))


def environment(maker: Any, settings: Mapping[str, Any]) -> AECEnv[str, Any, Any]:
    """Return a new environment with the AEC interface.

    Raises:
        ValueError: if `maker` does not take the settings, or makes something else.
    """
    try:
        with GlobalRandom():
            env = maker(**settings)
    except TypeError as error:
        raise ValueError(f"settings: {dict(settings)} are not taken: {error}") from error
    if isinstance(env, ParallelEnv):
        return parallel_to_aec(env)
    if not isinstance(env, AECEnv):
        raise ValueError(f"env: makes a {type(env).__name__}; choices: an AECEnv or a ParallelEnv of PettingZoo")
    return env


def _maker(place: str) -> Any:
    """Return the function or class that makes an environment; raise ValueError if there is none."""
    if ":" in place:
        return maker(place, "env", lambda kind: issubclass(kind, AECEnv | ParallelEnv))
    family, _, name = place.rpartition(".")
    if not family.startswith("pettingzoo."):
        raise ValueError(f"env: {place!r}; choices: pettingzoo.FAMILY.NAME, or an import path 'package.module:name'")
    folder = package(family, "pettingzoo")
    known = [each.name for each in pkgutil.iter_modules(folder.__path__) if "_v" in each.name]
    if name not in known:
        raise ValueError(f"env: {family} has no {name!r}; {nearest(name, known)}")
    module = vars(package(place, "pettingzoo"))
    return module["env"] if "env" in module else module["parallel_env"]
