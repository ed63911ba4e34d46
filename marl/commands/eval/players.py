"""Players named on the command line: runs and their checkpoints, scenarios, models, and scripted players."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from marl.commands.simulators import untrained_simulator
from marl.core.config import choices_hint
from marl.evaluation.cross_play import Engines, TournamentPlayer
from marl.evaluation.evaluate import OpponentPlayers, scripted_opponent_names
from marl.models.hf_folder import ADAPTER_CONFIG
from marl.protocols import EngineConfig, RoleConfig
from marl.runs.checkpoint import intact_checkpoint_steps, verify_file_sizes, verify_policy_checksums
from marl.runs.checksums import checksum
from marl.runs.populations import POPULATIONS, is_population, read_population
from marl.runs.run_folder import RunFolder
from marl.scenario.load import ScenarioError, load
from marl.scenario.schema import PolicyConfig, Scenario
from marl.training.build import prepare_models
from marl.training.placement import build_engines, set_torch_threads
from marl.training.restore import best_checkpoint_step, restore_simulator

NAMED = "RUN, RUN@STEP, RUN@best, RUN@all, RUN@pool, RUN@meta, SCENARIO.yaml, a model's folder"
"""Forms of the names of players, for error messages. Players that a game exports have names of their own."""


@dataclass(frozen=True, slots=True)
class PlayerRoster:
    """Players of one game, and the scenario that defines the game and its seats."""

    scenario: Scenario
    """Scenario that contains only the players' game."""
    entrants: Sequence[TournamentPlayer]
    mixtures: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Population (`RUN@pool`, `RUN@meta`) -> name of a player -> the player's share in the population."""


def read_roster(player_specs: Sequence[str], *, game: str | None = None, policy: str | None = None) -> PlayerRoster:
    """Return the players named by `player_specs`. No weights are loaded.

    The first run, scenario or model of a run defines the game.

    Args:
        player_specs: names of players, as typed on the command line.
        game: name of the game, if the scenario has several.
        policy: policy that speaks in every seat of a run, or None for the run's own policies.

    Raises:
        ScenarioError: if a word names no player or a player of another game, or two words name the same player.
    """
    scenario = None
    for word in player_specs:
        path, _ = _split_path_and_step(word)
        run = path if _has_scenario_file(path) else _run_that_contains(path) if _has_model_files(path) else None
        if run or path.is_file():
            scenario = RunFolder(run).scenario() if run else load(path, to_train=False)
            break
    if scenario is None:
        raise ScenarioError(f"{' '.join(player_specs)}: nobody says what is played; name one of {NAMED}")
    views = scenario.scenario_by_game()
    if game is None and len(views) == 1:
        view = next(iter(views.values()))
    elif game in scenario.games:
        view = views[game]
    else:
        names = scenario.games
        hint = choices_hint(game or "", names) if names else "the scenario has one game, without a name"
        raise ScenarioError(f"--game {game}: no such game; {hint}" if game else f"--game: which of the games? {hint}")
    reader = _PlayerSpecParser(view, policy)
    entrants: list[TournamentPlayer] = []
    for word in player_specs:
        entrants += reader.read_players(word)
    for name, count in Counter(entrant.name for entrant in entrants).items():
        if count > 1:
            raise ScenarioError(f"{name}: given more than once; name each player once")
    return PlayerRoster(reader.scenario, entrants, reader.mixtures)


def _split_path_and_step(player_spec: str) -> tuple[Path, str]:
    """Return the path and the step in `PATH@STEP`. The step is digits or one of the words of `NAMED`, or "" if
    `player_spec` has none."""
    path, _, step = player_spec.rpartition("@")
    # `PATH@STEP` may also be the name of an existing file that contains "@".
    words = ("best", "all", *POPULATIONS)
    names_step = path and not Path(player_spec).exists() and (step in words or step.isdecimal())
    return (Path(path), step) if names_step else (Path(player_spec), "")


def _has_scenario_file(path: Path) -> bool:
    return (path / "scenario.yaml").is_file()


def _has_model_files(path: Path) -> bool:
    return (path / "config.json").is_file() or (path / ADAPTER_CONFIG).is_file()


def _run_that_contains(model_folder: Path) -> Path | None:
    """Return the run whose folder contains the model's folder `model_folder`, or None if the model is in no run."""
    return next(filter(_has_scenario_file, model_folder.resolve().parents), None)


