"""Tree search by itself: what it finds in small games, its formulas, and that nothing but the seed decides."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import islice
from types import SimpleNamespace
from typing import Any

import pytest
from open_spiel.python.algorithms.mcts import SearchNode

from marl.games.nim import NimConfig, winning_moves_on_pile
from marl.games.team.settings import TeamConfig
from marl.games.tic_tac_toe import TicTacToeConfig, best_moves, unfinished_boards
from marl.search.evaluators import RolloutOrCriticEvaluator
from marl.search.gumbel import SequentialHalving, completed_q_values, improved_policy, improved_policy_logits
from marl.search.mcts import (
    LeafEvaluation,
    SearchLeaf,
    SearchResult,
    apply_temperature,
    run_searches_in_parallel,
    search,
)
from marl.search.positions import SearchPosition
from marl.search.settings import RootNoise, SearchSettings
from marl.search.tree import TreeNode, ValueRange, backpropagate, select_move_by_puct

UNIFORM: dict[str, Any] = {"prior": "uniform"}
TEAM = {"task": {"kind": "arithmetic"}, "stages": [{"role": "solver"}], "rewards": {"solver": {"said": "1"}}}
ONE_BEST = [board for board in unfinished_boards() if len(best_moves(board)) == 1 and board.count(".") > 1]


def position(board: str) -> SearchPosition:
    game = TicTacToeConfig().build()
    game.reset(0, {"board": board})
    return SearchPosition(game)


def know_nothing(leaves: Sequence[SearchLeaf]) -> list[LeafEvaluation]:
    """Every move is as likely and nothing is worth anything until the game is over."""
    return [LeafEvaluation([1 / len(each.position.moves)] * len(each.position.moves), (0.0, 0.0)) for each in leaves]


def results(boards: Sequence[str], settings: SearchSettings) -> list[SearchResult]:
    return run_searches_in_parallel(
        [search(position(board), settings, random.Random(0)) for board in boards], know_nothing
    )


# --- what it finds ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["puct", "gumbel"])
def test_search_finds_the_only_move_that_wins_or_saves_the_game(rule: Any) -> None:
    boards = [board for board in ONE_BEST if board.count(".") <= 6][::40]
    settings = SearchSettings(**UNIFORM, rule=rule, simulations=400)
    assert [result.chosen_move for result in results(boards, settings)] == [best_moves(board)[0] for board in boards]


@pytest.mark.slow
def test_search_finds_the_only_good_move_in_every_position_that_has_one() -> None:
    wrong = []
    for simulations, boards in (
        (600, [board for board in ONE_BEST if board.count(".") < 6]),
        (4000, [board for board in ONE_BEST if board.count(".") >= 6]),
    ):
        chosen = [result.chosen_move for result in results(boards, SearchSettings(**UNIFORM, simulations=simulations))]
        wrong += [board for board, move in zip(boards, chosen, strict=True) if move != best_moves(board)[0]]
    assert wrong == []


def test_visits_go_over_to_the_minimax_move_as_simulations_grow() -> None:
    shares = []
    for simulations in (100, 1000, 4000):
        (result,) = results(["x........"], SearchSettings(**UNIFORM, simulations=simulations))
        shares.append(result.policy[result.moves.index("5")])
    assert shares == sorted(shares)
    assert shares[-1] > 0.6


def test_every_simulation_is_one_visit() -> None:
    for rule in ("puct", "gumbel"):
        for simulations in (1, 7, 64):
            (result,) = results(["........."], SearchSettings(**UNIFORM, rule=rule, simulations=simulations))
            assert sum(result.visits) == simulations


def test_random_plays_to_the_end_lead_to_the_winning_move_of_nim() -> None:
    settings = SearchSettings(**UNIFORM, simulations=400)
    for pile in (5, 6, 7, 9, 10, 11):
        game = NimConfig(piles=(pile, pile)).build()
        game.reset(0)
        searches = [search(SearchPosition(game), settings, random.Random(0))]
        (result,) = run_searches_in_parallel(searches, RolloutOrCriticEvaluator(settings))
        assert result.chosen_move == winning_moves_on_pile(pile, 3)[0]


# --- formulas --------------------------------------------------------------------------------------------------------


def node(prior: Sequence[float], visits: Sequence[int], mean_values: Sequence[float], value: float) -> TreeNode[None]:
    made = TreeNode(None, 0, list(prior), [value])
    made.visits = list(visits)
    made.totals = [many * mean for many, mean in zip(visits, mean_values, strict=True)]
    return made


def test_puct_is_open_spiels() -> None:
    rng = random.Random(0)
    for _ in range(200):
        prior = apply_temperature([rng.random() for _ in range(5)], 1.0)
        visits, mean_values = [rng.randint(1, 9) for _ in range(5)], [rng.random() for _ in range(5)]
        theirs: list[Any] = [
            SimpleNamespace(outcome=None, explore_count=n, total_reward=n * q, prior=p)
            for n, q, p in zip(visits, mean_values, prior, strict=True)
        ]
        # They count the visit with which a node was made, too.
        values = [SearchNode.puct_value(each, 1 + sum(visits), 1.25) for each in theirs]
        assert select_move_by_puct(node(prior, visits, mean_values, 0.5), ValueRange(0.0, 1.0), 1.25) == values.index(
            max(values)
        )


def test_backup_gives_every_mover_what_it_got_itself() -> None:
    first, second = TreeNode(None, 0, [0.5, 0.5], (0.0, 0.0)), TreeNode(None, 1, [1.0], (0.0, 0.0))
    backpropagate([(first, 1), (second, 0)], (3.0, -2.0))
    assert (first.visits, first.totals, first.mean_values()) == ([0, 1], [0.0, 3.0], [None, 3.0])
    assert (second.visits, second.totals) == ([1], [-2.0])


def test_moves_without_a_visit_get_the_mix_of_value_and_prior_mean() -> None:
    # Worked out by hand: (.5 * .6 + .3 * .3) / .8 = .4875; (.4 + 3 * .4875) / 4 = .465625.
    completed = completed_q_values([0.5, 0.3, 0.2], [2, 1, 0], [0.6, 0.3, 0.0], 0.4)
    assert completed == pytest.approx([0.6, 0.3, 0.465625])
    assert completed_q_values([0.5, 0.5], [0, 0], [0.0, 0.0], 0.4) == [0.4, 0.4]


def test_sequential_halving_divides_simulations_equally_among_rounds() -> None:
    # 16 simulations, 4 moves: two rounds of 8, so 2 each, then 4 each for the better half.
    root = node([0.25] * 4, [0] * 4, [0.0] * 4, 0.0)
    worth = (0.1, 0.9, 0.2, 0.8)
    halving = SequentialHalving(root, ValueRange(0.0, 1.0), SearchSettings(simulations=16), random.Random(0))
    for move in halving.scheduled_root_moves(16):
        backpropagate([(root, move)], (worth[move],))
    assert root.visits == [2, 6, 2, 6]
    assert halving.chosen_move_index() == 1


@pytest.mark.parametrize("visited", [1, 3, 6])
def test_the_improved_policy_is_never_worse_than_the_prior_on_a_bandit(visited: int) -> None:
    # Danihelka et al. 2022, section 4: if q is exact where a move was visited, and v is its mean under the prior.
    rng = random.Random(visited)
    for _ in range(300):
        prior = apply_temperature([rng.random() ** 3 + 1e-3 for _ in range(6)], 1.0)
        worth = [rng.random() for _ in prior]
        expected = math.fsum(p * q for p, q in zip(prior, worth, strict=True))
        visits = [0] * 6
        for move in rng.sample(range(6), visited):
            visits[move] = rng.randint(1, 5)
        root = node(prior, visits, worth, expected)
        completed = completed_q_values(prior, visits, worth, expected)
        policy = improved_policy(improved_policy_logits(root, ValueRange(0.0, 1.0), SearchSettings(rule="gumbel")))
        before, after = (
            math.fsum(p * q for p, q in zip(chances, completed, strict=True)) for chances in (prior, policy)
        )
        assert after >= before - 1e-12


def test_gumbel_search_of_two_simulations_plays_better_than_its_prior_on_average() -> None:
    rng, worth, prior = random.Random(0), (0.0, 0.3, 0.6, 1.0), (0.4, 0.3, 0.2, 0.1)
    settings = SearchSettings(rule="gumbel", simulations=2, temperature=1.0, value_scale=1.0)
    total = 0.0
    for _ in range(2000):
        root = node(prior, [0] * 4, [0.0] * 4, 0.31)  # the prior's mean
        halving = SequentialHalving(root, ValueRange(0.0, 1.0), settings, rng)
        for move in halving.scheduled_root_moves(2):
            backpropagate([(root, move)], (worth[move],))
        total += worth[halving.chosen_move_index()]
    # The better of two draws without replacement: values outweigh the noise with this scale.
    pairs = [
        (p * q / (1 - p), max(a, b))
        for i, (p, a) in enumerate(zip(prior, worth, strict=True))
        for j, (q, b) in enumerate(zip(prior, worth, strict=True))
        if i != j
    ]
    assert total / 2000 == pytest.approx(math.fsum(p * best for p, best in pairs), abs=0.03)


def test_sharpened_policies_and_noise_stay_distributions() -> None:
    assert apply_temperature([0.2, 0.5, 0.3], 0) == [0.0, 1.0, 0.0]
    assert apply_temperature([0.2, 0.8], 0.5) == pytest.approx([0.04 / 0.68, 0.64 / 0.68])
    assert apply_temperature([1e-200, 1.0], 0.01) == [0.0, 1.0]
    (result,) = results(["........."], SearchSettings(**UNIFORM, simulations=4, noise=RootNoise()))
    assert sum(result.prior) == pytest.approx(1)
    assert len(set(result.prior)) == 9


# --- nothing but the seed ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["puct", "gumbel"])
def test_equal_seeds_give_equal_searches_whoever_is_searched_beside(rule: Any) -> None:
    settings = SearchSettings(**UNIFORM, rule=rule, simulations=50, temperature=1.0, noise=RootNoise())
    boards = list(islice(ONE_BEST, 0, 200, 20))

    def searched(among: Sequence[str]) -> dict[str, SearchResult]:
        searches = [search(position(board), settings, random.Random(board)) for board in among]
        return dict(zip(among, run_searches_in_parallel(searches, RolloutOrCriticEvaluator(settings)), strict=True))

    together = searched(boards)
    assert together == searched(boards)
    assert all(searched([board]) == {board: together[board]} for board in boards)


def test_a_search_leaves_the_game_as_it_was() -> None:
    root: Any = position("xo.......")
    before = root.game.observe("player_0")["text"], root.game.rng.getstate()
    run_searches_in_parallel([search(root, SearchSettings(**UNIFORM), random.Random(0))], know_nothing)
    assert (root.game.observe("player_0")["text"], root.game.rng.getstate()) == before


def test_games_in_which_any_text_is_a_move_cannot_be_searched() -> None:
    game = TeamConfig.model_validate(TEAM).build()
    game.reset(0)
    with pytest.raises(ValueError, match="may say any text; puct and gumbel need legal moves"):
        SearchPosition(game)
