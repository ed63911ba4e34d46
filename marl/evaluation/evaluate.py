"""How good a policy is: exactly where a game can be walked whole, by play with intervals elsewhere."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from marl.engines.scripted import Random
from marl.evaluation.game_tree import Strategy, Tree, grow, nash_conv, values
from marl.evaluation.held_out import HeldOut
from marl.protocols import Engine, EngineConfig, GameConfig, RoleConfig
from marl.rollout.casting import Cast
from marl.rollout.episode import Episode
from marl.rollout.simulator import Table
from marl.scenario.schema import Scenario
from marl.seeds import seed_of
from marl.statistics import normal, wilson
from marl.training.run import rule_bound
from marl.types import Completion, Deal, Metrics, Request

LEGAL_MASS = 0.98
"""Exact figures count only if the policy puts at least this much probability on canonical legal moves."""
EXACT = ("eval/nashconv", "eval/optimal")
"""Figures worked out from move probabilities."""


def counts(metrics: Mapping[str, float]) -> bool:
    """Whether exact figures among `metrics` count."""
    return metrics.get("eval/legal_mass", 1.0) >= LEGAL_MASS


def move_probabilities(table: Table, requests: Sequence[Request]) -> list[dict[str, float]]:
    """For each question, legal move -> probability that the policy says exactly its canonical text.

    Under the role's own sampling settings, the end token included. What is missing to 1 is anything else it may say.
    """
    asked = [(i, move, text) for i, r in enumerate(requests) for move, text in (r.options or {}).items()]
    scored = table.score([replace(requests[i], forced=text) for i, _, text in asked], "eval")
    chances: list[dict[str, float]] = [{} for _ in requests]
    for (i, move, _), said in zip(asked, scored, strict=True):
        chances[i][move] = math.exp(math.fsum(said.logprobs)) if isinstance(said, Completion) else 0.0
    return chances


class Evaluator:
    """Measures what a scenario's `evaluate` asks for; the game is walked once."""

    def __init__(self, scenario: Scenario, table: Table) -> None:
        self._scenario, self._table, self._settings = scenario, table, scenario.evaluate
        game, cast, seats = scenario.game, table.cast, scenario.seats
        self._tree = grow(game, cast, seats) if self._settings.nashconv else None
        self._positions = positions(game, cast, seats) if self._settings.optimal else []
        many, greedy = self._settings.held_out, self._settings.greedy
        self._held_out = HeldOut(scenario, table, many, greedy=greedy) if many else None

    @property
    def measures(self) -> bool:
        """Whether there is anything to measure."""
        return bool(self._tree or self._positions or self._settings.against or self._held_out)

    def __call__(self, step: int) -> Metrics:
        metrics = figures(self._tree, self._positions, self._table)
        for opponent, episodes in self._settings.against.items():
            metrics |= against(self._scenario, self._table, opponent, (episodes, step))
        return metrics | (self._held_out() if self._held_out else {})


def figures(tree: Tree | None, found: Sequence[Position], table: Table) -> Metrics:
    """All that can be measured without playing; the legal mass is the smaller one where both ask for it."""
    parts = [exact(tree, table)] if tree else []
    parts += [optimality(found, table)] if found else []
    masses = [part["eval/legal_mass"] for part in parts]
    merged = {name: value for part in parts for name, value in part.items()}
    return merged | ({"eval/legal_mass": min(masses)} if masses else {})


def exact(tree: Tree, table: Table) -> Metrics:
    """NashConv, values and the mean legal mass, over every situation of the game."""
    situations = list(tree.requests)
    strategy = dict(zip(situations, move_probabilities(table, list(tree.requests.values())), strict=True))
    own = values(tree, strategy)
    return {
        "eval/nashconv": nash_conv(tree, strategy),
        "eval/legal_mass": legal_mass(strategy),
        **{f"eval/value/{agent}": value for agent, value in own.items()},
    }


def legal_mass(strategy: Strategy) -> float:
    """The mean over situations of the probability, not normalised, of saying a legal move in its canonical text."""
    return fmean(math.fsum(moves.values()) for moves in strategy.values())


@dataclass(frozen=True, slots=True)
class Position:
    """A question that has right answers."""

    request: Request
    optimal: tuple[str, ...]


def positions(game: GameConfig, cast: Cast, seats: Mapping[str, str]) -> list[Position]:
    """Every position in which some, but not all, legal moves are optimal."""
    built, found = game.build(), []
    for options, actions in game.positions():
        episode = Episode(built, Deal("position", "position", 0, seats, "eval", options=options), cast)
        for action in actions:
            episode.force(action)
        agent = built.agent_selection
        info = built.infos[agent]
        best = game.optimal(info["state"])
        if best and len(best) < len(info["legal"] or ()):
            found.append(Position(dict(episode.asks())[agent], best))
    return found


