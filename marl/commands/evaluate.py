"""`marl eval`: measure a trained run, or the policies of a scenario before any training."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import get_args

from pydantic import ValidationError

from marl.commands.simulators import untrained_policies
from marl.config import nearest
from marl.errors import Writing
from marl.evaluation.evaluate import LEGAL_MASS, Opponents, figures, match, of_game, positions
from marl.evaluation.game_tree import grow
from marl.evaluation.held_out import HeldOut
from marl.evaluation.searching import exact_figures
from marl.evaluation.team_search import search_problems, team_search_figures
from marl.metrics.summaries import of_games
from marl.protocols import Critic, GameConfig
from marl.rollout.simulator import RolloutSimulator
from marl.runs.checkpoint import verify_policies
from marl.runs.run_folder import RunFolder, environment
from marl.scenario.load import ScenarioError, explain, load, problem_list
from marl.scenario.schema import Scenario
from marl.scenario.yaml_text import read_yaml
from marl.search.play import critic_obstacle
from marl.search.settings import SearchSettings, TurnSearchSettings
from marl.training.restore import best_step, restore, restored_critic
from marl.types import Metrics

AnySearch = SearchSettings | TurnSearchSettings
_SEARCHES: tuple[type[AnySearch], ...] = (SearchSettings, TurnSearchSettings)


@dataclass(frozen=True, slots=True)
class MeasuredPolicies:
    """Policies that are measured: those of a run's checkpoint, or those that a scenario starts from."""

    scenario: Scenario
    checkpoint: int | None
    """Step of the run's checkpoint; None: untrained."""
    simulator: Callable[[], RolloutSimulator]
    """Load the weights."""
    critic: Callable[[], Critic] | None = None
    """Load the critics of the run's learners; None: untrained."""


def trained(run: Path, overrides: Sequence[str], step: int | None, *, best: bool) -> MeasuredPolicies:
    """Return the policies of a run as they were after `step`, at its best, or at its newest whole checkpoint.

    Raises:
        ScenarioError: if there is no run or no best checkpoint, or there are overrides.
    """
    if not (run / "scenario.yaml").is_file() and (run / "config.json").is_file():
        raise ScenarioError(
            f"{run}: a model's folder, no run; say for which policy of which scenario it is to speak: "
            f"marl eval SCENARIO policies.NAME.model={run}"
        )
    if overrides:
        raise ScenarioError(f"{run} is a run, which is measured as it is: leave {overrides[0]!r} out")
    if best and step is not None:
        raise ScenarioError(f"--step {step} names a checkpoint and --best another one: give one of them")
    home = RunFolder(run)
    scenario = home.scenario()
    chosen = best_step(run) if best else home.latest(verify_policies)[0] if step is None else step
    critic = partial(restored_critic, run, chosen) if chosen else None
    return MeasuredPolicies(scenario, chosen, lambda: restore(run, chosen)[1], critic)


def untrained(file: Path, overrides: Sequence[str], step: int | None, *, best: bool) -> MeasuredPolicies:
    """Return the policies that a scenario starts from, with overrides (`dotted.path=value`).

    Raises:
        ScenarioError: if the scenario is faulty, or a checkpoint is named, of which a scenario has none.
    """
    if best or step is not None:
        option = "--best" if best else f"--step {step}"
        raise ScenarioError(f"{option} names a checkpoint, and {file} is no run: give a run's folder, or leave it out")
    scenario = load(file, overrides, to_train=False)
    return MeasuredPolicies(scenario, None, partial(untrained_policies, scenario))


def measure(run: Path, against: str | None, episodes: int, step: int | None) -> Metrics:
    """Return the figures of a run's checkpoint (default: the newest whole one)."""
    return measure_policies(trained(run, (), step, best=False), against, episodes)


