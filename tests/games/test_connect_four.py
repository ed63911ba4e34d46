"""Connect four against OpenSpiel, published counts and plain minimax; its alpha-beta player."""

from __future__ import annotations

import random
from typing import Any

import pyspiel
import pytest

from marl.games.base import reset_and_play
from marl.games.connect_four import ConnectFour, ConnectFourConfig
from marl.games.connect_four_board import COLUMNS, BoardRules, BoardState
from marl.games.connect_four_search import WIN, AlphaBetaSearch, ConnectFourAlphaBeta, best_columns, value_by_column
from marl.protocols import GameConfig
from tests.support.small_games import PAIR

SIZES = [(6, 7), (4, 4), (5, 6), (4, 9), (9, 4)]
BOARD = BoardRules.of_size(6, 7)


def openspiel(rows: int, columns: int) -> pyspiel.Game:
    return pyspiel.load_game("connect_four", {"rows": rows, "columns": columns})


def picture(state: pyspiel.State, rows: int) -> str:
    """OpenSpiel's board, which is drawn from the top, as ours writes it."""
    lines = str(state).split("\n")[:rows]
    return "/".join("".join(column) for column in zip(*reversed(lines), strict=True))


def position(*drops: str, board: BoardRules = BOARD) -> BoardState:
    """The position after discs in these columns."""
    result = board.empty
    for column in "".join(drops):
        result = board.drop_disc(result, COLUMNS.index(column))
    return result


def random_position(board: BoardRules, rng: random.Random, plies: int) -> BoardState:
    """A position in play after up to so many random moves."""
    result = board.empty
    for _ in range(plies):
        columns = map(COLUMNS.index, board.open_columns(result))
        if not (after := [each for column in columns if not board.is_over(each := board.drop_disc(result, column))]):
            break
        result = rng.choice(after)
    return result


# --- rules -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "columns"), SIZES)
def test_random_playouts_agree_with_openspiel(rows: int, columns: int) -> None:
    """Legal moves, movers, ends and results; 10^5 playouts: `test_a_hundred_thousand_playouts_...` (slow)."""
    compare_playouts(rows, columns, 400)


@pytest.mark.slow
def test_a_hundred_thousand_playouts_agree_with_openspiel() -> None:
    compare_playouts(6, 7, 100_000)


def compare_playouts(rows: int, columns: int, count: int) -> None:
    board, theirs, rng = BoardRules.of_size(rows, columns), openspiel(rows, columns), random.Random(rows)
    for _ in range(count):
        state, ours = theirs.new_initial_state(), board.empty
        while not (over := board.is_over(ours)):
            assert state.current_player() == ours.moves % 2
            legal = state.legal_actions()
            assert board.open_columns(ours) == tuple(COLUMNS[action] for action in legal)
            action = rng.choice(legal)
            state.apply_action(action)
            ours = board.drop_disc(ours, action)
        assert state.is_terminal() == over
        result = 0.0 if not board.last_mover_won(ours) else -1.0 if ours.moves % 2 == 0 else 1.0
        assert state.returns() == [result, -result]


@pytest.mark.parametrize(("rows", "columns"), SIZES)
def test_the_game_pays_and_shows_what_openspiel_does(rows: int, columns: int) -> None:
    game, rng = ConnectFourConfig(rows=rows, columns=columns).build(), random.Random(1)
    for seed in range(20):
        game.reset(seed)
        state = openspiel(rows, columns).new_initial_state()
        while not state.is_terminal():
            agent = game.agent_selection
            assert agent == PAIR[state.current_player()]
            assert game.infos[agent]["state"] == picture(state, rows)
            assert game.infos[agent]["legal"] == tuple(COLUMNS[action] for action in state.legal_actions())
            action = rng.choice(state.legal_actions())
            game.step(COLUMNS[action])
            state.apply_action(action)
        assert [game.rewards[agent] for agent in PAIR] == state.returns()
        assert all(game.terminations.values())


def test_there_are_as_many_positions_after_each_move_as_are_published() -> None:
    """On the whole board; OEIS A212693 (J. Tromp)."""
    counts, frontier = [1], {BOARD.empty}
    for _ in range(6):
        moves = ((place, COLUMNS.index(each)) for place in frontier for each in BOARD.open_columns(place))
        frontier = {BOARD.drop_disc(place, column) for place, column in moves}
        counts.append(len(frontier))
        frontier = {place for place in frontier if not BOARD.is_over(place)}
    assert counts == [1, 7, 49, 238, 1120, 4263, 16422]


# --- observations, options, openings ---------------------------------------------------------------------------------


