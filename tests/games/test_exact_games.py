"""Small cooperative games whose values are known: their payments, and how they are walked."""

from __future__ import annotations

from itertools import product
from string import ascii_lowercase
from typing import Any

import pytest
from pydantic import ValidationError

from marl.evaluation.game_tree import expected_returns
from marl.games.hint import HintConfig
from marl.games.layered_hint import LayeredHintConfig
from marl.games.matrix_games import CoalitionConfig, MatrixConfig, TwoStepConfig
from marl.games.stopping import StoppingConfig
from marl.protocols import Game, GameConfig
from tests.support.uniform_play import uniform_game_tree, uniform_strategy

GAMES: dict[str, GameConfig] = {
    "climbing": MatrixConfig(table="climbing"),
    "and": MatrixConfig(table="and"),
    "oblong": MatrixConfig(table=[[1, 2, 3], [4, 5, 6]]),
    "two_step": TwoStepConfig(),
    "majority": CoalitionConfig(preset="majority"),
    "voting": CoalitionConfig(weights=(4, 3, 2, 1), quota=6),
    "stopping": StoppingConfig(),
    "hint": HintConfig(symbols=3),
    "layered_hint": LayeredHintConfig(),
}


def returns(game: GameConfig, *moves: str, **options: Any) -> dict[str, float]:
    """Return the total reward of each agent when these moves are played."""
    built = game.build()
    built.reset(0, options)
    totals = dict.fromkeys(built.possible_agents, 0.0)
    for move in moves:
        assert not any(built.terminations.values())
        built.step(move)
        for agent, parts in built.reward_components.items():
            totals[agent] += sum(parts.values())
    assert all(built.terminations.values())
    return totals


@pytest.mark.parametrize(
    ("table", "cells"),
    [
        ("climbing", [[11, -30, 0], [-30, 7, 0], [0, 6, 5]]),
        ("qtran", [[8, -12, -12], [-12, 0, 0], [-12, 0, 0]]),
        ("penalty", [[-100, 0, 10], [0, 2, 0], [10, 0, -100]]),
        ("qmix_2b", [[0, 1], [1, 8]]),
        ([[1, 2, 3], [4, 5, 6]], [[1, 2, 3], [4, 5, 6]]),
    ],
    ids=str,
)
def test_the_cell_of_the_joint_move_is_paid_to_everybody(table: Any, cells: list[list[float]]) -> None:
    game = MatrixConfig(table=table)
    for i, row in enumerate(cells):
        for j, cell in enumerate(row):
            assert returns(game, ascii_lowercase[i], ascii_lowercase[j]) == {"agent_0": cell, "agent_1": cell}


def test_and_pays_when_all_three_agree_and_or_when_one_does() -> None:
    for joint in product("ab", repeat=3):
        assert set(returns(MatrixConfig(table="and"), *joint).values()) == {float(joint == ("b", "b", "b"))}
        assert set(returns(MatrixConfig(table="or"), *joint).values()) == {float("b" in joint)}


def test_the_two_step_game_is_that_of_the_qmix_paper() -> None:
    game = TwoStepConfig()
    second = {"a": {"aa": 7, "ab": 7, "ba": 7, "bb": 7}, "b": {"aa": 0, "ab": 1, "ba": 1, "bb": 8}}
    for first, anything in product("ab", repeat=2):
        for joint, pays in second[first].items():
            assert returns(game, first, anything, *joint) == {"agent_0": pays, "agent_1": pays}


def test_both_know_the_state_of_the_second_step_but_hear_nobody() -> None:
    game = TwoStepConfig().build()
    game.reset(0)
    assert game.observe("agent_0")["text"] == "agent_0 . state 1 . choose [a] [b]"
    game.step("b")
    game.step("a")
    assert game.observe("agent_1")["text"] == "agent_1 . state 2B . choose [a] [b]"
    assert game.infos["agent_1"]["hears"] == ("agent_1",)
    assert game.infos["agent_0"]["together"] == game.seats
    assert game.rewards == {"agent_0": 0.0, "agent_1": 0.0}


COALITIONS: dict[str, tuple[dict[str, Any], dict[str, float]]] = {
    "majority": ({"preset": "majority"}, {"01": 1, "02": 1, "12": 1, "012": 1}),
    "glove": ({"preset": "glove"}, {"01": 1, "02": 1, "012": 1}),
    "voting": (
        {"preset": "voting"},
        {"01": 1, "02": 1, "012": 1, "013": 1, "023": 1, "123": 1, "0123": 1},
    ),
    "veto": ({"preset": "veto"}, {"01": 1, "02": 1, "012": 1}),
    "dummy": (
        {"weights": (40, 22, 30, 9), "quota": 51},
        {"01": 1, "02": 1, "12": 1, "012": 1, "013": 1, "023": 1, "123": 1, "0123": 1},
    ),
    "airport": ({"preset": "airport"}, {"0": 1, "1": 2, "2": 3, "01": 2, "02": 3, "12": 3, "012": 3}),
    "additive": ({"preset": "additive"}, {"0": 1, "1": 2, "2": 3, "01": 3, "02": 4, "12": 5, "012": 6}),
    "given": ({"values": (0, 1, 2, 5)}, {"0": 1, "1": 2, "01": 5}),
}


