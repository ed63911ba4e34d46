"""Evaluation of policies: exact on full game trees of small games, by play with confidence intervals elsewhere."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import fmean

from marl.core.graph import Trajectory
from marl.core.seeds import hash_to_seed
from marl.core.statistics import normal_interval, wilson_interval
from marl.core.types import Completion, Deal, Metrics, Request
from marl.engines.scripted import Random
from marl.evaluation.average_policy import AveragePolicy
from marl.evaluation.game_tree import (
    GameTree,
    InformationState,
    Strategy,
    build_game_tree,
    expected_returns,
    mean_legal_move_probability,
    nash_conv,
)
from marl.evaluation.held_out import HeldOutEvaluator
from marl.evaluation.population_mixture import PopulationMixture
from marl.metrics.trajectory_metrics import metric_names_in_all_games
from marl.protocols import EngineConfig, GameConfig, RoleConfig, SavedWeights
from marl.rollout.base import BaseSimulator, EngineMap
from marl.rollout.casting import RoleRequestBuilder
from marl.rollout.episode import Episode
from marl.runs.strategies import StrategyRow
from marl.scenario.schema import Scenario
from marl.search.evaluation import SearchEvaluation
from marl.search.play import SearchPlayer, SearchRoles

# Metrics of this module (name | unit | meaning), which `tests/bench/figures.py` copies into marl/README.md.
METRICS = """
eval/value/AGENT | reward | expected return of a seat if all seats play the policies; exact
eval/optimal | probability | an optimal move, mean over positions in which some but not all moves are optimal; exact
eval/legal_mass | probability | any legal move in its canonical text, mean; below 0.98 the exact figures do not
    count
eval/OPPONENT/mean | reward | mean return of the policies against an opponent, one seat after another
eval/OPPONENT/win, draw, loss | share of episodes | return above, equal to, below 0
eval/OPPONENT/episodes | episodes | played against it
eval/OPPONENT/SEAT/... | as above | the same in one seat
"""

MIN_LEGAL_MASS = 0.98
"""Minimum mean probability of canonical legal moves for exact figures to be reliable."""
EXACT_METRICS = (
    *("eval/nashconv", "eval/average/nashconv", "eval/pool/nashconv", "eval/meta/nashconv", "eval/optimal"),
)
"""Metrics computed from move probabilities instead of episodes."""


def is_computed_from_move_probabilities(metric: str) -> bool:
    """Return True if a metric was computed from move probabilities, such as eval/nashconv or eval/GAME/nashconv."""
    return metric in metric_names_in_all_games(EXACT_METRICS, [metric])


def is_reliable_given_legal_mass(metrics_row: Mapping[str, float], metric: str) -> bool:
    """Return True unless `metric` is exact and the probability of legal moves is below `MIN_LEGAL_MASS`."""
    return (
        not is_computed_from_move_probabilities(metric)
        or metrics_row.get(f"{metric.rpartition('/')[0]}/legal_mass", 1.0) >= MIN_LEGAL_MASS
    )


def move_probabilities(simulator: BaseSimulator, requests: Sequence[Request]) -> list[dict[str, float]]:
    """Return, for each request, legal move -> probability that the policy answers with exactly its canonical text.

    Probabilities are under the role's sampling settings and include the end token. The remaining mass (up to 1) is on
    all other texts.
    """
    options: list[tuple[int, str]] = []
    forced: list[Request] = []
    for index, request in enumerate(requests):
        for move, text in (request.options or {}).items():
            options.append((index, move))
            forced.append(replace(request, forced=text))
    probabilities: list[dict[str, float]] = [{} for _ in requests]
    for (index, move), completion in zip(options, simulator.score_forced_texts(forced, "eval"), strict=True):
        is_scored = isinstance(completion, Completion)
        probabilities[index][move] = math.exp(math.fsum(completion.logprobs)) if is_scored else 0.0
    return probabilities


class Evaluator:
    """Evaluates all games of a scenario by the scenario's `evaluate` section."""

    def __init__(self, scenario: Scenario, simulator: BaseSimulator) -> None:
        self._games: dict[str, GameEvaluator] = {}
        for name, view in scenario.scenario_by_game().items():
            self._games[name] = GameEvaluator(view, simulator.variant_for_game(name) if name else simulator)

    @property
    def requests_any_metrics(self) -> bool:
        """True if the scenario asks for metrics of any game."""
        return any(game.requests_any_metrics for game in self._games.values())

    @property
    def held_out_episodes(self) -> Sequence[Trajectory]:
        """Episodes of the last evaluation on held-out starts, empty if there is no such evaluation."""
        return list(chain.from_iterable(game.held_out_episodes for game in self._games.values()))

    def population_metrics(self, members: Mapping[str, tuple[SavedWeights, float]]) -> Metrics:
        """Return NashConv of the mixtures of a league's pool, if the scenario asks for it.

        `members` maps a member's name to its weights and its probability under the meta-strategy.
        """
        metrics: Metrics = {}
        for game in self._games.values():
            metrics |= game.population.metrics(members) if game.population else {}
        return metrics

    def move_probability_rows(self) -> list[StrategyRow]:
        """Return the move probabilities of the last evaluation for all games with a measured average policy."""
        rows: list[StrategyRow] = []
        for name, game in self._games.items():
            for situation, moves in game.strategy.items() if game.average else ():
                rows.append(StrategyRow(name, situation.agent, situation.state, situation.attempt, dict(moves)))
        return rows

    def add_recorded_strategies(self, step: int, rows: Iterable[StrategyRow]) -> None:
        """Add the strategies recorded at the evaluation of training step `step` to the average policies of their games.

        Raises:
            ValueError: if the strategies belong to another game.
        """
        strategies: dict[str, dict[InformationState, dict[str, float]]] = defaultdict(dict)
        for row in rows:
            strategies[row.game][InformationState(row.agent, row.state, row.attempt)] = row.moves
        for name, game in self._games.items():
            if game.average and name in strategies:
                game.average.add_evaluation(step, strategies[name])

    def __call__(self, step: int) -> Metrics:
        """Return the metrics of all games after training step `step`."""
        metrics: Metrics = {}
        for name, game in self._games.items():
            metrics |= insert_game_into_metric_names(name, game(step))
        return metrics


