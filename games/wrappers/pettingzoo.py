"""PettingZoo environments as games: settings for the environment, the text of observations and names of actions."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Literal

import pettingzoo
from pettingzoo import AECEnv, EnvSpec, ParallelEnv
from pettingzoo.env_registry.exceptions import PettingZooRegistryError
from pettingzoo.env_registry.helpers import find_spec
from pettingzoo.utils import parallel_to_aec
from pydantic import Field, field_validator

from marl.core.config import choices_hint
from marl.games.aec import AecGame, GamePropertiesNotInPettingZoo, possible_agents
from marl.games.base import TextGameConfig
from marl.games.isolated_random import IsolatedGlobalRandom
from marl.games.wrappers.import_env import import_env_factory, import_object, import_optional_package
from marl.games.wrappers.text_adapter import TemplateEnvTextAdapter, TemplateText


class NumericEnvConfig(TextGameConfig):
    """Base of the settings of environments with numeric observations and actions."""

    settings: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the environment's constructor. With `render_mode: ansi`, some environments render text."""
    describe: TemplateText | None = None
    """jinja2 template of the text that an agent observes, with the variables `observation` (numbers as nested lists),
    `mask` (1: legal action), `legal` (names of the legal moves), `agent`, `seat` (the agent's index), `name` (of the
    environment) and `rendering` (text, with `render_mode: ansi`). Default: the rendering or, without a rendering, up to
    256 numbers in rows. All agents read the same rendering, so a game with hidden information needs a template."""
    actions: tuple[str, ...] | TemplateText | None = None
    """Names of the actions, ordered by action index; or a template of one name. The template may use `action` (the
    index), `number` (the action as text; all numbers of a tuple), `agent` and `seat`. Default: the known names in
    PettingZoo's classic games, else numbers."""


class PettingZooConfig(NumericEnvConfig):
    """Environment of PettingZoo, or another one with its AEC or Parallel interface and numbered actions."""

    kind: str = "pettingzoo"
    example = "env: pettingzoo.classic.connect_four_v3"
    env: str
    """Id in PettingZoo's registry, such as `classic/connect_four-v3`; or module of PettingZoo, such as
    `pettingzoo.classic.connect_four_v3`; or the import path of an environment class, such as
    `my_package.my_module:MyEnv`, or of a function that returns an environment and is named env, raw_env, parallel_env,
    make_env or load_environment."""
    payoffs: Literal["general", "zero_sum", "common"] = "general"
    """`zero_sum`: the agents' rewards add up to 0; `common`: all agents get the same reward. The setting decides
    who pays for an illegal move. The rewards are checked against the setting at the end of each episode."""
    hears: Literal["own", "all"] = "own"
    """`all`: agents also read each other's moves, for games of perfect information. `own`: agents read only their
    observations of the environment."""

    @field_validator("env")
    @classmethod
    def _check_environment_exists(cls, import_path: str) -> str:
        _environment_factory(import_path)
        return import_path

    def is_simultaneous(self) -> bool:
        return self.build().is_parallel

    def build(self) -> AecGame:
        factory = _environment_factory(self.env)
        try:
            with IsolatedGlobalRandom():
                env = factory(**self.settings)
        except TypeError as error:
            raise ValueError(f"settings: {self.settings} are not taken: {error}") from error
        if isinstance(env, ParallelEnv):
            env = parallel_to_aec(env)
        if not isinstance(env, AECEnv):
            raise ValueError(f"env: makes a {type(env).__name__}; choices: an AECEnv or a ParallelEnv of PettingZoo")
        possible_agents(env)
        adapter = TemplateEnvTextAdapter(self.describe, self.actions, self.hears)
        adapter.check_observation_sizes(env)
        zero_sum, common = self.payoffs == "zero_sum", self.payoffs == "common"
        return AecGame(env, adapter, GamePropertiesNotInPettingZoo(self.kind, self.illegal, zero_sum, common))


def _environment_factory(name: str) -> Callable[..., Any]:
    """Return the function or class that creates the environment `name`; raise ValueError if there is none."""
    if ":" in name:
        return import_env_factory(name, "env", lambda kind: issubclass(kind, AECEnv | ParallelEnv))
    if "/" in name:
        return _registered_factory(name)
    family, _, module_name = name.rpartition(".")
    if not family.startswith("pettingzoo."):
        raise ValueError(
            f"env: {name!r}; choices: an id FAMILY/NAME-vN of PettingZoo's registry, pettingzoo.FAMILY.NAME, or an "
            "import path 'package.module:name'"
        )
    folder = import_optional_package(family, "pettingzoo")
    # A PettingZoo module with a version in its name (`rps_v2`) is an environment; any other module is a helper.
    environments = [module.name for module in pkgutil.iter_modules(folder.__path__) if "_v" in module.name]
    if module_name not in environments:
        raise ValueError(f"env: {family} has no {module_name!r}; {choices_hint(module_name, environments)}")
    module = vars(import_optional_package(name, "pettingzoo"))
    return module["env"] if "env" in module else module["parallel_env"]


def _registered_factory(env_id: str) -> Callable[..., Any]:
    """Return the function that creates the environment with the id `env_id` in PettingZoo's registry.

    An id without a version stands for the latest version, as in `pettingzoo.make`. Raises ValueError if PettingZoo
    knows no such id.
    """
    found: EnvSpec | None = None
    for registered in (pettingzoo.parallel_registry, pettingzoo.aec_registry):
        with suppress(PettingZooRegistryError):
            found = find_spec(registered, env_id)
    if found is None:
        ids = sorted({*pettingzoo.aec_registry, *pettingzoo.parallel_registry})
        raise ValueError(f"env: PettingZoo's registry has no {env_id!r}; {choices_hint(env_id, ids)}")
    factory = found.entry_point
    if isinstance(factory, str):
        module, _, attribute = factory.partition(":")
        if module.startswith("pettingzoo."):
            factory = vars(import_optional_package(module, "pettingzoo"))[attribute]
        else:
            factory = import_object(factory, "env")
    if factory is None:
        raise ValueError(f"env: {env_id!r} stands in PettingZoo's registry without the function that creates it")
    cycles = {} if found.max_cycles is None else {"max_cycles": found.max_cycles}
    return partial(factory, **found.kwargs, **cycles)
