"""`marl eval run`: measure a trained run, or the untrained policies of a scenario."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError
from rich.console import Console
from rich.progress import track

from marl.commands.eval.players import read_roster
from marl.commands.simulators import untrained_simulator
from marl.core.config import choices_hint
from marl.core.types import Metrics
from marl.evaluation.cross_play import TournamentPlayer
from marl.evaluation.evaluate import (
    MIN_LEGAL_MASS,
    MatchReturns,
    OpponentPlayers,
    insert_game_into_metric_names,
    move_probability_metrics,
    play_match,
    positions_with_optimal_moves,
    scripted_opponent_names,
)
from marl.evaluation.game_tree import build_game_tree
from marl.evaluation.held_out import HeldOutEvaluator
from marl.evaluation.search_policy import exact_search_metrics
from marl.evaluation.turn_search import turn_search_metrics, turn_search_setting_errors
from marl.host.garbage_collection import tune_garbage_collection
from marl.metrics.trajectory_metrics import metric_names_in_all_games
from marl.protocols import Critic
from marl.rollout.base import BaseSimulator
from marl.rollout.simulator import RolloutSimulator
from marl.runs.checkpoint import verify_policy_checksums
from marl.runs.populations import episodes_by_share, is_population
from marl.runs.run_folder import RunFolder
from marl.scenario.load import ScenarioError, explain_validation_error, format_problem_list, load
from marl.scenario.schema import Scenario
from marl.scenario.yaml_text import read_yaml
from marl.search.evaluation import SearchEvaluation
from marl.search.play import reason_critics_cannot_value_positions
from marl.search.settings import SearchSettings, TurnSearchSettings
from marl.training.restore import best_checkpoint_step, restore_critic, restore_simulator

AnySearch = SearchSettings | TurnSearchSettings
"""Settings of search at test time: for moves of a game, or for turns of a team."""


_WeightedOpponents = tuple[Callable[[], OpponentPlayers], float]
"""Function that loads opponents, and their share of the episodes."""


@dataclass(frozen=True, slots=True)
class EvaluatedPolicies:
    """Policies to be measured: the policies of a run's checkpoint, or a scenario's initial policies."""

    scenario: Scenario
    checkpoint: int | None
    """Step of the run's checkpoint, or None for untrained policies."""
    load_simulator: Callable[[], RolloutSimulator]
    """Function that loads the weights and returns a simulator with the policies."""
    load_critic: Callable[[], Critic] | None = None
    """Function that loads the critics of the run's learners, or None for untrained policies."""


