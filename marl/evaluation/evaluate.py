"""Evaluation of policies: exact on full game trees of small games, by play with confidence intervals elsewhere."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import fmean

from marl.core.graph import Trajectory
from marl.core.seeds import seed_of
from marl.core.statistics import normal, wilson
from marl.core.types import Completion, Deal, Metrics, Request
from marl.engines.scripted import Random
from marl.evaluation.average_policy import AveragePolicy
from marl.evaluation.game_tree import (
    GameTree,
    InformationState,
    Strategy,
    build_game_tree,
    legal_mass,
    nash_conv,
    values,
)
from marl.evaluation.held_out import HeldOut
from marl.metrics.trajectory_metrics import matching_metrics
from marl.protocols import EngineConfig, GameConfig, RoleConfig
from marl.rollout.base import BaseSimulator, EngineMap
from marl.rollout.casting import RoleCasting
from marl.rollout.episode import Episode
from marl.runs.strategies import StrategyRow
from marl.scenario.schema import Scenario
from marl.search.play import SearchPlayer, SearchSeats
from marl.search.settings import SearchSettings

LEGAL_MASS = 0.98
"""Minimum mean probability of canonical legal moves for exact figures to be reliable."""
EXACT = ("eval/nashconv", "eval/average/nashconv", "eval/optimal")
"""Figures computed from move probabilities."""


def is_exact(name: str) -> bool:
    """Return True if a metric was computed from move probabilities, such as eval/nashconv or eval/GAME/nashconv."""
    return name in matching_metrics(EXACT, [name])


def is_reliable(metrics: Mapping[str, float], name: str) -> bool:
    """Return False if the metric `name` is an exact figure and the legal mass is too small for it to be valid."""
    return not is_exact(name) or metrics.get(f"{name.rpartition('/')[0]}/legal_mass", 1.0) >= LEGAL_MASS


def move_probabilities(simulator: BaseSimulator, requests: Sequence[Request]) -> list[dict[str, float]]:
    """Return for each request: legal move -> probability that the policy answers with exactly its canonical text.

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
    for (index, move), completion in zip(options, simulator.score(forced, "eval"), strict=True):
        is_scored = isinstance(completion, Completion)
        probabilities[index][move] = math.exp(math.fsum(completion.logprobs)) if is_scored else 0.0
    return probabilities


class Evaluator:
    """Evaluates all games of a scenario by the scenario's `evaluate` section."""

    def __init__(self, scenario: Scenario, simulator: BaseSimulator) -> None:
        self._games = {
            name: GameEvaluator(view, simulator.for_game(name) if name else simulator)
            for name, view in scenario.by_game().items()
        }

    @property
    def measures(self) -> bool:
        """True if the scenario asks for any figures of any game."""
        return any(game.measures for game in self._games.values())

    @property
    def played(self) -> Sequence[Trajectory]:
        """Episodes of the last evaluation on held-out starts, empty if there is no such evaluation."""
        return [trajectory for game in self._games.values() for trajectory in game.played]

    def strategy_rows(self) -> list[StrategyRow]:
        """Return the move probabilities of the last evaluation for all games with a measured average policy."""
        rows: list[StrategyRow] = []
        for name, game in self._games.items():
            for situation, moves in game.strategy.items() if game.average else ():
                rows.append(StrategyRow(name, situation.agent, situation.state, situation.attempt, dict(moves)))
        return rows

    def take(self, step: int, rows: Iterable[StrategyRow]) -> None:
        """Add the recorded strategies of an earlier evaluation to the average policy.

        Raises:
            ValueError: if the strategies belong to another game.
        """
        strategies: dict[str, dict[InformationState, dict[str, float]]] = defaultdict(dict)
        for row in rows:
            strategies[row.game][InformationState(row.agent, row.state, row.attempt)] = row.moves
        for name, game in self._games.items():
            if game.average and name in strategies:
                game.average.take(step, strategies[name])

    def __call__(self, step: int) -> Metrics:
        metrics: Metrics = {}
        for name, game in self._games.items():
            metrics |= of_game(name, game(step))
        return metrics


