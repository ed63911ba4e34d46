"""Players named on the command line: runs and their checkpoints, scenarios, models, and scripted players."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from marl.commands.eval.evaluate import opponent_names
from marl.commands.simulators import untrained_simulator
from marl.core.config import choices_hint
from marl.evaluation.cross_play import Engines, Entrant
from marl.evaluation.evaluate import Opponents
from marl.models.hf_folder import ADAPTER_CONFIG
from marl.protocols import EngineConfig, RoleConfig
from marl.runs.checkpoint import intact_steps, verify_policies, verify_sizes
from marl.runs.checksums import checksum
from marl.runs.run_folder import RunFolder
from marl.scenario.load import ScenarioError, load
from marl.scenario.schema import PolicyConfig, Scenario
from marl.training.build import prepare_models
from marl.training.placement import build_engines, use_threads
from marl.training.restore import best_step, restore_simulator

NAMED = "RUN, RUN@STEP, RUN@best, RUN@all, SCENARIO.yaml, a model's folder"
"""Forms of player names, apart from the names of players that the game exports."""


@dataclass(frozen=True, slots=True)
class Roster:
    """Players of one game, and the scenario that defines the game and its seats."""

    scenario: Scenario
    entrants: Sequence[Entrant]


def read_roster(words: Sequence[str], *, game: str | None = None, policy: str | None = None) -> Roster:
    """Return the players named by `words`. No weights are loaded.

    The first run, scenario or model of a run defines the game.

    Args:
        game: name of the game, if that scenario has several.
        policy: policy that speaks in every seat of a run, or None for the run's own policies.

    Raises:
        ScenarioError: if a word names no player or a player of another game, or two words name the same player.
    """
    scenario = None
    for word in words:
        path, _ = _split(word)
        run = path if _is_run(path) else _run_of(path) if _is_model(path) else None
        if run or path.is_file():
            scenario = RunFolder(run).scenario() if run else load(path, to_train=False)
            break
    if scenario is None:
        raise ScenarioError(f"{' '.join(words)}: nobody says what is played; name one of {NAMED}")
    views = scenario.by_game()
    if game is None and len(views) == 1:
        view = next(iter(views.values()))
    elif game in scenario.games:
        view = views[game]
    else:
        names = scenario.games
        hint = choices_hint(game or "", names) if names else "the scenario has one game, without a name"
        raise ScenarioError(f"--game {game}: no such game; {hint}" if game else f"--game: which of the games? {hint}")
    reader = _Reader(view, policy)
    entrants: list[Entrant] = []
    for word in words:
        entrants += reader.read(word)
    for name, count in Counter(entrant.name for entrant in entrants).items():
        if count > 1:
            raise ScenarioError(f"{name}: given more than once; name each player once")
    return Roster(reader.scenario, entrants)


def _split(word: str) -> tuple[Path, str]:
    """Return the path in `word`, and the step after it (a number, `best` or `all`), or "" if it names no step."""
    path, _, step = word.rpartition("@")
    # A file whose own name contains "@" is taken as it is.
    names_step = path and not Path(word).exists() and (step in ("best", "all") or step.isdecimal())
    return (Path(path), step) if names_step else (Path(word), "")


def _is_run(path: Path) -> bool:
    return (path / "scenario.yaml").is_file()


def _is_model(path: Path) -> bool:
    return (path / "config.json").is_file() or (path / ADAPTER_CONFIG).is_file()


def _run_of(model: Path) -> Path | None:
    """Return the run whose folder contains `model`, or None if it is in no run."""
    return next(filter(_is_run, model.resolve().parents), None)


class _Reader:
    """Reads words of the command line as players of one game."""

    def __init__(self, scenario: Scenario, policy: str | None) -> None:
        self.scenario, self._policy = scenario, policy

    def read(self, word: str) -> Iterator[Entrant]:
        path, step = _split(word)
        # A path wins over a scripted player of the same name.
        if _is_run(path):
            yield from self._checkpoints(path, step)
        elif path.is_file():
            scenario = load(path, to_train=False)
            yield self._entrant(word, scenario, lambda: untrained_simulator(scenario).engines, {})
        elif _is_model(path):
            yield self._model(path)
        elif word in (exported := opponent_names([self.scenario.game])):
            opponents = Opponents.scripted(self.scenario, word)
            configs: dict[str, EngineConfig] = {}
            settings = {}
            for name, engine in opponents.engines.items():
                if isinstance(engine, EngineConfig):
                    configs[name], settings[name] = engine, engine.model_dump(mode="json")
            identity = _identity(opponents.roles, settings, {})
            yield Entrant(word, opponents.roles, partial(_scripted_engines, configs), identity)
        else:
            raise ScenarioError(f"{word}: no player of this name; choices: {', '.join(sorted(exported))}, {NAMED}")

    def _checkpoints(self, run: Path, step: str) -> Iterator[Entrant]:
        """Yield the run's policies at every intact step ("all"), the best, the newest ("") or a given one."""
        home = RunFolder(run)
        if step == "all":
            steps = intact_steps(home.checkpoints)
        elif step == "best":
            steps = [best_step(run)]
        else:
            steps = [int(step) if step else home.latest_checkpoint(verify_policies)[0]]
        for number in steps:
            digests = verify_sizes(home.checkpoints / f"{number:06d}").sha256
            weights = {file: digest for file, digest in digests.items() if file.startswith("policies/")}
            engines = partial(_restored_engines, run, number)
            yield self._entrant(f"{run}@{number:06d}", home.scenario(), engines, weights)

    def _model(self, folder: Path) -> Entrant:
        run = _run_of(folder)
        scenario = RunFolder(run).scenario() if run else self.scenario
        policy = self._policy or _speaker(folder, scenario)
        settings = _policy(scenario, policy)
        if settings.model is None:
            raise ScenarioError(f"{folder}: policy {policy!r} answers without a model; name another one: --policy")
        policies = {name: config for name, config in scenario.policies.items() if config.engine.is_rule_based}
        policies[policy] = settings.model_copy(
            update={"model": settings.model.with_saved_weights(folder), "learner": None}
        )
        engines = partial(_model_engines, scenario, policies)
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
        """Return the player `name`; its identity depends on roles, policy settings and checksums of `weights`."""
        game, views = self.scenario.game, list(scenario.by_game().values())
        view = next((view for view in views if view.game == game), None)
        if view is None:
            games = [view.game for view in views]
            raise ScenarioError(f"{name}: it plays {games!r}, not {game!r} as the first one does")
        roles = {agent: view.roles[role] for agent, role in view.seats.items()}
        if policy := policy or self._policy:
            # Raises for an unknown policy.
            _policy(scenario, policy)
            # Seats of rule-based roles, such as verifiers, are not contested.
            for agent, role in view.seats.items():
                if role not in view.rule_roles:
                    roles[agent] = roles[agent].model_copy(update={"policy": policy})
        settings = {}
        for speaker in sorted({role.policy for role in roles.values()}):
            settings[speaker] = scenario.policies[speaker].model_dump(mode="json", include={"engine", "model"})
        return Entrant(name, roles, engines, _identity(roles, settings, weights))


