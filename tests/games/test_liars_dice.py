"""Liar's dice against OpenSpiel."""

from __future__ import annotations

import random
from typing import Any

import pyspiel
import pytest
from open_spiel.python import policy as spiel_policy
from open_spiel.python.algorithms import expected_game_score, exploitability
from pydantic import ValidationError

from marl.evaluation.game_tree import expected_returns, nash_conv
from marl.games.base import reset_and_play
from marl.games.liars_dice import AGENTS, LiarsDice, LiarsDiceConfig
from tests.support.uniform_play import uniform_game_tree, uniform_strategy


def openspiel(dice: int, faces: int) -> pyspiel.Game:
    return pyspiel.load_game("liars_dice", {"numdice": dice, "dice_sides": faces})


def rolled(state: pyspiel.State, roll: str) -> pyspiel.State:
    """Return the state after both players have rolled."""
    for face in roll.replace(" ", ""):
        state = state.child(int(face) - 1)
    return state


def game_after(roll: str, *moves: str, dice: int = 1, faces: int = 3) -> LiarsDice:
    game = LiarsDiceConfig(dice=dice, faces=faces).build()
    reset_and_play(game, 0, {"roll": roll}, moves)
    return game


def expect_alike(ours: LiarsDice, theirs: pyspiel.State) -> None:
    """Compare mover, legal moves and information state, or payoffs."""
    assert theirs.is_terminal() == any(ours.terminations.values())
    if theirs.is_terminal():
        assert theirs.returns() == [ours._cumulative_rewards[agent] for agent in AGENTS]
        return
    agent = ours.agent_selection
    assert AGENTS[theirs.current_player()] == agent
    names = [theirs.action_to_string(action).replace("-", "x").lower() for action in theirs.legal_actions()]
    assert names == list(ours.infos[agent]["legal"])
    assert theirs.information_state_string().replace("-", "x") == ours.infos[agent]["state"]


@pytest.mark.parametrize(("dice", "faces", "situations"), [(1, 2, 32), (1, 3, 192), (2, 2, 768)])
def test_the_whole_tree_agrees_with_openspiel(dice: int, faces: int, situations: int) -> None:
    config, states = LiarsDiceConfig(dice=dice, faces=faces), set()
    game = config.build()

    def walk(theirs: pyspiel.State, roll: str, moves: list[str]) -> None:
        reset_and_play(game, 0, {"roll": roll}, moves)
        expect_alike(game, theirs)
        if theirs.is_terminal():
            return
        info = game.infos[game.agent_selection]
        states.add((game.agent_selection, info["state"]))
        for action, move in zip(theirs.legal_actions(), info["legal"], strict=True):
            walk(theirs.child(action), roll, [*moves, move])

    for start in config.all_start_states() or ():
        roll = start.options["roll"]
        walk(rolled(openspiel(dice, faces).new_initial_state(), roll), roll, [])
    assert len(states) == situations


def playouts(count: int, dice: int, faces: int) -> None:
    """Compare random games with OpenSpiel's, move by move."""
    rng, game = random.Random(dice * faces), LiarsDiceConfig(dice=dice, faces=faces).build()
    root = openspiel(dice, faces).new_initial_state()
    for seed in range(count):
        game.reset(seed)
        theirs = rolled(root, game.start_state_key())
        expect_alike(game, theirs)
        while not theirs.is_terminal():
            place = rng.randrange(len(theirs.legal_actions()))
            game.step(game.infos[game.agent_selection]["legal"][place])
            theirs.apply_action(theirs.legal_actions()[place])
            expect_alike(game, theirs)


@pytest.mark.parametrize(("dice", "faces"), [(1, 6), (2, 6), (5, 6)])
def test_random_games_agree_with_openspiel(dice: int, faces: int) -> None:
    playouts(500, dice, faces)


@pytest.mark.slow
@pytest.mark.parametrize(("dice", "faces"), [(1, 6), (3, 5)])
def test_fifty_thousand_random_games_agree_with_openspiel(dice: int, faces: int) -> None:
    playouts(50_000, dice, faces)


