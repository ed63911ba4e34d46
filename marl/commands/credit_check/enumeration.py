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
from marl.evaluation.game_tree import GameTreeNode, InformationState, Strategy, build_game_tree
from marl.protocols import GameConfig
from marl.rollout.casting import RoleRequestBuilder
from marl.rollout.episode import Episode

Move = str | None
"""A legal move, or None for an illegal answer."""
MovePolicy = Callable[[InformationState, int], Mapping[Move, float]]
"""Function that maps an information state, and the number of the agent's earlier turns, to move -> probability."""
CreditPerTurn = Sequence[float]
"""One number for each turn of a play, in order of play."""
_ROUNDING = 1e-9
"""Maximum probability of an illegal answer that is attributed to rounding and ignored."""


class MoveHistory(NamedTuple):
    """A start of the game and the moves after it, in order."""

    start: str
    moves: tuple[Move, ...] = ()


class HistoryAndMove(NamedTuple):
    """A history and the next move: the key by which exact values and samples of credit are compared."""

    history: MoveHistory
    """Start of the game and all moves before `move`."""
    move: Move

    @property
    def history_after_move(self) -> MoveHistory:
        """History that continues `history` by `move`."""
        return MoveHistory(self.history.start, (*self.history.moves, self.move))


class AgentDecision(NamedTuple):
    """One turn of an enumerated play: the agent's move, with all earlier moves and the agent's information state."""

    cell: HistoryAndMove
    """Moves of all agents before the turn, and the move of the turn."""
    situation: InformationState
    """Information state in which the agent made the move."""
    earlier_turns: int
    """Number of turns that the agent took earlier in the play."""


@dataclass(frozen=True, slots=True)
class Playthrough:
    """One complete play of an enumerated game, with its probability and the team's return."""

    probability: float
    """Probability of the play under the agents' strategy."""
    decisions: tuple[AgentDecision, ...]
    """One decision for each turn, in order of play."""
    trajectory: Trajectory
    """The play as an episode: its turns, edges and rewards."""
    team_return: float
    """Mean return of the agents in this play."""

    @property
    def initial_history(self) -> MoveHistory:
        """History before the first move of the play: the start of the game, and no moves."""
        return self.decisions[0].cell.history