def insert_game_into_metric_names(game: str, metrics: Mapping[str, float]) -> Metrics:
    """Return metrics renamed from `eval/...` to `eval/GAME/...`, or unchanged if `game` is empty."""
    prefix = f"eval/{game}/" if game else "eval/"
    return {name.replace("eval/", prefix, 1): figure for name, figure in metrics.items()}


class GameEvaluator:
    """Evaluates a scenario with one game; its game tree is built once."""

    def __init__(self, scenario: Scenario, simulator: BaseSimulator) -> None:
        self._scenario, self._simulator, self._settings = scenario, simulator, scenario.evaluate
        game, casting, seats = scenario.game, simulator.casting, scenario.seats
        self._tree = build_game_tree(game, casting, seats) if self._settings.nashconv else None
        averaging = self._settings.average
        self.average = (
            AveragePolicy(self._tree, averaging, scenario.schedule.steps) if self._tree and averaging else None
        )
        """Average policy so far, or None if it is not measured."""
        self.population: PopulationMixture | None = None
        """Mixtures of a league's pool, or None if they are not measured."""
        if self._tree and self._settings.population:
            self.population = PopulationMixture(self._tree, self._strategy_of_member)
        self.strategy: Strategy = {}
        """Move probabilities of the last evaluation; empty without a game tree."""
        self._positions = positions_with_optimal_moves(game, casting, seats) if self._settings.optimal else []
        episodes, greedy = self._settings.held_out, self._settings.greedy
        self._held_out = HeldOutEvaluator(scenario, simulator, episodes, greedy=greedy) if episodes else None

    @property
    def requests_any_metrics(self) -> bool:
        """True if the scenario asks for any metrics of the game."""
        return bool(self._tree or self._positions or self._settings.against or self._held_out)

    @property
    def held_out_episodes(self) -> Sequence[Trajectory]:
        """Episodes of the last evaluation on held-out starts, empty if there is no such evaluation."""
        return self._held_out.episodes_of_last_call if self._held_out else ()

    def __call__(self, step: int) -> Metrics:
        """Return the metrics of the game after training step `step`."""
        self.strategy = strategy_of_policies(self._tree, self._simulator) if self._tree else {}
        metrics = move_probability_metrics(self._tree, self._positions, self._simulator, self.strategy)
        if self.average:
            self.average.add_evaluation(step, self.strategy)
            metrics |= self.average.metrics()
        for name, episodes in self._settings.against.items():
            opponents = OpponentPlayers.from_scripted_player(self._scenario, name)
            # The step serves as the seed, so that a resumed run plays the same matches.
            results = play_match(self._scenario, self._simulator, opponents, episodes=episodes, seed=step)
            metrics |= results.metrics(f"eval/{name}")
        return metrics | (self._held_out() if self._held_out else {})

    def _strategy_of_member(self, name: str, weights: SavedWeights) -> Strategy:
        """Return the strategy of a league's member, which is loaded meanwhile, in the seats of all agents."""
        assert self._tree
        self._simulator.add_policy(name, weights)
        try:
            requests = [replace(request, policy=name) for request in self._tree.requests.values()]
            probabilities = move_probabilities(self._simulator, requests)
        finally:
            self._simulator.remove_policy(name)
        return dict(zip(self._tree.requests, probabilities, strict=True))


