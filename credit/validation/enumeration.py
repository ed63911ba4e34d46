"""Exact values of a small cooperative game, by enumeration: every play with its probability, and every continuation.

Nothing here uses a part of a credit rule, so that rules can be checked against it.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from marl.evaluation.game_tree import Node, Situation, Strategy, grow
from marl.graph import Trajectory
from marl.protocols import GameConfig, GameStart
from marl.rollout.casting import RoleCasting
from marl.rollout.episode import Episode
from marl.types import Deal

Move = str | None
"""None is an answer that is no legal move."""
Decide = Callable[[Situation, int], Mapping[Move, float]]
"""(situation, number of turns that its agent had before) -> move -> probability."""
PerTurn = Sequence[float]
"""A number for each turn of a play."""
_ROUNDING = 1e-9


class History(NamedTuple):
    """Start of a game and all moves since, in order."""

    start: str
    moves: tuple[Move, ...] = ()

    def then(self, move: Move) -> History:
        """Return the history one move later."""
        return History(self.start, (*self.moves, move))


class Cell(NamedTuple):
    """A move in a history: the credit of each turn is a sample for one cell."""

    history: History
    move: Move

    @property
    def after(self) -> History:
        """Return the history after the move."""
        return self.history.then(self.move)


class Decision(NamedTuple):
    """One decision in a play."""

    cell: Cell
    situation: Situation
    nth: int
    """Number of turns that the agent had before."""


@dataclass(frozen=True, slots=True)
class Play:
    """One course of the whole game."""

    chance: float
    decisions: tuple[Decision, ...]
    trajectory: Trajectory
    """The same as an episode: its turns, who had read whom, and its rewards."""
    team_return: float
    """Mean of the agents' returns."""

    @property
    def first(self) -> History:
        """Return the history before the first move."""
        return self.decisions[0].cell.history


class EnumeratedGame:
    """All plays of a game whose agents play `strategy`. A team's return is its agents' mean return."""

    def __init__(self, game: GameConfig, casting: RoleCasting, seats: Mapping[str, str], strategy: Strategy) -> None:
        """Raises:
        ValueError: if the game cannot be enumerated, or goes on at random after an illegal move.
        """
        self.strategy = strategy
        self.tree = tree = grow(game, casting, seats)
        self.agents = tree.agents
        self.roots: dict[str, Node] = {}
        """By the game's name for the start."""
        self.plays: list[Play] = []
        for start, (chance, root) in zip(game.starts() or (), tree.roots, strict=True):
            for path, probability in _paths(root, strategy):
                trajectory = _forced_episode(game, casting, seats, start, path)
                self.plays.append(_play(trajectory, path, chance * probability))
                self.roots[trajectory.start] = root
        self._sums = _sums(self.plays)

    def chance(self, cell: Cell) -> float:
        """Return the probability that the game comes to this move."""
        return self._sums[cell.after][0]

    def value(self, history: History) -> float:
        """Return V(h): the team's expected return, rewards before h included."""
        chance, total = self._sums[history]
        return total / chance

    def advantage(self, cell: Cell) -> float:
        """Return the exact sequential advantage Q(h, a) - V(h), for a move after all others in its history."""
        return self.value(cell.after) - self.value(cell.history)

    def average(self, per_play: Callable[[Play], PerTurn]) -> dict[Cell, float]:
        """Return the expectation of a figure of turns, given the move and its history."""
        sums: dict[Cell, float] = defaultdict(float)
        for play in self.plays:
            for decision, figure in zip(play.decisions, per_play(play), strict=True):
                sums[decision.cell] += play.chance * figure
        return {cell: total / self.chance(cell) for cell, total in sums.items()}

    def policy(self, situation: Situation) -> dict[Move, float]:
        """Return move -> probability under the agents' own strategy, an illegal answer included."""
        return _with_illegal(self.strategy[situation])

    def expected(self, decide: Decide, history: History) -> float:
        """Return the team's expected return if `decide` chooses all moves after `history`."""
        node, turns, paid = self.roots[history.start], Counter[str](), 0.0
        for move in history.moves:
            if node.situation is None:
                raise ValueError("the game is over before its last move")
            turns[node.situation.agent] += 1
            node = _children(node)[move]
            paid += self._reward(node)
        return paid + self._expected(node, decide, turns)

    def _expected(self, node: Node, decide: Decide, turns: Counter[str]) -> float:
        if node.situation is None:
            return 0.0
        chances = decide(node.situation, turns[node.situation.agent])
        after = turns + Counter({node.situation.agent: 1})
        children = _children(node)
        return math.fsum(
            chance * (self._reward(children[move]) + self._expected(children[move], decide, after))
            for move, chance in chances.items()
            if chance
        )

    def _reward(self, node: Node) -> float:
        return math.fsum(node.paid.values()) / len(self.agents)


def _children(node: Node) -> dict[Move, Node]:
    """Return answer -> node after it.

    Raises:
        ValueError: if a random move follows an illegal one.
    """
    if node.refused is None:
        raise ValueError("illegal.then: random moves cannot be enumerated; choices: forfeit")
    return {**node.moves, None: node.refused}


def _with_illegal(moves: Mapping[str, float]) -> dict[Move, float]:
    """Return the probabilities; the rest to 1 is an illegal answer."""
    missing = 1.0 - math.fsum(moves.values())
    return {**moves, **({None: missing} if missing > _ROUNDING else {})}


_Path = tuple[tuple[Situation, Move], ...]


def _paths(node: Node, strategy: Strategy) -> Iterator[tuple[_Path, float]]:
    """Yield every way to an end, with its probability."""
    if node.situation is None:
        yield (), 1.0
        return
    children = _children(node)
    for move, chance in _with_illegal(strategy[node.situation]).items():
        for rest, probability in _paths(children[move], strategy) if chance else ():
            yield ((node.situation, move), *rest), chance * probability


def _forced_episode(
    game: GameConfig, casting: RoleCasting, seats: Mapping[str, str], start: GameStart, path: _Path
) -> Trajectory:
    name = "/".join(move or "" for _, move in path)
    deal = Deal(f"exact.{start.options}.{name}", "exact", 0, seats, "eval", options=start.options)
    episode = Episode(game.build(), deal, casting)
    for _, move in path:
        episode.force(move)
    return episode.trajectory


def _play(trajectory: Trajectory, path: _Path, chance: float) -> Play:
    history, decisions, turns = History(trajectory.start), list[Decision](), Counter[str]()
    for situation, move in path:
        decisions.append(Decision(Cell(history, move), situation, turns[situation.agent]))
        turns[situation.agent] += 1
        history = history.then(move)
    returns = trajectory.returns
    return Play(chance, tuple(decisions), trajectory, fmean(returns.get(a, 0.0) for a in trajectory.deal.seats))


def _sums(plays: Sequence[Play]) -> dict[History, tuple[float, float]]:
    """Return history -> (its probability, sum of probability * return over the plays that begin so)."""
    sums: dict[History, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    for play in plays:
        for history in [play.first, *(decision.cell.after for decision in play.decisions)]:
            chance, total = sums[history]
            sums[history] = chance + play.chance, total + play.chance * play.team_return
    return dict(sums)


def cells_of(trajectory: Trajectory) -> list[Cell]:
    """Return the cell of each turn of an episode."""
    moves = tuple(turn.action for turn in trajectory.turns)
    return [Cell(History(trajectory.start, moves[:place]), move) for place, move in enumerate(moves)]
