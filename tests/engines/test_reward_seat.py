"""A reward model with a seat at the table."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForSequenceClassification

import marl
from marl.core.config import Sampling
from marl.core.graph import chats_up_to_each_turn, read_trajectories
from marl.core.types import Completion, Info, Message, Request, Turn
from marl.engines.reward_model.engine import RewardModel
from marl.engines.reward_model.settings import RewardModelConfig, RewardModelSettings
from marl.games.team.settings import TeamConfig
from marl.models.tiny_build import make_tiny_tokenizer
from marl.protocols import PromptContext
from marl.roles.rule_based import RewardModelRole
from marl.scenario.load import validate
from tests.support.small_team_scenarios import small_scenario

YES = (Message("user", "is it so"), Message("assistant", "yes"))
NO = (Message("user", "is it so"), Message("assistant", "no never"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier of random weights that knows any text."""
    path = tmp_path_factory.mktemp("models") / "rater"
    tokenizer: Any = make_tiny_tokenizer("bytes")
    sizes: dict[str, Any] = {
        "num_labels": 1,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        **sizes,
        max_position_embeddings=256,
        initializer_range=0.5,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        LlamaForSequenceClassification(config).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def seat(folder: Path, **changes: Any) -> RewardModelConfig:
    return RewardModelConfig(path=str(folder), max_tokens=256, device="cpu", **changes)


def request(*messages: Message) -> Request:
    return Request("rater", messages, Sampling())


def scored(completion: object, name: str = "reward") -> float:
    assert isinstance(completion, Completion)
    assert (completion.prompt_ids, completion.token_ids) == ((), ())
    return json.loads(completion.text)["scores"][name]


def test_it_says_what_the_scorer_says_all_at_once(folder: Path) -> None:
    engine = seat(folder).build(None)
    for ticket, chat in enumerate((YES, NO, YES)):
        engine.submit(ticket, request(*chat))
    completions = dict(engine.step(0.0))
    scorer = RewardModel(RewardModelSettings(path=str(folder), max_tokens=256, device="cpu"))
    expected = scorer([YES, NO])
    assert [scored(completions[ticket]) for ticket in range(3)] == pytest.approx([*expected, expected[0]], abs=1e-5)
    assert engine.step(0.0) == []


def test_a_question_that_was_taken_back_gets_no_answer(folder: Path) -> None:
    engine = seat(folder, name="liking").build(None)
    engine.submit(0, request(*YES))
    engine.submit(1, request(*NO))
    engine.cancel([0])
    ((ticket, completion),) = engine.step(0.0)
    assert ticket == 1
    assert isinstance(scored(completion, "liking"), float)


def test_it_takes_no_weights(folder: Path) -> None:
    with pytest.raises(ValueError, match="policy 'rater' is a reward model whose weights stay"):
        seat(folder).build(None).load_weights("rater", [], 1)


def test_a_score_that_is_no_number_is_an_error(folder: Path, tmp_path: Path) -> None:
    model = LlamaForSequenceClassification.from_pretrained(folder)
    torch.nn.init.constant_(model.score.weight, float("nan"))
    model.save_pretrained(tmp_path)
    make_tiny_tokenizer("bytes").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"reward model '.*' scores 'is it so<assistant>yes<eos>' with nan"):
        RewardModel(RewardModelSettings(path=str(tmp_path), max_tokens=256, device="cpu"))([YES])


def turn(index: int, agent: str, prompt: str, text: str) -> Turn:
    completion = Completion(text, (1,), (2,), (-1.0,), "stop")
    request = Request("actor", (Message("user", prompt),), Sampling())
    return Turn(("e", index), agent, 0, 0, "solver", request, completion, text)


def test_a_rater_passes_on_the_conversation_that_led_to_the_last_turn_it_heard() -> None:
    first, other = turn(0, "a", "one", "1"), turn(1, "b", "else", "x")
    second = turn(2, "a", "two", "2")
    second = replace(second, request=replace(second.request, continues=(1, 2)))
    info = Info(legal=None, hears=("a",), together=("r",), state="", attempt=0)
    view = PromptContext("r", {"text": ""}, info, read_turns=[first, other], new_turns=[second])
    messages = RewardModelRole(policy="rater").messages(view)
    assert messages == dict(chats_up_to_each_turn([first, second]))["e", 2]
    assert messages == (
        Message("user", "one"),
        Message("assistant", "1"),
        Message("user", "two"),
        Message("assistant", "2"),
    )
    assert RewardModelRole(policy="rater").messages(PromptContext("r", {"text": ""}, info)) == (Message("user", ""),)


def test_one_role_can_be_verified_in_two_stages() -> None:
    stages = [
        {"role": "solver", "examples": ["{{ answer }}"]},
        {"role": "rater", "verifies": "solver", "scores": ["reward"]},
        {"role": "verifier", "verifies": "solver", "scores": ["correct"]},
    ]
    task = {"kind": "arithmetic", "numbers": [1, 9], "train": 10, "held_out": 4}
    team = TeamConfig.model_validate(
        {"kind": "team", "task": task, "stages": stages, "rewards": {"solver": {"both": "own.reward + own.correct"}}}
    )
    assert team.team_seats.checks_of == {"solver": ("reward", "correct")}


def test_what_the_model_says_is_a_reward_of_the_team_and_a_process_reward_of_the_turn_that_it_read(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: Path
) -> None:
    monkeypatch.setenv("MARL_CACHE", str(made))
    scenario = small_scenario("train_solver_only", "checkpoint.trajectories=1", steps=1).model_dump(mode="json")
    for name in ("planner", "solver", "critic"):  # what they say does not matter here
        scenario["policies"][name]["model"]["warm_up"] |= {"steps": 4, "episodes": 32}
    scenario["game"]["stages"].append({"role": "rater", "verifies": "solver", "scores": ["reward"]})
    scenario["game"]["rewards"] = {"solver": {"liked": "own.reward"}}
    scenario["seats"]["rater"] = "rater"
    scenario["roles"]["rater"] = {"kind": "rater", "policy": "rater"}
    scenario["policies"]["rater"] = {"engine": seat(folder).model_dump(mode="json")}
    scenario["credit"]["assign"] = {"kind": "process", "scores": {"rater": ["reward"]}, "combine": "prime_paper"}
    marl.train(validate(scenario), tmp_path)
    scorer = RewardModel(RewardModelSettings(path=str(folder), max_tokens=256, device="cpu"))
    played = [t for file in (tmp_path / "trajectories").iterdir() for t in read_trajectories(file)]
    assert played
    payments = []
    for trajectory in played:
        (solution,) = [t for t in trajectory.turns if t.agent == "solver"]
        (liked,) = [reward.value for reward in trajectory.rewards if reward.name == "liked"]
        ((_, chat),) = chats_up_to_each_turn([solution])
        assert scorer([chat]) == pytest.approx([liked], abs=1e-5)
        payments.append(liked)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    # Of three turns of players, the planner's and the critic's are not rated.
    assert rows[-1]["credit/process/reward"] == pytest.approx(sum(payments) / len(payments) / 3)