class EnumeratedGame:
    """All plays of a game whose agents follow `strategy`, and exact values computed from them."""

    def __init__(
        self, game: GameConfig, casting: RoleRequestBuilder, seats: Mapping[str, str], strategy: Strategy
    ) -> None:
        """Enumerate every sequence of moves from a start to the end of the game.

        Raises:
            ValueError: if the game cannot be enumerated, or plays a random move after an illegal one.
        """
        self.strategy = strategy
        self.tree = tree = build_game_tree(game, casting, seats)
        self.agents = tree.agents
        self.roots: dict[str, GameTreeNode] = {}
        """Name of a start -> its node in the game tree."""
        self.plays: list[Playthrough] = []
        for start, (chance, root) in zip(game.all_start_states() or (), tree.roots, strict=True):
            for path, probability in _paths_with_probability(root, strategy):
                name = "/".join(move or "" for _, move in path)
                deal = Deal(f"exact.{start.options}.{name}", "exact", 0, seats, "eval", options=start.options)
                episode = Episode(game.build(), deal, casting)
                for _, move in path:
                    episode.force_action(move)
                trajectory = episode.trajectory
                history, decisions, turns = MoveHistory(trajectory.start), list[AgentDecision](), Counter[str]()
                for situation, move in path:
                    cell = HistoryAndMove(history, move)
                    decisions.append(AgentDecision(cell, situation, turns[situation.agent]))
                    turns[situation.agent] += 1
                    history = cell.history_after_move
                # An agent without a reward has no entry in `returns`, but counts as 0 in the team's mean.
                team_return = fmean(trajectory.returns.get(agent, 0.0) for agent in seats)
                self.plays.append(Playthrough(chance * probability, tuple(decisions), trajectory, team_return))
                self.roots[trajectory.start] = root
        self._sums: dict[MoveHistory, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
        """History -> (its probability, sum of probability * return over the plays that begin with it)."""
        for play in self.plays:
            # A play contributes to the history before its first move, and to the history after each of its moves.
            for history in [play.initial_history, *(decision.cell.history_after_move for decision in play.decisions)]:
                chance, total = self._sums[history]
                self._sums[history] = chance + play.probability, total + play.probability * play.team_return
        # A plain dict raises KeyError for a history that occurs in no play, where a defaultdict would return 0.
        self._sums = dict(self._sums)

    def reach_probability(self, history_and_move: HistoryAndMove) -> float:
        """Return the probability that a play begins with the history of `history_and_move` and continues with the
        cell's move."""
        return self._sums[history_and_move.history_after_move][0]

    def history_value(self, history: MoveHistory) -> float:
        """Return V(h), the team's expected return of an episode that begins with `history`."""
        chance, total = self._sums[history]
        return total / chance

    def advantage(self, history_and_move: HistoryAndMove) -> float:
        """Return the exact sequential advantage Q(h, a) - V(h) of the move a of `history_and_move` after its history
        h."""
        return self.history_value(history_and_move.history_after_move) - self.history_value(history_and_move.history)

    def mean_credit_by_history_and_move(
        self, credit_of_play: Callable[[Playthrough], CreditPerTurn]
    ) -> dict[HistoryAndMove, float]:
        """Return (history, move) -> expected credit, under the strategy, of the turns with this history and move."""
        sums: dict[HistoryAndMove, float] = defaultdict(float)
        for play in self.plays:
            for decision, credit in zip(play.decisions, credit_of_play(play), strict=True):
                sums[decision.cell] += play.probability * credit
        return {cell: total / self.reach_probability(cell) for cell, total in sums.items()}

    def probability_by_move(self, situation: InformationState) -> dict[Move, float]:
        """Return move -> probability in `situation` under the agents' strategy. The key None is an illegal answer."""
        return _with_illegal_answer_probability(self.strategy[situation])

    def expected_return(self, policy: MovePolicy, history: MoveHistory) -> float:
        """Return the team's expected return if `policy` chooses every move after `history`."""
        node, turns, team_reward = self.roots[history.start], Counter[str](), 0.0
        for move in history.moves:
            if node.situation is None:
                raise ValueError("the game is over before its last move")
            turns[node.situation.agent] += 1
            node = _children_by_move(node)[move]
            team_reward += math.fsum(node.rewards.values()) / len(self.agents)
        return team_reward + self._expected_reward_below(node, policy, turns)

    def _expected_reward_below(self, node: GameTreeNode, policy: MovePolicy, turn_counts: Counter[str]) -> float:
        """Return the team's expected reward below `node`; `turn_counts` counts each agent's turns so far."""
        if node.situation is None:
            return 0.0
        chances = policy(node.situation, turn_counts[node.situation.agent])
        turns_with_this = turn_counts + Counter({node.situation.agent: 1})
        children = _children_by_move(node)
        terms = []
        for move, chance in chances.items():
            # A move of probability 0 is skipped: its subtree may be large, and `policy` may be undefined there.
            if chance:
                child = children[move]
                reward = math.fsum(child.rewards.values()) / len(self.agents)
                terms.append(chance * (reward + self._expected_reward_below(child, policy, turns_with_this)))
        return math.fsum(terms)


def _children_by_move(node: GameTreeNode) -> dict[Move, GameTreeNode]:
    """Return move -> next node; the key None stands for an illegal answer.

    Raises:
        ValueError: if the game plays a random move after an illegal one.
    """
    if node.after_illegal is None:
        raise ValueError("illegal.then: random moves cannot be enumerated; choices: forfeit")
    return {**node.moves, None: node.after_illegal}


def _with_illegal_answer_probability(probability_by_move: Mapping[str, float]) -> dict[Move, float]:
    """Return `probability_by_move` with an illegal answer (None), whose probability makes the sum 1."""
    missing = 1.0 - math.fsum(probability_by_move.values())
    return {**probability_by_move, **({None: missing} if missing > _ROUNDING else {})}


_Path = tuple[tuple[InformationState, Move], ...]


def _paths_with_probability(node: GameTreeNode, strategy: Strategy) -> Iterator[tuple[_Path, float]]:
    """Yield every path from `node` to the end of the game, and the probability of the path under `strategy`."""
    if node.situation is None:
        yield (), 1.0
        return
    children = _children_by_move(node)
    for move, chance in _with_illegal_answer_probability(strategy[node.situation]).items():
        if not chance:
            continue
        for later_moves, probability in _paths_with_probability(children[move], strategy):
            yield ((node.situation, move), *later_moves), chance * probability


def history_and_move_per_turn(trajectory: Trajectory) -> list[HistoryAndMove]:
    """Return, for each turn of an episode in order of play, the moves before the turn and the move of the turn."""
    moves = tuple(turn.action for turn in trajectory.turns)
    return [HistoryAndMove(MoveHistory(trajectory.start, moves[:index]), move) for index, move in enumerate(moves)]