def measure_policies(
    policies: MeasuredPolicies, against: str | None, episodes: int, search: AnySearch | None = None
) -> Metrics:
    """Return exact figures where the game allows them, and figures of play.

    Play is on held-out starts where the game has any, and against `against` (an opponent's name or a run). With
    `search`, policies look for their moves in a tree, in exact figures and against opponents; or teams choose between
    courses on held-out starts.

    Raises:
        ScenarioError: if the game allows no exact figures and has no held-out starts, and nobody is played against; if
            the search is not one for these games.
    """
    views = policies.scenario.by_game()
    opponents = _opponents(policies.scenario, against) if against else {}
    _expect_figures([view.game for view in views.values()], against)
    _check_search(views, against, search)
    simulator = _simulator(policies, search)
    metrics: Metrics = {}
    for name, view in views.items():
        table = simulator.of_game(name) if name else simulator
        if isinstance(search, TurnSearchSettings):
            metrics |= of_game(name, team_search_figures(view, table, search, episodes))
            continue
        exact = exact_figures(view, table, search) if search else _measure_game(view, table, episodes)
        metrics |= of_game(name, exact)
        if against and name in opponents:
            results = match(view, table, opponents[name], episodes=episodes, seed=0, search=search)
            metrics |= of_game(name, results.metrics(f"eval/{Path(against).name}"))
    return metrics


def _simulator(policies: MeasuredPolicies, search: AnySearch | None) -> RolloutSimulator:
    """Return the policies' simulator, with the critics of the run's learners if a search is to ask them."""
    by_critic = isinstance(search, SearchSettings) and search.values == "critic"
    critic = _critic_of(policies) if by_critic else None
    simulator = policies.simulator()
    simulator.critic = critic
    return simulator


def _critic_of(policies: MeasuredPolicies) -> Critic:
    """Return the critics of a run's learners.

    Raises:
        ScenarioError: if there are none, or they cannot value positions of a game.
    """
    if policies.critic is None:
        raise ScenarioError(
            "--search: values: 'critic', but nobody has learned values: give the folder of a run; choices: rollouts"
        )
    for view in policies.scenario.by_game().values():
        if problem := critic_obstacle(view.game):
            raise ScenarioError(f"--search: values: 'critic', but game {view.game.kind!r} {problem}")
    return policies.critic()


def _check_search(views: Mapping[str, Scenario], against: str | None, search: AnySearch | None) -> None:
    """Raise ScenarioError if a search is not one for these games."""
    if isinstance(search, TurnSearchSettings):
        if against is not None:
            raise ScenarioError(f"--against {against}: with rule: {search.rule} nobody is played against; leave it out")
        problems = [problem for view in views.values() for problem in search_problems(view, search)]
        if problems:
            raise ScenarioError(f"--search: {problem_list(list(dict.fromkeys(problems))).strip()}")
    elif search is not None and against is None and not any(_allows_exact(view.game) for view in views.values()):
        kinds = ", ".join(repr(view.game.kind) for view in views.values())
        raise ScenarioError(
            f"--search: rule: {search.rule} looks for moves in games with legal moves that can be walked, or against "
            f"an opponent (--against); {kinds} is no such game. For the turns of a team choose rule: best_of_n, beam "
            "or tree, as in '{rule: tree, by: critic.score, tokens: 400}'"
        )


def _allows_exact(game: GameConfig) -> bool:
    return game.starts() is not None or next(iter(game.positions()), None) is not None


def read_search(text: str) -> AnySearch:
    """Return the settings of a search of moves in a game or of the turns of a team, in YAML.

    Raises:
        ScenarioError: if they are faulty; names field, value and choices.
    """
    settings = read_yaml(text, "--search")
    if not isinstance(settings, dict):
        raise ScenarioError(f"--search {text}: must be settings in braces, such as '{{simulations: 64}}'")
    rules = {rule: kind for kind in _SEARCHES for rule in get_args(kind.model_fields["rule"].annotation)}
    rule = str(settings.get("rule", "puct"))
    if rule not in rules:
        raise ScenarioError(f"--search: rule: {rule!r}: unknown; {nearest(rule, rules)}")
    try:
        return rules[rule].model_validate(settings)
    except ValidationError as error:
        raise ScenarioError(f"--search: {problem_list(explain(error)).strip()}") from error


def _measure_game(scenario: Scenario, simulator: RolloutSimulator, episodes: int) -> Metrics:
    """Return exact figures of a scenario's game, and figures of play on its held-out starts, where it has them."""
    game = scenario.game
    tree = grow(game, simulator.casting, scenario.seats) if game.starts() is not None else None
    metrics = figures(tree, positions(game, simulator.casting, scenario.seats), simulator)
    if game.held_out(1):
        metrics |= HeldOut(scenario, simulator, episodes, greedy=scenario.evaluate.greedy)()
    return metrics


