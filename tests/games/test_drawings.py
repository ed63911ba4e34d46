"""Drawings show what the agent to move knows, and nothing else."""

from __future__ import annotations

from marl.games.connect_four import ConnectFourConfig
from marl.games.goofspiel import GoofspielConfig
from marl.games.leduc_poker import LeducPokerConfig
from marl.games.liars_dice import LiarsDiceConfig
from marl.protocols import Game, GameConfig, StateRendering


def drawn(config: GameConfig, options: dict[str, str], *moves: str) -> tuple[StateRendering, Game]:
    game = config.build()
    game.reset(0, options)
    for move in moves:
        game.step(move)
    picture = config.render_state(game.infos[game.agent_selection]["state"])
    assert picture is not None
    return picture, game


def test_connect_four_is_a_board_with_the_lowest_row_last() -> None:
    board, _ = drawn(ConnectFourConfig(), {}, "d", "d", "e")
    assert board.kind == "grid"
    assert board.rows[-1] == ("", "", "", "x", "x", "", "")
    assert board.rows[-2] == ("", "", "", "o", "", "", "")
    assert (len(board.rows), {len(row) for row in board.rows}) == (6, {7})
    assert board.caption == "columns a b c d e f g; o to move"
    small, _ = drawn(ConnectFourConfig(rows=4, columns=5), {})
    assert small.caption == "columns a b c d e; x to move"


def test_leduc_shows_the_hand_and_the_board_but_not_the_other_hand() -> None:
    before, _ = drawn(LeducPokerConfig(), {"cards": "KJQ"}, "bet")
    assert before.rows == (("J", "?"), ("",))
    after, _ = drawn(LeducPokerConfig(), {"cards": "KJQ"}, "bet", "call", "check")
    assert after.rows == (("J", "?"), ("Q",))
    assert after.caption == "first round: bet call; second round: check"
    assert LeducPokerConfig().render_state("nonsense") is None


def test_goofspiel_shows_prizes_and_bids_round_by_round() -> None:
    start = {"prizes": "3 1 4 2"}
    opened, _ = drawn(GoofspielConfig(), start, "2", "4")
    assert opened.rows == (("3", "1"), ("2", ""), ("4", ""))
    hidden, _ = drawn(GoofspielConfig(bids="hidden"), start, "2", "4")
    assert hidden.rows == (("3", "1"), ("2", ""), ("lost", ""))


def test_liars_dice_shows_the_agents_own_dice_alone() -> None:
    dice, _ = drawn(LiarsDiceConfig(dice=2), {"roll": "13 22"}, "1x3")
    assert dice.rows == (("2", "2"), ("?", "?"))
    assert dice.caption.endswith("bids: 1x3")
    assert drawn(LiarsDiceConfig(dice=2), {"roll": "13 22"})[0].caption.endswith("bids: none")
