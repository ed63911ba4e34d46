"""Disguised games: the same trees and values in other words, with other names and another order of moves."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

from marl.evaluation.game_tree import GameTree, Strategy, expected_returns, nash_conv
from marl.games.base import TextGame, TextGameConfig
from marl.games.connect_four import ConnectFourConfig
from marl.games.disguise import PLAIN_WORDS
from marl.games.guess_who import GuessWhoConfig
from marl.games.kuhn_poker import KuhnPokerConfig
from marl.games.nim import NimConfig
from marl.games.taboo import TabooConfig
from marl.games.tic_tac_toe import TicTacToeConfig
from marl.games.werewolf import WerewolfConfig
from marl.games.wrappers.openspiel import OpenSpielConfig
from marl.scenario.load import load
from marl.text.origins import origin_spans_of_text
from tests.support.uniform_play import uniform_game_tree, uniform_strategy

SEEDS = (0, 1, 2)
GAMES: dict[str, TextGameConfig] = {
    "kuhn_poker": KuhnPokerConfig(),
    "nim": NimConfig(),
    "tic_tac_toe": TicTacToeConfig(openings=0.5),
    "connect_four": ConnectFourConfig(),
    "guess_who": GuessWhoConfig(),
    "werewolf": WerewolfConfig(),
    "openspiel": OpenSpielConfig(name="leduc_poker"),
}
Pair = tuple[TextGame, TextGame]


def disguised(config: TextGameConfig, seed: int) -> Any:
    return type(config).model_validate(config.model_dump() | {"disguise": seed})


def built_pair(config: TextGameConfig, seed: int) -> Pair:
    plain, other = config.build(), disguised(config, seed).build()
    assert isinstance(plain, TextGame)
    assert isinstance(other, TextGame)
    return plain, other


def words(text: str) -> set[str]:
    """Return the words and numbers of a text that a disguise has to replace."""
    return {word.lower() for word in re.findall(r"[A-Za-z]+|\d+", re.sub(r"player_\d+|n't|'s", "", text))} - PLAIN_WORDS


def texts_of(game: TextGame) -> str:
    info = game.infos[game.agent_selection]
    observation = game.observe(game.agent_selection)["text"]
    return "\n".join([str(observation), str(info.get("rules")), *(info["legal"] or ())])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("config", GAMES.values(), ids=GAMES)
def test_every_random_play_has_its_counterpart_with_the_same_states_and_rewards(
    config: TextGameConfig, seed: int
) -> None:
    plain, other = built_pair(config, seed)
    assert other.disguise
    rng = random.Random(seed)
    for game_seed in range(10):
        plain.reset(game_seed)
        other.reset(game_seed)
        while not (any(plain.terminations.values()) or any(plain.truncations.values())):
            agent = plain.agent_selection
            assert other.agent_selection == agent
            legal, shown = plain.infos[agent]["legal"], other.infos[agent]["legal"]
            name_of = {move: other.disguise.move(move) for move in legal}
            assert len({*name_of.values()}) == len(legal)
            assert sorted(name_of.values()) == sorted(shown)
            assert plain.infos[agent]["state"] == other.infos[agent]["state"]
            move = rng.choice(legal)
            plain.step(move)
            other.step(name_of[move])
            assert plain.reward_components == other.reward_components
        assert plain.terminations == other.terminations


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ["kuhn_poker", "nim", "tic_tac_toe", "connect_four"])
def test_disguised_texts_share_only_plain_words_with_the_games_own(name: str, seed: int) -> None:
    plain, other = built_pair(GAMES[name], seed)
    own, new = set[str](), set[str]()
    for game_seed in range(5):
        plain.reset(game_seed)
        other.reset(game_seed)
        while not any(other.terminations.values()):
            own |= words(texts_of(plain))
            new |= words(texts_of(other))
            assert other.disguise
            assert plain.all_actions
            move = plain.infos[plain.agent_selection]["legal"][0]
            plain.step(move)
            other.step(other.disguise.move(move))
    assert own
    assert new
    assert not own & new


@pytest.mark.parametrize("seed", SEEDS)
def test_the_tree_of_kuhn_poker_keeps_its_values(seed: int) -> None:
    config = KuhnPokerConfig()
    plain, other = uniform_game_tree(config), uniform_game_tree(disguised(config, seed))
    assert len(plain.requests) == len(other.requests) == 12
    # OpenSpiel's `exploitability` of uniform play in Kuhn poker is 11/24, half of NashConv.
    for tree in (plain, other):
        assert nash_conv(tree, uniform_strategy(tree)) == pytest.approx(11 / 12)
    equilibrium = reference_strategy(other, disguised(config, seed), "nash")
    assert nash_conv(other, equilibrium) == pytest.approx(0, abs=1e-12)
    assert expected_returns(other, equilibrium)["player_0"] == pytest.approx(-1 / 18)


@pytest.mark.parametrize("config", [NimConfig(piles=(3, 5)), TicTacToeConfig()], ids=["nim", "tic_tac_toe"])
def test_perfect_players_and_optimal_moves_are_disguised_with_their_game(config: TextGameConfig) -> None:
    other = disguised(config, 1)
    game, player = other.build(), other.reference_players()["minimax"]
    positions = random.Random(0).sample(config.evaluation_positions(), 5 if isinstance(config, NimConfig) else 300)
    for options, _ in positions:
        game.reset(0, options)
        info = game.infos[game.agent_selection]
        best = other.optimal_moves(info["state"])
        assert sorted(best) == sorted(map(game.disguise.move, config.optimal_moves(info["state"]) or ()))
        chances = player.move_probabilities(info["state"], info["legal"])
        assert not best or {move for move, chance in chances.items() if chance > 0} == {*best}


def test_nim_keeps_its_nashconv() -> None:
    config = NimConfig(piles=(2, 6))
    values: list[float] = []
    for game in (config, disguised(config, 0), disguised(config, 1)):
        tree = uniform_game_tree(game)
        values.append(nash_conv(tree, uniform_strategy(tree)))
        assert nash_conv(tree, reference_strategy(tree, game, "minimax")) == pytest.approx(0, abs=1e-12)
    assert values[1:] == pytest.approx([values[0]] * 2, abs=1e-12)
    assert values[0] > 0


def reference_strategy(tree: GameTree, config: TextGameConfig, name: str) -> Strategy:
    player: Any = config.reference_players()[name]
    strategy: dict[Any, Any] = {}
    for situation, request in tree.requests.items():
        strategy[situation] = player.move_probabilities(situation.state, tuple(request.options or ()))
    return strategy


def test_the_order_of_moves_changes_and_own_names_of_moves_are_illegal() -> None:
    plain, other = built_pair(NimConfig(piles=(9, 9), max_take=7), 3)
    plain.reset(0)
    other.reset(0)
    assert other.disguise
    shown = other.infos["player_0"]["legal"]
    assert list(shown) != [other.disguise.move(move) for move in plain.infos["player_0"]["legal"]]
    # The observation lists the moves in the order of the request.
    assert re.findall(r"\[(\w+)\]", str(other.observe("player_0")["text"])) == list(shown)
    assert other.action_space("player_0").contains(shown[0])  # type: ignore[no-untyped-call]
    assert sum(other.observe("player_0").get("action_mask", ())) == 7
    other.step("1")
    assert other.reward_components["player_0"] == {"illegal": -1.5}


def test_the_rules_say_how_numbers_are_written_and_keep_inflected_words_together() -> None:
    other = disguised(KuhnPokerConfig(), 3).build()
    rules = other.disguise.rules
    bet = other.disguise.move("bet")
    assert f"or {bet}s one" in rules
    assert f"After a {bet} the other" in rules
    assert f"{other.disguise.move('1')} is one" in rules


def test_a_line_keeps_the_moves_that_it_was_made_from() -> None:
    plain, other = built_pair(WerewolfConfig(), 0)
    for game in (plain, other):
        game.reset(0)
    assert other.disguise
    for _ in range(12):
        move = plain.infos[plain.agent_selection]["legal"][0]
        plain.step(move)
        other.step(other.disguise.move(move))
    own: Any = plain.observe(plain.agent_selection)["text"]
    new: Any = other.observe(plain.agent_selection)["text"]
    spans = origin_spans_of_text(own)
    assert spans
    assert [span[2] for span in spans] == [span[2] for span in origin_spans_of_text(new)]
    for (begin, end, _), (new_begin, new_end, _) in zip(spans, origin_spans_of_text(new), strict=True):
        assert other.disguise.text(str(own)[begin:end]) == str(new)[new_begin:new_end]


def test_a_game_whose_moves_are_any_text_is_refused() -> None:
    with pytest.raises(ValueError, match="disguise: the moves of 'taboo' are texts without a list"):
        disguised(TabooConfig(), 0).build()


def test_a_scenario_takes_a_disguise_by_an_override() -> None:
    scenario = load("scenarios/kuhn_self_play.yaml", ["game.disguise=7"], random_play=True)
    game = scenario.game.build()
    assert isinstance(game, TextGame)
    assert game.disguise
    assert scenario.game.model_dump()["disguise"] == 7