@pytest.mark.parametrize(
    ("dice", "faces"), [(1, 3), pytest.param(1, 4, marks=pytest.mark.slow), pytest.param(2, 2, marks=pytest.mark.slow)]
)
def test_uniform_play_has_openspiels_value_and_nashconv(dice: int, faces: int) -> None:
    tree = uniform_game_tree(LiarsDiceConfig(dice=dice, faces=faces))
    theirs = openspiel(dice, faces)
    tabular = spiel_policy.UniformRandomPolicy(theirs)
    worth = expected_game_score.policy_value(theirs.new_initial_state(), [tabular, tabular])
    assert [*expected_returns(tree, uniform_strategy(tree)).values()] == pytest.approx(worth, abs=1e-12)
    assert nash_conv(tree, uniform_strategy(tree)) == pytest.approx(
        exploitability.nash_conv(theirs, tabular), abs=1e-12
    )


@pytest.mark.parametrize(
    ("roll", "moves", "winner"),
    [
        ("1 1", "2x1 liar", 0),
        ("1 2", "2x1 liar", 1),
        ("3 2", "2x2 liar", 0),
        ("3 3", "1x1 2x1 liar", 1),
        ("1 1", "1x3 2x3 liar", 0),
    ],
)
def test_the_highest_face_counts_as_any(roll: str, moves: str, winner: int) -> None:
    rewards = game_after(roll, *moves.split()).rewards
    assert rewards == {AGENTS[winner]: 1.0, AGENTS[1 - winner]: -1.0}


def test_players_see_their_own_dice_and_all_bids_from_their_own_side() -> None:
    assert game_after("3 1").observe("player_0")["text"] == "hand_3 bids_none"
    game = game_after("13 22", "1x1", "1x3", "3x1", dice=2)
    assert game.observe("player_0")["text"] == "hand_13 mine_1x1 theirs_1x3 mine_3x1"
    assert game.observe("player_1")["text"] == "hand_22 theirs_1x1 mine_1x3 theirs_3x1"
    assert game.infos["player_1"]["state"] == "22 1x1 1x3 3x1"


@pytest.mark.parametrize("moves", ["liar", "1x2 1x2", "1x2 1x1", "3x1", "1x4"])
def test_a_bid_that_is_no_higher_or_impossible_is_illegal(moves: str) -> None:
    game = game_after("1 2", *moves.split())
    assert sorted(game.rewards.values()) == [-1.5, 1.5]


def test_a_game_that_is_too_large_to_be_walked_exports_no_deals() -> None:
    assert LiarsDiceConfig(faces=6).all_start_states() is None
    assert LiarsDiceConfig(dice=5, faces=6).all_start_states() is None
    cases: tuple[dict[str, Any], ...] = ({"faces": 5}, {"dice": 2, "faces": 2})
    for settings in cases:
        assert sum(
            start.probability for start in LiarsDiceConfig(**settings).all_start_states() or ()
        ) == pytest.approx(1)


def test_hands_of_several_dice_come_as_often_as_they_are_rolled() -> None:
    starts = LiarsDiceConfig(dice=2, faces=2).all_start_states() or ()
    assert {start.options["roll"]: start.probability for start in starts}["12 11"] == 2 / 4 * 1 / 4
    game = LiarsDiceConfig(dice=2, faces=2).build()
    count = 0
    for seed in range(4000):
        game.reset(seed)
        count += game.start_state_key() == "12 12"
    assert abs(count - 1000) < 5 * 28


@pytest.mark.parametrize("roll", ["4 1", "1", "12", "31 11", 5, ["1", "2"]])
def test_an_impossible_roll_is_named(roll: object) -> None:
    with pytest.raises(ValueError, match=r"liars_dice: option roll: .* is no roll; choices: the dice .* as in '1 1'"):
        LiarsDiceConfig().build().reset(0, {"roll": roll})


@pytest.mark.parametrize("settings", [{"dice": 0}, {"dice": 6}, {"faces": 1}, {"faces": 7}], ids=str)
def test_impossible_settings_are_named(settings: dict) -> None:
    with pytest.raises(ValidationError, match=r"(dice|faces)\n.*(greater|less) than or equal to"):
        LiarsDiceConfig.model_validate(settings)