def policies_of_run(run: Path, overrides: Sequence[str], step: int | None, *, best: bool) -> EvaluatedPolicies:
    """Return the policies of a run at `step`, at its best checkpoint, or by default at its newest intact checkpoint.

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
        step = best_checkpoint_step(run) if best else home.latest_checkpoint(verify_policy_checksums)[0]
    # Step 0 is the state before training, for which no critic has been trained.
    critic = partial(restore_critic, run, step) if step else None
    return EvaluatedPolicies(scenario, step, lambda: restore_simulator(run, step)[1], critic)


def policies_of_scenario(file: Path, overrides: Sequence[str], step: int | None, *, best: bool) -> EvaluatedPolicies:
    """Return the initial policies of the scenario `file`, changed by `overrides` (`dotted.path=value`).

    Raises:
        ScenarioError: if the scenario is faulty, or a checkpoint is named: only runs have checkpoints.
    """
    if best or step is not None:
        option = "--best" if best else f"--step {step}"
        raise ScenarioError(f"{option} names a checkpoint, and {file} is no run: give a run's folder, or leave it out")
    scenario = load(file, overrides, to_train=False)
    return EvaluatedPolicies(scenario, None, partial(untrained_simulator, scenario))


def evaluate_policies(
    policies: EvaluatedPolicies,
    opponent_or_run: str | None,
    episodes: int,
    search: AnySearch | None = None,
    exact_simulations: int | None = None,
) -> Metrics:
    """Return exact metrics of games that allow them, and metrics of play.

    Policies play on held-out starts if the game has held-out starts, and against the opponent `opponent_or_run` (a name
    or a run). With `search`, policies search a tree for their moves, or teams choose between rollouts on held-out
    starts. A search of moves takes at most `exact_simulations` simulations for exact metrics (default: no limit in a
    game without an opponent, and 0 in a game with one).

    Raises:
        ScenarioError: if nothing can be measured without an opponent or within the budget, or `search` does not fit the
            games.
    """
    scenario = policies.scenario
    views = scenario.scenario_by_game()
    # The opponents are loaded first, so that a wrong `--against` is reported before the policies' weights are loaded.
    opponents = _opponents_by_game(views, opponent_or_run) if opponent_or_run else {}
    _require_measurable_games(views, opponent_or_run, search)
    if exact_simulations is not None and not isinstance(search, SearchSettings):
        raise ScenarioError(f"--exact-simulations {exact_simulations} needs --search '{{simulations: N}}'")
    critic = None
    if isinstance(search, SearchSettings) and search.values == "critic":
        if policies.load_critic is None:
            raise ScenarioError(
                "--search: values: 'critic', but nobody has learned values: give the folder of a run; choices: rollouts"
            )
        for view in views.values():
            if problem := reason_critics_cannot_value_positions(view.game):
                raise ScenarioError(f"--search: values: 'critic', but game {view.game.kind!r} {problem}")
        critic = policies.load_critic()
    simulator = policies.load_simulator()
    simulator.critic = critic
    if search:
        # Searches make millions of small objects, and a full collection traverses all modules and models besides.
        tune_garbage_collection(serves_programs=scenario.runs_programs)
    metrics: Metrics = {}
    for name, view in views.items():
        # In a scenario with a single game, the game's name is "", and names of metrics omit it.
        game_simulator = simulator.variant_for_game(name) if name else simulator
        if isinstance(search, TurnSearchSettings):
            metrics |= insert_game_into_metric_names(name, turn_search_metrics(view, game_simulator, search, episodes))
            continue
        search_evaluation: SearchEvaluation | None = None
        if search:
            budget = 0 if exact_simulations is None and name in opponents else exact_simulations
            search_evaluation = SearchEvaluation(search, budget, show_progress)
            measured = exact_search_metrics(view, game_simulator, search_evaluation)
        else:
            game, casting, seats = view.game, game_simulator.casting, view.seats
            # The game tree needs all start states. Other games may still have positions with known best moves.
            tree = build_game_tree(game, casting, seats) if game.all_start_states() is not None else None
            measured = move_probability_metrics(
                tree, positions_with_optimal_moves(game, casting, seats), game_simulator
            )
            if game.held_out_reset_options(1):
                measured |= HeldOutEvaluator(view, game_simulator, episodes, greedy=view.evaluate.greedy)()
        metrics |= insert_game_into_metric_names(name, measured)
        if opponent_or_run and name in opponents:
            results = _play_against(view, game_simulator, opponents[name], episodes, search_evaluation)
            metrics |= insert_game_into_metric_names(name, results.metrics(f"eval/{Path(opponent_or_run).name}"))
    if not metrics:
        raise ScenarioError(
            f"--exact-simulations {exact_simulations}: too few for any figure; leave it out, or play --against OPPONENT"
        )
    return metrics


def show_progress(items: Sequence[Any], description: str) -> Iterable[Any]:
    """Yield `items`, with a progress bar on standard error if it is a terminal."""
    console = Console(stderr=True)
    return track(items, description, console=console, transient=True, disable=not console.is_terminal)


def _require_measurable_games(
    scenario_by_game: Mapping[str, Scenario], opponent_or_run: str | None, search: AnySearch | None
) -> None:
    """Check that at least one of the games has a metric to measure, and that `search` applies to the games.

    Raises:
        ScenarioError: if a game needs an opponent and `opponent_or_run` is None, or `search` does not apply.
    """
    games = [view.game for view in scenario_by_game.values()]
    kinds = ", ".join(repr(game.kind) for game in games)
    playable = opponent_or_run is not None
    for game in games:
        # Exact metrics need a game with enumerable start states, or positions with known optimal moves.
        playable |= game.all_start_states() is not None or next(iter(game.evaluation_positions()), None) is not None
    if not playable and not any(game.held_out_reset_options(1) for game in games):
        raise ScenarioError(
            f"nothing to measure: game {kinds} has no held-out starts and allows no exact figures; name an "
            f"opponent: --against {' | '.join(sorted(scripted_opponent_names(games)))} | RUN"
        )
    if isinstance(search, TurnSearchSettings):
        if opponent_or_run is not None:
            raise ScenarioError(
                f"--against {opponent_or_run}: with rule: {search.rule} nobody is played against; leave it out"
            )
        problems: dict[str, None] = {}
        for view in scenario_by_game.values():
            problems |= dict.fromkeys(turn_search_setting_errors(view, search))
        if problems:
            raise ScenarioError(f"--search: {format_problem_list(list(problems)).strip()}")
    elif search is not None and not playable:
        raise ScenarioError(
            f"--search: rule: {search.rule} looks for moves in games with legal moves that can be walked, or against "
            f"an opponent (--against); {kinds} is no such game. For the turns of a team choose rule: best_of_n, beam "
            "or tree, as in '{rule: tree, by: critic.score, tokens: 400}'"
        )


def parse_search(text: str) -> AnySearch:
    """Return the search settings in the YAML `text`, for moves of a game or for turns of a team.

    Raises:
        ScenarioError: if the settings are faulty; the message names field, value and choices.
    """
    # Two classes of settings share the option `--search`; `rule` tells them apart, since their rules are disjoint.
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
        raise ScenarioError(f"--search: {format_problem_list(explain_validation_error(error)).strip()}") from error


def _opponents_by_game(
    scenario_by_game: Mapping[str, Scenario], opponent_or_run: str
) -> dict[str, Sequence[_WeightedOpponents]]:
    """Return game -> opponents called `opponent_or_run`, which are scripted players of the game, the policies of a run,
    or the members of a run's population, each with its share of the episodes.

    A game without opponents of this name has no entry.

    Raises:
        ValueError: if no game exports a player called `opponent_or_run`.
        ScenarioError: if the run `opponent_or_run` plays none of the games.
    """
    exporting = {
        game: view for game, view in scenario_by_game.items() if opponent_or_run in scripted_opponent_names([view.game])
    }
    opponents: dict[str, Sequence[_WeightedOpponents]] = {}
    if is_population(opponent_or_run):
        roster = read_roster([opponent_or_run])
        run_games = [roster.scenario.game]
        shares = roster.mixtures[opponent_or_run]
        members = [(partial(_opponents_of_player, entrant), shares[entrant.name]) for entrant in roster.entrants]
        opponents = {game: members for game, view in scenario_by_game.items() if view.game in run_games}
    elif exporting or not Path(opponent_or_run).is_dir():
        for game, view in (exporting or scenario_by_game).items():
            scripted = OpponentPlayers.from_scripted_player(view, opponent_or_run)
            opponents[game] = [(lambda scripted=scripted: scripted, 1.0)]
        return opponents
    else:
        run, simulator = restore_simulator(Path(opponent_or_run))
        run_views = run.scenario_by_game().values()
        run_games = [view.game for view in run_views]
        for game, view in scenario_by_game.items():
            for run_view in run_views:
                if run_view.game == view.game:
                    roles = {agent: run_view.roles[role] for agent, role in run_view.seats.items()}
                    players = OpponentPlayers(roles, simulator.engines)
                    opponents[game] = [(lambda players=players: players, 1.0)]
    if not opponents:
        games = [view.game for view in scenario_by_game.values()]
        raise ScenarioError(f"--against {opponent_or_run}: it plays {run_games!r}, not {games!r}")
    return opponents


def _opponents_of_player(player: TournamentPlayer) -> OpponentPlayers:
    return OpponentPlayers(player.roles, player.load_engines())


def _play_against(
    scenario: Scenario,
    simulator: BaseSimulator,
    opponents: Sequence[_WeightedOpponents],
    episodes: int,
    search: SearchEvaluation | None,
) -> MatchReturns:
    """Play `episodes` episodes, divided among `opponents` by their shares. One member of a population is in memory at a
    time, and plays equally many episodes against each seat."""
    counts = [episodes]
    if len(opponents) > 1:
        counts = episodes_by_share([share for _, share in opponents], episodes, len(scenario.seats))
    returns: dict[str, list[float]] = {}
    for number, ((load_opponents, _), count) in enumerate(zip(opponents, counts, strict=True)):
        if count:
            match = play_match(scenario, simulator, load_opponents(), episodes=count, seed=number, search=search)
            for seat, seat_returns in match.returns.items():
                returns.setdefault(seat, []).extend(seat_returns)
    return MatchReturns(returns)


def format_metrics(metrics: Mapping[str, float], rule_based_roles: Collection[str] = ()) -> str:
    """Return one line for each metric, with its interval, and a warning if the legal mass is too small.

    `rule_based_roles` names the roles with rule-based policies. Metrics of these roles, such as token counts, are
    omitted if 0.
    """
    lines = []
    rule_scopes = tuple(f"/role/{role}/" for role in rule_based_roles)
    for name, value in metrics.items():
        if name.endswith(("_low", "_high")) or (value == 0 and any(scope in name for scope in rule_scopes)):
            continue
        low, high = metrics.get(f"{name}_low"), metrics.get(f"{name}_high")
        interval = f"  [{low:.4f}, {high:.4f}]" if low is not None and high is not None else ""
        lines.append(f"{name:<40} {value:10.4f}{interval}")
    # Exact metrics condition on legal moves, so they say little about a policy that rarely answers with a legal move.
    for name in metric_names_in_all_games(["eval/legal_mass"], metrics):
        if metrics[name] < MIN_LEGAL_MASS:
            game = "" if name == "eval/legal_mass" else f" of {name.split('/')[1]}"
            lines.append(f"exact figures{game} do not count: legal mass {metrics[name]:.4f} is below {MIN_LEGAL_MASS}")
    return "\n".join(lines)
