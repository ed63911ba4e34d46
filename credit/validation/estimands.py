"""Estimand of each credit rule, exactly, from the enumerated game: by another way than the rule itself takes.

An estimand gives, for a play of a game, every turn's credit in expectation over what the rule itself draws. The team's
return is the mean of its agents' returns, whichever way a rule spells it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby, permutations, product
from math import factorial

import numpy as np

from credit.assign.edges import INFORMATION
from credit.validation.enumeration import Decision, EnumeratedGame, History, Move, PerTurn, Play
from marl.evaluation.game_tree import Situation
from marl.types import EdgeKind

Estimand = Callable[[EnumeratedGame, Play], PerTurn]
Substitute = Callable[[Situation], Mapping[Move, float]]
"""Play of an absent agent: `EnumeratedGame.policy` for its own policy, `always` for a fixed move."""
JointMove = tuple[str, ...]
"""One move for each agent."""
Payoffs = Mapping[JointMove, float]
"""Joint move -> a figure; every combination of the agents' moves has one."""
Fit = Callable[[Payoffs, Payoffs], Mapping[JointMove, float]]
"""(payoffs, chances) -> approximation of the payoffs."""


class Undefined(ValueError):  # noqa: N818 (a state of affairs)
    """The method has no estimand in this game."""


def returns(_: EnumeratedGame, play: Play) -> PerTurn:
    """Return the team's return, for every turn."""
    return [play.team_return] * len(play.decisions)


def advantage(game: EnumeratedGame, play: Play) -> PerTurn:
    """Return the exact sequential advantage Q(h, a) - V(h)."""
    return [game.advantage(decision.cell) for decision in play.decisions]


def siblings(game: EnumeratedGame, play: Play) -> PerTurn:
    """Return the return minus the expected one before the turn."""
    return [play.team_return - game.value(decision.cell.history) for decision in play.decisions]


def last(_: EnumeratedGame, play: Play) -> PerTurn:
    """Return the team's return, for the last turn alone."""
    return [0.0] * (len(play.decisions) - 1) + [play.team_return]


def flow(decay: float, along: Collection[EdgeKind] = INFORMATION) -> Estimand:
    """Return c = r + decay * P c, solved as a linear system; P[u, v] = 1 / (number of turns v read) if it read u."""

    def per_turn(_: EnumeratedGame, play: Play) -> PerTurn:
        turns = [turn.id for turn in play.trajectory.turns]
        paid = [sum(reward.value for reward in play.trajectory.rewards if reward.turn == turn) for turn in turns]
        passed = np.zeros((len(turns), len(turns)))
        for reader, turn in enumerate(turns):
            read = play.trajectory.sources(turn, along)
            for source in read:
                passed[turns.index(source), reader] = 1 / len(read)
        return np.linalg.solve(np.eye(len(turns)) - decay * passed, np.array(paid)).tolist()

    return per_turn


def shares(discount: float) -> Estimand:
    """Return equal shares of the team's return for its agents; an agent's turns divide its share in proportion to
    `discount` to the number of its later turns.
    """

    def per_turn(_: EnumeratedGame, play: Play) -> PerTurn:
        counts = {d.situation.agent: d.nth + 1 for d in play.decisions}
        powers = {agent: [discount ** (count - 1 - nth) for nth in range(count)] for agent, count in counts.items()}
        turns = [(d.nth, powers[d.situation.agent]) for d in play.decisions]
        return [weights[nth] * play.team_return / len(counts) / sum(weights) for nth, weights in turns]

    return per_turn


# --- counterfactuals --------------------------------------------------------------------------------------------------


def always(moves: Mapping[str, str]) -> Substitute:
    """Return the substitute in which each agent makes the one move that `moves` gives it."""
    return lambda situation: {moves[situation.agent]: 1.0}


def _without(game: EnumeratedGame, play: Play, absent: Collection[str], substitute: Substitute) -> float:
    """Return the team's expected return if `substitute` makes all decisions of the `absent` agents."""
    return _replayed(game, play, play.first, lambda situation, _: situation.agent in absent, substitute)


def _replayed(
    game: EnumeratedGame,
    play: Play,
    history: History,
    replaced: Callable[[Situation, int], bool],
    substitute: Substitute,
) -> float:
    """Return the team's expected return after `history` if `substitute` makes the decisions that are `replaced`.

    All others are those of `play` in the same situation, and follow the agents' policies elsewhere.
    """
    recorded = {(d.situation, d.nth): d.cell.move for d in play.decisions}

    def decide(situation: Situation, nth: int) -> Mapping[Move, float]:
        if replaced(situation, nth):
            return substitute(situation)
        return {recorded[situation, nth]: 1.0} if (situation, nth) in recorded else game.policy(situation)

    return game.expected(decide, history)


