"""PettingZoo environments as games, configured by an import path, a template of observations and action names."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from typing import Any, Literal

from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.utils import parallel_to_aec
from pydantic import Field, field_validator

from marl.core.config import choices_hint
from marl.games.aec import AecGame, AecProperties
from marl.games.base import TextGameConfig
from marl.games.isolated_random import IsolatedGlobalRandom
from marl.games.wrappers.import_env import import_env_factory, import_optional
from marl.games.wrappers.text_adapter import TemplateText, TemplateTextAdapter


class NumericEnvConfig(TextGameConfig):
    """Settings of environments with numeric observations and actions."""

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


class PettingZooConfig(NumericEnvConfig):
    """An environment of PettingZoo, or one with its AEC or Parallel interface; its actions are numbered."""

    kind: str = "pettingzoo"
    example = "env: pettingzoo.classic.connect_four_v3"
    env: str
    """A module of PettingZoo, such as `pettingzoo.classic.connect_four_v3`, or the import path of a class of
    environments, `my_package.my_module:MyEnv`, or of a function that makes one and is named env, raw_env, parallel_env,
    make_env or load_environment."""
    payoffs: Literal["general", "zero_sum", "common"] = "general"
    """`zero_sum`: the agents' rewards add up to 0. `common`: all agents get the same reward. Environments do not
    declare this themselves, so it is set here and checked at the end of each episode. It decides who pays for an
    illegal move."""
    hears: Literal["own", "all"] = "own"
    """`all`: agents read the texts of each other's moves, for games of perfect information. `own`: agents read only
    their observations of the environment."""

    @field_validator("env")
    @classmethod
    def _exists(cls, path: str) -> str:
        _maker(path)
        return path

    def build(self) -> AecGame:
        env = environment(_maker(self.env), self.settings)
        words = TemplateTextAdapter(self.describe, self.actions, self.hears)
        words.check(env)
        zero_sum, common = self.payoffs == "zero_sum", self.payoffs == "common"
        return AecGame(env, words, AecProperties(self.kind, self.illegal, zero_sum, common))


def environment(maker: Any, settings: Mapping[str, Any]) -> AECEnv[str, Any, Any]:
    """Return a new environment with the AEC interface.

    Raises:
        ValueError: if `maker` does not accept the settings, or returns no environment.
    """
    try:
        with IsolatedGlobalRandom():
            env = maker(**settings)
    except TypeError as error:
        raise ValueError(f"settings: {dict(settings)} are not taken: {error}") from error
    if isinstance(env, ParallelEnv):
        return parallel_to_aec(env)
    if not isinstance(env, AECEnv):
        raise ValueError(f"env: makes a {type(env).__name__}; choices: an AECEnv or a ParallelEnv of PettingZoo")
    return env


def _maker(path: str) -> Any:
    """Return the function or class that creates the environment; raise ValueError if there is none."""
    if ":" in path:
        return import_env_factory(path, "env", lambda kind: issubclass(kind, AECEnv | ParallelEnv))
    family, _, name = path.rpartition(".")
    if not family.startswith("pettingzoo."):
        raise ValueError(f"env: {path!r}; choices: pettingzoo.FAMILY.NAME, or an import path 'package.module:name'")
    folder = import_optional(family, "pettingzoo")
    # Versioned modules are environments; the others are helpers of the family.
    environments = [module.name for module in pkgutil.iter_modules(folder.__path__) if "_v" in module.name]
    if name not in environments:
        raise ValueError(f"env: {family} has no {name!r}; {choices_hint(name, environments)}")
    module = vars(import_optional(path, "pettingzoo"))
    return module["env"] if "env" in module else module["parallel_env"]