def _restored_engines(run: Path, step: int) -> Engines:
    return restore_simulator(run, step)[1].engines


def _scripted_engines(configs: Mapping[str, EngineConfig]) -> Engines:
    return {policy: config.build(None) for policy, config in configs.items()}


def _model_engines(scenario: Scenario, policies: Mapping[str, PolicyConfig]) -> Engines:
    # Sums depend on the number of threads in their last bits.
    use_threads(scenario.schedule.threads)
    return build_engines(policies, prepare_models(scenario, policies))


def _policy(scenario: Scenario, name: str) -> PolicyConfig:
    if name not in scenario.policies:
        raise ScenarioError(f"--policy {name}: no such policy; {choices_hint(name, scenario.policies)}")
    return scenario.policies[name]


def _speaker(model: Path, scenario: Scenario) -> str:
    """Return the policy with `model`: the last one named in its path, or the only trained one."""
    for part in reversed(model.resolve().parts):
        if part in scenario.policies:
            return part
    learning = [name for name, policy in scenario.policies.items() if policy.learner and policy.learner.publishes]
    if len(learning) != 1:
        raise ScenarioError(f"{model}: for which policy does it speak? --policy {' | '.join(scenario.policies)}")
    return learning[0]


def _identity(roles: Mapping[str, RoleConfig], settings: Mapping[str, object], weights: Mapping[str, str]) -> str:
    """Return a hash of a player, by which a file of figures recognises it under any name."""
    content = [{agent: role.model_dump(mode="json") for agent, role in roles.items()}, settings, weights]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