def of_game(name: str, figures: Mapping[str, float]) -> Metrics:
    """Return figures renamed to `eval/NAME/...` for a game with a name; unchanged if `name` is empty."""
    return {figure.replace("eval/", f"eval/{name}/", 1) if name else figure: figures[figure] for figure in figures}


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
        self.strategy: Strategy = {}
        """Move probabilities of the last evaluation; empty without a game tree."""
        self._positions = optimal_positions(game, casting, seats) if self._settings.optimal else []
        episodes, greedy = self._settings.held_out, self._settings.greedy
        self._held_out = HeldOut(scenario, simulator, episodes, greedy=greedy) if episodes else None

    @property
    def measures(self) -> bool:
        """True if the scenario asks for any figures."""
        return bool(self._tree or self._positions or self._settings.against or self._held_out)

    @property
    def played(self) -> Sequence[Trajectory]:
        """Episodes of the last evaluation on held-out starts, empty if there is no such evaluation."""
        return self._held_out.played if self._held_out else ()

    def __call__(self, step: int) -> Metrics:
        self.strategy = strategy_of(self._tree, self._simulator) if self._tree else {}
        parts = [exact_figures(self._tree, self.strategy)] if self._tree else []
        if self._positions:
            parts.append(optimality(self._positions, self._simulator))
        metrics = merged(parts)
        if self.average:
            self.average.take(step, self.strategy)
            metrics |= self.average.metrics()
        for name, episodes in self._settings.against.items():
            opponents = Opponents.scripted(self._scenario, name)
            # The step is the seed, so that a resumed run plays the same matches.
            results = play_match(self._scenario, self._simulator, opponents, episodes=episodes, seed=step)
            metrics |= results.metrics(f"eval/{name}")
        return metrics | (self._held_out() if self._held_out else {})


def figures(tree: GameTree | None, questions: Sequence[OptimalPosition], simulator: BaseSimulator) -> Metrics:
    """Return the figures computed without episodes: from the game tree, and from positions with optimal moves."""
    parts = [exact(tree, simulator)] if tree else []
    if questions:
        parts.append(optimality(questions, simulator))
    return merged(parts)


def merged(parts: Sequence[Metrics]) -> Metrics:
    """Return the union of several sets of figures, with the smallest of their legal masses."""
    metrics: Metrics = {}
    for figures in parts:
        metrics |= figures
    if parts:
        metrics["eval/legal_mass"] = min(figures["eval/legal_mass"] for figures in parts)
    return metrics


def exact(tree: GameTree, simulator: BaseSimulator) -> Metrics:
    """Return NashConv, values and the mean legal mass of the simulator's players."""
    return exact_figures(tree, strategy_of(tree, simulator))


def strategy_of(tree: GameTree, simulator: BaseSimulator) -> Strategy:
    """Return the move probabilities of the simulator's players in every information state of the game."""
    return dict(zip(tree.requests, move_probabilities(simulator, list(tree.requests.values())), strict=True))


def exact_figures(tree: GameTree, strategy: Strategy) -> Metrics:
    """Return NashConv, values and the mean legal mass of `strategy`."""
    returns = values(tree, strategy)
    return {
        "eval/nashconv": nash_conv(tree, strategy),
        "eval/legal_mass": legal_mass(strategy),
        **{f"eval/value/{agent}": value for agent, value in returns.items()},
    }


@dataclass(frozen=True, slots=True)
class OptimalPosition:
    """A position of a game with known optimal moves, as a request to the agent to move."""

    request: Request
    optimal: tuple[str, ...]


def open_positions(
    game: GameConfig, casting: RoleCasting, seats: Mapping[str, str]
) -> Iterator[tuple[Episode, tuple[str, ...]]]:
    """Yield (episode, optimal moves) for every position in which some, but not all, legal moves are optimal."""
    for options, actions in game.positions():
        deal = Deal("position", "position", 0, seats, "eval", options=options)
        episode = Episode(game.build(), deal, casting)
        for action in actions:
            episode.force_action(action)
        info = episode.game.infos[episode.game.agent_selection]
        best = game.optimal(info["state"])
        if best and len(best) < len(info["legal"] or ()):
            yield episode, best


def optimal_positions(game: GameConfig, casting: RoleCasting, seats: Mapping[str, str]) -> list[OptimalPosition]:
    """Return the request and the optimal moves of every position of `open_positions`."""
    positions: list[OptimalPosition] = []
    for episode, optimal_moves in open_positions(game, casting, seats):
        request = dict(episode.new_requests())[episode.game.agent_selection]
        positions.append(OptimalPosition(request, optimal_moves))
    return positions


def optimality(questions: Sequence[OptimalPosition], simulator: BaseSimulator) -> Metrics:
    """Return the mean probability of an optimal move, and of any legal move, over positions."""
    optimal: list[float] = []
    legal: list[float] = []
    probabilities = move_probabilities(simulator, [position.request for position in questions])
    for position, moves in zip(questions, probabilities, strict=True):
        optimal.append(math.fsum(moves[move] for move in position.optimal))
        legal.append(math.fsum(moves.values()))
    return {"eval/optimal": fmean(optimal), "eval/legal_mass": fmean(legal)}


