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

from marl.commands.credit_check.enumeration import CreditPerTurn, EnumeratedGame, Move, MoveHistory, Playthrough
from marl.core.types import EdgeKind
from marl.credit.assign.edges import INFORMATION
from marl.evaluation.game_tree import InformationState

Estimand = Callable[[EnumeratedGame, Playthrough], CreditPerTurn]
"""Function that computes the expected credit of every turn of a play, from the enumerated game of the play."""
SubstitutePolicy = Callable[[InformationState], Mapping[Move, float]]
"""Policy of an absent agent: a function that maps an information state to move -> probability."""
JointMove = tuple[str, ...]
"""One move for each agent."""
Payoffs = Mapping[JointMove, float]
"""Joint move -> payoff or probability; every combination of the agents' moves has an entry."""
MixerFit = Callable[[Payoffs, Payoffs], Mapping[JointMove, float]]
"""Function of payoffs and probabilities that returns a value-decomposition mixer's approximation of the payoffs."""


class UndefinedEstimandError(ValueError):
    """Raised by an estimand that is not defined in a game, for instance because it has several solutions."""


def team_return_per_turn(_game: EnumeratedGame, play: Playthrough) -> CreditPerTurn:
    """Return the team's return as the credit of every turn of the play."""
    return [play.team_return] * len(play.decisions)


def exact_advantages(game: EnumeratedGame, play: Playthrough) -> CreditPerTurn:
    """Return the exact sequential advantage Q(h, a) - V(h) of each turn of the play."""
    return [game.advantage(decision.cell) for decision in play.decisions]


def returns_minus_values(game: EnumeratedGame, play: Playthrough) -> CreditPerTurn:
    """Return, for each turn, the team's return in this play minus its expectation before the turn."""
    return [play.team_return - game.history_value(decision.cell.history) for decision in play.decisions]


def team_return_at_last_turn(_game: EnumeratedGame, play: Playthrough) -> CreditPerTurn:
    """Return the team's return as the credit of the play's last turn, and 0 for all other turns."""
    return [0.0] * (len(play.decisions) - 1) + [play.team_return]


def reward_flow_estimand(decay: float, edge_kinds: Collection[EdgeKind] = INFORMATION) -> Estimand:
    """Return the estimand c that solves c = r + decay * P c, where r holds the reward of each turn.

    P[u, v] is 1 / (number of turns that v read) if turn v read turn u over an edge of a kind in `edge_kinds`, else 0.
    """

    def reward_flow_credit_per_turn(_game: EnumeratedGame, play: Playthrough) -> CreditPerTurn:
        turns = [turn.id for turn in play.trajectory.turns]
        rewards = np.zeros(len(turns))
        passed = np.zeros((len(turns), len(turns)))
        for index, turn in enumerate(turns):
            rewards[index] = sum(reward.value for reward in play.trajectory.rewards if reward.turn == turn)
            sources = play.trajectory.sources(turn, edge_kinds)
            for source in sources:
                passed[turns.index(source), index] = 1 / len(sources)
        return np.linalg.solve(np.eye(len(turns)) - decay * passed, rewards).tolist()

    return reward_flow_credit_per_turn


def discounted_share_estimand(discount: float) -> Estimand:
    """Return the estimand that gives every agent an equal share of the team's return.

    An agent's turns divide its share in proportion to `discount` ** (number of the agent's later turns).
    """

    def discounted_share_credit_per_turn(_game: EnumeratedGame, play: Playthrough) -> CreditPerTurn:
        counts = {decision.situation.agent: decision.earlier_turns + 1 for decision in play.decisions}
        credit = []
        for decision in play.decisions:
            count = counts[decision.situation.agent]
            weights = [discount ** (count - 1 - nth) for nth in range(count)]
            credit.append(weights[decision.earlier_turns] * play.team_return / len(counts) / sum(weights))
        return credit

    return discounted_share_credit_per_turn


# --- estimands of counterfactual rules --------------------------------------------------------------------------------


def fixed_move_policy(move_by_agent: Mapping[str, str]) -> SubstitutePolicy:
    """Return the policy in which each agent always makes its move in `move_by_agent` (agent -> move)."""
    return lambda situation: {move_by_agent[situation.agent]: 1.0}


