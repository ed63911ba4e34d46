"""Enumerated values against numbers from papers, from hand and from brute force by another way."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from marl.commands.credit_check import estimands, peer_estimands
from marl.commands.credit_check.enumeration import (
    EnumeratedGame,
    HistoryAndMove,
    MoveHistory,
    history_and_move_per_turn,
)
from marl.commands.credit_check.estimands import (
    fit_additive_mixer,
    fit_monotonic_mixer,
    fixed_move_policy,
    marginal_payoffs,
    shapley_values,
)
from marl.commands.credit_check.measure import (
    TASKS,
    build_run_and_enumerated_game,
    correlation_with_exact_advantages,
    weighted_pearson_correlation,
    weighted_spearman_correlation,
)
from marl.credit.assign.gae import EpisodeValues
from marl.credit.assign.graph_gae import GraphGae
from marl.credit.assign.teams import CreditTeam
from marl.evaluation.game_tree import InformationState, build_game_tree, expected_returns
from marl.games.base import IllegalMoveHandling
from marl.games.hint import HintConfig
from marl.games.layered_hint import LayeredHintConfig
from marl.games.matrix_games import CoalitionConfig, MatrixConfig, TwoStepConfig
from marl.games.stopping import StoppingConfig
from marl.protocols import Evidence
from tests.support.enumerated_games import CASTING, enumerate_game, find_play

SKEWED = {"red": {"one": 0.8, "two": 0.2}, "green": {"one": 0.3, "two": 0.7}, "one": {"red": 0.9, "green": 0.1}}
"""Policies of the hint game; the guesser does not know the meaning of `two`."""


@pytest.mark.parametrize(
    ("table", "known"), [("and", 0.83), ("qmix_2b", 0.94), ("climbing", 0.77), ("matching", 0.71), ("additive", 1.0)]
)
def test_exact_shapley_correlates_with_the_sequential_advantage_as_much_as_it_can(table: str, known: float) -> None:
    """GROUND_TRUTHS: uniform play; who is absent plays its policy."""
    uniform = enumerate_game(MatrixConfig(table=table))
    exact_shapley = estimands.shapley_estimand(uniform.probability_by_move)
    assert correlation_with_exact_advantages(uniform, exact_shapley) == pytest.approx(known, abs=0.005)


def test_coma_is_that_of_the_table() -> None:
    """GROUND_TRUTHS, on [[0, 1], [1, 8]] with uniform policies."""
    uniform = enumerate_game(MatrixConfig(table="qmix_2b"))
    known = {"aa": (-0.5, -0.5), "ab": (-3.5, 0.5), "ba": (0.5, -3.5), "bb": (3.5, 3.5)}
    for estimand in (estimands.coma_advantages, estimands.difference_reward_estimand(None)):
        for moves, credit in known.items():
            assert estimand(uniform, find_play(uniform, *moves)) == pytest.approx(credit)
    for agent, other in ((0, "a"), (0, "b"), (1, "a"), (1, "b")):
        joints = [(move, other) if agent == 0 else (other, move) for move in "ab"]
        assert sum(known["".join(joint)][agent] for joint in joints) == 0


def test_advantages_of_the_hint_game_are_those_found_by_hand() -> None:
    skewed = enumerate_game(HintConfig(), SKEWED)
    red, green = MoveHistory("red"), MoveHistory("green")
    # Told `one`, the guesser says red with 0.9; told `two`, with 0.5.
    assert skewed.history_value(red) == pytest.approx(0.8 * 0.9 + 0.2 * 0.5)
    assert skewed.history_value(green) == pytest.approx(0.3 * 0.1 + 0.7 * 0.5)
    assert skewed.advantage(HistoryAndMove(red, "one")) == pytest.approx(0.9 - 0.82)
    assert skewed.advantage(HistoryAndMove(green, "two")) == pytest.approx(0.5 - 0.38)
    assert skewed.advantage(HistoryAndMove(HistoryAndMove(red, "one").history_after_move, "green")) == pytest.approx(
        -0.9
    )
    assert skewed.reach_probability(
        HistoryAndMove(HistoryAndMove(red, "one").history_after_move, "green")
    ) == pytest.approx(0.5 * 0.8 * 0.1)
    assert sum(play.probability for play in skewed.plays) == pytest.approx(1)
    assert [history_and_move_per_turn(p.trajectory) for p in skewed.plays] == [
        [d.cell for d in p.decisions] for p in skewed.plays
    ]


def test_counterfactuals_of_agents_that_hear_one_another_follow_what_is_heard() -> None:
    skewed = enumerate_game(HintConfig(), SKEWED)
    play = find_play(skewed, "one", "red", start="red")
    nothing = fixed_move_policy({"speaker": "two", "guesser": "green"})
    # Had the speaker said `two`, the guesser would have been asked something else, and guessed anew.
    assert estimands.difference_reward_estimand(nothing)(skewed, play) == pytest.approx([1 - 0.5, 1 - 0])
    assert estimands.leave_one_out_estimand(nothing)(skewed, play) == pytest.approx([1 - 0.5, 1 - 0])
    # v(both) = 1, v(speaker) = 0, v(guesser) = 0.5, v(nobody) = 0.
    assert estimands.shapley_estimand(nothing)(skewed, play) == pytest.approx([0.25, 0.75])
    # COMA keeps the guess: only the guesser's move matters then.
    assert estimands.coma_advantages(skewed, play) == pytest.approx([0, 1 - 0.9])
    assert estimands.returns_minus_values(skewed, play) == pytest.approx([1 - 0.82, 1 - 0.9])


def test_the_first_step_of_the_two_step_game_is_worth_what_the_second_one_is() -> None:
    uniform = enumerate_game(TwoStepConfig())
    start = MoveHistory("two_step")
    assert uniform.history_value(start) == 4.75
    assert uniform.advantage(HistoryAndMove(start, "b")) == 2.5 - 4.75
    assert uniform.advantage(HistoryAndMove(HistoryAndMove(start, "b").history_after_move, "a")) == 0
    second = MoveHistory("two_step", ("b", "a"))
    assert uniform.advantage(HistoryAndMove(second, "b")) == 4.5 - 2.5
    assert uniform.advantage(HistoryAndMove(HistoryAndMove(second, "b").history_after_move, "b")) == 8 - 4.5


def test_values_are_those_that_the_walked_tree_has() -> None:
    for game in (HintConfig(symbols=3), TwoStepConfig(), StoppingConfig(), MatrixConfig(table="climbing")):
        uniform = enumerate_game(game)
        known = expected_returns(uniform.tree, uniform.strategy)
        starts = {play.initial_history for play in uniform.plays}
        weighed = [(sum(p.probability for p in uniform.plays if p.initial_history == s), s) for s in starts]
        assert sum(chance * uniform.history_value(s) for chance, s in weighed) == pytest.approx(
            np.mean(list(known.values()))
        )


def test_moves_of_the_tiny_model_are_as_likely_as_their_texts() -> None:
    [task] = [task for task in TASKS if task.name == "2B"]
    _, game = build_run_and_enumerated_game(task, 2, 0)
    assert sum(play.probability for play in game.plays) == pytest.approx(1)
    legal = [sum(moves.values()) for moves in game.strategy.values()]
    assert min(legal) > 0.999  # at this temperature it says hardly anything but moves
    mass = {move: game.strategy[InformationState("agent_0", "agent_0", 0)][move] for move in "ab"}
    chance = game.reach_probability(HistoryAndMove(MoveHistory("matrix", ("b",)), "b"))
    assert chance == pytest.approx(mass["b"] * game.strategy[InformationState("agent_1", "agent_1", 0)]["b"])


GAMES = {
    "majority": (1 / 3, 1 / 3, 1 / 3),
    "glove": (2 / 3, 1 / 6, 1 / 6),
    "voting": (5 / 12, 1 / 4, 1 / 4, 1 / 12),
    "veto": (2 / 3, 1 / 6, 1 / 6),
    "dummy": (1 / 3, 1 / 3, 1 / 3, 0),
    "airport": (1 / 3, 5 / 6, 11 / 6),
    "additive": (1, 2, 3),
}


@pytest.mark.parametrize("preset", GAMES)
def test_shapley_values_over_all_orders_are_the_published_ones(preset: str) -> None:
    game = CoalitionConfig(preset=preset).build()
    names = list(game.seats)
    shares = shapley_values(names, lambda here: game.value(frozenset(names.index(name) for name in here)))
    assert tuple(shares.values()) == pytest.approx(GAMES[preset])
    uniform = enumerate_game(CoalitionConfig(preset=preset))
    out = fixed_move_policy(dict.fromkeys(names, "out"))
    together = find_play(uniform, *["in"] * len(names))
    assert estimands.shapley_estimand(out)(uniform, together) == pytest.approx(GAMES[preset])


def test_the_best_sum_and_the_best_monotone_mix_are_those_of_ground_truths() -> None:
    def best(preset: str, fit: object) -> tuple[float, float]:
        cells = MatrixConfig(table=preset).build().cells
        table = {(str(i), str(j)): float(cells[i, j]) for i, j in np.ndindex(*cells.shape)}
        fitted = fit(table, dict.fromkeys(table, 1 / len(table)))  # type: ignore[operator]
        error = sum((table[joint] - fitted[joint]) ** 2 for joint in table)
        return table[max(fitted, key=fitted.__getitem__)], error

    assert best("climbing", fit_additive_mixer)[0] == best("climbing", fit_monotonic_mixer)[0] == 5
    assert best("penalty", fit_additive_mixer)[0] == best("penalty", fit_monotonic_mixer)[0] == 2
    assert best("qtran", fit_monotonic_mixer) == (8, pytest.approx(288))
    assert best("qmix_2b", fit_monotonic_mixer) == (8, pytest.approx(0))


def test_vdn_of_state_2b_and_what_a_move_adds_to_it() -> None:
    table = {("a", "a"): 0.0, ("a", "b"): 1.0, ("b", "a"): 1.0, ("b", "b"): 8.0}
    even = dict.fromkeys(table, 0.25)
    fitted = fit_additive_mixer(table, even)
    assert fitted == pytest.approx({("a", "a"): -1.5, ("a", "b"): 2.5, ("b", "a"): 2.5, ("b", "b"): 6.5})
    assert marginal_payoffs(fitted, even, ("b", "a")) == pytest.approx([2, -2])
    # With the true table, a marginal is COMA's advantage.
    assert marginal_payoffs(table, even, ("b", "b")) == [3.5, 3.5]


def test_who_speaks_after_the_other_has_no_table_of_joint_moves() -> None:
    hint = enumerate_game(HintConfig())
    with pytest.raises(estimands.UndefinedEstimandError, match="one after the other"):
        estimands.value_decomposition_estimand(fit_additive_mixer)(hint, hint.plays[0])


def test_flow_is_passed_on_along_what_was_read() -> None:
    skewed = enumerate_game(HintConfig(), SKEWED)
    # Both are paid 1; the guesser had read one turn.
    reward_flow_estimand = estimands.reward_flow_estimand(0.5)(skewed, find_play(skewed, "one", "red", start="red"))
    assert reward_flow_estimand == pytest.approx([1.0, 2.0])


def test_comparisons_subtract_the_mean_of_those_who_are_alike() -> None:
    skewed = enumerate_game(HintConfig(), SKEWED)
    play = find_play(skewed, "one", "red", start="red")
    heard_one = (0.8 * 0.9 + 0.3 * 0.1) / (0.8 + 0.3)
    assert peer_estimands.peer_advantage_estimand("start")(skewed, play) == pytest.approx([1 - 0.82] * 2)
    assert peer_estimands.peer_advantage_estimand("prompt")(skewed, play) == pytest.approx([1 - 0.82, 1 - heard_one])
    assert peer_estimands.peer_advantage_estimand("step")(skewed, play) == pytest.approx([1 - (0.82 + 0.38) / 2] * 2)
    spread = (0.82 * 0.18) ** 0.5
    standard = peer_estimands.peer_advantage_estimand("start", divide_by_std=True)(skewed, play)
    assert standard == pytest.approx([(1 - 0.82) / spread] * 2)
    # Everybody's likeliest answer to `green` is `two`, then red.
    other = find_play(skewed, "two", "green", start="green")
    reddish = enumerate_game(HintConfig(), {**SKEWED, "two": {"red": 0.6, "green": 0.4}})
    assert peer_estimands.return_minus_greedy_return(reddish, other) == [1, 1]
    # lambda = 0: what the next one expects, minus what this one does; then the return.
    assert peer_estimands.chain_gae_estimand(0.0)(skewed, play) == pytest.approx([heard_one - 0.82, 1 - heard_one])
    assert peer_estimands.chain_gae_estimand(1.0)(skewed, play) == pytest.approx([1 - 0.82, 1 - heard_one])


LAYERED = {
    **{"agent_0 red": {"one": 0.8, "two": 0.2}, "agent_0 green": {"one": 0.1, "two": 0.9}},
    **{
        f"agent_{k} {word}": {word: 0.9, other: 0.1} for k in (1, 2) for word, other in (("one", "two"), ("two", "one"))
    },
    **{"agent_3 one one": {"red": 0.9, "green": 0.1}, "agent_3 two two": {"red": 0.2, "green": 0.8}},
    "agent_3 one two": {"red": 0.7, "green": 0.3},
}
"""Policies of one agent, two that read it and one that reads both, who does not know what `two one` means."""


def test_temporal_differences_on_a_fork_and_a_join_are_those_by_hand() -> None:
    game = enumerate_game(LayeredHintConfig(), LAYERED)
    play = find_play(game, "one", "one", "two", "red", start="red")
    values = {
        word: peer_estimands.lambda_return_values(game, 0.0, True)[play.decisions[place].situation]
        for place, word in PLACES
    }
    # P(red | both heard): the joiner's policy; of its prompt, how often that is right.
    told = {"red": 0.8, "green": 0.1}  # chance of `one`
    heard = {symbol: one * 0.9 * 0.1 + (1 - one) * 0.1 * 0.9 for symbol, one in told.items()}
    joined = (heard["red"] * 0.7 + heard["green"] * 0.3) / (heard["red"] + heard["green"])
    assert values["j"] == pytest.approx(joined)
    differences = peer_estimands.graph_gae_estimand(0.0)(game, play)
    assert differences[3] == pytest.approx(1 - joined)
    assert differences[1] == pytest.approx(joined - values["a"])
    assert differences[0] == pytest.approx((values["a"] + values["b"]) / 2 - values["p"])


PLACES = ((0, "p"), (1, "a"), (2, "b"), (3, "j"))


@pytest.mark.parametrize("lam", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("layers", [(1, 2), (2, 1), (1, 2, 1)])
def test_graph_gae_with_exact_values_is_the_linear_system_of_temporal_differences(
    layers: tuple[int, ...], whole: bool, lam: float
) -> None:
    game = enumerate_game(LayeredHintConfig(layers=layers), LAYERED if len(layers) == 3 else None)
    values, share = peer_estimands.lambda_return_values(game, lam, whole), "whole" if whole else "equal"
    rule = GraphGae(level="turn", lam=lam, share=share)
    for play in game.plays:
        turns, team = play.trajectory.turns, CreditTeam(frozenset(game.agents), 1 / len(game.agents))
        here = {turn.id: (values[d.situation],) for turn, d in zip(turns, play.decisions, strict=True)}
        judged = rule.advantages(
            team, turns, EpisodeValues(play.trajectory, Evidence([play.trajectory], "layered_hint"), here)
        )
        exact = peer_estimands.graph_gae_estimand(lam, full_leaf_returns=whole)(game, play)
        assert [advantage.value for advantage in judged] == pytest.approx(exact, abs=1e-12)


def test_with_lambda_1_graph_gae_is_unbiased_for_what_a_move_adds_to_what_its_agent_could_expect() -> None:
    game = enumerate_game(LayeredHintConfig(), LAYERED)
    credit = game.mean_credit_by_history_and_move(lambda play: peer_estimands.graph_gae_estimand(1.0)(game, play))
    situations = {decision.cell.history: decision.situation for play in game.plays for decision in play.decisions}
    chances, totals = defaultdict[InformationState, float](float), defaultdict[InformationState, float](float)
    for cell in credit:
        chances[situations[cell.history]] += game.reach_probability(cell)
        totals[situations[cell.history]] += game.reach_probability(cell) * game.history_value(cell.history_after_move)
    for cell, value in credit.items():
        prompt = situations[cell.history]
        assert value == pytest.approx(game.history_value(cell.history_after_move) - totals[prompt] / chances[prompt])


def test_a_tree_goes_on_from_the_best_candidate() -> None:
    """agent_0's `b` pays 1, its `a` nothing: the best of two is `b` three times out of four."""
    uniform = enumerate_game(MatrixConfig(table=[[0, 0], [1, 1]]))
    tree = peer_estimands.q_minus_peer_mean_estimand(2)
    assert tree(uniform, find_play(uniform, "b", "a")) == pytest.approx([1 - 0.5, 1 - 0.75])


