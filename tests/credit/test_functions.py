"""Plain functions of scores: the numbers of verl, and of our own baselines on episodes."""

from __future__ import annotations

import random
import subprocess
import sys

import numpy as np
import pytest
import torch

from marl.credit.assign.gae import BootstrapValueAndAdvantage, GammaAndLambda
from marl.credit.assign.gae import gae as gae_of_moments
from marl.credit.baselines.group import GrpoBaseline, OpoBaseline, RlooBaseline
from marl.credit.functions import gae, gdpo, grpo, opo, rloo, whiten
from marl.protocols import BaselineConfig
from tests.support.handmade_episodes import advantages_of, make_episode, make_evidence, uniform_credit


def drawn(seed: int, many: int = 24) -> tuple[list[float], list[str], list[int]]:
    """Return scores, groups and lengths; one group is of one, one of equal scores."""
    rng = random.Random(seed)
    groups = [rng.choice("abc") for _ in range(many)] + ["alone", "same", "same", "same"]
    scores = [rng.choice([0.0, 0.1, 0.7, 1.0]) for _ in range(many)] + [5.0, 0.3, 0.3, 0.3]
    return scores, groups, [rng.randint(1, 9) for _ in groups]


@pytest.mark.parametrize("seed", range(3))
def test_advantages_in_groups_are_verls(seed: int) -> None:
    core = pytest.importorskip("verl.trainer.ppo.core_algos")
    scores, groups, lengths = drawn(seed)
    rewards, mask = torch.zeros(len(scores), 9, dtype=torch.float64), torch.zeros(len(scores), 9)
    for row, (score, length) in enumerate(zip(scores, lengths, strict=True)):
        rewards[row, length - 1], mask[row, :length] = score, 1.0
    many = len(scores) - 4  # verl gives the group of one its score, and equal scores rounding
    index = np.array(groups)
    theirs = {
        "grpo": core.compute_grpo_outcome_advantage(rewards, mask, index)[0],
        "dr_grpo": core.compute_grpo_outcome_advantage(rewards, mask, index, norm_adv_by_std_in_grpo=False)[0],
        "rloo": core.compute_rloo_outcome_advantage(rewards, mask, index)[0],
        "opo": core.compute_opo_outcome_advantage(rewards, mask, index)[0],
    }
    ours = {
        "grpo": grpo(scores, groups),
        "dr_grpo": grpo(scores, groups, std=False),
        "rloo": rloo(scores, groups),
        "opo": opo(scores, groups, lengths),
    }
    for name, advantages in ours.items():
        assert advantages[:many] == pytest.approx(theirs[name][:many, 0].tolist(), abs=1e-6), name
        assert advantages[many:] == [0.0] * 4


@pytest.mark.parametrize("seed", range(3))
def test_advantages_are_those_of_the_baselines_on_episodes(seed: int) -> None:
    scores, groups, _ = drawn(seed)
    played = [make_episode(f"e{i}", "a", start=group) for i, group in enumerate(groups)]

    def judged(baseline: BaselineConfig) -> list[float]:
        credit, _ = baseline.build()(make_evidence(*played), uniform_credit(played, *scores))
        return [advantages_of(credit, each)[0] for each in played]

    assert grpo(scores, groups) == pytest.approx(judged(GrpoBaseline()), abs=1e-12)
    assert grpo(scores, groups, std=False) == pytest.approx(judged(GrpoBaseline(std=False)), abs=1e-12)
    assert rloo(scores, groups) == pytest.approx(judged(RlooBaseline()), abs=1e-12)
    assert opo(scores, groups, [1] * len(scores)) == pytest.approx(judged(OpoBaseline()), abs=1e-12)


def test_gdpo_lets_no_loud_reward_drown_a_quiet_one() -> None:
    # As in the test of `process, decoupled`: sums -1.732, 0, 1.732, 0; their spread is sqrt(2).
    right, long = [0.0, 0.0, 1.0, 1.0], [0.0, 100.0, 100.0, 0.0]
    advantages = gdpo({"right": right, "long": long}, ["p"] * 4, epsilon=0.0)
    assert advantages == pytest.approx([-1.2247449, 0.0, 1.2247449, 0.0], abs=1e-6)
    weighted = gdpo({"right": right, "long": long}, ["p"] * 4, weights={"right": 3.0}, epsilon=0.0)
    assert weighted == pytest.approx([-1.0954451, -0.5477226, 1.0954451, 0.5477226], abs=1e-6)


def test_whitened_scores_have_mean_0_and_spread_1() -> None:
    assert whiten([1.0, 2.0, 3.0]) == pytest.approx([-1.0, 0.0, 1.0])
    assert whiten([0.3, 0.3, 0.3]) == [0.0, 0.0, 0.0]
    assert whiten([]) == []


def test_gae_takes_its_options_by_name() -> None:
    rewards, values = [0.0, 1.0, 0.5], [0.2, 0.4, 0.1]
    expected = gae_of_moments(rewards, values, GammaAndLambda(0.9, 0.8), BootstrapValueAndAdvantage(0.7))
    assert gae(rewards, values, gamma=0.9, lam=0.8, next_value=0.7) == expected


def test_arguments_of_different_lengths_are_named() -> None:
    with pytest.raises(ValueError, match="3 scores, but 2 groups; one is needed for each score"):
        grpo([1.0, 2.0, 3.0], ["a", "b"])
    with pytest.raises(ValueError, match="2 scores, but 1 lengths"):
        opo([1.0, 2.0], ["a", "a"], [3])
    with pytest.raises(ValueError, match="1 rewards, but 2 values"):
        gae([1.0], [0.0, 0.0])


def test_scores_are_compared_without_loading_torch() -> None:
    code = "import sys, marl.credit.functions; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
