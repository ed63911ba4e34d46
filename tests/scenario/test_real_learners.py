"""Kinds of learning on the pretrained model, and what its log-probabilities depend on."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import marl
from marl.core.config import Sampling
from marl.core.types import Message, Request
from marl.host.paths import cache_folder
from marl.models.adapter import Adapter, AdapterSource
from marl.models.chat_template import ChatTokenizer
from marl.models.pretrained import Pretrained, PretrainedSource
from marl.scenario.load import validate
from marl.trainers.batching.planner import BatchPlanner
from marl.trainers.batching.rows import BatchRow
from marl.trainers.forward.fidelity_gate import MAX_ROUNDING_RATIO
from marl.trainers.forward.rounding_noise import read_logprobs, rounding_noise
from tests.support.paths import SCENARIOS

MODEL = cache_folder() / "real" / "SmolLM2-135M-Instruct"
"""Place of the model, looked up before tests change the cache."""
BASE = {"kind": "pretrained", "path": str(MODEL), "dtype": "bfloat16", "device": "cpu"}
ANSWERS = ("7 + 5 = 12.", "12", "The sum of 7 and 5 is twelve, which is more than ten.")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.one_in(3),
    pytest.mark.skipif(not MODEL.is_dir(), reason=f"no model in {MODEL}: `make real` prepares it"),
]


def trained(solver: dict[str, Any], folder: Path, **changes: Any) -> list[dict[str, Any]]:
    """Return the metrics of the steps of the team in which the solver alone learns, with short answers."""
    scenario = yaml.safe_load((SCENARIOS / "real" / "smollm2_solver_only.yaml").read_text())
    scenario["policies"] |= {"solver": solver, "planner": {"model": BASE}, "critic": {"model": BASE}}
    for name in ("planner", "solver", "critic"):
        scenario["roles"][name]["sampling"] = {"max_tokens": 6, "temperature": 0.7}
    # What some of so short answers have, and some have not.
    scenario["policies"]["checker"]["engine"]["checks"]["correct"]["pattern"] = r"(?s).*(\d|{answer}).*"
    scenario["schedule"] = {"steps": 1, "groups": 2, "group_size": 4, "seed": 0, "threads": 1}
    scenario["evaluate"] = {"every": 10, "held_out": 1}
    scenario["checkpoint"] = {"every": 10**6, "trajectories": 0.0}
    for section, change in changes.items():
        scenario[section] |= change
    marl.train(validate(scenario), folder)
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()][1:]


def is_faithful(row: dict[str, Any]) -> bool:
    """Return whether sampler and learner differ in this step, as any two roundings do, and by no more than these."""
    gap, noise = row["policy/solver/fidelity_mean"], row["policy/solver/fidelity_rounding_mean"]
    return bool(0 < gap <= MAX_ROUNDING_RATIO * noise and row["policy/solver/fidelity_max"] < 1)


def test_a_step_of_all_weights_is_faithful(tmp_path: Path) -> None:
    (row,) = trained({"model": BASE, "learner": {"kind": "grpo", "lr": 1e-6}}, tmp_path / "run")
    assert is_faithful(row)
    assert row["policy/solver/grad_norm"] > 0
    assert math.isfinite(row["policy/solver/loss"])


def test_a_critic_that_is_an_adapter_beside_the_policy_learns_what_all_answers_are_worth(tmp_path: Path) -> None:
    learner = {"kind": "ppo", "lr": 1e-4, "fidelity": {"every": 1}, "critic": {"lr": 1e-3}}
    solver = {"model": {"kind": "adapter", "rank": 16, "alpha": 32, "base": BASE}, "learner": learner}
    any_answer = {"correct": {"kind": "pattern", "pattern": "(?s).*({answer})?"}}
    rows = trained(
        solver,
        tmp_path / "run",
        policies={"checker": {"engine": {"kind": "verifiers", "checks": any_answer}}},
        credit={"assign": "gae", "baseline": "none"},
        schedule={"steps": 3},
    )
    # The adapters start at 0, and so do values: then 1/2 (0 - 1)^2 is the error of each, as every answer is paid 1.
    errors = [row["policy/solver/value_loss"] for row in rows]
    assert errors[0] == pytest.approx(0.5)
    assert errors[0] > errors[1] > errors[2]
    for row in rows:
        assert is_faithful(row)
        assert row["policy/solver/grad_norm"] > 0
        assert math.isfinite(row["policy/solver/loss"])


def source_of(dtype: Any) -> AdapterSource:
    base = Pretrained(path=str(MODEL), dtype=dtype, device="cpu")
    return AdapterSource("solver", Adapter(base=base, rank=16), PretrainedSource("solver", str(MODEL), dtype, "cpu"))


def texts_of(source: AdapterSource) -> list[BatchRow]:
    """Return three answers to each of two questions."""
    chat = ChatTokenizer(source.tokenizer(), frozenset())
    asked = [Request("solver", (Message("user", f"What is 7 + {n}?"),), Sampling()) for n in (5, 6)]
    return [BatchRow(chat.prompt(each, 0).ids, tuple(chat.encode(answer))) for each in asked for answer in ANSWERS]


def moved(model: Any) -> Any:
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(0, 0.05)
    return model


def test_log_probabilities_in_every_layout_are_those_of_texts_alone() -> None:
    source = source_of("float32")
    rows, model = texts_of(source), moved(source.model())
    alone = [read_logprobs(model, BatchPlanner(model, 1 << 15, "padded"), [row])[0] for row in rows]
    for layout in ("packed", "shared", "prompted", "padded"):
        for one, other in zip(read_logprobs(model, BatchPlanner(model, 1 << 15, layout), rows), alone, strict=True):
            assert one == pytest.approx(other, abs=1e-4)


def test_in_bfloat16_a_missing_adapter_is_more_than_rounding_explains() -> None:
    source = source_of("bfloat16")
    rows, model = texts_of(source), moved(source.model())
    planner = BatchPlanner(model, 1 << 15, "shared")
    noise, told = rounding_noise(model, planner, rows), read_logprobs(model, planner, rows)
    deaf = source.model()
    gaps = [
        abs(one - other)
        for ours, theirs in zip(told, read_logprobs(deaf, BatchPlanner(deaf, 1 << 15, "padded"), rows), strict=True)
        for one, other in zip(ours, theirs, strict=True)
    ]
    assert sum(gaps) / len(gaps) > MAX_ROUNDING_RATIO * noise.mean