def test_the_prompt_shows_the_board_from_the_movers_side() -> None:
    game = ConnectFourConfig(rows=4, columns=4).build()
    game.reset(0)
    for move in "bba":
        game.step(move)
    rows = ["a4 b4 c4 d4", "a3 b3 c3 d3", "a2 {}b2 c2 d2", "{}a1 {}b1 c1 d1", "you x"]
    assert game.observe("player_0")["text"] == "\n".join(rows).format("o", "x", "x")
    assert game.observe("player_1")["text"] == "\n".join(rows).format("x", "o", "o")
    assert game.infos["player_1"]["state"] == "x.../xo../..../...."


def test_a_position_is_read_as_it_is_written() -> None:
    rng = random.Random(0)
    for rows, columns in SIZES:
        board = BoardRules.of_size(rows, columns)
        for plies in range(rows * columns):
            place = random_position(board, rng, plies)
            assert board.parse_position(board.format_position(place)) == place
    game = ConnectFourConfig().build()
    text = BOARD.format_position(position("ddd"))
    game.reset(0, {"position": text})
    assert (game.agent_selection, game.start_state_key()) == ("player_1", text)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "x",
            "xo",
            5,
            "x...../....../....../....../....../......",
            "xx..../....../....../....../....../....../......",
        ),
        *(".x..../....../....../....../....../....../......", "y...../....../....../....../....../....../......"),
        "xxxx../oooo../....../....../....../....../......",
    ],
)
def test_an_impossible_position_is_refused_with_the_choices(text: object) -> None:
    game = ConnectFourConfig().build()
    with pytest.raises(ValueError, match=r"option position: .* is no position in play; choices: 7 columns of 6 cells"):
        game.reset(0, {"position": text})


@pytest.mark.parametrize("plies", [1, 8, 20])
def test_random_openings_are_reproducible_and_never_finished(plies: int) -> None:
    config = ConnectFourConfig(rows=4, columns=5, openings=1.0, opening_moves=plies)
    game, copy = config.build(), config.build()
    lengths = set()
    for seed in range(600):
        game.reset(seed)
        copy.reset(seed)
        assert game.position == copy.position
        assert not game.config.board.is_over(game.position)
        lengths.add(game.position.moves)
    assert lengths >= set(range(1, min(plies, 14) + 1))
    assert max(lengths) <= plies


def test_settings_are_checked() -> None:
    for settings, message in (({"rows": 3}, "rows"), ({"columns": 10}, "columns"), ({"openings": 2}, "openings")):
        with pytest.raises(ValueError, match=message):
            ConnectFourConfig.model_validate(settings)


def test_a_full_column_is_no_legal_move() -> None:
    game: Any = ConnectFourConfig().build()
    game.reset(0)
    for _ in range(6):
        game.step("a")
    assert game.infos["player_0"]["legal"] == tuple("bcdefg")
    assert game.observe("player_0")["action_mask"].tolist() == [0, 1, 1, 1, 1, 1, 1]
    game.step("a")
    assert game.rewards == {"player_0": -1.5, "player_1": 1.5}


def test_a_game_is_a_function_of_seed_and_actions() -> None:
    config: GameConfig = ConnectFourConfig(openings=0.5)
    one, other = config.build(), config.build()
    assert isinstance(one, ConnectFour)
    assert isinstance(other, ConnectFour)
    for seed in range(20):
        one.reset(seed)
        rng, moves = random.Random(seed), []
        while not any(one.terminations.values()):
            moves.append(rng.choice(one.infos[one.agent_selection]["legal"] or ()))
            one.step(moves[-1])
        reset_and_play(other, seed, None, moves)
        assert (one.position, one.rewards) == (other.position, other.rewards)


# --- alpha-beta ------------------------------------------------------------------------------------------------------


def minimax(board: BoardRules, place: BoardState, depth: int) -> int:
    """The value to the mover without pruning, tables or short cuts."""
    if board.last_mover_won(place):
        return place.moves - WIN
    if place.moves == board.cells:
        return 0
    if not depth:
        return AlphaBetaSearch(board).search_value(place, 0, -WIN, WIN)
    after = [board.drop_disc(place, COLUMNS.index(column)) for column in board.open_columns(place)]
    return max(-minimax(board, each, depth - 1) for each in after)


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_alpha_beta_finds_what_plain_minimax_finds(depth: int) -> None:
    rng = random.Random(depth)
    for board in (BOARD, BoardRules.of_size(4, 5)):
        for plies in rng.choices(range(board.cells), k=25):
            place = random_position(board, rng, plies)
            text = board.format_position(place)
            after = {each: board.drop_disc(place, COLUMNS.index(each)) for each in board.open_columns(place)}
            values = {each: -minimax(board, child, depth - 1) for each, child in after.items()}
            best = max(values.values())
            assert best_columns(text, depth) == tuple(each for each, value in values.items() if value == best)
            assert max(value_by_column(text, depth).values()) == best


