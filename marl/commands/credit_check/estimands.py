"""Exact estimands of credit rules, computed from the enumerated game and not by the code of the rules.

The estimand of a rule is the credit of every turn of a play, in expectation over the rule's own random numbers. The
team's return is the mean return of its agents.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby, permutations, product
from math import factorial

import numpy as np

from marl.commands.credit_check.enumeration import Decision, EnumeratedGame, History, Move, PerTurn, Playthrough
from marl.core.types import EdgeKind
from marl.credit.assign.edges import INFORMATION
from marl.evaluation.game_tree import InformationState

Estimand = Callable[[EnumeratedGame, Playthrough], PerTurn]
Substitute = Callable[[InformationState], Mapping[Move, float]]
"""Policy of an absent agent: `EnumeratedGame.policy` for its own policy, `always` for a fixed move."""
JointMove = tuple[str, ...]
"""One move for each agent."""
Payoffs = Mapping[JointMove, float]
"""Joint move -> number; every combination of the agents' moves has an entry."""
Fit = Callable[[Payoffs, Payoffs], Mapping[JointMove, float]]
"""(payoffs, chances) -> approximation of the payoffs."""


class UndefinedEstimand(ValueError):  # noqa: N818 (a result, not an error of the program)
    """Raised by an estimand that is not defined in a game, for instance because it has several solutions."""


def returns(_: EnumeratedGame, play: Playthrough) -> PerTurn:
    """Return the team's return, for every turn."""
    return [play.team_return] * len(play.decisions)


def advantage(game: EnumeratedGame, play: Playthrough) -> PerTurn:
    """Return the exact sequential advantage Q(h, a) - V(h)."""
    return [game.advantage(decision.cell) for decision in play.decisions]


def siblings(game: EnumeratedGame, play: Playthrough) -> PerTurn:
    """Return, for each turn, the team's return minus its expectation before the turn."""
    return [play.team_return - game.value(decision.cell.history) for decision in play.decisions]


def last(_: EnumeratedGame, play: Playthrough) -> PerTurn:
    """Return the team's return, for the last turn alone."""
    return [0.0] * (len(play.decisions) - 1) + [play.team_return]


def flow(decay: float, along: Collection[EdgeKind] = INFORMATION) -> Estimand:
    """Return the solution c of c = r + decay * P c, with P[u, v] = 1 / (number of turns that v read) if v read u."""

    def per_turn(_: EnumeratedGame, play: Playthrough) -> PerTurn:
        turns = [turn.id for turn in play.trajectory.turns]
        rewards = [sum(reward.value for reward in play.trajectory.rewards if reward.turn == turn) for turn in turns]
        passed = np.zeros((len(turns), len(turns)))
        for reader, turn in enumerate(turns):
            sources = play.trajectory.sources(turn, along)
            for source in sources:
                passed[turns.index(source), reader] = 1 / len(sources)
        return np.linalg.solve(np.eye(len(turns)) - decay * passed, np.array(rewards)).tolist()

    return per_turn


def shares(discount: float) -> Estimand:
    """Return equal shares of the team's return for its agents.

    An agent's turns divide its share in proportion to `discount` ** (number of the agent's later turns).
    """

    def per_turn(_: EnumeratedGame, play: Playthrough) -> PerTurn:
        counts = {decision.situation.agent: decision.nth + 1 for decision in play.decisions}
        credit = []
        for decision in play.decisions:
            count = counts[decision.situation.agent]
            weights = [discount ** (count - 1 - nth) for nth in range(count)]
            credit.append(weights[decision.nth] * play.team_return / len(counts) / sum(weights))
        return credit

    return per_turn


# --- counterfactuals --------------------------------------------------------------------------------------------------


def always(moves: Mapping[str, str]) -> Substitute:
    """Return the substitute in which each agent always makes its move in `moves`."""
    return lambda situation: {moves[situation.agent]: 1.0}


def _without(game: EnumeratedGame, play: Playthrough, absent: Collection[str], substitute: Substitute) -> float:
    """Return the team's expected return if `substitute` makes all decisions of the `absent` agents."""
    return _replayed(game, play, play.first, lambda situation, _: situation.agent in absent, substitute)


def _replayed(
    game: EnumeratedGame,
    play: Playthrough,
    history: History,
    replaced: Callable[[InformationState, int], bool],
    substitute: Substitute,
) -> float:
    """Return the team's expected return after `history` if `substitute` makes the `replaced` decisions.

    Every other decision repeats the move of `play` in the same information state, or follows the agents' policies in
    states that `play` does not contain.
    """
    recorded = {(decision.situation, decision.nth): decision.cell.move for decision in play.decisions}

    def decide(situation: InformationState, nth: int) -> Mapping[Move, float]:
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
    """Return for each turn its agent's Shapley value in the game of coalitions of present agents."""

    def per_turn(game: EnumeratedGame, play: Playthrough) -> PerTurn:
        values = shapley(game.agents, lambda present: _without(game, play, {*game.agents} - present, substitute))
        return [values[decision.situation.agent] for decision in play.decisions]

    return per_turn


