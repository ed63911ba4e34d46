"""A model that knows language is told the rules of a game and how to move; a tiny model reads what it always did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from marl.core.types import Deal, Turn
from marl.engines.scripted import Random
from marl.games.base import TextGame
from marl.games.communication import CommunicationConfig
from marl.games.hint import HintConfig
from marl.games.kuhn_poker import KuhnPokerConfig
from marl.games.matrix_games import MatrixConfig
from marl.games.nim import NimConfig
from marl.games.taboo import TabooConfig
from marl.games.tic_tac_toe import TicTacToeConfig
from marl.models.tiny import Tiny
from marl.models.tiny_build import build_tiny_model
from marl.protocols import GameConfig, PromptContext
from marl.scenario.load import validate
from marl.scenario.schema import Scenario
from marl.training.placement import simulator_from_engines

TASK = {"kind": "arithmetic", "train": 20, "held_out": 5}
GAMES: list[GameConfig] = [
    *(KuhnPokerConfig(), NimConfig(), TicTacToeConfig(), HintConfig(), TabooConfig(), MatrixConfig(table="climbing")),
    CommunicationConfig(task=TASK),  # type: ignore[arg-type]
]


def scenario(model: Any = "Qwen/Qwen3-0.6B", game: str = "kuhn_poker", **role: Any) -> Scenario:
    """Return a scenario in which `model`, or an engine, plays first against a model that learns."""
    policy = model if "engine" in model else {"model": model}
    pupil = {"model": {"kind": "tiny"}, "learner": {"kind": "grpo", "lr": 1e-3}}
    return validate(
        {
            "game": {"kind": game},
            "seats": {"player_0": "player", "player_1": "pupil"},
            "roles": {
                "player": {"kind": "player", "policy": "actor", **role},
                "pupil": {"kind": "player", "policy": "pupil"},
            },
            "policies": {"actor": policy, "pupil": pupil},
            "schedule": {"steps": 1, "groups": 1, "group_size": 2},
        }
    )


def first(settings: Scenario) -> Turn:
    simulator = simulator_from_engines(settings, dict.fromkeys(settings.policies, Random().build(None)))
    return simulator.play([Deal("a", "a", 1, settings.seats)])[0].turns[0]


def test_an_instruct_model_is_told_the_rules_the_legal_moves_and_the_format() -> None:
    told, asked = first(scenario()).request.messages
    assert (told.role, asked.role) == ("system", "user")
    for part in ("Kuhn poker", "K beats Q", "square brackets: [...]"):
        assert part in told.content
    assert "card J" in asked.content
    assert asked.content.endswith("Your move, one of: [check] [bet]")


@pytest.mark.parametrize(
    "model",
    [
        {"kind": "tiny"},
        {"kind": "adapter", "base": {"kind": "tiny"}},
        {"engine": {"kind": "random"}},
    ],
    ids=str,
)
def test_those_who_know_no_language_read_the_observation_alone(model: Any) -> None:
    [asked] = first(scenario(model)).request.messages
    assert asked.content == "card J . betting none . moves [check] [bet]"


def test_a_folder_of_a_tiny_model_is_known_for_one(tmp_path: Path) -> None:
    build_tiny_model(Tiny(), tmp_path / "model", ["card K"])
    assert len(first(scenario(str(tmp_path / "model"))).request.messages) == 1


def test_an_endpoint_is_told_the_rules() -> None:
    endpoint = {"engine": {"kind": "openai", "base_url": "http://127.0.0.1:1/v1", "model": "m", "key_env": None}}
    assert len(first(scenario(endpoint)).request.messages) == 2


def test_what_a_scenario_says_is_not_replaced() -> None:
    [asked] = first(scenario(instructions="", prompt="{{ observation }}")).request.messages
    assert asked.content == "card J . betting none . moves [check] [bet]"
    told, _ = first(scenario(instructions="{{ rules }} Be quick.")).request.messages
    assert told.content.startswith("This is Kuhn poker")
    assert told.content.endswith("Be quick.")


def test_a_resolved_scenario_holds_the_templates_and_is_read_again_as_it_is() -> None:
    for model in ("Qwen/Qwen3-0.6B", {"kind": "tiny"}):
        resolved = scenario(model)
        data = resolved.model_dump(mode="json")
        assert validate(data) == resolved
        data["policies"]["actor"]["model"] = {"kind": "pretrained", "path": "another/model"}
        assert validate(data).roles == resolved.roles, "a warm-up, for example, keeps the prompts"


def test_an_answer_that_is_asked_again_says_why() -> None:
    role = scenario().roles["player"]
    info: Any = {"legal": ("a", "b"), "hears": (), "together": (), "state": "", "attempt": 1}
    assert "named no legal move" in role.messages(PromptContext("x", {"text": "now"}, info))[-1].content


@pytest.mark.parametrize("game", GAMES, ids=lambda game: game.kind)
def test_every_game_tells_its_rules_in_a_few_sentences(game: GameConfig) -> None:
    playing = game.build()
    assert isinstance(playing, TextGame)
    assert 20 < len(playing.rules.split()) < 130
    playing.reset(seed=1)
    assert playing.infos[playing.agent_selection].get("rules") == playing.rules


def test_rules_name_the_settings_of_the_game() -> None:
    assert "at most 5" in NimConfig(max_take=5).build().rules
    assert "After 7 turns" in TabooConfig(max_turns=7).build().rules
