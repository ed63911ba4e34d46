"""Errors of a scenario's author are named: field or option, value and choices."""

import pytest
from pydantic import ValidationError

from marl.games.kuhn_poker import KuhnPokerConfig
from marl.games.nim import NimConfig
from marl.games.tic_tac_toe import TicTacToeConfig
from marl.protocols import GameConfig


@pytest.mark.parametrize("config", [KuhnPokerConfig, NimConfig, TicTacToeConfig])
def test_an_unknown_option_is_named_with_the_choices(config: type[GameConfig]) -> None:
    game = config(kind="any").build()
    with pytest.raises(ValueError, match=r"unknown reset option 'colour'; .*choices: (cards|pile|board)"):
        game.reset(0, {"colour": "red"})


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        (KuhnPokerConfig, {"cards": "JJ"}, "cards: 'JJ' .* choices: JQ, JK, QJ, QK, KJ, KQ"),
        (KuhnPokerConfig, {"cards": ["J", "Q"]}, "cards: .* choices: JQ"),
        (NimConfig, {"pile": 0}, "pile: 0 .* choices: 1 to 12"),
        (NimConfig, {"pile": True}, "pile: True .* choices: 1 to 12"),
        (NimConfig, {"pile": 13}, "pile: 13 .* choices: 1 to 12"),
        (TicTacToeConfig, {"board": "xxx.oo..."}, "board: 'xxx.oo...' .* choices: nine of"),
        (TicTacToeConfig, {"board": "xx......."}, "board: 'xx.......' .* choices: nine of"),
        (TicTacToeConfig, {"board": "x"}, "board: 'x' .* choices: nine of"),
        (TicTacToeConfig, {"board": 5}, "board: 5 .* choices: nine of"),
    ],
)
def test_an_impossible_option_is_named_with_value_and_choices(config, options, message) -> None:
    game = config().build()
    with pytest.raises(ValueError, match=message):
        game.reset(0, options)


@pytest.mark.parametrize(
    ("config", "settings", "message"),
    [
        (
            KuhnPokerConfig,
            {"illegal": {"then": "explode"}},
            "illegal.then\n.*'forfeit', 'penalty' or 'random'.*explode",
        ),
        (KuhnPokerConfig, {"illegal": {"retry": -1}}, "illegal.retry\n.*greater than or equal to 0.*-1"),
        (KuhnPokerConfig, {"illegal": {"penalty": -1}}, "illegal.penalty\n.*greater than or equal to 0.*-1"),
        (KuhnPokerConfig, {"illegal": {"penalty": float("nan")}}, "illegal.penalty\n.*finite"),
        (KuhnPokerConfig, {"illegal": {"then": "random", "penalty": 1}}, "illegal\n.*choices: forfeit, penalty"),
        (KuhnPokerConfig, {"cards": "JQ"}, "cards.*choices: .*illegal"),
        (NimConfig, {"piles": (5, 3)}, r"piles\n.*\[5, 3\].*choices: \[low, high\]"),
        (NimConfig, {"max_take": 0}, "max_take\n.*greater than or equal to 1"),
        (TicTacToeConfig, {"openings": 1.5}, "openings\n.*less than or equal to 1.*1.5"),
        (TicTacToeConfig, {"opening_moves": 9}, "opening_moves\n.*less than or equal to 8"),
    ],
)
def test_bad_settings_are_named_with_field_value_and_choices(config, settings, message) -> None:
    with pytest.raises(ValidationError, match=message):
        config.model_validate(settings)
