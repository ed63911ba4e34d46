"""Environments of `verifiers` and of TRL as games: their chat, their tools, and their reward functions."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from marl.core.types import Problem, VerifierCase
from marl.games.base import reset_and_play
from marl.games.wrappers.trl import RewardFunctionVerifier, TrlConfig
from marl.games.wrappers.verifiers import VerifiersConfig

SEAT = "player_0"
GUESS: dict[str, Any] = {"env": "tests.support.third_party_environments:GuessEnvironment", "prompt": "A game. "}


def verifiers(name: str, **settings: Any) -> VerifiersConfig:
    return VerifiersConfig(
        env="tests.support.third_party_environments:load_environment", settings={"name": name, **settings}
    )


def call(name: str, **arguments: Any) -> str:
    return json.dumps({"name": name, "arguments": arguments})


def find_number(game: Any, say: Any) -> int:
    """The number that the game has drawn, found by halving; -1 if the episode ended first."""
    low, high = 1, 9
    while not game.terminations[SEAT]:
        middle = (low + high) // 2
        game.step(say(middle))
        answer = game.observe(SEAT)["text"].split("\n\nTools:")[0].split()[-1]
        if answer == "right" or game.rewards[SEAT]:
            return middle
        low, high = (middle + 1, high) if answer == "higher" else (low, middle - 1)
    return -1


@pytest.mark.slow  # its import takes seconds
def test_a_single_turn_is_paid_by_the_weighted_reward_functions_of_the_rubric() -> None:
    game = verifiers("sums").build()
    game.reset(0, {"row": 2})
    assert game.observe(SEAT)["text"] == "Add.\n\n2+2?"
    game.step("4")
    assert game.rewards == {SEAT: pytest.approx(1.0 - 0.1 * 1)}
    assert game.episode_measures().measures == {"right": 1.0, "short": -1.0, "num_turns": 1.0}
    game.reset(0, {"row": 3})
    game.step("seven")
    assert game.rewards == {SEAT: pytest.approx(-0.5)}


@pytest.mark.slow
def test_held_out_rows_are_those_of_evaluation() -> None:
    config = verifiers("sums", rows=3, held_out=2)
    assert config.held_out_reset_options(5) == [{"split": "held_out", "row": 0}, {"split": "held_out", "row": 1}]
    game = config.build()
    game.reset(0, config.held_out_reset_options(1)[0])
    assert game.observe(SEAT)["text"] == "Add.\n\n3+3?"
    assert {row for seed in range(20) if not game.reset(seed) and (row := game.start_state_key())} == {
        "train/0",
        "train/1",
        "train/2",
    }
    with pytest.raises(ValueError, match="option row: no row 3; choices: 0 to 2"):
        game.reset(0, {"row": 3})


@pytest.mark.slow
def test_several_turns_are_a_function_of_the_seed_and_can_be_left_and_replayed() -> None:
    config = verifiers("guessing")
    game, fork = config.build(), config.build()
    secrets = {}
    for seed in range(8):
        game.reset(seed)
        game.step("5")
        reply = game.observe(SEAT)["text"]
        reset_and_play(fork, seed, None, ["5"])  # the episode before is left unfinished
        assert fork.observe(SEAT)["text"] == reply
        game.reset(seed)
        secrets[seed] = find_number(game, str)
        fork.reset(seed)
        assert find_number(fork, str) == secrets[seed]
        assert game.rewards == {SEAT: float(secrets[seed] > 0)}
    assert len({*secrets.values()}) > 2


@pytest.mark.slow
def test_a_tool_is_called_by_json_and_its_answer_is_read() -> None:
    game = verifiers("doubling").build()
    game.reset(0)
    assert "double" in game.observe(SEAT)["text"]
    game.step(call("double", number=21))
    assert "tool: 42" in game.observe(SEAT)["text"]
    game.step("42")
    assert game.rewards == {SEAT: 1.0}
    assert game.episode_measures().measures["double_calls"] == 1.0


@pytest.mark.slow
def test_what_is_no_environment_of_verifiers_is_refused() -> None:
    with pytest.raises(ValueError, match="is no class of environments, and no function named env, raw_env"):
        VerifiersConfig(env="tests.support.third_party_environments:GuessEnvironment").build()
    with pytest.raises(ValueError, match="environments has no 'load_environmen'; did you mean 'load_environment'"):
        VerifiersConfig(env="tests.support.third_party_environments:load_environmen").build()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SingleAgentEnv", "Taskset", "load_environment"])
def test_an_environment_of_verifiers_v1_is_refused_with_the_way_to_train_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "modern.py").write_text(
        "from verifiers.v1 import SingleAgentEnv, Taskset\ndef load_environment():\n"
        "    return SingleAgentEnv.__new__(SingleAgentEnv)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=r"belongs to verifiers\.v1, .* programs, by .*/programs/verifiers_v1\.yaml"):
        _ = VerifiersConfig(env=f"modern:{name}").environment


def test_an_environment_of_trl_is_played_by_calls_of_its_tools() -> None:
    game = TrlConfig.model_validate(GUESS | {"rewards": ["tests.support.third_party_environments:brevity"]}).build()
    game.reset(1)
    prompt = game.observe(SEAT)["text"]
    assert prompt.startswith("A game. Guess 1 to 9.\n\nTools:\n- guess(number: int) -> str: Say whether")
    game.step(call("guess", number="many"))
    assert "tool: error: invalid literal for int()" in game.observe(SEAT)["text"]
    secret = find_number(game, lambda number: call("guess", number=number))
    assert 1 <= secret <= 9
    game.step("done")
    messages = len(game._turns)
    assert game.reward_components == {SEAT: {"GuessEnvironment": 1.0, "brevity": pytest.approx(-0.1 * messages)}}


def test_an_environment_of_trl_is_a_function_of_its_seed() -> None:
    game, fork = TrlConfig.model_validate(GUESS).build(), TrlConfig.model_validate(GUESS).build()
    secrets = set()
    for seed in range(8):
        for each in (game, fork):
            each.reset(seed)
        numbers = [find_number(each, lambda number: call("guess", number=number)) for each in (game, fork)]
        assert numbers[0] == numbers[1]
        secrets.add(numbers[0])
    assert len(secrets) > 2


def test_rows_of_a_task_are_prompts_and_columns() -> None:
    config = TrlConfig.model_validate(
        {
            "env": "tests.support.third_party_environments:GuessEnvironment",
            "task": {"kind": "arithmetic", "numbers": [1, 9], "train": 20, "held_out": 5},
            "rewards": ["tests.support.third_party_environments:exact"],
            "max_calls": 1,
        }
    )
    game = config.build()
    game.reset(0, config.held_out_reset_options(2)[1])
    problem = config.task.build().problem("held_out", 1) if config.task else None
    assert problem
    assert game.observe(SEAT)["text"].startswith(problem.question)
    assert game.infos[SEAT]["problem"] == problem.key
    game.step(problem.answer)
    assert game.reward_components == {SEAT: {"GuessEnvironment": 0.0, "exact": 2.0}}
    game.reset(0)
    game.step(call("guess", number=10))
    assert game.terminations == {SEAT: True}, "max_calls ends the episode"


@pytest.mark.parametrize(("env", "starts"), [("GuessEnvironment", 3), ("EchoEnvironment", 1)])
def test_starts_of_one_row_are_equal_unless_the_environment_draws_random_numbers(env: str, starts: int) -> None:
    task = {"kind": "arithmetic", "numbers": [1, 9], "train": 20, "held_out": 5}
    config = TrlConfig.model_validate({"env": f"tests.support.third_party_environments:{env}", "task": task})
    game, keys = config.build(), set()
    for seed in range(3):
        game.reset(seed, config.held_out_reset_options(1)[0])
        keys.add(game.start_state_key())
    assert len(keys) == starts


def test_a_reset_of_trl_may_be_awaited_and_returns_text() -> None:
    game = TrlConfig(env="tests.support.third_party_environments:EchoEnvironment", prompt="Say it. ").build()
    game.reset(0)
    assert game.observe(SEAT)["text"].startswith("Say it. Now.")
    game = TrlConfig(env="tests.support.third_party_environments:EchoEnvironment", settings={"words": 3}).build()
    with pytest.raises(ValueError, match="`reset` returned int; choices: text to read first, or None"):
        game.reset(0)


def test_a_reward_function_of_trl_is_a_verifier() -> None:
    check = RewardFunctionVerifier(function="tests.support.third_party_environments:exact", best=2.0)
    right, unknown = Problem("k", "1+1?", "2"), Problem("k", "1+1?")
    assert check(VerifierCase(right, "2", "2")).score == 1.0
    assert check(VerifierCase(right, "3", "3")).score == 0.0
    assert check(VerifierCase(unknown, "3", "3")).why == "the reward function does not apply"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"env": "tests.support.third_party_environments:hint"}, "is no class of environments, and no function named"),
        ({"env": "subprocess:Popen"}, "subprocess is in Python's standard library"),
        (GUESS | {"rewards": ["os:system"]}, "os is in Python's standard library"),
        ({"env": "tests.support.third_party_environments:GuesEnvironment"}, "did you mean 'GuessEnvironment'"),
        (GUESS | {"settings": {"bottom": 0}}, "settings: {'bottom': 0} are not taken"),
    ],
)
def test_what_is_no_environment_of_trl_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        TrlConfig.model_validate(settings).build()
