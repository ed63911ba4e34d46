"""`marl eval run`: measure a trained run, or the untrained policies of a scenario."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import get_args

from pydantic import ValidationError

from marl.commands.simulators import untrained_simulator
from marl.core.config import choices_hint
from marl.core.types import Metrics
from marl.evaluation.evaluate import LEGAL_MASS, Opponents, figures, of_game, optimal_positions, play_match
from marl.evaluation.game_tree import build_game_tree
from marl.evaluation.held_out import HeldOut
from marl.evaluation.search_policy import exact_figures
from marl.evaluation.turn_search import search_problems, team_search_figures
from marl.metrics.trajectory_metrics import matching_metrics
from marl.protocols import Critic, GameConfig
from marl.rollout.simulator import RolloutSimulator
from marl.runs.checkpoint import verify_policies
from marl.runs.run_folder import RunFolder
from marl.scenario.load import ScenarioError, explain, load, problem_list
from marl.scenario.schema import Scenario
from marl.scenario.yaml_text import read_yaml
from marl.search.play import critic_obstacle
from marl.search.settings import SearchSettings, TurnSearchSettings
from marl.training.restore import best_step, restore_simulator, restored_critic

AnySearch = SearchSettings | TurnSearchSettings


@dataclass(frozen=True, slots=True)
class EvaluatedPolicies:
    """Policies to be measured: those of a run's checkpoint, or the initial ones of a scenario."""

    scenario: Scenario
    checkpoint: int | None
    """Step of the run's checkpoint, or None for untrained policies."""
    load_simulator: Callable[[], RolloutSimulator]
    """Load the weights and return the simulator."""
    load_critic: Callable[[], Critic] | None = None
    """Load the critics of the run's learners, or None for untrained policies."""


def policies_of_run(run: Path, overrides: Sequence[str], step: int | None, *, best: bool) -> EvaluatedPolicies:
    """Return the policies of a run at `step`, at its best checkpoint, or (default) at its newest intact checkpoint.

    Raises:
        ScenarioError: if there is no run or no best checkpoint, or there are overrides.
    """
    if not (run / "scenario.yaml").is_file() and (run / "config.json").is_file():
        raise ScenarioError(
            f"{run}: a model's folder, no run; say for which policy of which scenario it is to speak: "
            f"marl eval run SCENARIO policies.NAME.model={run}"
        )
    if overrides:
        raise ScenarioError(f"{run} is a run, which is measured as it is: leave {overrides[0]!r} out")
    if best and step is not None:
        raise ScenarioError(f"--step {step} names a checkpoint and --best another one: give one of them")
    home = RunFolder(run)
    scenario = home.scenario()
    if step is None:
        step = best_step(run) if best else home.latest_checkpoint(verify_policies)[0]
    # Step 0 is the state before training: it has no critic that has learned anything.
    critic = partial(restored_critic, run, step) if step else None
    return EvaluatedPolicies(scenario, step, lambda: restore_simulator(run, step)[1], critic)


def policies_of_scenario(file: Path, overrides: Sequence[str], step: int | None, *, best: bool) -> EvaluatedPolicies:
    """Return the initial policies of a scenario, with overrides (`dotted.path=value`).

    Raises:
        ScenarioError: if the scenario is faulty, or a checkpoint is named: only runs have checkpoints.
    """
    if best or step is not None:
        option = "--best" if best else f"--step {step}"
        raise ScenarioError(f"{option} names a checkpoint, and {file} is no run: give a run's folder, or leave it out")
    scenario = load(file, overrides, to_train=False)
    return EvaluatedPolicies(scenario, None, partial(untrained_simulator, scenario))