def shapley(agents: Collection[str], value: Callable[[frozenset[str]], float]) -> dict[str, float]:
    """Return each agent's marginal contribution, averaged over all orders of arrival (Shapley 1953).

    Args:
        value: coalition -> its value.
    """
    totals = dict.fromkeys(agents, 0.0)
    value = cache(value)
    for order in permutations(agents):
        present = frozenset[str]()
        for agent in order:
            totals[agent] += value(present | {agent}) - value(present)
            present |= {agent}
    return {agent: total / factorial(len(totals)) for agent, total in totals.items()}


def shapley_values(substitute: Substitute) -> Estimand:
    """Return each agent's Shapley value of its part in the play, for all its turns."""

    def per_turn(game: EnumeratedGame, play: Play) -> PerTurn:
        values = shapley(game.agents, lambda here: _without(game, play, {*game.agents} - here, substitute))
        return [values[decision.situation.agent] for decision in play.decisions]

    return per_turn


def leave_one_out(substitute: Substitute) -> Estimand:
    """Return the return minus the expected one if the agent is absent and everybody else is not."""

    def per_turn(game: EnumeratedGame, play: Play) -> PerTurn:
        lost = {agent: play.team_return - _without(game, play, {agent}, substitute) for agent in game.agents}
        return [lost[decision.situation.agent] for decision in play.decisions]

    return per_turn


def difference(substitute: Substitute | None) -> Estimand:
    """Return the return minus the expected one if that one turn were another; None: one that its policy draws anew."""

    def expected(game: EnumeratedGame, play: Play, decision: Decision) -> float:
        turn = decision.situation, decision.nth
        return _replayed(game, play, decision.cell.history, lambda *other: other == turn, substitute or game.policy)

    return lambda game, play: [play.team_return - expected(game, play, decision) for decision in play.decisions]


def coma(game: EnumeratedGame, play: Play) -> PerTurn:
    """Return Q(s, a) - sum over a' of pi(a') Q(s, (a_-i, a')), with Q the expected return after the moves of a whole
    round. One of them is exchanged; agents that answered it are taken to say the same.
    """
    figures: list[float] = []
    for _, group in groupby(play.decisions, key=lambda decision: decision.nth):
        decisions = list(group)
        before, moves = decisions[0].cell.history, [decision.cell.move for decision in decisions]
        for place, decision in enumerate(decisions):
            policy = game.strategy[decision.situation]
            rounds = {move: (*before.moves, *moves[:place], move, *moves[place + 1 :]) for move in policy}
            values = {move: game.value(History(before.start, joint)) for move, joint in rounds.items()}
            mean = sum(chance * values[move] for move, chance in policy.items()) / sum(policy.values())
            figures.append(values[decision.cell.move] - mean if decision.cell.move else 0.0)
    return figures


# --- value decomposition ----------------------------------------------------------------------------------------------


def fitted(fit: Fit) -> Estimand:
    """Return a move's marginal in its round, whose payoffs are approximated by `fit`.

    Raises:
        Undefined: if agents of one round do not move at once, for then the fit has more than one solution.
    """

    def per_turn(game: EnumeratedGame, play: Play) -> PerTurn:
        rounds = [(_marginals(game, fit).get((key, joint)), joint) for key, joint in _joint_moves(play)]
        return [worth for worths, joint in rounds for worth in worths or [0.0] * len(joint)]

    return per_turn


@cache
def _marginals(game: EnumeratedGame, fit: Fit) -> dict[tuple[Hashable, JointMove], list[float]]:
    worths: dict[tuple[Hashable, JointMove], list[float]] = {}
    for key, (payoffs, chances) in _rounds(game).items():
        best = fit(payoffs, chances)
        worths |= {(key, joint): marginals(best, chances, joint) for joint in payoffs}
    return worths


def _joint_moves(play: Play) -> Iterator[tuple[Hashable, JointMove]]:
    """Yield each round: its agents' situations, and their joint move.

    Raises:
        Undefined: if one of them had read another's move of the round.
    """
    for _, group in groupby(zip(play.decisions, play.trajectory.turns, strict=True), key=lambda pair: pair[0].nth):
        decisions, turns = zip(*group, strict=True)
        ids = [turn.id for turn in turns]
        if any(reader in ids for turn in ids for reader in play.trajectory.readers(turn, INFORMATION)):
            raise Undefined("agents that speak one after the other have no table of joint moves")
        yield tuple(d.situation for d in decisions), tuple(d.cell.move or "" for d in decisions)