def _expected_return_without(
    game: EnumeratedGame, play: Playthrough, absent_agents: Collection[str], substitute: SubstitutePolicy
) -> float:
    """Return the team's expected return if `substitute` makes all decisions of the `absent_agents` agents."""
    return _expected_return_if_replaced(
        game, play, play.initial_history, lambda state, _: state.agent in absent_agents, substitute
    )


def _expected_return_if_replaced(
    game: EnumeratedGame,
    play: Playthrough,
    history: MoveHistory,
    is_replaced: Callable[[InformationState, int], bool],
    substitute: SubstitutePolicy,
) -> float:
    """Return the team's expected return after `history` if `substitute` makes some decisions of `play`.

    `is_replaced` selects these decisions, by information state and number of the agent's earlier turns. Every other
    decision repeats the move of `play`, or follows the agents' policies in states that `play` does not contain.
    """
    recorded = {(decision.situation, decision.earlier_turns): decision.cell.move for decision in play.decisions}

    def probabilities_with_replacement(situation: InformationState, earlier_turns: int) -> Mapping[Move, float]:
        if is_replaced(situation, earlier_turns):
            return substitute(situation)
        if (situation, earlier_turns) in recorded:
            return {recorded[situation, earlier_turns]: 1.0}
        return game.probability_by_move(situation)

    return game.expected_return(probabilities_with_replacement, history)


def shapley_values(agents: Collection[str], coalition_value: Callable[[frozenset[str]], float]) -> dict[str, float]:
    """Return agent -> marginal contribution, averaged over all orders in which `agents` join (Shapley 1953).

    Args:
        agents: players of the coalition game.
        coalition_value: function that returns the value of a coalition.
    """
    totals = dict.fromkeys(agents, 0.0)
    coalition_value = cache(coalition_value)
    for order in permutations(agents):
        present = frozenset[str]()
        for agent in order:
            totals[agent] += coalition_value(present | {agent}) - coalition_value(present)
            present |= {agent}
    return {agent: total / factorial(len(totals)) for agent, total in totals.items()}


def shapley_estimand(substitute: SubstitutePolicy) -> Estimand:
    """Return the estimand that gives each turn its agent's Shapley value; `substitute` acts for absent agents."""

    def shapley_credit_per_turn(game: EnumeratedGame, play: Playthrough) -> CreditPerTurn:
        agents = frozenset(game.agents)
        values = shapley_values(
            game.agents, lambda present: _expected_return_without(game, play, agents - present, substitute)
        )
        return [values[decision.situation.agent] for decision in play.decisions]

    return shapley_credit_per_turn


def leave_one_out_estimand(substitute: SubstitutePolicy) -> Estimand:
    """Return the estimand: the team's return minus its expectation if `substitute` acts for the turn's agent."""

    def leave_one_out_credit_per_turn(game: EnumeratedGame, play: Playthrough) -> CreditPerTurn:
        losses = {
            agent: play.team_return - _expected_return_without(game, play, {agent}, substitute) for agent in game.agents
        }
        return [losses[decision.situation.agent] for decision in play.decisions]

    return leave_one_out_credit_per_turn


def difference_reward_estimand(substitute: SubstitutePolicy | None) -> Estimand:
    """Return the estimand: the team's return minus its expectation if `substitute` made the decision of the turn.

    With `substitute` None the agent's own policy samples the move again.
    """

    def difference_reward_credit_per_turn(game: EnumeratedGame, play: Playthrough) -> CreditPerTurn:
        credit = []
        for decision in play.decisions:
            turn, history = (decision.situation, decision.earlier_turns), decision.cell.history
            expected = _expected_return_if_replaced(
                game, play, history, lambda *other, turn=turn: other == turn, substitute or game.probability_by_move
            )
            credit.append(play.team_return - expected)
        return credit

    return difference_reward_credit_per_turn