def evaluate_policies(
    policies: EvaluatedPolicies, against: str | None, episodes: int, search: AnySearch | None = None
) -> Metrics:
    """Return exact metrics of games that allow them, and metrics of play.

    Policies play on held-out starts if the game has some, and against `against` (an opponent's name or a run). With
    `search`, policies search a tree for their moves, or teams choose between rollouts on held-out starts.

    Raises:
        ScenarioError: if nothing can be measured without an opponent, or `search` does not fit these games.
    """
    scenario = policies.scenario
    views = scenario.by_game()
    # The opponents' weights are loaded first: `--against` is refused before the policies' own weights are loaded.
    opponents = _opponents(views, against) if against else {}
    _expect_measurable(views, against, search)
    critic = None
    if isinstance(search, SearchSettings) and search.values == "critic":
        critic = _load_critic(policies, views)
    simulator = policies.load_simulator()
    simulator.critic = critic
    metrics: Metrics = {}
    for name, view in views.items():
        # The game of a scenario with a single one is called "", and the names of its metrics omit it.
        table = simulator.for_game(name) if name else simulator
        if isinstance(search, TurnSearchSettings):
            metrics |= of_game(name, team_search_figures(view, table, search, episodes))
            continue
        exact = exact_figures(view, table, search) if search else _measure_game(view, table, episodes)
        metrics |= of_game(name, exact)
        if against and name in opponents:
            results = play_match(view, table, opponents[name], episodes=episodes, seed=0, search=search)
            metrics |= of_game(name, results.metrics(f"eval/{Path(against).name}"))
    return metrics


def _load_critic(policies: EvaluatedPolicies, views: Mapping[str, Scenario]) -> Critic:
    """Return the critics of a run's learners.

    Raises:
        ScenarioError: if there are none, or they cannot estimate values of a game's positions.
    """
    if policies.load_critic is None:
        raise ScenarioError(
            "--search: values: 'critic', but nobody has learned values: give the folder of a run; choices: rollouts"
        )
    for view in views.values():
        if problem := critic_obstacle(view.game):
            raise ScenarioError(f"--search: values: 'critic', but game {view.game.kind!r} {problem}")
    return policies.load_critic()


def _expect_measurable(views: Mapping[str, Scenario], against: str | None, search: AnySearch | None) -> None:
    """Raise ScenarioError if these games yield no metrics, or `search` does not apply to them."""
    games = [view.game for view in views.values()]
    kinds = ", ".join(repr(game.kind) for game in games)
    playable = against is not None
    for game in games:
        # Exact metrics need all starts of a game, or positions of which the optimal moves are known.
        playable |= game.starts() is not None or next(iter(game.positions()), None) is not None
    if not playable and not any(game.held_out(1) for game in games):
        raise ScenarioError(
            f"nothing to measure: game {kinds} has no held-out starts and allows no exact figures; name an "
            f"opponent: --against {' | '.join(sorted(opponent_names(games)))} | RUN"
        )
    if isinstance(search, TurnSearchSettings):
        if against is not None:
            raise ScenarioError(f"--against {against}: with rule: {search.rule} nobody is played against; leave it out")
        problems: dict[str, None] = {}
        for view in views.values():
            problems |= dict.fromkeys(search_problems(view, search))
        if problems:
            raise ScenarioError(f"--search: {problem_list(list(problems)).strip()}")
    elif search is not None and not playable:
        raise ScenarioError(
            f"--search: rule: {search.rule} looks for moves in games with legal moves that can be walked, or against "
            f"an opponent (--against); {kinds} is no such game. For the turns of a team choose rule: best_of_n, beam "
            "or tree, as in '{rule: tree, by: critic.score, tokens: 400}'"
        )


