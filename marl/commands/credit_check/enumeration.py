"""Exact values of a small cooperative game, by enumeration of every play with its probability.

No code of a credit rule is used here, so that an error in a rule cannot hide itself.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from marl.core.graph import Trajectory
from marl.core.types import Deal
from marl.evaluation.game_tree import InformationState, Node, Strategy, build_game_tree
from marl.protocols import GameConfig
from marl.rollout.casting import RoleCasting
from marl.rollout.episode import Episode

Move = str | None
"""A legal move, or None for an illegal answer."""
Decide = Callable[[InformationState, int], Mapping[Move, float]]
"""(information state, number of the agent's earlier turns) -> move -> probability."""
PerTurn = Sequence[float]
"""One number for each turn of a play."""
_ROUNDING = 1e-9
"""Probability below which an illegal answer is a rounding error."""


class History(NamedTuple):
    """A start of the game and the moves after it, in order."""

    start: str
    moves: tuple[Move, ...] = ()

    def then(self, move: Move) -> History:
        """Return the history one move later."""
        return History(self.start, (*self.moves, move))


class HistoryMove(NamedTuple):
    """A cell of the table of exact values: a history and a move. The credit of one turn is one sample of its cell."""

    history: History
    move: Move

    @property
    def after(self) -> History:
        """Return the history after the move."""
        return self.history.then(self.move)


class Decision(NamedTuple):
    """One decision in a play."""

    cell: HistoryMove
    situation: InformationState
    nth: int
    """Number of the agent's earlier turns."""


@dataclass(frozen=True, slots=True)
class Playthrough:
    """One complete play of the game."""

    chance: float
    """Probability of the play under the agents' strategy."""
    decisions: tuple[Decision, ...]
    trajectory: Trajectory
    """The play as an episode: its turns, edges and rewards."""
    team_return: float
    """Mean return of the agents."""

    @property
    def first(self) -> History:
        """Return the history before the first move."""
        return self.decisions[0].cell.history


class EnumeratedGame:
    """All plays of a game whose agents follow `strategy`, and exact values computed from them."""

    def __init__(self, game: GameConfig, casting: RoleCasting, seats: Mapping[str, str], strategy: Strategy) -> None:
        """Play every sequence of moves.

        Raises:
            ValueError: if the game cannot be enumerated, or plays a random move after an illegal one.
        """
        self.strategy = strategy
        self.tree = tree = build_game_tree(game, casting, seats)
        self.agents = tree.agents
        self.roots: dict[str, Node] = {}
        """Name of a start -> its node."""
        self.plays: list[Playthrough] = []
        for start, (chance, root) in zip(game.starts() or (), tree.roots, strict=True):
            for path, probability in _paths(root, strategy):
                name = "/".join(move or "" for _, move in path)
                deal = Deal(f"exact.{start.options}.{name}", "exact", 0, seats, "eval", options=start.options)
                episode = Episode(game.build(), deal, casting)
                for _, move in path:
                    episode.force_action(move)
                self.plays.append(_play(episode.trajectory, path, chance * probability))
                self.roots[episode.trajectory.start] = root
        self._sums: dict[History, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
        """History -> (its probability, sum of probability * return over the plays that begin with it)."""
        for play in self.plays:
            # Every play begins with its start and with the moves up to each of its turns.
            for history in [play.first, *(decision.cell.after for decision in play.decisions)]:
                chance, total = self._sums[history]
                self._sums[history] = chance + play.chance, total + play.chance * play.team_return
        # An unknown history must be an error from here on, not a new entry.
        self._sums = dict(self._sums)

    def chance(self, cell: HistoryMove) -> float:
        """Return the probability of `cell`: of its history followed by its move."""
        return self._sums[cell.after][0]

    def value(self, history: History) -> float:
        """Return V(h), the team's expected return given the history; rewards before it are included."""
        chance, total = self._sums[history]
        return total / chance

    def advantage(self, cell: HistoryMove) -> float:
        """Return the exact sequential advantage Q(h, a) - V(h)."""
        return self.value(cell.after) - self.value(cell.history)

    def average(self, per_play: Callable[[Playthrough], PerTurn]) -> dict[HistoryMove, float]:
        """Return cell -> expectation of the turn's number under `per_play`, given the history and the move."""
        sums: dict[HistoryMove, float] = defaultdict(float)
        for play in self.plays:
            for decision, value in zip(play.decisions, per_play(play), strict=True):
                sums[decision.cell] += play.chance * value
        return {cell: total / self.chance(cell) for cell, total in sums.items()}

    def policy(self, situation: InformationState) -> dict[Move, float]:
        """Return move -> probability under the agents' strategy; None stands for an illegal answer."""
        return _with_illegal(self.strategy[situation])

    def expected(self, decide: Decide, history: History) -> float:
        """Return the team's expected return if `decide` chooses every move after `history`."""
        node, turns, team_reward = self.roots[history.start], Counter[str](), 0.0
        for move in history.moves:
            if node.situation is None:
                raise ValueError("the game is over before its last move")
            turns[node.situation.agent] += 1
            node = _children(node)[move]
            team_reward += self._reward(node)
        return team_reward + self._expected(node, decide, turns)

    def _expected(self, node: Node, decide: Decide, turns: Counter[str]) -> float:
        if node.situation is None:
            return 0.0
        chances = decide(node.situation, turns[node.situation.agent])
        after = turns + Counter({node.situation.agent: 1})
        children = _children(node)
        terms = []
        for move, chance in chances.items():
            # A move without probability is not followed: its subtree may be large, or undefined for `decide`.
            if chance:
                child = children[move]
                terms.append(chance * (self._reward(child) + self._expected(child, decide, after)))
        return math.fsum(terms)

    def _reward(self, node: Node) -> float:
        """Return the mean reward of the agents at `node`."""
        return math.fsum(node.rewards.values()) / len(self.agents)


def _children(node: Node) -> dict[Move, Node]:
    """Return answer -> next node.

    Raises:
        ValueError: if the game plays a random move after an illegal one.
    """
    if node.after_illegal is None:
        raise ValueError("illegal.then: random moves cannot be enumerated; choices: forfeit")
    return {**node.moves, None: node.after_illegal}


def _with_illegal(moves: Mapping[str, float]) -> dict[Move, float]:
    """Return `moves` with the remaining probability, if any, on an illegal answer (None)."""
    missing = 1.0 - math.fsum(moves.values())
    return {**moves, **({None: missing} if missing > _ROUNDING else {})}


_Path = tuple[tuple[InformationState, Move], ...]


def _paths(node: Node, strategy: Strategy) -> Iterator[tuple[_Path, float]]:
    """Yield every path from `node` to the end of the game, with its probability."""
    if node.situation is None:
        yield (), 1.0
        return
    children = _children(node)
    for move, chance in _with_illegal(strategy[node.situation]).items():
        if not chance:
            continue
        for later_moves, probability in _paths(children[move], strategy):
            yield ((node.situation, move), *later_moves), chance * probability


def _play(trajectory: Trajectory, path: _Path, chance: float) -> Playthrough:
    """Return the play along `path`, recorded as `trajectory`."""
    history, decisions, turns = History(trajectory.start), list[Decision](), Counter[str]()
    for situation, move in path:
        decisions.append(Decision(HistoryMove(history, move), situation, turns[situation.agent]))
        turns[situation.agent] += 1
        history = history.then(move)
    # An agent without a reward has no entry in `returns`, but counts in the mean.
    team_return = fmean(trajectory.returns.get(agent, 0.0) for agent in trajectory.deal.seats)
    return Playthrough(chance, tuple(decisions), trajectory, team_return)


def cells_of(trajectory: Trajectory) -> list[HistoryMove]:
    """Return the cell of each turn of an episode."""
    moves = tuple(turn.action for turn in trajectory.turns)
    return [HistoryMove(History(trajectory.start, moves[:index]), move) for index, move in enumerate(moves)]