def move_probability_metrics(
    tree: GameTree | None,
    positions: Sequence[PositionWithOptimalMoves],
    simulator: BaseSimulator,
    strategy: Strategy | None = None,
) -> Metrics:
    """Return metrics computed from move probabilities instead of episodes, for the simulator's policies.

    Args:
        tree: game tree for NashConv and values, or None without them.
        positions: positions for the probability of an optimal move.
        simulator: simulator with the policies.
        strategy: the policies' move probabilities in the information states of `tree` (default: measured here).
    """
    metrics: Metrics = {}
    if tree:
        strategy = strategy or strategy_of_policies(tree, simulator)
        metrics = {"eval/nashconv": nash_conv(tree, strategy), "eval/legal_mass": mean_legal_move_probability(strategy)}
        for agent, value in expected_returns(tree, strategy).items():
            metrics[f"eval/value/{agent}"] = value
    if positions:
        optimal = optimal_move_metrics(positions, simulator)
        smallest_mass = min(optimal["eval/legal_mass"], metrics.get("eval/legal_mass", math.inf))
        metrics |= optimal | {"eval/legal_mass": smallest_mass}
    return metrics


def strategy_of_policies(tree: GameTree, simulator: BaseSimulator) -> Strategy:
    """Return the move probabilities of the simulator's policies in every information state of the game."""
    return dict(zip(tree.requests, move_probabilities(simulator, list(tree.requests.values())), strict=True))


@dataclass(frozen=True, slots=True)
class PositionWithOptimalMoves:
    """Position of a game with known optimal moves, as the request for the next move."""

    request: Request
    """Request for a move of the agent to move."""
    optimal: tuple[str, ...]
    """Optimal moves."""


def positions_with_suboptimal_moves(
    game: GameConfig, request_builder: RoleRequestBuilder, seats: Mapping[str, str]
) -> Iterator[tuple[Episode, tuple[str, ...]]]:
    """Yield (episode up to the position, optimal moves) for each position where some legal moves are not optimal."""
    for options, actions in game.evaluation_positions():
        deal = Deal("position", "position", 0, seats, "eval", options=options)
        episode = Episode(game.build(), deal, request_builder)
        for action in actions:
            episode.force_action(action)
        info = episode.game.infos[episode.game.agent_selection]
        best = game.optimal_moves(info["state"])
        if best and len(best) < len(info["legal"] or ()):
            yield episode, best


def positions_with_optimal_moves(
    game: GameConfig, request_builder: RoleRequestBuilder, seats: Mapping[str, str]
) -> list[PositionWithOptimalMoves]:
    """Return the positions of `game` where some, but not all, legal moves are optimal."""
    positions: list[PositionWithOptimalMoves] = []
    for episode, optimal_moves in positions_with_suboptimal_moves(game, request_builder, seats):
        request = dict(episode.take_new_requests())[episode.game.agent_selection]
        positions.append(PositionWithOptimalMoves(request, optimal_moves))
    return positions


def optimal_move_metrics(positions: Sequence[PositionWithOptimalMoves], simulator: BaseSimulator) -> Metrics:
    """Return the mean probability of an optimal move, and of any legal move, over positions."""
    optimal: list[float] = []
    legal: list[float] = []
    probabilities = move_probabilities(simulator, [position.request for position in positions])
    for position, moves in zip(positions, probabilities, strict=True):
        optimal.append(math.fsum(moves[move] for move in position.optimal))
        legal.append(math.fsum(moves.values()))
    return {"eval/optimal": fmean(optimal), "eval/legal_mass": fmean(legal)}


def opponent_engine_settings(game: GameConfig, opponent: str) -> EngineConfig:
    """Return the engine settings of `opponent`: `random`, or a player that the game exports.

    Raises:
        ValueError: if there is no such opponent.
    """
    opponents = {"random": Random(), **game.reference_players()}
    if opponent not in opponents:
        raise ValueError(f"no opponent {opponent!r} for game {game.kind!r}; choices: {', '.join(sorted(opponents))}")
    return opponents[opponent]


def scripted_opponent_names(games: Sequence[GameConfig]) -> set[str]:
    """Return the names of the players that any of `games` exports, and `random`."""
    return {"random"}.union(*(game.reference_players() for game in games))