class _PlayerSpecParser:
    """Creates the players of one game from their names on the command line."""

    def __init__(self, scenario: Scenario, policy: str | None) -> None:
        self.scenario, self._policy = scenario, policy
        self.mixtures: dict[str, dict[str, float]] = {}

    def read_players(self, player_spec: str) -> Iterator[TournamentPlayer]:
        """Yield the players that `player_spec` names: several for `RUN@all`, which names all intact
        checkpoints, and for populations.

        Raises:
            ScenarioError: if `player_spec` names no player, or a player of another game.
        """
        path, step = _split_path_and_step(player_spec)
        # If a path and a scripted player have the same name, the path wins.
        if is_population(player_spec):
            shares = self.mixtures.setdefault(player_spec, {})
            for member in read_population(player_spec):
                entrant = self._player_with_model(member.folder, member.role)
                shares[entrant.name] = member.weight
                yield entrant
        elif _has_scenario_file(path):
            home = RunFolder(path)
            if step == "all":
                steps = intact_checkpoint_steps(home.checkpoints)
            elif step == "best":
                steps = [best_checkpoint_step(path)]
            else:
                steps = [int(step) if step else home.latest_checkpoint(verify_policy_checksums)[0]]
            for number in steps:
                digests = verify_file_sizes(home.checkpoints / f"{number:06d}").sha256
                weights = {file: digest for file, digest in digests.items() if file.startswith("policies/")}
                yield self._make_player(
                    f"{path}@{number:06d}",
                    home.scenario(),
                    lambda number=number: restore_simulator(path, number)[1].engines,
                    weights,
                )
        elif path.is_file():
            scenario = load(path, to_train=False)
            yield self._make_player(player_spec, scenario, lambda: untrained_simulator(scenario).engines, {})
        elif _has_model_files(path):
            yield self._player_with_model(path)
        elif player_spec in (exported := scripted_opponent_names([self.scenario.game])):
            opponents = OpponentPlayers.from_scripted_player(self.scenario, player_spec)
            configs = {name: engine for name, engine in opponents.engines.items() if isinstance(engine, EngineConfig)}
            settings = {name: config.model_dump(mode="json") for name, config in configs.items()}
            identity = _player_hash(opponents.roles, settings, {})
            yield TournamentPlayer(
                player_spec,
                opponents.roles,
                lambda: {policy: config.build(None) for policy, config in configs.items()},
                identity,
            )
        else:
            raise ScenarioError(
                f"{player_spec}: no player of this name; choices: {', '.join(sorted(exported))}, {NAMED}"
            )

    def _player_with_model(self, folder: Path, role: str = "") -> TournamentPlayer:
        """Return the player with the model in `folder`, and with the roles of the model's run or of the game.

        If `role` is not empty, all seats have this role of the model's run. The model speaks for the option `--policy`,
        else the last policy name in the path, else the only trained policy.
        """
        run = _run_that_contains(folder)
        scenario = RunFolder(run).scenario() if run else self.scenario
        policy = self._policy or next(filter(scenario.policies.__contains__, reversed(folder.resolve().parts)), None)
        if policy is None:
            named = scenario.policies
            trained = [name for name, config in named.items() if config.learner and config.learner.publishes]
            if len(trained) != 1:
                raise ScenarioError(f"{folder}: for which policy does it speak? --policy {' | '.join(named)}")
            policy = trained[0]
        settings = _policy_settings(scenario, policy)
        if settings.model is None:
            raise ScenarioError(f"{folder}: policy {policy!r} answers without a model; name another one: --policy")
        policies = {name: config for name, config in scenario.policies.items() if config.engine.is_rule_based}
        policies[policy] = settings.model_copy(
            update={"model": settings.model.with_saved_weights(folder), "learner": None}
        )

        def load_engines() -> Engines:
            # The number of threads changes the last bits of sums, so it is set as in training.
            set_torch_threads(scenario.schedule.threads)
            return build_engines(policies, prepare_models(scenario, policies))

        weights = {file.name: checksum(file) for file in sorted(folder.iterdir()) if file.is_file()}
        name = str(folder)
        if role:
            scenario = scenario.model_copy(update={"seats": dict.fromkeys(scenario.seats, role)})
            name = f"{folder}:{role}"
        return self._make_player(name, scenario, load_engines, weights, policy)

    def _make_player(
        self,
        name: str,
        scenario: Scenario,
        load_engines: Callable[[], Engines],
        checksums: Mapping[str, str],
        policy: str | None = None,
    ) -> TournamentPlayer:
        """Return the player `name`, whose identity is a hash of roles, policy settings and `checksums`.

        Args:
            name: name of the player.
            scenario: scenario with the player's roles and policies.
            load_engines: function that loads the player's weights and returns its engines.
            checksums: file of weights -> checksum.
            policy: policy that speaks in every seat (default: the option `--policy`).
        """
        views = list(scenario.scenario_by_game().values())
        game, games = self.scenario.game, [view.game for view in views]
        if game not in games:
            raise ScenarioError(f"{name}: it plays {games!r}, not {game!r} as the first one does")
        view = views[games.index(game)]
        roles = {agent: view.roles[role] for agent, role in view.seats.items()}
        if policy := policy or self._policy:
            # This call raises an error if the scenario has no policy of this name.
            _policy_settings(scenario, policy)
            # Seats with rule-based roles, such as verifiers, keep their policies.
            for agent, role in view.seats.items():
                if role not in view.rule_based_roles:
                    roles[agent] = roles[agent].model_copy(update={"policy": policy})
        settings = {}
        for speaker in sorted({role.policy for role in roles.values()}):
            settings[speaker] = scenario.policies[speaker].model_dump(mode="json", include={"engine", "model"})
        return TournamentPlayer(name, roles, load_engines, _player_hash(roles, settings, checksums))


def _policy_settings(scenario: Scenario, policy: str) -> PolicyConfig:
    if policy not in scenario.policies:
        raise ScenarioError(f"--policy {policy}: no such policy; {choices_hint(policy, scenario.policies)}")
    return scenario.policies[policy]


def _player_hash(roles: Mapping[str, RoleConfig], settings: Mapping[str, object], checksums: Mapping[str, str]) -> str:
    """Return a hash that identifies a player in result files, whatever the player's name."""
    content = [{agent: role.model_dump(mode="json") for agent, role in roles.items()}, settings, checksums]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