def opponent(game: GameConfig, name: str) -> EngineConfig:
    """Return the engine settings of the opponent `name`: `random`, or a player that the game exports.

    Raises:
        ValueError: if there is no such opponent.
    """
    opponents = {"random": Random(), **game.opponents()}
    if name not in opponents:
        raise ValueError(f"no opponent {name!r} for game {game.kind!r}; choices: {', '.join(sorted(opponents))}")
    return opponents[name]


@dataclass(frozen=True, slots=True)
class Opponents:
    """Players of the seats that are not measured: a role for each agent, and an engine for each role's policy.

    An engine without weights may be given by its settings; the simulator then builds the engine in its own process.
    """

    roles: Mapping[str, RoleConfig]
    engines: EngineMap

    @classmethod
    def scripted(cls, scenario: Scenario, name: str) -> Opponents:
        """Return opponents with the scripted player `name` in every seat, except seats that answer by rule."""
        rules = {name: policy.engine for name, policy in scenario.policies.items() if policy.engine.is_rule_based}
        roles = {agent: scenario.roles[role] for agent, role in scenario.seats.items()}
        seated = {a: r if r.policy in rules else r.model_copy(update={"policy": name}) for a, r in roles.items()}
        return cls(seated, {**rules, name: opponent(scenario.game, name)})


@dataclass(frozen=True, slots=True)
class MatchReturns:
    """Returns of the measured policies: seat -> one number per episode."""

    returns: Mapping[str, Sequence[float]]

    def metrics(self, prefix: str) -> Metrics:
        """Return figures over all seats as `PREFIX/...`, and of each seat with an episode as `PREFIX/SEAT/...`."""
        groups = {prefix: list(chain.from_iterable(self.returns.values()))}
        groups |= {f"{prefix}/{seat}": list(returns) for seat, returns in self.returns.items() if returns}
        metrics: Metrics = {}
        for name, returns in groups.items():
            for key, value in score(returns).items():
                metrics[f"{name}/{key}"] = value
        return metrics


def score(returns: Sequence[float]) -> Metrics:
    """Return the mean and the win, draw and loss rates with 95 % intervals (normal; Wilson 1927)."""
    n, (low, mean, high) = len(returns), normal(returns)
    metrics: Metrics = {"episodes": float(n), "mean": mean, "mean_low": low, "mean_high": high}
    outcomes = [(value > 0) - (value < 0) for value in returns]
    for kind, sign in (("win", 1), ("draw", 0), ("loss", -1)):
        low, rate, high = wilson(outcomes.count(sign), n)
        metrics |= {kind: rate, f"{kind}_low": low, f"{kind}_high": high}
    return metrics


def seating(scenario: Scenario) -> SearchSeats:
    """Return the seats of a scenario, with the roles that can search for their moves: all that are not rule-based."""
    return SearchSeats(frozenset(scenario.seats.values()) - scenario.rule_roles, scenario.seats)


def play_match(
    scenario: Scenario,
    simulator: BaseSimulator,
    opponents: Opponents,
    *,
    episodes: int,
    seed: int,
    search: SearchSettings | None = None,
) -> MatchReturns:
    """Play the scenario's policies in one seat, a different one in each episode, and `opponents` in all other seats.

    With `search`, the scenario's policies choose their moves by tree search, in which they play all seats.
    """
    agents = list(scenario.seats)
    # Roles and policies of an opponent may have the same names as the scenario's own.
    roles = {f"opponent:{agent}": role for agent, role in opponents.roles.items()}
    policies = {name: f"{role.policy}@opponent" for name, role in roles.items()}
    engines = {f"{policy}@opponent": engine for policy, engine in opponents.engines.items()}
    simulator = simulator.variant(RoleCasting({**scenario.roles, **roles}, simulator.casting.seed), engines)
    simulator.tokens = Counter()  # matches have never counted among `step/eval_tokens`
    player = SearchPlayer(simulator, search, seating(scenario)) if search else simulator
    deals: list[Deal] = []
    for index in range(episodes):
        name, measured = f"eval.{seed}.{index}", agents[index % len(agents)]
        seats = {agent: role if agent == measured else f"opponent:{agent}" for agent, role in scenario.seats.items()}
        # Every seat is measured from the same starts, so that no seat is favoured by a lucky start.
        deal_seed = seed_of(simulator.casting.seed, "eval", seed, index // len(agents))
        deals.append(Deal(name, name, deal_seed, seats, "eval", policies=policies))
    returns: dict[str, list[float]] = {agent: [] for agent in agents}
    for index, trajectory in enumerate(player.play(deals)):
        agent = agents[index % len(agents)]
        returns[agent].append(trajectory.returns.get(agent, 0.0))
    return MatchReturns(returns)