@dataclass(frozen=True, slots=True)
class OpponentPlayers:
    """Players of the seats that are not measured: a role for each agent, and an engine for each role's policy."""

    roles: Mapping[str, RoleConfig]
    """Agent -> role."""
    engines: EngineMap
    """Policy -> engine, or the settings of an engine that the simulator builds in its own process."""

    @classmethod
    def from_scripted_player(cls, scenario: Scenario, player_name: str) -> OpponentPlayers:
        """Return opponents with the scripted player `player_name` in every seat without a rule-based policy."""
        engines: dict[str, EngineConfig] = {}
        for policy, settings in scenario.policies.items():
            if settings.engine.is_rule_based:
                engines[policy] = settings.engine
        roles: dict[str, RoleConfig] = {}
        for agent, role_name in scenario.seats.items():
            role = scenario.roles[role_name]
            roles[agent] = role if role.policy in engines else role.model_copy(update={"policy": player_name})
        return cls(roles, {**engines, player_name: opponent_engine_settings(scenario.game, player_name)})


@dataclass(frozen=True, slots=True)
class MatchReturns:
    """Returns of the measured policies in the episodes of a match."""

    returns: Mapping[str, Sequence[float]]
    """Seat -> return in each episode in which the measured policies have this seat."""

    def metrics(self, name_prefix: str) -> Metrics:
        """Return the score over all seats as `PREFIX/...`, and of each seat with an episode as `PREFIX/SEAT/...`."""
        groups: dict[str, Sequence[float]] = {name_prefix: list(chain.from_iterable(self.returns.values()))}
        for seat, returns in self.returns.items():
            groups[f"{name_prefix}/{seat}"] = returns
        metrics: Metrics = {}
        for name, returns in groups.items():
            if returns or name == name_prefix:
                metrics |= {f"{name}/{key}": figure for key, figure in win_draw_loss_metrics(returns).items()}
        return metrics


def win_draw_loss_metrics(returns: Sequence[float]) -> Metrics:
    """Return the mean return and the rates of wins, draws and losses, with 95 % intervals (normal; Wilson 1927)."""
    if not returns:
        return {"episodes": 0.0}
    n, (low, mean, high) = len(returns), normal_interval(returns)
    metrics: Metrics = {"episodes": float(n), "mean": mean, "mean_low": low, "mean_high": high}
    signs = [(episode_return > 0) - (episode_return < 0) for episode_return in returns]
    for outcome, sign in (("win", 1), ("draw", 0), ("loss", -1)):
        low, rate, high = wilson_interval(signs.count(sign), n)
        metrics |= {outcome: rate, f"{outcome}_low": low, f"{outcome}_high": high}
    return metrics


def searching_roles_and_seats(scenario: Scenario) -> SearchRoles:
    """Return the roles whose moves a search chooses, all without a rule-based engine, and the seats of the scenario."""
    return SearchRoles(frozenset(scenario.seats.values()) - scenario.rule_based_roles, scenario.seats)


def play_match(
    scenario: Scenario,
    simulator: BaseSimulator,
    opponents: OpponentPlayers,
    *,
    episodes: int,
    seed: int,
    search: SearchEvaluation | None = None,
) -> MatchReturns:
    """Play the scenario's policies in one seat, a different one in each episode, and `opponents` in all other seats.

    Seats of rule-based policies are not measured. Episodes without a result (a dropped one, a missing verdict) are
    left out. With `search`, the scenario's policies choose their moves by tree search, in which they play all seats.
    """
    roles, policies = dict(scenario.roles), dict[str, str]()
    seats = [agent for agent, role in scenario.seats.items() if role not in scenario.rule_based_roles]
    # Opponents may use the scenario's names, so "opponent" is added to the names of their roles and policies.
    for agent, role in opponents.roles.items():
        roles[f"opponent:{agent}"] = role
        policies[f"opponent:{agent}"] = f"{role.policy}@opponent"
    engines = {f"{policy}@opponent": engine for policy, engine in opponents.engines.items()}
    simulator = simulator.variant(simulator.casting.with_roles(roles), engines)
    simulator.tokens = Counter()  # tokens of matches do not count in `step/eval_tokens`
    deals: list[Deal] = []
    measured_seat: dict[str, str] = {}  # by episode
    for index in range(episodes):
        name, measured = f"eval.{seed}.{index}", seats[index % len(seats)]
        seating = {agent: f"opponent:{agent}" for agent in scenario.seats} | {measured: scenario.seats[measured]}
        # All seats play from the same starts, so that no seat is favoured by a lucky start.
        deal_seed = hash_to_seed(simulator.casting.seed, "eval", seed, index // len(seats))
        deals.append(Deal(name, name, deal_seed, seating, "eval", policies=policies))
        measured_seat[name] = measured
    returns: dict[str, list[float]] = {seat: [] for seat in seats}
    if search:
        player = SearchPlayer(simulator, search.settings, searching_roles_and_seats(scenario))
        played = chain.from_iterable(map(player.play, search.chunks(deals, "episodes")))
    else:
        played = simulator.play(deals)
    for trajectory in played:
        seat = measured_seat[trajectory.id]
        returns[seat].append(trajectory.returns.get(seat, 0.0))
    return MatchReturns(returns)