def coma_advantages(game: EnumeratedGame, play: Playthrough) -> CreditPerTurn:
    """Return COMA's advantage Q(s, a) - sum over a' of pi(a') Q(s, (a_-i, a')) of each turn of the play.

    Q is the expected return after the moves of a full round. Only the agent's own move is replaced: agents that read
    the move keep their own moves.
    """
    credit: list[float] = []
    for _, group in groupby(play.decisions, key=lambda decision: decision.earlier_turns):
        decisions = list(group)
        before, moves = decisions[0].cell.history, [decision.cell.move for decision in decisions]
        for index, decision in enumerate(decisions):
            policy = game.strategy[decision.situation]
            values: dict[Move, float] = {}
            for move in policy:
                joint = (*before.moves, *moves[:index], move, *moves[index + 1 :])
                values[move] = game.history_value(MoveHistory(before.start, joint))
            mean = sum(chance * values[move] for move, chance in policy.items()) / sum(policy.values())
            # An illegal answer has no Q-value, and COMA gives it no credit.
            credit.append(values[decision.cell.move] - mean if decision.cell.move else 0.0)
    return credit


# --- estimands of value decomposition ---------------------------------------------------------------------------------


def value_decomposition_estimand(fit_payoffs: MixerFit) -> Estimand:
    """Return the estimand of a mixer: each agent's marginal payoff in its round, from mean returns fitted by
    `fit_payoffs`.

    The estimand raises UndefinedEstimandError if agents of one round do not move at once: the fit then has several
    solutions.
    """

    def value_decomposition_credit_per_turn(game: EnumeratedGame, play: Playthrough) -> CreditPerTurn:
        credit: list[float] = []
        for situations, joint in _joint_moves_per_round(play):
            # Rounds with an illegal answer are in no payoff table, and get credit 0.
            credit += _marginal_payoffs_by_joint_move(game, fit_payoffs).get((situations, joint)) or [0.0] * len(joint)
        return credit

    return value_decomposition_credit_per_turn


@cache
def _marginal_payoffs_by_joint_move(
    game: EnumeratedGame, fit_payoffs: MixerFit
) -> dict[tuple[Hashable, JointMove], list[float]]:
    """Return (information states of a round, joint move) -> each agent's marginal payoff, from fitted mean returns.

    Only rounds in which all agents move legally count.
    """
    chances: dict[Hashable, dict[JointMove, float]] = defaultdict(lambda: defaultdict(float))
    totals: dict[Hashable, dict[JointMove, float]] = defaultdict(lambda: defaultdict(float))
    for play in game.plays:
        for situations, joint in _joint_moves_per_round(play):
            if all(joint) and len(joint) == len(game.agents):
                chances[situations][joint] += play.probability
                totals[situations][joint] += play.probability * play.team_return
    credit: dict[tuple[Hashable, JointMove], list[float]] = {}
    for situations, round_chances in chances.items():
        payoffs = {joint: totals[situations][joint] / chance for joint, chance in round_chances.items()}
        fitted = fit_payoffs(payoffs, round_chances)
        for joint in payoffs:
            credit[situations, joint] = marginal_payoffs(fitted, round_chances, joint)
    return credit


def _joint_moves_per_round(play: Playthrough) -> Iterator[tuple[Hashable, JointMove]]:
    """Yield, for each round of `play`, the information states and the joint move of the agents.

    Raises:
        UndefinedEstimandError: if an agent had read another agent's move of the same round.
    """
    for _, group in groupby(
        zip(play.decisions, play.trajectory.turns, strict=True), key=lambda pair: pair[0].earlier_turns
    ):
        decisions, turns = zip(*group, strict=True)
        ids = {turn.id for turn in turns}
        for turn in turns:
            if not ids.isdisjoint(play.trajectory.readers(turn.id, INFORMATION)):
                raise UndefinedEstimandError("agents that speak one after the other have no table of joint moves")
        yield tuple(d.situation for d in decisions), tuple(d.cell.move or "" for d in decisions)


def fit_additive_mixer(payoffs: Payoffs, probabilities: Payoffs) -> dict[JointMove, float]:
    """Return VDN's best fit, a sum of one utility for each agent's move: least squares, weighted by `probabilities`."""
    joints = list(payoffs)
    columns = []
    for agent, moves in enumerate(zip(*payoffs, strict=True)):
        for move in sorted(set(moves)):
            columns.append([float(joint[agent] == move) for joint in joints])
    design = np.array(columns).T.copy()
    root = np.sqrt([probabilities[joint] for joint in joints])
    goal = np.array([payoffs[joint] for joint in joints])
    solution, *_ = np.linalg.lstsq(design * root[:, None], goal * root, rcond=None)
    return dict(zip(joints, (design @ solution).tolist(), strict=True))


