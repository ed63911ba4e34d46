"""Evaluation of policies: exact where a game can be walked whole, by play with intervals elsewhere."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from marl.engines.scripted import Random
from marl.evaluation.game_tree import GameTree, Strategy, grow, nash_conv, values
from marl.evaluation.held_out import HeldOut
from marl.graph import Trajectory
from marl.metrics.summaries import of_games
from marl.protocols import EngineConfig, GameConfig, RoleConfig
from marl.rollout.base import BaseSimulator, Players
from marl.rollout.casting import RoleCasting
from marl.rollout.episode import Episode
from marl.scenario.schema import Scenario
from marl.search.play import SearchPlayer, Seating
from marl.search.settings import SearchSettings
from marl.seeds import seed_of
from marl.statistics import normal, wilson
from marl.types import Completion, Deal, Metrics, Request

LEGAL_MASS = 0.98
"""Exact figures count only if the policy puts at least this much probability on canonical legal moves."""
EXACT = ("eval/nashconv", "eval/optimal")
"""Figures worked out from move probabilities."""


def is_exact(name: str) -> bool:
    """Return True if a metric was worked out from move probabilities: eval/nashconv, eval/NAME/nashconv of a game."""
    return name in of_games(EXACT, [name])


def counts(metrics: Mapping[str, float], name: str) -> bool:
    """Return True unless the metric `name` is an exact figure that does not count, as the legal mass is too small."""
    return not is_exact(name) or metrics.get(f"{name.rpartition('/')[0]}/legal_mass", 1.0) >= LEGAL_MASS


def move_probabilities(simulator: BaseSimulator, requests: Sequence[Request]) -> list[dict[str, float]]:
    """Return, for each request, legal move -> probability that the policy says exactly its canonical text.

    Under the role's own sampling settings, the end token included. The rest to 1 is anything else that it may say.
    """
    texts = [(i, move, text) for i, r in enumerate(requests) for move, text in (r.options or {}).items()]
    scores = simulator.score([replace(requests[i], forced=text) for i, _, text in texts], "eval")
    probabilities: list[dict[str, float]] = [{} for _ in requests]
    for (i, move, _), score in zip(texts, scores, strict=True):
        probabilities[i][move] = math.exp(math.fsum(score.logprobs)) if isinstance(score, Completion) else 0.0
    return probabilities


class Evaluator:
    """Measures what a scenario asks for of each of its games."""

    def __init__(self, scenario: Scenario, simulator: BaseSimulator) -> None:
        self._games = {
            name: GameEvaluator(view, simulator.of_game(name) if name else simulator)
            for name, view in scenario.by_game().items()
        }

    @property
    def measures(self) -> bool:
        """Return True if there is anything to measure."""
        return any(game.measures for game in self._games.values())

    @property
    def played(self) -> Sequence[Trajectory]:
        """Return the episodes of the last evaluation on held-out starts; empty if there were none."""
        return [trajectory for game in self._games.values() for trajectory in game.played]

    def __call__(self, step: int) -> Metrics:
        figures = (of_game(name, game(step)) for name, game in self._games.items())
        return {name: value for of_one in figures for name, value in of_one.items()}


def of_game(name: str, figures: Mapping[str, float]) -> Metrics:
    """Return figures of evaluation as `eval/NAME/...` of a game; as they are if it has no name."""
    return {figure.replace("eval/", f"eval/{name}/", 1) if name else figure: figures[figure] for figure in figures}


class GameEvaluator:
    """Measures what a scenario with one game asks for; the game is walked once."""

    def __init__(self, scenario: Scenario, simulator: BaseSimulator) -> None:
        self._scenario, self._simulator, self._settings = scenario, simulator, scenario.evaluate
        game, casting, seats = scenario.game, simulator.casting, scenario.seats
        self._tree = grow(game, casting, seats) if self._settings.nashconv else None
        self._positions = positions(game, casting, seats) if self._settings.optimal else []
        many, greedy = self._settings.held_out, self._settings.greedy
        self._held_out = HeldOut(scenario, simulator, many, greedy=greedy) if many else None

    @property
    def measures(self) -> bool:
        """Return True if there is anything to measure."""
        return bool(self._tree or self._positions or self._settings.against or self._held_out)

    @property
    def played(self) -> Sequence[Trajectory]:
        """Return the episodes of the last evaluation on held-out starts; empty if there were none."""
        return self._held_out.played if self._held_out else ()

    def __call__(self, step: int) -> Metrics:
        metrics = figures(self._tree, self._positions, self._simulator)
        for opponent, episodes in self._settings.against.items():
            metrics |= self._against(opponent, episodes, step)
        return metrics | (self._held_out() if self._held_out else {})

    def _against(self, opponent: str, episodes: int, seed: int) -> Metrics:
        opponents = Opponents.scripted(self._scenario, opponent)
        results = match(self._scenario, self._simulator, opponents, episodes=episodes, seed=seed)
        return results.metrics(f"eval/{opponent}")


def figures(tree: GameTree | None, questions: Sequence[Position], simulator: BaseSimulator) -> Metrics:
    """Return all that can be measured without playing; the legal mass is the smaller one where both report it."""
    parts = [exact(tree, simulator)] if tree else []
    parts += [optimality(questions, simulator)] if questions else []
    masses = [part["eval/legal_mass"] for part in parts]
    merged = {name: value for part in parts for name, value in part.items()}
    return merged | ({"eval/legal_mass": min(masses)} if masses else {})


def exact(tree: GameTree, simulator: BaseSimulator) -> Metrics:
    """Return NashConv, values and the mean legal mass, over every situation of the game."""
    situations = list(tree.requests)
    strategy = dict(zip(situations, move_probabilities(simulator, list(tree.requests.values())), strict=True))
    returns = values(tree, strategy)
    return {
        "eval/nashconv": nash_conv(tree, strategy),
        "eval/legal_mass": legal_mass(strategy),
        **{f"eval/value/{agent}": value for agent, value in returns.items()},
    }


def legal_mass(strategy: Strategy) -> float:
    """Return the mean over situations of the probability (not normalised) of a legal move in its canonical text."""
    return fmean(math.fsum(moves.values()) for moves in strategy.values())


@dataclass(frozen=True, slots=True)
class Position:
    """A position of a game in which some moves are optimal."""

    request: Request
    optimal: tuple[str, ...]


def open_positions(
    game: GameConfig, casting: RoleCasting, seats: Mapping[str, str]
) -> Iterator[tuple[Episode, tuple[str, ...]]]:
    """Yield every position in which some, but not all, legal moves are optimal, with those moves."""
    for options, actions in game.positions():
        deal = Deal("position", "position", 0, seats, "eval", options=options)
        episode = Episode(game.build(), deal, casting)
        for action in actions:
            episode.force(action)
        info = episode.game.infos[episode.game.agent_selection]
        best = game.optimal(info["state"])
        if best and len(best) < len(info["legal"] or ()):
            yield episode, best


def positions(game: GameConfig, casting: RoleCasting, seats: Mapping[str, str]) -> list[Position]:
    """Return the questions of every position in which some, but not all, legal moves are optimal."""
    return [
        Position(dict(episode.new_requests())[episode.game.agent_selection], best)
        for episode, best in open_positions(game, casting, seats)
    ]


def optimality(questions: Sequence[Position], simulator: BaseSimulator) -> Metrics:
    """Return the probability of an optimal move and of any legal move, means over positions."""
    probabilities = move_probabilities(simulator, [position.request for position in questions])
    optimal = [math.fsum(p[m] for m in q.optimal) for q, p in zip(questions, probabilities, strict=True)]
    return {"eval/optimal": fmean(optimal), "eval/legal_mass": fmean(math.fsum(p.values()) for p in probabilities)}


def opponent(game: GameConfig, name: str) -> EngineConfig:
    """Return the settings of a player to measure against.

    Raises:
        ValueError: if the game exports no such player.
    """
    known = {"random": Random(), **game.opponents()}
    if name not in known:
        raise ValueError(f"no opponent {name!r} for game {game.kind!r}; choices: {', '.join(sorted(known))}")
    return known[name]


@dataclass(frozen=True, slots=True)
class Opponents:
    """Players in the seats that are not measured: a role for each agent, and an engine for each role's policy.

    Those of policies without weights may be given by their settings, to be built where they are to speak.
    """

    roles: Mapping[str, RoleConfig]
    engines: Players

    @classmethod
    def scripted(cls, scenario: Scenario, name: str) -> Opponents:
        """Return `random` or a player that the game exports, in every seat but those that answer by rule."""
        rules = {name: policy.engine for name, policy in scenario.policies.items() if policy.engine.rule_bound}
        roles = {agent: scenario.roles[role] for agent, role in scenario.seats.items()}
        seated = {a: r if r.policy in rules else r.model_copy(update={"policy": name}) for a, r in roles.items()}
        return cls(seated, {**rules, name: opponent(scenario.game, name)})


@dataclass(frozen=True, slots=True)
class Results:
    """Returns of the measured policies: seat -> one number per episode."""

    returns: Mapping[str, Sequence[float]]

    def metrics(self, prefix: str) -> Metrics:
        """Return figures over all seats, and for each seat in which an episode was played."""
        scores = {prefix: score([value for returns in self.returns.values() for value in returns])}
        scores |= {f"{prefix}/{seat}": score(returns) for seat, returns in self.returns.items() if returns}
        return {f"{name}/{key}": value for name, figures in scores.items() for key, value in figures.items()}


def score(returns: Sequence[float]) -> Metrics:
    """Return the mean and the win, draw and loss rates with 95 % intervals (normal; Wilson 1927)."""
    n, (low, mean, high) = len(returns), normal(returns)
    metrics: Metrics = {"episodes": float(n), "mean": mean, "mean_low": low, "mean_high": high}
    outcomes = [(value > 0) - (value < 0) for value in returns]
    for kind, sign in (("win", 1), ("draw", 0), ("loss", -1)):
        low, rate, high = wilson(outcomes.count(sign), n)
        metrics |= {kind: rate, f"{kind}_low": low, f"{kind}_high": high}
    return metrics


def _match_deals(scenario: Scenario, policies: Mapping[str, str], episodes: int, seeds: tuple[int, int]) -> list[Deal]:
    """Return the deals of a match; `policies`: opponent's role -> policy; `seeds`: of the simulator and the match."""
    agents, deals = list(scenario.seats), list[Deal]()
    for i in range(episodes):
        name, measured = f"eval.{seeds[1]}.{i}", agents[i % len(agents)]
        seats = {a: role if a == measured else f"opponent:{a}" for a, role in scenario.seats.items()}
        # Seats take turns over the same starts, so that a lucky start favours none.
        start = seed_of(seeds[0], "eval", seeds[1], i // len(agents))
        deals.append(Deal(name, name, start, seats, "eval", policies=policies))
    return deals


def seating(scenario: Scenario) -> Seating:
    """Return the roles of a scenario that can search for their moves: those that do not answer by rule."""
    return Seating(frozenset(scenario.seats.values()) - scenario.rule_roles, scenario.seats)


def match(
    scenario: Scenario,
    simulator: BaseSimulator,
    opponents: Opponents,
    *,
    episodes: int,
    seed: int,
    search: SearchSettings | None = None,
) -> Results:
    """Play the scenario's policies in one seat after another, and `opponents` in all the others.

    With `search`, those policies look for their moves in a tree, in which they play all seats.
    """
    agents = list(scenario.seats)
    # Roles and policies of an opponent may have names that ours have, too.
    roles = {f"opponent:{agent}": role for agent, role in opponents.roles.items()}
    policies = {name: f"{role.policy}@opponent" for name, role in roles.items()}
    engines = {f"{policy}@opponent": engine for policy, engine in opponents.engines.items()}
    deals = _match_deals(scenario, policies, episodes, (simulator.casting.seed, seed))
    table = simulator.variant(RoleCasting({**scenario.roles, **roles}, simulator.casting.seed), engines)
    table.tokens = Counter()  # matches have never counted among `step/eval_tokens`
    returns: dict[str, list[float]] = {agent: [] for agent in agents}
    player = SearchPlayer(table, search, seating(scenario)) if search else table
    for i, trajectory in enumerate(player.play(deals)):
        agent = agents[i % len(agents)]
        returns[agent].append(trajectory.returns.get(agent, 0.0))
    return Results(returns)
