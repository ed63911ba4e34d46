"""Games of TextArena: what it tells, what it pays, seeds, examples of moves, and what cannot begin."""

from __future__ import annotations

import random
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import textarena
from textarena.envs import registration

from marl.games.wrappers.textarena import TextArenaConfig
from marl.scenario.trust import external_accesses
from tests.support.wrapped_game_play import determinism_faults, over, play_randomly


def test_tic_tac_toe_is_won_by_three_in_a_row() -> None:
    game = TextArenaConfig(id="TicTacToe-v0").build()
    game.reset(0)
    assert "You are Player 0 in Tic Tac Toe." in game.observe("player_0")["text"]
    for move in ("0", "3", "1", "4"):
        game.step(move)
    assert "Player 1 placed their symbol (X) in cell 4." in game.observe("player_0")["text"]
    game.step("[2]")
    assert over(game)
    assert game.rewards == {"player_0": 1, "player_1": -1}
    assert game.episode_measures().measures == {"invalid_move": 0.0}


def test_a_move_that_it_refuses_twice_loses() -> None:
    game = TextArenaConfig(id="TicTacToe-v0").build()
    game.reset(0)
    game.step("the centre")
    assert (game.agent_selection, "invalid move" in game.observe("player_0")["text"]) == ("player_0", True)
    game.step("the centre")
    assert game.rewards == {"player_0": -1, "player_1": 1}
    assert game.episode_measures().measures == {"invalid_move": 1.0}


@pytest.mark.parametrize(("name", "players"), [("KuhnPoker-v0", 2), ("Mastermind-v0", 1), ("ThreePlayerIPD-v0", 3)])
def test_an_episode_is_a_function_of_its_seed_though_the_game_draws_from_the_global_generator(
    name: str, players: int
) -> None:
    config = TextArenaConfig(id=name, players=players)
    assert [fault for seed in range(3) for fault in determinism_faults(config, seed)] == []
    assert name == "ThreePlayerIPD-v0" or len({str(play_randomly(config, seed).read) for seed in range(8)}) > 1


def test_the_global_generator_goes_on_as_if_nobody_had_played() -> None:
    random.seed(4)
    expected = [random.random() for _ in range(3)]
    random.seed(4)
    game = TextArenaConfig(id="KuhnPoker-v0").build()
    game.reset(0)
    game.step("check")
    assert [random.random() for _ in range(3)] == expected


def test_examples_of_moves_are_what_stands_in_brackets_without_the_names_of_speakers() -> None:
    game = TextArenaConfig(id="TicTacToe-v0").build()
    game.reset(0)
    game.step("0")
    assert {*game.infos["player_1"]["examples"]} == {*"012345678"}, "an example of the rules, moves, and what is free"
    other = TextArenaConfig(id="TicTacToe-v0", examples="cell of the (board)").build()
    other.reset(0)
    assert other.infos["player_0"]["examples"] == ("board",)


def test_listed_actions_are_the_only_moves() -> None:
    game = TextArenaConfig(id="TicTacToe-v0-train", actions=("0", "4")).build()
    game.reset(0)
    assert game.infos["player_0"]["legal"] == ("0", "4")
    game.step("8")
    assert game.rewards == {"player_0": -1.0, "player_1": 0.0}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"id": "TicTacTo-v0"}, "no game 'TicTacTo-v0'; did you mean 'TicTacToe-v0'"),
        ({"id": "TicTacToe-v0", "players": 3}, "players: TicTacToe-v0 does not take 3: "),
        ({"id": "TicTacToe-v0", "settings": {"size": 4}}, "settings: TicTacToe-v0 does not take {'size': 4}: "),
        ({"id": "TicTacToe-v0", "examples": "["}, "'[' is no regular expression"),
        ({"id": "Debate-v0"}, "id: Debate-v0 cannot begin: ValueError: OpenRouter API key not found"),
    ],
)
def test_what_cannot_be_played_is_refused_by_name(
    settings: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    with pytest.raises(ValueError, match=re.escape(message)):
        TextArenaConfig.model_validate(settings).build()


def test_a_missing_package_is_named_with_the_extra_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "textarena.envs.registration", None)
    with pytest.raises(ValueError, match=re.escape("pip install 'marl-llm[textarena]'")):
        TextArenaConfig(id="TicTacToe-v0")


def test_every_game_that_calls_a_host_is_known() -> None:
    """By the source of the installed version: words are downloaded by nltk, and models answer at OpenRouter."""
    hosts = {"downloads": r"nltk\.download|EnglishDictionary", "sends": "OpenRouter"}
    found: dict[str, str | None] = {}
    for name, spec in registration.ENV_REGISTRY.items():
        module = spec.entry_point.partition(":")[0]
        folder = Path(textarena.__path__[0]).parent.joinpath(*module.split(".")[:-1])
        text = "".join(file.read_text() for file in sorted(folder.rglob("*.py")))
        calls = [action for action, pattern in hosts.items() if re.search(pattern, text)]
        accesses = external_accesses({"game": {"kind": "textarena", "id": name}}, Path())
        if bool(calls) != bool(accesses):
            found[name] = str(calls or accesses)
    assert not found