def test_threats_are_the_empty_cells_that_would_win() -> None:
    rng = random.Random(0)
    for board in (BOARD, BoardRules.of_size(5, 5)):
        for plies in range(board.cells):
            mine, discs, _ = random_position(board, rng, plies)
            cells = [1 << bit for bit in range(board.all.bit_length()) if (board.all & ~discs) >> bit & 1]
            winning = [cell for cell in cells if board.last_mover_won(BoardState(0, mine | cell, 0))]
            assert board.winning_cell_bitboard(mine, discs) == sum(winning)


@pytest.mark.slow
def test_four_by_four_is_a_draw_by_exact_search_as_by_a_walk_of_openspiel() -> None:
    """Every first move draws; the walk is of OpenSpiel's mine states, with its mine rules and results."""
    values: dict[str, float] = {}

    def value(state: pyspiel.State) -> float:
        if state.is_terminal():
            return state.returns()[0]
        key = str(state)
        if key not in values:
            pick = (max, min)[state.current_player()]
            results: list[float] = []
            for action in state.legal_actions():
                results.append(value(state.child(action)))
                if results[-1] == pick(-1.0, 1.0):
                    break
            values[key] = pick(results)
        return values[key]

    root = openspiel(4, 4).new_initial_state()
    assert [value(root.child(action)) for action in root.legal_actions()] == [0.0] * 4
    assert value_by_column("..../..../..../....", None) == dict.fromkeys("abcd", 0)


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "columns"), [(4, 5), (5, 4)])
def test_slightly_larger_boards_are_draws_by_exact_search(rows: int, columns: int) -> None:
    board = BoardRules.of_size(rows, columns)
    assert max(value_by_column(board.format_position(board.empty), None).values()) == 0


def test_four_by_four_is_a_draw_whatever_the_first_move() -> None:
    assert value_by_column("..../..../..../....", None) == dict.fromkeys("abcd", 0)


def test_the_cells_of_the_whole_board_lie_on_as_many_lines_as_is_known() -> None:
    """69 lines of four; 3 to 13 through a cell."""
    counts = [
        [
            sum(cells >> (7 * column + row) & 1 for cells in BOARD.cell_bitboards_by_minimum_line_count)
            for column in range(7)
        ]
        for row in (0, 2)
    ]
    assert counts == [[3, 4, 5, 7, 5, 4, 3], [5, 8, 11, 13, 11, 8, 5]]
    assert sum(cells.bit_count() for cells in BOARD.cell_bitboards_by_minimum_line_count) == 69 * 4


def test_alpha_beta_wins_at_once_and_answers_threats() -> None:
    player = ConnectFourAlphaBeta(depth=2)
    assert player.move_probabilities(BOARD.format_position(position("ababab")), tuple("abcdefg")) == {
        "a": 1.0,
        **dict.fromkeys("bcdefg", 0.0),
    }
    assert best_columns(BOARD.format_position(position("abababb")), 2) == ("a",)
    level = BOARD.format_position(position("ddeeff"))  # x on d1 e1 f1, o above: c or g wins
    assert set(best_columns(level, 1)) == {"c", "g"}
    chances = ConnectFourAlphaBeta(depth=1).move_probabilities(level, tuple("abcdefg"))
    assert (chances["c"], chances["g"], sum(chances.values())) == (0.5, 0.5, 1.0)


def test_a_state_that_is_no_position_is_named() -> None:
    with pytest.raises(ValueError, match="'nonsense' is no position of connect four"):
        ConnectFourAlphaBeta().move_probabilities("nonsense", ("a",))


def test_deeper_search_beats_random_play_from_either_seat() -> None:
    rng = random.Random(0)
    for seat in (0, 1) * 5:
        place = BOARD.empty
        while not BOARD.is_over(place):
            best = (
                best_columns(BOARD.format_position(place), 4) if place.moves % 2 == seat else BOARD.open_columns(place)
            )
            place = BOARD.drop_disc(place, COLUMNS.index(rng.choice(best)))
        assert BOARD.last_mover_won(place)
        assert place.moves % 2 != seat


def test_opponents_are_exported_with_their_depth() -> None:
    assert ConnectFourConfig().reference_players() == {
        "alpha_beta": ConnectFourAlphaBeta(depth=6),
        "alpha_beta_2": ConnectFourAlphaBeta(depth=2),
    }
