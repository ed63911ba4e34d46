"""Players that are named on the command line: runs and their checkpoints, scenarios, models, and scripted players."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from marl.commands.evaluate import known_opponents
from marl.commands.simulators import untrained_policies
from marl.config import nearest
from marl.evaluation.cross_play import Engines, Entrant
from marl.evaluation.evaluate import Opponents
from marl.models.hf_folder import ADAPTER_CONFIG
from marl.protocols import EngineConfig, RoleConfig
from marl.runs.checkpoint import inspect, verify_policies, whole
from marl.runs.checksums import checksum
from marl.runs.run_folder import RunFolder
from marl.scenario.load import ScenarioError, load
from marl.scenario.schema import PolicyConfig, Scenario
from marl.training.build import sources
from marl.training.placement import build_engines, use_threads
from marl.training.restore import best_step, restore

NAMED = "RUN, RUN@STEP, RUN@best, RUN@all, SCENARIO.yaml, a model's folder"
"""Forms in which players are named, but for those that a game exports."""


@dataclass(frozen=True, slots=True)
class Roster:
    """Players of one game, and the scenario whose game and seats they play."""

    scenario: Scenario
    entrants: Sequence[Entrant]


def roster(words: Sequence[str], *, game: str | None = None, policy: str | None = None) -> Roster:
    """Return the players that `words` name; no weights are loaded.

    The first run, scenario or model of a run says what is played: of several games the one that is called `game`. A run
    speaks in each seat as its scenario says; with `policy`, that policy speaks in all of them, as a single model does.

    Raises:
        ScenarioError: if a word names no player, or one of another game, or two are the same.
    """
    scenario = next(filter(None, map(_scenario_of, words)), None)
    if scenario is None:
        raise ScenarioError(f"{' '.join(words)}: nobody says what is played; name one of {NAMED}")
    reader = _Reader(_one_game(scenario, game), policy)
    entrants = [entrant for word in words for entrant in reader.read(word)]
    twice = [name for name, often in Counter(entrant.name for entrant in entrants).items() if often > 1]
    if twice:
        raise ScenarioError(f"{twice[0]}: given more than once; name each player once")
    return Roster(reader.scenario, entrants)


def _split(word: str) -> tuple[Path, str]:
    """Return a path and the step that stands behind it, `best` or `all`; "" if there is none."""
    path, _, step = word.rpartition("@")
    names_step = path and not Path(word).exists() and (step in ("best", "all") or step.isdecimal())
    return (Path(path), step) if names_step else (Path(word), "")


def _is_run(path: Path) -> bool:
    return (path / "scenario.yaml").is_file()


def _is_model(path: Path) -> bool:
    return (path / "config.json").is_file() or (path / ADAPTER_CONFIG).is_file()


def _run_of(model: Path) -> Path | None:
    """Return the run in whose folder a model lies; None if it lies in none."""
    return next(filter(_is_run, model.resolve().parents), None)


def _scenario_of(word: str) -> Scenario | None:
    """Return the scenario of a run, a file, or the run in which a model lies; None if the word names none of them."""
    path, _ = _split(word)
    run = path if _is_run(path) else _run_of(path) if _is_model(path) else None
    if run:
        return RunFolder(run).scenario()
    return load(path, to_train=False) if path.is_file() else None


def _one_game(scenario: Scenario, name: str | None) -> Scenario:
    views = scenario.by_game()
    if name is None and len(views) == 1:
        return next(iter(views.values()))
    if name not in scenario.games:
        have = nearest(name or "", scenario.games) if scenario.games else "the scenario has one game, without a name"
        raise ScenarioError(f"--game {name}: no such game; {have}" if name else f"--game: which of the games? {have}")
    return views[name]


class _Reader:
    """Reads words as players of one game."""

    def __init__(self, scenario: Scenario, policy: str | None) -> None:
        self.scenario, self._policy = scenario, policy

    def read(self, word: str) -> Iterator[Entrant]:
        path, step = _split(word)
        if _is_run(path):
            yield from (self._run(path, number) for number in _steps(path, step))
        elif path.is_file():
            scenario = load(path, to_train=False)
            yield self._entrant(word, scenario, lambda: untrained_policies(scenario).engines, {})
        elif _is_model(path):
            yield self._model(path)
        elif word in (known := known_opponents([self.scenario.game])):
            yield self._scripted(word)
        else:
            raise ScenarioError(f"{word}: no player of this name; choices: {', '.join(sorted(known))}, {NAMED}")

    def _run(self, path: Path, step: int) -> Entrant:
        scenario, folder = RunFolder(path).scenario(), RunFolder(path).checkpoints / f"{step:06d}"
        weights = {name: digest for name, digest in inspect(folder).sha256.items() if name.startswith("policies/")}
        return self._entrant(f"{path}@{step:06d}", scenario, lambda: restore(path, step)[1].engines, weights)

    def _model(self, folder: Path) -> Entrant:
        run = _run_of(folder)
        scenario = RunFolder(run).scenario() if run else self.scenario
        policy = self._policy or _speaker(folder, scenario)
        settings = _policy(scenario, policy)
        if settings.model is None:
            raise ScenarioError(f"{folder}: policy {policy!r} answers without a model; name another one: --policy")
        learnt = settings.model_copy(update={"model": settings.model.saved(folder), "learner": None})
        by_rule = {name: each for name, each in scenario.policies.items() if each.engine.rule_bound}
        engines = partial(_model_engines, scenario, {**by_rule, policy: learnt})
        weights = {file.name: checksum(file) for file in sorted(folder.iterdir()) if file.is_file()}
        return self._entrant(str(folder), scenario, engines, weights, policy)

    def _entrant(
        self,
        name: str,
        scenario: Scenario,
        engines: Callable[[], Engines],
        weights: Mapping[str, str],
        policy: str | None = None,
    ) -> Entrant:
        view = self._view(name, scenario)
        roles = {agent: view.roles[role] for agent, role in view.seats.items()}
        if policy := policy or self._policy:
            _policy(scenario, policy)
            contested = [agent for agent, role in view.seats.items() if role not in view.rule_roles]
            roles |= {agent: roles[agent].model_copy(update={"policy": policy}) for agent in contested}
        speakers = {each: scenario.policies[each] for each in sorted({role.policy for role in roles.values()})}
        settings = {each: p.model_dump(mode="json", include={"engine", "model"}) for each, p in speakers.items()}
        return Entrant(name, roles, engines, _identity(roles, settings, weights))

    def _view(self, name: str, scenario: Scenario) -> Scenario:
        """Return a scenario with the game that is played alone."""
        ours, views = self.scenario.game, scenario.by_game().values()
        for view in views:
            if view.game == ours:
                return view
        raise ScenarioError(f"{name}: it plays {[view.game for view in views]!r}, not {ours!r} as the first one does")

    def _scripted(self, name: str) -> Entrant:
        opponents = Opponents.scripted(self.scenario, name)
        configs = {policy: each for policy, each in opponents.engines.items() if isinstance(each, EngineConfig)}
        settings = {policy: each.model_dump(mode="json") for policy, each in configs.items()}
        engines = partial(_scripted_engines, configs)
        return Entrant(name, opponents.roles, engines, _identity(opponents.roles, settings, {}))


def _scripted_engines(configs: Mapping[str, EngineConfig]) -> Engines:
    return {policy: config.build(None) for policy, config in configs.items()}


def _model_engines(scenario: Scenario, policies: Mapping[str, PolicyConfig]) -> Engines:
    use_threads(scenario.schedule.threads)
    return build_engines(policies, sources(scenario, policies))


def _steps(run: Path, step: str) -> list[int]:
    """Return the steps of the checkpoints that are meant: all whole ones, the best, the newest (""), or a given one."""
    home = RunFolder(run)
    if step == "all":
        return whole(home.checkpoints)
    if step == "best":
        return [best_step(run)]
    return [int(step) if step else home.latest(verify_policies)[0]]


def _policy(scenario: Scenario, name: str) -> PolicyConfig:
    if name not in scenario.policies:
        raise ScenarioError(f"--policy {name}: no such policy; {nearest(name, scenario.policies)}")
    return scenario.policies[name]


def _speaker(model: Path, scenario: Scenario) -> str:
    """Return the policy for which a model speaks: the one that its path names, or the only one that learns."""
    named = [part for part in reversed(model.resolve().parts) if part in scenario.policies]
    learnt = [name for name, policy in scenario.policies.items() if policy.learner and policy.learner.publishes]
    if not named and len(learnt) != 1:
        raise ScenarioError(f"{model}: for which policy does it speak? --policy {' | '.join(scenario.policies)}")
    return (named or learnt)[0]


def _identity(roles: Mapping[str, RoleConfig], settings: Mapping[str, object], weights: Mapping[str, str]) -> str:
    parts = [{agent: role.model_dump(mode="json") for agent, role in roles.items()}, settings, weights]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