def _rounds(game: EnumeratedGame) -> dict[Hashable, tuple[Payoffs, Payoffs]]:
    """Return situations of a round -> mean return of each joint move, and its probability. Legal moves only."""
    chances: dict[Hashable, dict[JointMove, float]] = defaultdict(lambda: defaultdict(float))
    totals: dict[Hashable, dict[JointMove, float]] = defaultdict(lambda: defaultdict(float))
    for play in game.plays:
        for key, joint in _joint_moves(play):
            if all(joint) and len(joint) == len(game.agents):
                chances[key][joint] += play.chance
                totals[key][joint] += play.chance * play.team_return
    means = {key: {joint: totals[key][joint] / chance for joint, chance in chances[key].items()} for key in chances}
    return {key: (means[key], dict(chances[key])) for key in chances}


def _axes(payoffs: Payoffs) -> list[list[str]]:
    """Return each agent's moves."""
    return [sorted(set(moves)) for moves in zip(*payoffs, strict=True)]


def additive(payoffs: Payoffs, chances: Payoffs) -> dict[JointMove, float]:
    """Return the sum of one number for each agent's move that is closest: least squares, weighted by `chances`."""
    joints = list(payoffs)
    columns = [(agent, move) for agent, axis in enumerate(_axes(payoffs)) for move in axis]
    design = np.array([[float(joint[agent] == move) for agent, move in columns] for joint in joints])
    root = np.sqrt([chances[joint] for joint in joints])
    goal = np.array([payoffs[joint] for joint in joints])
    solution, *_ = np.linalg.lstsq(design * root[:, None], goal * root, rcond=None)
    return dict(zip(joints, (design @ solution).tolist(), strict=True))


def monotone(payoffs: Payoffs, chances: Payoffs) -> dict[JointMove, float]:
    """Return the closest table, by least squares weighted with `chances`, that rises with every agent's move, once
    these are put in the best order: the best that a monotonic mix of utilities can say, with any mixer.

    Every order is tried; for each, isotonic regression by its max-min formula (Robertson, Wright and Dykstra 1988).
    """
    joints, axes = list(payoffs), _axes(payoffs)
    shape = tuple(map(len, axes))
    uppers = list(_upper_sets(shape))
    best, least = dict(payoffs), float("inf")
    for orders in product(*(permutations(axis) for axis in axes)):
        places = [tuple(order.index(m) for order, m in zip(orders, joint, strict=True)) for joint in joints]
        goal, weight = np.zeros(shape), np.zeros(shape)
        for joint, place in zip(joints, places, strict=True):
            goal[place], weight[place] = payoffs[joint], chances[joint]
        approximation = _isotonic(goal, weight, uppers)
        error = float((weight * (goal - approximation) ** 2).sum())
        if error < least - 1e-12:
            best, least = {j: float(approximation[p]) for j, p in zip(joints, places, strict=True)}, error
    return best


def _upper_sets(shape: Sequence[int]) -> Iterator[np.ndarray]:
    """Yield every set of cells that holds, with a cell, all that are greater: boolean arrays of this shape."""
    if not shape:
        yield from (np.array(False), np.array(True))
        return
    slices = list(_upper_sets(shape[1:]))

    def stacked(below: list[np.ndarray]) -> Iterator[np.ndarray]:
        if len(below) == shape[0]:
            yield np.stack(below)
            return
        for one in slices:
            if not below or bool((one | ~below[-1]).all()):
                yield from stacked([*below, one])

    yield from stacked([])


def _isotonic(goal: np.ndarray, weight: np.ndarray, uppers: Sequence[np.ndarray]) -> np.ndarray:
    """Return f(x): max over upper sets U with x, min over lower sets L with x, of the weighted mean of U and L."""
    inside = np.stack([upper.ravel() for upper in uppers])
    sums = (inside[:, None, :] & ~inside[None, :, :]) @ np.stack([(goal * weight).ravel(), weight.ravel()], 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        means = sums[..., 0] / sums[..., 1]
    cells = [means[inside[:, cell]][:, ~inside[:, cell]] for cell in range(goal.size)]
    return np.array([np.nanmax(np.nanmin(cell, axis=1)) for cell in cells]).reshape(goal.shape)


def marginals(payoffs: Payoffs, chances: Payoffs, joint: JointMove) -> list[float]:
    """Return for each agent the joint move's figure, minus its mean over what this agent could have done instead."""
    differences = []
    for agent in range(len(joint)):
        alternatives = [j for j in payoffs if j[:agent] + j[agent + 1 :] == joint[:agent] + joint[agent + 1 :]]
        odds = [sum(chance for j, chance in chances.items() if j[agent] == other[agent]) for other in alternatives]
        mean = sum(o * payoffs[j] for o, j in zip(odds, alternatives, strict=True)) / sum(odds)
        differences.append(payoffs[joint] - mean)
    return differences