def parse_search(text: str) -> AnySearch:
    """Return the search settings in the YAML `text`, for moves of a game or for turns of a team.

    Raises:
        ScenarioError: if the settings are faulty; names field, value and choices.
    """
    # The two classes of settings have disjoint rules, so `rule` decides which class validates the rest.
    settings = read_yaml(text, "--search")
    if not isinstance(settings, dict):
        raise ScenarioError(f"--search {text}: must be settings in braces, such as '{{simulations: 64}}'")
    classes: dict[str, type[AnySearch]] = {}
    for kind in (SearchSettings, TurnSearchSettings):
        classes |= dict.fromkeys(get_args(kind.model_fields["rule"].annotation), kind)
    rule = str(settings.get("rule", "puct"))
    if rule not in classes:
        raise ScenarioError(f"--search: rule: {rule!r}: unknown; {choices_hint(rule, classes)}")
    try:
        return classes[rule].model_validate(settings)
    except ValidationError as error:
        raise ScenarioError(f"--search: {problem_list(explain(error)).strip()}") from error


def _measure_game(scenario: Scenario, simulator: RolloutSimulator, episodes: int) -> Metrics:
    """Return exact metrics of a scenario's game, and metrics of play on its held-out starts if it has some."""
    game = scenario.game
    # Only a game that exports its starts has a tree; others may still have exactly solved positions.
    tree = build_game_tree(game, simulator.casting, scenario.seats) if game.starts() is not None else None
    metrics = figures(tree, optimal_positions(game, simulator.casting, scenario.seats), simulator)
    if game.held_out(1):
        metrics |= HeldOut(scenario, simulator, episodes, greedy=scenario.evaluate.greedy)()
    return metrics


def opponent_names(games: Sequence[GameConfig]) -> set[str]:
    """Return the names of the players that any of `games` exports, and `random`."""
    return {"random"}.union(*(game.opponents() for game in games))


def _opponents(views: Mapping[str, Scenario], name: str) -> dict[str, Opponents]:
    """Return game -> the opponents called `name`, for the games that have them: scripted players or a run's policies.

    Raises:
        ValueError: if no game exports such a player.
        ScenarioError: if a run of that name plays none of the games.
    """
    if name in opponent_names([view.game for view in views.values()]) or not Path(name).is_dir():
        exporting = {game: view for game, view in views.items() if name in opponent_names([view.game])}
        # With no such game every game is tried, and the first one raises the error with its choices.
        return {game: Opponents.scripted(view, name) for game, view in (exporting or views).items()}
    run, simulator = restore_simulator(Path(name))
    run_views = run.by_game().values()
    opponents = {}
    for game, view in views.items():
        for run_view in run_views:
            if run_view.game == view.game:
                roles = {agent: run_view.roles[role] for agent, role in run_view.seats.items()}
                opponents[game] = Opponents(roles, simulator.engines)
    if not opponents:
        run_games, games = [view.game for view in run_views], [view.game for view in views.values()]
        raise ScenarioError(f"--against {name}: it plays {run_games!r}, not {games!r}")
    return opponents


def format_metrics(metrics: Mapping[str, float], by_rule: Collection[str] = ()) -> str:
    """Return one line for each metric, with its interval, and a warning if the legal mass is too small.

    Metrics of the roles `by_rule`, whose policies are rule-based, are omitted if they are 0, as their token counts are.
    """
    lines = []
    rule_scopes = tuple(f"/role/{role}/" for role in by_rule)
    for name, value in metrics.items():
        if name.endswith(("_low", "_high")) or (value == 0 and any(scope in name for scope in rule_scopes)):
            continue
        low, high = metrics.get(f"{name}_low"), metrics.get(f"{name}_high")
        interval = f"  [{low:.4f}, {high:.4f}]" if low is not None and high is not None else ""
        lines.append(f"{name:<40} {value:10.4f}{interval}")
    # Exact metrics assume legal moves; with little probability on these they describe another policy.
    for name in matching_metrics(["eval/legal_mass"], metrics):
        if metrics[name] < LEGAL_MASS:
            game = "" if name == "eval/legal_mass" else f" of {name.split('/')[1]}"
            lines.append(f"exact figures{game} do not count: legal mass {metrics[name]:.4f} is below {LEGAL_MASS}")
    return "\n".join(lines)
