"""Advantages as TRL computes them: the very lines of its trainers, cut out of their source and run."""

import ast
import inspect
import textwrap
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.rloo_trainer import RLOOTrainer
from trl.trainer.utils import nanstd

from marl.core.types import Advantage, Credit
from marl.credit.baselines.group import GrpoBaseline, RlooBaseline
from marl.credit.baselines.whiten import GdpoBaseline
from marl.protocols import BaselineRule
from tests.support.detailed_handmade_episodes import detailed_episode
from tests.support.handmade_episodes import make_evidence

PROMPTS, SIZE, REWARDS = 3, 5, 2


def run(trainer: type, first: str, last: str, names: Mapping[str, Any]) -> Tensor:
    """`advantages` after the statements of the trainer from the one that begins with `first` to the one with `last`."""
    source = textwrap.dedent(inspect.getsource(trainer._generate_and_score_completions))
    [function] = ast.parse(source).body
    assert isinstance(function, ast.FunctionDef)
    texts = [ast.unparse(statement) for statement in function.body]
    start, end = (next(i for i, text in enumerate(texts) if text.startswith(begin)) for begin in (first, last))
    known = {"torch": torch, "nanstd": nanstd, "device": "cpu", "num_generations": SIZE, **names}
    exec("\n".join(texts[start : end + 1]), known)
    return known["advantages"]


def grpo(rewards: Tensor, weights: Tensor, **settings: str) -> Tensor:
    """rewards [prompts * size, rewards] -> advantages [prompts * size]"""
    plain: dict[str, Any] = {"multi_objective_aggregation": "sum_then_normalize", "scale_rewards": "group"}
    plain |= {"reward_weights": weights, "reward_funcs": [None] * REWARDS}
    names = {"rewards_per_func": rewards, "unscorable_mask": torch.isnan(rewards).all(dim=1)}
    return run(
        GRPOTrainer,
        "if self.multi_objective_aggregation",
        "advantages = torch.nan_to_num",
        names | {"self": SimpleNamespace(**plain | settings)},
    )


def rloo(rewards: Tensor, normalize: bool) -> Tensor:
    names = {"rewards": rewards, "self": SimpleNamespace(normalize_advantages=normalize)}
    return run(RLOOTrainer, "grouped_rewards = ", "if self.normalize_advantages", names)


def ours(baseline: BaselineRule, rewards: Tensor, weights: Tensor) -> list[float]:
    """Single turns, a group for each prompt; the named rewards are what each would have earned alone."""
    episodes = [detailed_episode(f"{i}", "a", start=f"{i // SIZE}", lengths=[1 + i]) for i in range(len(rewards))]
    assigned = {(f"{i}", 0): Advantage(total) for i, total in enumerate((rewards * weights).sum(1).tolist())}
    credit, _ = baseline(replace(make_evidence(*episodes), earned_by_reward=alone(rewards)), assigned)
    return [credit[f"{i}", 0].value for i in range(len(rewards))]


def alone(rewards: Tensor) -> dict[str, Credit]:
    """Return the credit of each reward alone; NaN: it says nothing."""
    columns = enumerate(rewards.T.tolist())
    return {f"r{k}": {(f"{i}", 0): Advantage(v) for i, v in enumerate(column) if v == v} for k, column in columns}


def drawn(seed: int) -> tuple[Tensor, Tensor]:
    made = torch.Generator().manual_seed(seed)
    rewards = torch.randn(PROMPTS * SIZE, REWARDS, dtype=torch.float64, generator=made)
    rewards[:, 1] = (rewards[:, 1] > 0).double()  # right or wrong
    rewards[:SIZE, 1] = 0.25  # nothing to choose from
    return rewards, torch.tensor([1.0, 0.5], dtype=torch.float64)


# TRL's `nanstd` counts in float32.
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("theirs", "std"), [("group", True), ("batch", "batch"), ("none", False)])
def test_group(seed: int, theirs: str, std: bool | str) -> None:
    rewards, weights = drawn(seed)
    expected = grpo(rewards, weights, scale_rewards=theirs)
    baseline = GrpoBaseline.model_validate({"std": std, "epsilon": 1e-4})
    assert ours(baseline, rewards, weights) == pytest.approx(expected.tolist(), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("whiten", [False, True])
def test_rloo(seed: int, whiten: bool) -> None:
    rewards, weights = drawn(seed)
    expected = rloo((rewards * weights).sum(1), whiten)
    assert ours(RlooBaseline(whiten=whiten), rewards, weights) == pytest.approx(expected.tolist(), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_decoupled(seed: int) -> None:
    rewards, weights = drawn(seed)
    expected = grpo(rewards, weights, multi_objective_aggregation="normalize_then_sum")
    baseline = GdpoBaseline(weights={"r0": 1.0, "r1": 0.5})
    assert ours(baseline, rewards, weights) == pytest.approx(expected.tolist(), rel=1e-6, abs=1e-6)


def test_decoupled_leaves_out_turns_that_a_reward_says_nothing_of() -> None:
    rewards, weights = drawn(7)
    rewards[SIZE + 1, 0] = torch.nan
    expected = grpo(rewards, weights, multi_objective_aggregation="normalize_then_sum")
    baseline = GdpoBaseline(weights={"r0": 1.0, "r1": 0.5})
    assert ours(baseline, rewards, weights) == pytest.approx(expected.tolist(), rel=1e-6, abs=1e-6)