def _expect_figures(games: Sequence[GameConfig], against: str | None) -> None:
    if against is None and not any(map(_allows_exact, games)) and not any(game.held_out(1) for game in games):
        kinds, known = ", ".join(repr(game.kind) for game in games), sorted(known_opponents(games))
        raise ScenarioError(
            f"nothing to measure: game {kinds} has no held-out starts and allows no exact figures; name an "
            f"opponent: --against {' | '.join(known)} | RUN"
        )


def known_opponents(games: Sequence[GameConfig]) -> set[str]:
    """Return the players that one of the games exports, and `random`."""
    return {"random", *(name for game in games for name in game.opponents())}


def _opponents(scenario: Scenario, name: str) -> dict[str, Opponents]:
    """Return game -> the players that `name` stands for; of several games, only those that have such players.

    Raises:
        ValueError: if no game exports such a player.
        ScenarioError: if a run of that name plays none of the games.
    """
    views = scenario.by_game()
    if name not in known_opponents([view.game for view in views.values()]) and Path(name).is_dir():
        return _players_of(Path(name), views)
    known = {game: view for game, view in views.items() if name in known_opponents([view.game])} or views
    return {game: Opponents.scripted(view, name) for game, view in known.items()}


def _players_of(run: Path, views: Mapping[str, Scenario]) -> dict[str, Opponents]:
    """Return game -> a run's policies in its seats, for the games that it was trained in as well."""
    other, simulator = restore(run)
    players = {}
    for name, view in views.items():
        for theirs in other.by_game().values():
            if theirs.game == view.game:
                roles = {agent: theirs.roles[role] for agent, role in theirs.seats.items()}
                players[name] = Opponents(roles, simulator.engines)
    if not players:
        theirs, ours = ([view.game for view in each.values()] for each in (other.by_game(), views))
        raise ScenarioError(f"--against {run}: it plays {theirs!r}, not {ours!r}")
    return players


def render(metrics: Mapping[str, float], by_rule: Collection[str] = ()) -> str:
    """Return figures as lines, with intervals, and a warning where an exact figure does not count.

    Figures of the roles `by_rule`, which answer by rule, are left out where they are 0, as their tokens are.
    """
    lines = []
    silent = tuple(f"/role/{role}/" for role in by_rule)
    for name, value in metrics.items():
        if name.endswith(("_low", "_high")) or (value == 0 and any(part in name for part in silent)):
            continue
        low, high = metrics.get(f"{name}_low"), metrics.get(f"{name}_high")
        interval = f"  [{low:.4f}, {high:.4f}]" if low is not None and high is not None else ""
        lines.append(f"{name:<40} {value:10.4f}{interval}")
    for name in of_games(["eval/legal_mass"], metrics):
        if metrics[name] < LEGAL_MASS:
            whose = "" if name == "eval/legal_mass" else f" of {name.split('/')[1]}"
            lines.append(f"exact figures{whose} do not count: legal mass {metrics[name]:.4f} is below {LEGAL_MASS}")
    return "\n".join(lines)


def prepare_file(file: Path | None) -> None:
    """Make the folder of a file for figures, before what takes long.

    Raises:
        ScenarioError: if the file's name does not end in .json.
        FolderError: if the folder cannot be made.
    """
    if file is None:
        return
    if file.suffix != ".json":
        raise ScenarioError(f"--out {file}: no such format {file.suffix!r}; choices: .json")
    with Writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)


def write_figures(
    file: Path, target: Path, policies: MeasuredPolicies, metrics: Metrics, search: AnySearch | None = None
) -> None:
    """Write figures as JSON with all that they depend on: command, checkpoint, seed, versions, machine, scenario.

    A bound that is not finite is null: an interval of one episode has no bounds.
    """
    result = {
        "measured": str(target),
        "checkpoint": policies.checkpoint,
        **({"search": search.model_dump(mode="json")} if search else {}),
        "figures": {name: value if math.isfinite(value) else None for name, value in metrics.items()},
        **environment(policies.scenario),
        "scenario": policies.scenario.model_dump(mode="json"),
    }
    with Writing(file):
        file.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n", encoding="utf-8")
