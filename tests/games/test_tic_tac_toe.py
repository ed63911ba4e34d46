"""Tic-tac-toe against OpenSpiel and brute force, over every reachable board."""

from functools import cache

import pyspiel
import pytest

from marl.games.tic_tac_toe import (
    AGENTS,
    EMPTY,
    TicTacToeConfig,
    TicTacToeMinimax,
    best_moves,
    has_three_in_a_row,
    is_over,
    legal_cells,
    minimax_value,
    player_to_move,
    put_mark,
    unfinished_boards,
)

CONFIG = TicTacToeConfig()


@pytest.fixture(scope="module")
def openspiel_states() -> dict[str, pyspiel.State]:
    """Every reachable board with OpenSpiel's state of it, from one of the orders of play."""
    root = pyspiel.load_game("tic_tac_toe").new_initial_state()
    states, stack = {EMPTY: root}, [root]
    while stack:
        state = stack.pop()
        for action in state.legal_actions():
            child = state.child(action)
            board = str(child).replace("\n", "")
            if board not in states:
                states[board] = child
                if not child.is_terminal():
                    stack.append(child)
    return states


def test_there_are_5478_boards_of_which_958_are_final(openspiel_states: dict[str, pyspiel.State]) -> None:
    assert len(openspiel_states) == 5478
    final = {board for board, state in openspiel_states.items() if state.is_terminal()}
    assert len(final) == 958
    assert set(unfinished_boards()) == set(openspiel_states) - final
    assert len(CONFIG.evaluation_positions()) == 4520


def test_every_board_agrees_with_openspiel(openspiel_states: dict[str, pyspiel.State]) -> None:
    """Legal moves, mover, and what every single move leads to and pays, in the real game."""
    game = CONFIG.build()
    finals = set()
    for options, _ in CONFIG.evaluation_positions():
        board = options["board"]
        state = openspiel_states[board]
        legal = tuple(str(action + 1) for action in state.legal_actions())
        for move in legal:
            game.reset(0, options)
            mine = AGENTS[state.current_player()]
            assert game.agent_selection == mine
            assert game.infos[mine]["legal"] == legal
            game.step(move)
            child = openspiel_states[game.board]
            assert child.is_terminal() == any(game.terminations.values())
            if child.is_terminal():
                finals.add(game.board)
                assert child.returns() == [game.rewards[agent] for agent in AGENTS]
            else:
                assert game.infos[game.agent_selection]["state"] == game.board
    assert len(finals) == 958


def test_the_minimax_value_is_a_draw() -> None:
    assert minimax_value(EMPTY) == 0
    assert best_moves(EMPTY) == tuple("123456789")


def test_random_against_random_is_worth_what_is_known() -> None:
    @cache
    def mean(board: str) -> float:
        """To x, under uniform play."""
        if is_over(board):
            return 0.0 if not has_three_in_a_row(board) else (-1.0 if player_to_move(board) == 0 else 1.0)
        cells = legal_cells(board)
        return sum(mean(put_mark(board, cell)) for cell in cells) / len(cells)

    assert mean(EMPTY) == pytest.approx(0.296825, abs=1e-6)


def test_optimal_moves_keep_the_value_that_full_minimax_finds() -> None:
    @cache
    def minimax(board: str) -> int:
        """To x, by plain minimax: a second way of writing it."""
        if is_over(board):
            return 0 if not has_three_in_a_row(board) else (-1 if player_to_move(board) == 0 else 1)
        return (max, min)[player_to_move(board)](minimax(put_mark(board, cell)) for cell in legal_cells(board))

    for board in unfinished_boards():
        sign = (1, -1)[player_to_move(board)]
        assert minimax_value(board) == sign * minimax(board)
        keeping = tuple(cell for cell in legal_cells(board) if minimax(put_mark(board, cell)) == minimax(board))
        assert best_moves(board) == keeping
        assert CONFIG.optimal_moves(board) == (keeping if sign * minimax(board) >= 0 else ())


def test_minimax_is_uniform_over_the_best_moves_and_never_loses() -> None:
    player = TicTacToeMinimax()

    @cache
    def worst(board: str, seat: int) -> float:
        """The least that minimax in `seat` gets, whatever the other does."""
        if is_over(board):
            return 0.0 if not has_three_in_a_row(board) else (-1.0 if player_to_move(board) == seat else 1.0)
        moves = legal_cells(board)
        if player_to_move(board) == seat:
            chances = player.move_probabilities(board, moves)
            assert sum(chances.values()) == pytest.approx(1)
            moves = tuple(move for move, chance in chances.items() if chance)
        return min(worst(put_mark(board, move), seat) for move in moves)

    assert [worst(EMPTY, seat) for seat in (0, 1)] == [0.0, 0.0]
    assert player.move_probabilities("xx.oo....", ("3", "6", "7", "8", "9"))["3"] == 1.0
    assert CONFIG.reference_players() == {"minimax": TicTacToeMinimax()}


def test_the_prompt_is_the_board_and_who_one_is() -> None:
    game = CONFIG.build()
    game.reset(0, {"board": ".x..o...."})
    assert game.observe("player_0")["text"] == "1 x2 3 4 o5 6 7 8 9 . you x"
    assert game.observe("player_1")["text"] == "1 o2 3 4 x5 6 7 8 9 . you x"
    assert game.start_state_key() == ".x..o.... x"


def test_a_given_board_says_who_moves() -> None:
    game = CONFIG.build()
    game.reset(0, {"board": ".x......."})
    assert game.agent_selection == "player_1"
    assert game.start_state_key() == ".x....... o"


@pytest.mark.parametrize("plies", range(1, 9))
def test_random_openings_are_reproducible_and_never_finished(plies: int) -> None:
    config = TicTacToeConfig(openings=1.0, opening_moves=plies)
    game, copy = config.build(), config.build()
    lengths = set()
    for seed in range(300):
        game.reset(seed)
        copy.reset(seed)
        assert game.start_state_key() == copy.start_state_key()
        assert not is_over(game.board)
        assert game.board in set(unfinished_boards())
        lengths.add(9 - game.board.count("."))
    assert lengths == set(range(1, plies + 1))


def test_openings_are_drawn_for_the_declared_share_of_games() -> None:
    game = TicTacToeConfig(openings=0.25).build()
    opened = 0
    for seed in range(4000):
        game.reset(seed)
        opened += game.board != EMPTY
    assert 890 < opened < 1110  # 1000 +- 4 standard deviations
    plain = CONFIG.build()
    plain.reset(1)
    assert plain.board == EMPTY


def test_the_tree_is_too_large_to_be_exported() -> None:
    assert CONFIG.all_start_states() is None
