"""Estimands of comparisons with peers: the exact rest of the return after baselines, critics and candidate trees."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping
from functools import cache
from itertools import pairwise
from math import sqrt

import networkx as nx
import numpy as np

from credit.validation.enumeration import Decision, EnumeratedGame, History, PerTurn, Play
from credit.validation.estimands import Estimand
from marl.evaluation.game_tree import Situation

_KEYS: Mapping[str, Callable[[Decision], Hashable]] = {
    "step": lambda _: "",
    "agent": lambda decision: decision.situation.agent,
    "start": lambda decision: (decision.cell.history.start, decision.situation.agent),
    "prompt": lambda decision: decision.situation,
    "prompt of start": lambda decision: (decision.cell.history.start, decision.situation),
}
"""Name -> property that turns share which are compared, or which have equal values."""


def compared(like: str, *, std: bool = False) -> Estimand:
    """Return the return minus its mean over all turns that are alike; with `std` divided by its deviation there.

    Args:
        like: property that they share, a key of `_KEYS`.
    """
    key = _KEYS[like]

    def per_turn(game: EnumeratedGame, play: Play) -> PerTurn:
        means, deviations = _moments(game, like)
        gaps = [(play.team_return - means[key(d)], deviations[key(d)]) for d in play.decisions]
        return [gap if not std else gap / deviation if deviation > 1e-9 else 0.0 for gap, deviation in gaps]

    return per_turn


@cache
def _moments(game: EnumeratedGame, like: str) -> tuple[dict[Hashable, float], dict[Hashable, float]]:
    """Return mean and deviation of the return over all turns that are alike, each turn counting once."""
    sums: dict[Hashable, np.ndarray] = defaultdict(lambda: np.zeros(3))
    for play in game.plays:
        for decision in play.decisions:
            sums[_KEYS[like](decision)] += play.chance * np.array([1.0, play.team_return, play.team_return**2])
    means = {name: float(total / mass) for name, (mass, total, _) in sums.items()}
    return means, {
        name: sqrt(max(float(squares / mass) - means[name] ** 2, 0.0)) for name, (mass, _, squares) in sums.items()
    }


def chained(lam: float) -> Estimand:
    """Return A_k = sum over l of lam^l delta_{k+l}, with delta_k = V_{k+1} - V_k; V is the mean return given an agent's
    prompt, and the return after the last turn; all turns of the team are one chain.
    """

    def per_turn(game: EnumeratedGame, play: Play) -> PerTurn:
        means, _ = _moments(game, "prompt")
        deltas = np.diff([means[decision.situation] for decision in play.decisions] + [play.team_return])
        return [float(deltas[k:] @ lam ** np.arange(len(deltas) - k)) for k in range(len(deltas))]

    return per_turn


def temporal(lam: float, *, whole: bool = True) -> Estimand:
    """Return A = (I - lam W)^-1 (r + W V - V), a linear system over the turns of a play. W[u, v]: v is a next reader of
    u (transitive reduction of who read whom, where an agent's turns follow one another), divided by the number of u's
    next readers if `whole`, otherwise by the number of turns that v follows. r: the team's return after each turn that
    nobody reads, whole or in equal parts. V: see `foreseen`.
    """

    def per_turn(game: EnumeratedGame, play: Play) -> PerTurn:
        values, (weights, paid) = foreseen(game, lam, whole), _ahead(play, whole)
        here = np.array([values[decision.situation] for decision in play.decisions])
        return np.linalg.solve(np.eye(len(here)) - lam * weights, paid + weights @ here - here).tolist()

    return per_turn


def _ahead(play: Play, whole: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return W [turns, turns] and r [turns]."""
    turns = [turn.id for turn in play.trajectory.turns]
    graph = nx.DiGraph(play.trajectory.graph.edges)
    graph.add_nodes_from(turns)
    for agent in play.trajectory.deal.seats:
        graph.add_edges_from(pairwise([turn.id for turn in play.trajectory.turns if turn.agent == agent]))
    weights = nx.to_numpy_array(nx.transitive_reduction(graph), nodelist=turns)
    ends = weights.sum(1) == 0
    weights /= np.maximum(weights.sum(int(whole), keepdims=True), 1)
    return weights, ends * play.team_return / (1 if whole else ends.sum())


@cache
def foreseen(game: EnumeratedGame, lam: float, whole: bool) -> dict[Hashable, float]:
    """Return V of each prompt, to which lambda-returns with these very values are fitted: their mean over its turns."""
    plays = [(play, *_ahead(play, whole)) for play in game.plays]
    values: dict[Hashable, float] = defaultdict(float)
    for _ in range(max(len(play.decisions) for play in game.plays) + 1):  # each round makes one more layer exact
        sums: dict[Hashable, np.ndarray] = defaultdict(lambda: np.zeros(2))
        for play, weights, paid in plays:
            here = np.array([values[decision.situation] for decision in play.decisions])
            returns = np.linalg.solve(np.eye(len(here)) - lam * weights, paid + (1 - lam) * weights @ here)
            for decision, value in zip(play.decisions, returns, strict=True):
                sums[decision.situation] += play.chance * np.array([1.0, value])
        values = defaultdict(float, {prompt: float(total / mass) for prompt, (mass, total) in sums.items()})
    return values


def greedy(game: EnumeratedGame, play: Play) -> PerTurn:
    """Return the return minus that of the game in which everybody does what is most likely."""
    best = {situation: max(moves, key=moves.__getitem__) for situation, moves in game.strategy.items()}
    baseline = game.expected(lambda situation, _: {best[situation]: 1.0}, play.first)
    return [play.team_return - baseline] * len(play.decisions)


def candidates(many: int) -> Estimand:
    """Return Q(h, a) minus its mean over the candidates of all turns with the same prompt and start, when `many`
    candidates are tried at each turn and the one whose episode pays best is continued.
    """

    def per_turn(game: EnumeratedGame, play: Play) -> PerTurn:
        means = _candidate_means(game, many)
        return [game.value(d.cell.after) - means.get((d.cell.history.start, d.situation), 0.0) for d in play.decisions]

    return per_turn


@cache
def _candidate_means(game: EnumeratedGame, many: int) -> dict[Hashable, float]:
    values: dict[Hashable, list[tuple[float, float]]] = defaultdict(list)
    for history, (situation, chance) in _continued(game, many).items():
        values[history.start, situation].append((game.value(history), chance))
    return {key: sum(v * c for v, c in pairs) / sum(c for _, c in pairs) for key, pairs in values.items()}


def _continued(game: EnumeratedGame, many: int) -> dict[History, tuple[Situation, float]]:
    """Return the histories that a tree of candidates continues: their situation, and the probability of each.

    The best of `many` pays r with probability F(r)^many - F(r-)^many; all that pay r are equally likely to be it.
    """
    paid: dict[History, dict[float, dict[History, float]]] = defaultdict(dict)
    situations: dict[History, Situation] = {}
    reached: dict[History, float] = defaultdict(float)
    for play in game.plays:
        reached[play.first] += play.chance
        for decision in play.decisions:
            situations[decision.cell.history] = decision.situation
            equal = paid[decision.cell.history].setdefault(play.team_return, defaultdict(float))
            equal[decision.cell.after] += play.chance
    for history in sorted(situations, key=lambda h: len(h.moves)):
        total, below = sum(sum(after.values()) for after in paid[history].values()), 0.0
        for team_return in sorted(paid[history]):
            here = sum(paid[history][team_return].values())
            best = ((below + here) / total) ** many - (below / total) ** many
            below += here
            for after, chance in paid[history][team_return].items():
                reached[after] += reached[history] * best * chance / here
    return {history: (situation, reached[history]) for history, situation in situations.items()}