def optimality(found: Sequence[Position], table: Table) -> Metrics:
    """Probability of an optimal move, mean over positions."""
    chances = move_probabilities(table, [position.request for position in found])
    right = [math.fsum(c[m] for m in p.optimal) for p, c in zip(found, chances, strict=True)]
    return {"eval/optimal": fmean(right), "eval/legal_mass": fmean(math.fsum(c.values()) for c in chances)}


def opponent(game: GameConfig, name: str) -> EngineConfig:
    """A player to measure against.

    Raises:
        ValueError: if the game exports no such player.
    """
    known = {"random": Random(), **game.opponents()}
    if name not in known:
        raise ValueError(f"no opponent {name!r} for game {game.kind!r}; choices: {', '.join(sorted(known))}")
    return known[name]


@dataclass(frozen=True, slots=True)
class Opponents:
    """Who sits in the seats that are not measured: a role for each agent, and engines for the roles' policies."""

    roles: Mapping[str, RoleConfig]
    engines: Mapping[str, Engine]

    @classmethod
    def scripted(cls, scenario: Scenario, name: str) -> Opponents:
        """A player that the game exports, or `random`, in every seat but those that are bound by rules."""
        roles = {agent: scenario.roles[role] for agent, role in scenario.seats.items()}
        rules = rule_bound(scenario.policies)
        seated = {a: r if r.policy in rules else r.model_copy(update={"policy": name}) for a, r in roles.items()}
        return cls(seated, {**rules, name: opponent(scenario.game, name).build(None)})


def against(scenario: Scenario, table: Table, name: str, how: tuple[int, int]) -> Metrics:
    """Play `how[0]` episodes against a player that the game exports, seats balanced; `how[1]` seeds them."""
    return match(scenario, table, Opponents.scripted(scenario, name), how).metrics(f"eval/{name}")


@dataclass(frozen=True, slots=True)
class Results:
    """Returns of the measured policy: seat -> one number an episode."""

    returns: Mapping[str, Sequence[float]]

    def metrics(self, prefix: str) -> Metrics:
        """Figures over all seats, and for each in which an episode was played."""
        scores = {prefix: score([value for returns in self.returns.values() for value in returns])}
        scores |= {f"{prefix}/{seat}": score(returns) for seat, returns in self.returns.items() if returns}
        return {f"{name}/{key}": value for name, figures in scores.items() for key, value in figures.items()}


def score(returns: Sequence[float]) -> Metrics:
    """Mean with its 95 % interval (normal), win, draw and loss rates with theirs (Wilson 1927)."""
    n, (low, mean, high) = len(returns), normal(returns)
    metrics: Metrics = {"episodes": float(n), "mean": mean, "mean_low": low, "mean_high": high}
    signs = [(value > 0) - (value < 0) for value in returns]
    for kind, sign in (("win", 1), ("draw", 0), ("loss", -1)):
        low, rate, high = wilson(signs.count(sign), n)
        metrics |= {kind: rate, f"{kind}_low": low, f"{kind}_high": high}
    return metrics


def match(scenario: Scenario, table: Table, opponents: Opponents, how: tuple[int, int]) -> Results:
    """The scenario's policies in one seat after another, `opponents` in all the others."""
    episodes, seed = how
    agents = list(scenario.seats)
    deals = []
    for i in range(episodes):
        name, seats = f"eval.{seed}.{i}", _sitting(scenario, agents[i % len(agents)])
        # Seats take turns over the same starts, so that a lucky start favours none.
        deals.append(Deal(name, name, seed_of(table.cast.seed, "eval", seed, i // len(agents)), seats, "eval"))
    returns: dict[str, list[float]] = {agent: [] for agent in agents}
    for i, trajectory in enumerate(_doubled(scenario, table, opponents).play(deals)):
        agent = agents[i % len(agents)]
        returns[agent].append(trajectory.returns.get(agent, 0.0))
    return Results(returns)


def _sitting(scenario: Scenario, measured: str) -> dict[str, str]:
    """Only the measured agent keeps its role; the others play their opponent's."""
    return {agent: role if agent == measured else _OTHER + agent for agent, role in scenario.seats.items()}


def _doubled(scenario: Scenario, table: Table, opponents: Opponents) -> Table:
    """The same game with the opponents' roles and engines beside one's own."""
    others = {
        _OTHER + agent: role.model_copy(update={"policy": _OTHER + role.policy})
        for agent, role in opponents.roles.items()
    }
    engines = {_OTHER + policy: engine for policy, engine in opponents.engines.items()}
    cast = Cast({**scenario.roles, **others}, table.cast.seed)
    aliases = {_OTHER + policy: policy for policy in opponents.engines}
    return Table(scenario.game, cast, {**table.engines, **engines}, table.deadline_s, aliases)


_OTHER = "opponent:"
