"""Games of OpenSpiel: payoffs, legal moves and information states are OpenSpiel's own; chance comes from the seed."""

from __future__ import annotations

import copy
import re
import sys
from itertools import permutations
from typing import Any

import pytest

from marl.evaluation.game_tree import GameTree, build_game_tree, expected_returns, nash_conv
from marl.games.wrappers.openspiel import OpenSpielConfig
from marl.roles.answering import PlayerRole
from marl.rollout.casting import RoleRequestBuilder
from tests.support.wrapped_game_play import determinism_faults, over, play_randomly, seats


def uniform_tree(name: str) -> tuple[GameTree, Any]:
    """The whole tree of a game, and the strategy that plays every legal move alike."""
    config = OpenSpielConfig(name=name)
    tree = build_game_tree(config, RoleRequestBuilder({"player": PlayerRole(policy="actor")}, 0), seats(config))
    return tree, {
        situation: dict.fromkeys(request.options or {}, 1 / len(request.options or {}))
        for situation, request in tree.requests.items()
    }


def test_kuhn_poker_has_the_value_and_nashconv_of_uniform_play_that_are_known() -> None:
    tree, strategy = uniform_tree("kuhn_poker")
    assert len(tree.requests) == 12
    assert expected_returns(tree, strategy)["player_0"] == pytest.approx(1 / 8)
    assert nash_conv(tree, strategy) == pytest.approx(11 / 12)


def test_a_simultaneous_game_is_walked_in_rounds() -> None:
    tree, strategy = uniform_tree("matrix_rps")
    assert len(tree.requests) == 2
    assert nash_conv(tree, strategy) == pytest.approx(0)


def test_starts_are_exported_where_all_chance_comes_first_and_the_game_is_small() -> None:
    deals = OpenSpielConfig(name="kuhn_poker").all_start_states()
    assert deals is not None
    assert sorted(tuple(deal.options["chance"]) for deal in deals) == list(permutations(range(3), 2))
    assert [deal.probability for deal in deals] == pytest.approx([1 / 6] * 6)
    assert len(OpenSpielConfig(name="matrix_pd").all_start_states() or ()) == 1
    assert OpenSpielConfig(name="leduc_poker").all_start_states() is None, "a card is turned up later"
    assert OpenSpielConfig(name="othello").all_start_states() is None, "it is too large"


@pytest.mark.parametrize("name", ["leduc_poker", "goofspiel(num_cards=4)", "liars_dice", "tiny_hanabi", "catch"])
def test_a_random_episode_pays_and_allows_what_openspiel_does(name: str) -> None:
    config = OpenSpielConfig(name=name)
    for seed in range(5):
        game = config.build()
        game.reset(seed)
        paid, moves = dict.fromkeys(game.possible_agents, 0.0), iter(play_randomly(config, seed).moves)
        while not over(game):
            state, agent = game._state, game.agent_selection
            player = game.seats.index(agent)
            names = {state.action_to_string(player, action) for action in state.legal_actions(player)}
            assert set(game.infos[agent]["legal"] or ()) == {name.replace("[", "(").replace("]", ")") for name in names}
            if game._game.get_type().provides_information_state_string:
                assert game.infos[agent]["state"] == f"{agent}\n{state.information_state_string(player)}"
            game.step(next(moves))
            for payee, reward in game.rewards.items():
                paid[payee] += reward
        assert list(paid.values()) == pytest.approx(game._state.returns())
        assert game._state.is_terminal()


@pytest.mark.parametrize("name", ["leduc_poker", "backgammon", "negotiation", "pig(winscore=20)", "coin_game", "tarok"])
def test_chance_is_a_function_of_the_seed_also_where_a_game_draws_itself(name: str) -> None:
    config = OpenSpielConfig(name=name)
    assert determinism_faults(config, 1, most=150) == []
    assert len({str(play_randomly(config, seed, most=150).read[:2]) for seed in range(6)}) > 1


def test_players_who_move_at_the_same_time_are_asked_together() -> None:
    game = OpenSpielConfig(name="goofspiel", parameters={"num_cards": 3, "players": 3}).build()
    game.reset(0)
    assert game.infos["player_0"]["together"] == ("player_0", "player_1", "player_2")
    seen = game.observe("player_2")
    game.step(game.infos["player_0"]["legal"][0])
    assert (game.agent_selection, game.infos["player_1"]["together"]) == ("player_1", ("player_1", "player_2"))
    assert game.observe("player_2") == seen


def test_a_game_can_be_copied_in_the_middle() -> None:
    game = OpenSpielConfig(name="leduc_poker").build()
    game.reset(3)
    game.step("Call")
    twin = copy.deepcopy(game)
    for each in (game, twin):
        each.step("Call")
    assert twin.observe("player_0") == game.observe("player_0")


def test_who_moves_illegally_pays_as_the_game_says() -> None:
    game = OpenSpielConfig(name="leduc_poker").build()
    game.reset(0)
    game.step("bluff")
    assert game.rewards == {"player_0": -13.0, "player_1": 13.0}, "no less than the worst loss"
    team = OpenSpielConfig(name="tiny_hanabi").build()
    team.reset(0)
    team.step("bluff")
    assert set(team.rewards.values()) == {-1.0}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "leduc"}, "name: no game 'leduc'; did you mean 'leduc_poker'"),
        ({"name": "leduc_poker", "parameters": {"decks": 2}}, "parameters: 'leduc_poker' with {'decks': 2}: "),
        ({"name": "mfg_garnet"}, "name: 'mfg_garnet' is a mean field game"),
        ({"name": "hanabi", "strings": "information_state"}, "strings: 'hanabi' has no information_state strings"),
    ],
)
def test_what_cannot_be_played_is_refused_by_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        OpenSpielConfig.model_validate(settings)


def test_a_missing_package_is_named_with_the_extra_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspiel", None)
    with pytest.raises(ValueError, match=re.escape("needs the package `pyspiel`: pip install 'marl-llm[openspiel]'")):
        OpenSpielConfig(name="kuhn_poker")