def leave_one_out(substitute: Substitute) -> Estimand:
    """Return for each turn the team's return minus its expectation if the turn's agent alone is absent."""

    def per_turn(game: EnumeratedGame, play: Playthrough) -> PerTurn:
        losses = {agent: play.team_return - _without(game, play, {agent}, substitute) for agent in game.agents}
        return [losses[decision.situation.agent] for decision in play.decisions]

    return per_turn


def difference(substitute: Substitute | None) -> Estimand:
    """Return for each turn the team's return minus its expectation if `substitute` made this turn's decision.

    `substitute` None stands for the agent's own policy, which samples the move again.
    """

    def expected(game: EnumeratedGame, play: Playthrough, decision: Decision) -> float:
        turn = decision.situation, decision.nth
        return _replayed(game, play, decision.cell.history, lambda *other: other == turn, substitute or game.policy)

    return lambda game, play: [play.team_return - expected(game, play, decision) for decision in play.decisions]


def coma(game: EnumeratedGame, play: Playthrough) -> PerTurn:
    """Return COMA's advantage Q(s, a) - sum over a' of pi(a') Q(s, (a_-i, a')).

    Q is the expected return after the moves of a full round. Only the agent's own move is replaced: agents that read it
    keep their moves.
    """
    credit: list[float] = []
    for _, group in groupby(play.decisions, key=lambda decision: decision.nth):
        decisions = list(group)
        before, moves = decisions[0].cell.history, [decision.cell.move for decision in decisions]
        for index, decision in enumerate(decisions):
            policy = game.strategy[decision.situation]
            values: dict[Move, float] = {}
            for move in policy:
                joint = (*before.moves, *moves[:index], move, *moves[index + 1 :])
                values[move] = game.value(History(before.start, joint))
            mean = sum(chance * values[move] for move, chance in policy.items()) / sum(policy.values())
            # An illegal answer has no Q-value: the rule gives it no credit.
            credit.append(values[decision.cell.move] - mean if decision.cell.move else 0.0)
    return credit


# --- value decomposition ----------------------------------------------------------------------------------------------


def value_decomposition(fit: Fit) -> Estimand:
    """Return the estimand of a mixer: the marginals of each move in the round's payoffs, as approximated by `fit`.

    The estimand raises UndefinedEstimand if agents of one round do not move at once: the fit then has several
    solutions.
    """

    def per_turn(game: EnumeratedGame, play: Playthrough) -> PerTurn:
        credit: list[float] = []
        for key, joint in _joint_moves(play):
            # Rounds with an illegal answer are in no table and get no credit.
            credit += _marginals(game, fit).get((key, joint)) or [0.0] * len(joint)
        return credit

    return per_turn


@cache
def _marginals(game: EnumeratedGame, fit: Fit) -> dict[tuple[Hashable, JointMove], list[float]]:
    """Return (situations of a round, joint move) -> each agent's marginal in the fitted mean returns.

    Only rounds with legal moves of all agents count.
    """
    chances: dict[Hashable, dict[JointMove, float]] = defaultdict(lambda: defaultdict(float))
    totals: dict[Hashable, dict[JointMove, float]] = defaultdict(lambda: defaultdict(float))
    for play in game.plays:
        for key, joint in _joint_moves(play):
            if all(joint) and len(joint) == len(game.agents):
                chances[key][joint] += play.chance
                totals[key][joint] += play.chance * play.team_return
    credit: dict[tuple[Hashable, JointMove], list[float]] = {}
    for key, round_chances in chances.items():
        payoffs = {joint: totals[key][joint] / chance for joint, chance in round_chances.items()}
        fitted = fit(payoffs, round_chances)
        for joint in payoffs:
            credit[key, joint] = marginals(fitted, round_chances, joint)
    return credit


def _joint_moves(play: Playthrough) -> Iterator[tuple[Hashable, JointMove]]:
    """Yield the agents' information states and the joint move of each round.

    Raises:
        UndefinedEstimand: if an agent had read another agent's move of the same round.
    """
    for _, group in groupby(zip(play.decisions, play.trajectory.turns, strict=True), key=lambda pair: pair[0].nth):
        decisions, turns = zip(*group, strict=True)
        ids = {turn.id for turn in turns}
        for turn in turns:
            if not ids.isdisjoint(play.trajectory.readers(turn.id, INFORMATION)):
                raise UndefinedEstimand("agents that speak one after the other have no table of joint moves")
        yield tuple(d.situation for d in decisions), tuple(d.cell.move or "" for d in decisions)


