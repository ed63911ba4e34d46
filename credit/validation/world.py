"""A small cooperative game and its players, enumerated: every play with its probability, and all that follows from it.

Nothing here uses a part of a credit rule, so rules can be checked against it.
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
from marl.protocols import GameConfig, Start
from marl.rollout.casting import Cast
from marl.rollout.episode import Episode
from marl.types import Deal

Move = str | None
"""None is an answer that is no legal move."""
Decide = Callable[[Situation, int], Mapping[Move, float]]
"""(situation, how many turns its agent had before) -> move -> probability."""
PerTurn = Sequence[float]
"""A number for each turn of a play."""


class History(NamedTuple):
    """How a game began and all moves since, in order."""

    start: str
    moves: tuple[Move, ...] = ()

    def then(self, move: Move) -> History:
        """The history one move later."""
        return History(self.start, (*self.moves, move))


class Cell(NamedTuple):
    """A move in a history: what the credit of a turn is a sample for."""

    history: History
    move: Move


class Choice(NamedTuple):
    """One decision in a play, and the probability that it was this one."""

    cell: Cell
    situation: Situation
    nth: int
    """How many turns the agent had before."""
    chance: float


@dataclass(frozen=True, slots=True)
class Play:
    """One course of the whole game."""

    chance: float
    choices: tuple[Choice, ...]
    trajectory: Trajectory
    """The same as an episode: its turns, who had read whom, and what was paid."""
    worth: float
    """The team's return: the mean of its agents' returns."""


class World:
    """A game that can be walked whole, with agents that play `strategy`. A team's return is its agents' mean return."""

    def __init__(self, game: GameConfig, cast: Cast, seats: Mapping[str, str], strategy: Strategy) -> None:
        """Raises:
        ValueError: if the game cannot be walked, or goes on at random after an illegal move.
        """
        self.strategy = strategy
        self.tree = tree = grow(game, cast, seats)
        self.agents = tree.agents
        self.roots: dict[str, Node] = {}
        """By the game's name for the start."""
        self.plays: list[Play] = []
        for start, (chance, root) in zip(game.starts() or (), tree.roots, strict=True):
            for path, odds in _paths(root, strategy):
                episode = _forced(game, cast, seats, start, path)
                self.plays.append(_play(episode, path, chance * odds))
                self.roots[episode.start] = root
        self._sums = _sums(self.plays)

    def chance(self, cell: Cell) -> float:
        """The probability that the game comes to this move."""
        return self._sums[cell.history.then(cell.move)][0]

    def value(self, history: History) -> float:
        """V(h): the team's expected return, what was paid before included."""
        chance, total = self._sums[history]
        return total / chance

    def advantage(self, cell: Cell) -> float:
        """The exact sequential advantage Q(h, a) - V(h), of a move that is made after all others in its history."""
        return self.value(cell.history.then(cell.move)) - self.value(cell.history)

    def average(self, turns: Callable[[Play], PerTurn]) -> dict[Cell, float]:
        """The expectation of a figure of turns, given the move and its history."""
        sums: dict[Cell, float] = defaultdict(float)
        for play in self.plays:
            for choice, figure in zip(play.choices, turns(play), strict=True):
                sums[choice.cell] += play.chance * figure
        return {cell: total / self.chance(cell) for cell, total in sums.items()}

    def played(self, situation: Situation) -> dict[Move, float]:
        """Move -> probability under the agents' own strategy, an illegal answer included."""
        return _chances(self.strategy[situation])

    def expected(self, decide: Decide, history: History) -> float:
        """The team's expected return if `decide` chooses all moves after `history`."""
        node, turns, paid = self.roots[history.start], Counter[str](), 0.0
        for move in history.moves:
            turns[_asked(node).agent] += 1
            node = branches(node)[move]
            paid += self._paid(node)
        return paid + self._expected(node, decide, turns)

    def _expected(self, node: Node, decide: Decide, turns: Counter[str]) -> float:
        if node.situation is None:
            return 0.0
        chances = decide(node.situation, turns[node.situation.agent])
        after = turns + Counter({node.situation.agent: 1})
        children = branches(node)
        return math.fsum(
            chance * (self._paid(children[move]) + self._expected(children[move], decide, after))
            for move, chance in chances.items()
            if chance
        )

    def _paid(self, node: Node) -> float:
        return math.fsum(node.paid.values()) / len(self.agents)


def branches(node: Node) -> dict[Move, Node]:
    """What each answer leads to.

    Raises:
        ValueError: if a random move follows an illegal one.
    """
    if node.refused is None:
        raise ValueError("illegal.then: random moves cannot be enumerated; choices: forfeit")
    return {**node.moves, None: node.refused}


def _asked(node: Node) -> Situation:
    if node.situation is None:
        raise ValueError("the game is over before its last move")
    return node.situation


def _chances(moves: Mapping[str, float]) -> dict[Move, float]:
    """What is missing to 1 is an illegal answer."""
    missing = 1.0 - math.fsum(moves.values())
    return {**moves, **({None: missing} if missing > _ROUNDING else {})}


_ROUNDING = 1e-9
_Path = tuple[tuple[Situation, Move, float], ...]


def _paths(node: Node, strategy: Strategy) -> Iterator[tuple[_Path, float]]:
    """Every way to an end: (situation, move, its probability) ..., and the probability of all of it."""
    if node.situation is None:
        yield (), 1.0
        return
    children = branches(node)
    for move, chance in _chances(strategy[node.situation]).items():
        for rest, odds in _paths(children[move], strategy) if chance else ():
            yield ((node.situation, move, chance), *rest), chance * odds


def _forced(game: GameConfig, cast: Cast, seats: Mapping[str, str], start: Start, path: _Path) -> Trajectory:
    name = "/".join(move or "" for _, move, _ in path)
    deal = Deal(f"exact.{start.options}.{name}", "exact", 0, seats, "eval", options=start.options)
    episode = Episode(game.build(), deal, cast)
    for _, move, _ in path:
        episode.force(move)
    return episode.trajectory


def _play(trajectory: Trajectory, path: _Path, chance: float) -> Play:
    history, choices, turns = History(trajectory.start), list[Choice](), Counter[str]()
    for situation, move, odds in path:
        choices.append(Choice(Cell(history, move), situation, turns[situation.agent], odds))
        turns[situation.agent] += 1
        history = history.then(move)
    returns = trajectory.returns
    return Play(chance, tuple(choices), trajectory, fmean(returns.get(a, 0.0) for a in trajectory.deal.seats))


def _sums(plays: Sequence[Play]) -> dict[History, tuple[float, float]]:
    """History -> (its probability, the sum of probability * return over the plays that begin so)."""
    sums: dict[History, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    for play in plays:
        last = play.choices[-1].cell
        moves = last.history.then(last.move).moves
        for length in range(len(moves) + 1):
            history = History(last.history.start, moves[:length])
            chance, total = sums[history]
            sums[history] = chance + play.chance, total + play.chance * play.worth
    return dict(sums)


def cells(trajectory: Trajectory) -> list[Cell]:
    """The cell of each turn of an episode."""
    moves = tuple(turn.action for turn in trajectory.turns)
    return [Cell(History(trajectory.start, moves[:place]), move) for place, move in enumerate(moves)]