@pytest.mark.parametrize("name", COALITIONS)
def test_a_coalition_is_paid_what_it_is_worth(name: str) -> None:
    settings, worth = COALITIONS[name]
    game = CoalitionConfig.model_validate(settings)
    agents = game.build().possible_agents
    for joint in product(("in", "out"), repeat=len(agents)):
        inside = "".join(str(place) for place, move in enumerate(joint) if move == "in")
        assert returns(game, *joint) == dict.fromkeys(agents, worth.get(inside, 0))


def test_stopping_and_going_on_pay_the_same() -> None:
    game = StoppingConfig()
    assert returns(game, "stop") == returns(game, "go", "stop") == returns(game, "go", "go") == {"agent_0": 1.0}
    built = game.build()
    built.reset(0)
    built.step("go")
    assert built.reward_components == {"agent_0": {"intermediate": 0.4}}


def test_the_guesser_hears_the_word_and_never_sees_the_symbol() -> None:
    game = HintConfig().build()
    game.reset(0, {"symbol": "green"})
    assert game.observe("speaker")["text"] == "symbol green . say [one] [two]"
    game.step("two")
    assert game.observe("guesser")["text"] == "word two . guess [red] [green]"
    assert game.infos["guesser"]["state"] == "two"
    assert game.infos["guesser"]["hears"] == ("speaker", "guesser")
    assert returns(HintConfig(), "two", "green", symbol="green") == {"speaker": 1.0, "guesser": 1.0}
    assert returns(HintConfig(), "two", "red", symbol="green") == {"speaker": 0.0, "guesser": 0.0}


def test_in_a_layered_hint_each_layer_hears_the_one_before_it_and_the_last_one_is_paid_for() -> None:
    fork = LayeredHintConfig(layers=(1, 2, 2)).build()
    fork.reset(0, {"symbol": "green"})
    known = {}
    for move in ("one", "two", "one", "green", "red"):
        known[fork.agent_selection] = fork.observe(fork.agent_selection)["text"]
        fork.step(move)
    assert known == {
        "agent_0": "agent_0 . symbol green . say [one] [two]",
        "agent_1": "agent_1 . words one . say [one] [two]",
        "agent_2": "agent_2 . words one . say [one] [two]",
        "agent_3": "agent_3 . words two one . say [red] [green]",
        "agent_4": "agent_4 . words two one . say [red] [green]",
    }
    assert fork.rewards == dict.fromkeys(fork.possible_agents, 0.5)


def test_an_illegal_move_costs_a_team_no_less_than_its_worst_joint_move() -> None:
    games: list[tuple[GameConfig, float]] = [
        (MatrixConfig(table="climbing"), 30.0),
        (MatrixConfig(table="qmix_2b"), 1.0),
        (CoalitionConfig(values=(0, 1, -3, 2)), 3.0),
        (HintConfig(), 1.0),
        (LayeredHintConfig(), 1.0),
    ]
    for config, cost in games:
        game: Any = config.build()
        game.reset(0)
        game.step("nonsense")
        assert game.reward_components == {agent: {"illegal": -cost} for agent in game.seats}


@pytest.mark.parametrize(
    ("name", "situations", "value"),
    [
        ("climbing", 2, -31 / 9),
        ("and", 3, 1 / 8),
        ("two_step", 6, (7 + 2.5) / 2),
        ("hint", 6, 1 / 3),
        ("layered_hint", 2 + 2 * 2 + 4, 1 / 2),
        ("stopping", 2, 1),
    ],
)
def test_the_games_can_be_walked_whole(name: str, situations: int, value: float) -> None:
    tree = uniform_game_tree(GAMES[name])
    assert len(tree.requests) == situations
    assert expected_returns(tree, uniform_strategy(tree)) == pytest.approx(dict.fromkeys(tree.agents, value))


@pytest.mark.parametrize(
    ("config", "settings", "says"),
    [
        (MatrixConfig, {"table": "climb"}, "table: no preset 'climb'; did you mean 'climbing'"),
        (MatrixConfig, {"table": [[1, 2], [3]]}, "nested lists of numbers, all of one length"),
        (MatrixConfig, {"table": []}, "has no cells"),
        (MatrixConfig, {"table": [list(range(27))]}, "27 moves; choices: at most 26"),
        (CoalitionConfig, {}, "give one of preset, weights, values"),
        (CoalitionConfig, {"preset": "majority", "values": (0, 1)}, "give one of"),
        (CoalitionConfig, {"preset": "gloves"}, "did you mean 'glove'"),
        (CoalitionConfig, {"weights": (1, 2)}, "quota: None"),
        (CoalitionConfig, {"values": (0, 1, 2)}, "values: 3 of them"),
        (HintConfig, {"symbols": 7}, "less than or equal to 6"),
        (LayeredHintConfig, {"layers": [2]}, "layers: must have at least 2|at least 2 items"),
        (LayeredHintConfig, {"layers": [1, 0]}, "greater than or equal to 1"),
    ],
)
def test_impossible_settings_are_named(config: type[GameConfig], settings: dict, says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        config.model_validate(settings)


def test_an_unknown_symbol_is_named() -> None:
    game: Game = HintConfig().build()
    with pytest.raises(ValueError, match="option symbol: no symbol 'pink'; choices: red, green"):
        game.reset(0, {"symbol": "pink"})