def test_a_game_that_goes_on_at_random_cannot_be_enumerated() -> None:
    random = HintConfig(illegal=IllegalMoveHandling(then="random"))
    seats = {"speaker": "player", "guesser": "player"}
    tree = build_game_tree(random, CASTING, seats)
    with pytest.raises(ValueError, match="random moves cannot be enumerated"):
        EnumeratedGame(random, CASTING, seats, {situation: {} for situation in tree.requests})


def test_weighted_correlations_are_those_of_repeated_points() -> None:
    x, y, weights = [1.0, 2.0, 4.0, 4.0], [3.0, 1.0, 5.0, 6.0], [1, 2, 3, 1]
    often = np.repeat([x, y], weights, axis=1)
    assert weighted_pearson_correlation(x, y, weights) == pytest.approx(np.corrcoef(often)[0, 1])
    assert weighted_spearman_correlation([1, 10, 100], [0, 1, 5], [1, 1, 1]) == pytest.approx(1)
    assert weighted_spearman_correlation([1, 1, 2], [1, 2, 3], [1, 1, 1]) == pytest.approx(
        np.corrcoef([1.5, 1.5, 3], [1, 2, 3])[0, 1]
    )
    assert weighted_pearson_correlation([1, 1, 1], [1, 2, 3], [1, 1, 1]) is None