def fit_monotonic_mixer(payoffs: Payoffs, probabilities: Payoffs) -> dict[JointMove, float]:
    """Return the best fit of any monotonic mixer: least squares, weighted by `probabilities`.

    A monotonic mixer represents exactly the tables that increase along some order of each agent's moves. Every order is
    tried, with isotonic regression by the max-min formula (Robertson, Wright and Dykstra 1988).
    """
    joints, axes = list(payoffs), [sorted(set(moves)) for moves in zip(*payoffs, strict=True)]
    shape = tuple(map(len, axes))
    upper_sets = list(_upper_sets(shape))
    best, smallest_error = dict(payoffs), float("inf")
    for orders in product(*map(permutations, axes)):
        target, weight, cells = np.zeros(shape), np.zeros(shape), {}
        for joint in joints:
            cell = tuple(order.index(move) for order, move in zip(orders, joint, strict=True))
            target[cell], weight[cell], cells[joint] = payoffs[joint], probabilities[joint], cell
        approximation = _isotonic_regression(target, weight, upper_sets)
        error = float((weight * (target - approximation) ** 2).sum())
        # Equally good orders of the agents' moves differ by rounding; keeping the first makes the result reproducible.
        if error < smallest_error - 1e-12:
            best = {joint: float(approximation[cell]) for joint, cell in cells.items()}
            smallest_error = error
    return best


def _upper_sets(shape: Sequence[int]) -> Iterator[np.ndarray]:
    """Yield every upper set of the cells of a table, as a boolean array of `shape`.

    An upper set contains, with each of its cells, every cell that is greater in all coordinates.
    """
    if not shape:
        yield from (np.array(False), np.array(True))
        return
    slices = list(_upper_sets(shape[1:]))

    def upper_sets_beginning_with(chosen_slices: list[np.ndarray]) -> Iterator[np.ndarray]:
        if len(chosen_slices) == shape[0]:
            yield np.stack(chosen_slices)
            return
        for upper_set in slices:
            # In an upper set, each slice along the first dimension must contain the slice before it.
            if not chosen_slices or bool((upper_set | ~chosen_slices[-1]).all()):
                yield from upper_sets_beginning_with([*chosen_slices, upper_set])

    yield from upper_sets_beginning_with([])


def _isotonic_regression(target: np.ndarray, weight: np.ndarray, upper_sets: Sequence[np.ndarray]) -> np.ndarray:
    """Return f(x) = max over upper sets U with x, min over lower sets L with x, of the weighted mean on U and L."""
    inside = np.stack([*map(np.ravel, upper_sets)])
    sums = (inside[:, None, :] & ~inside[None, :, :]) @ np.stack([(target * weight).ravel(), weight.ravel()], 1)
    # An upper and a lower set without common cells have no mean: NaN, which nanmin and nanmax skip.
    with np.errstate(divide="ignore", invalid="ignore"):
        means = sums[..., 0] / sums[..., 1]
    fitted = []
    for cell in range(target.size):
        candidates = means[inside[:, cell]][:, ~inside[:, cell]]
        fitted.append(np.nanmax(np.nanmin(candidates, axis=1)))
    return np.array(fitted).reshape(target.shape)


def marginal_payoffs(payoffs: Payoffs, probabilities: Payoffs, joint_move: JointMove) -> list[float]:
    """Return, for each agent, the payoff of `joint_move` minus its mean over the agent's moves with others' moves
    fixed."""
    differences = []
    for agent in range(len(joint_move)):
        move_chances, terms = [], []
        for other, payoff in payoffs.items():
            if other[:agent] + other[agent + 1 :] != joint_move[:agent] + joint_move[agent + 1 :]:
                continue
            # The weight of a move is its marginal probability, since agents move independently.
            move_chance = sum(chance for moves, chance in probabilities.items() if moves[agent] == other[agent])
            move_chances.append(move_chance)
            terms.append(move_chance * payoff)
        differences.append(payoffs[joint_move] - sum(terms) / sum(move_chances))
    return differences