def _axes(payoffs: Payoffs) -> list[list[str]]:
    """Return the sorted moves of each agent."""
    return [sorted(set(moves)) for moves in zip(*payoffs, strict=True)]


def additive(payoffs: Payoffs, chances: Payoffs) -> dict[JointMove, float]:
    """Return VDN's best fit, a sum of one utility for each agent's move: least squares, weighted by `chances`."""
    joints = list(payoffs)
    columns = []
    for agent, moves in enumerate(_axes(payoffs)):
        for move in moves:
            columns.append([float(joint[agent] == move) for joint in joints])
    design = np.array(columns).T.copy()
    root = np.sqrt([chances[joint] for joint in joints])
    goal = np.array([payoffs[joint] for joint in joints])
    solution, *_ = np.linalg.lstsq(design * root[:, None], goal * root, rcond=None)
    return dict(zip(joints, (design @ solution).tolist(), strict=True))


def monotone(payoffs: Payoffs, chances: Payoffs) -> dict[JointMove, float]:
    """Return the best fit of any monotonic mixer: least squares, weighted by `chances`.

    A monotonic mixer represents exactly the tables that increase along some order of each agent's moves. Every order is
    tried, with isotonic regression by the max-min formula (Robertson, Wright and Dykstra 1988).
    """
    joints, axes = list(payoffs), _axes(payoffs)
    shape = tuple(map(len, axes))
    uppers = list(_upper_sets(shape))
    best, smallest_error = dict(payoffs), float("inf")
    for orders in product(*map(permutations, axes)):
        target, weight, cells = np.zeros(shape), np.zeros(shape), {}
        for joint in joints:
            cell = tuple(order.index(move) for order, move in zip(orders, joint, strict=True))
            target[cell], weight[cell], cells[joint] = payoffs[joint], chances[joint], cell
        approximation = _isotonic(target, weight, uppers)
        error = float((weight * (target - approximation) ** 2).sum())
        # Orders with equal errors differ by rounding; the first one stays, so that the result is reproducible.
        if error < smallest_error - 1e-12:
            best = {joint: float(approximation[cell]) for joint, cell in cells.items()}
            smallest_error = error
    return best


def _upper_sets(shape: Sequence[int]) -> Iterator[np.ndarray]:
    """Yield every upper set of the cells of a table, as a boolean array of `shape`.

    An upper set that contains a cell contains every greater cell.
    """
    if not shape:
        yield from (np.array(False), np.array(True))
        return
    slices = list(_upper_sets(shape[1:]))

    def stacked(lower_slices: list[np.ndarray]) -> Iterator[np.ndarray]:
        if len(lower_slices) == shape[0]:
            yield np.stack(lower_slices)
            return
        for upper_set in slices:
            if not lower_slices or bool((upper_set | ~lower_slices[-1]).all()):
                yield from stacked([*lower_slices, upper_set])

    yield from stacked([])


def _isotonic(target: np.ndarray, weight: np.ndarray, uppers: Sequence[np.ndarray]) -> np.ndarray:
    """Return f(x) = max over upper sets U with x, min over lower sets L with x, of the weighted mean on U and L."""
    inside = np.stack([upper.ravel() for upper in uppers])
    sums = (inside[:, None, :] & ~inside[None, :, :]) @ np.stack([(target * weight).ravel(), weight.ravel()], 1)
    # An empty intersection of U and L has no mean: NaN, which nanmin and nanmax skip.
    with np.errstate(divide="ignore", invalid="ignore"):
        means = sums[..., 0] / sums[..., 1]
    fitted = []
    for cell in range(target.size):
        candidates = means[inside[:, cell]][:, ~inside[:, cell]]
        fitted.append(np.nanmax(np.nanmin(candidates, axis=1)))
    return np.array(fitted).reshape(target.shape)


def marginals(payoffs: Payoffs, chances: Payoffs, joint: JointMove) -> list[float]:
    """Return for each agent the payoff of `joint`, minus its mean over the agent's own moves."""
    differences = []
    for agent in range(len(joint)):
        move_chances, terms = [], []
        for other, payoff in payoffs.items():
            if other[:agent] + other[agent + 1 :] != joint[:agent] + joint[agent + 1 :]:
                continue
            # The weight of a move is its own probability, whatever the other agents do.
            move_chance = sum(chance for moves, chance in chances.items() if moves[agent] == other[agent])
            move_chances.append(move_chance)
            terms.append(move_chance * payoff)
        differences.append(payoffs[joint] - sum(terms) / sum(move_chances))
    return differences
