"""KL in the reward, REINFORCE++ and PPO's advantages beside verl's own code on the same tokens."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from marl.core.statistics import adapted_kl_coefficient
from marl.credit_stage.token_penalties import kl_per_token
from marl.protocols import Evidence
from marl.scenario.schema import KlInReward
from tests.support.token_logprob_episodes import credit_stage, logprob_evidence, token_episode

algos = pytest.importorskip("verl.trainer.ppo.core_algos", reason="verl is not installed (.ci/peers.txt)")

BETA = 0.3
SIZES = (5, 1, 7, 3)


class Tokens:
    """Ragged rows of one turn each: what was paid, and each token's distance and value, as tensors and as episodes."""

    def __init__(self, seed: int) -> None:
        made = torch.Generator().manual_seed(seed)
        shape = len(SIZES), max(SIZES)
        self.mask_BT = torch.arange(shape[1])[None] < torch.tensor(SIZES)[:, None]
        self.far_BT, self.values_BT = (torch.randn(shape, dtype=torch.float64, generator=made) for _ in range(2))
        self.paid_B = torch.randn(len(SIZES), dtype=torch.float64, generator=made)
        # x_t = 1[last] R - beta k1_t, as verl's apply_kl_penalty makes them.
        self.rewards_BT = -BETA * self.far_BT * self.mask_BT
        self.rewards_BT[torch.arange(len(SIZES)), torch.tensor(SIZES) - 1] += self.paid_B

    def evidence(self) -> Evidence:
        episodes = [
            token_episode(f"{i}", "a", [many], [("a", paid, 0)])
            for i, (many, paid) in enumerate(zip(SIZES, self.paid_B.tolist(), strict=True))
        ]
        evidence = logprob_evidence(episodes, self.of(self.far_BT))
        values = dict(zip(evidence.readings, self.of(self.values_BT), strict=True))
        return replace(evidence, readings={k: replace(r, values=values[k]) for k, r in evidence.readings.items()})

    def of(self, values_BT: Tensor) -> list[tuple[float, ...]]:
        return [tuple(row[:many]) for row, many in zip(values_BT.tolist(), SIZES, strict=True)]


def judged(tokens: Tokens, **rule: Any) -> list[tuple[float, ...]]:
    credit = credit_stage(**rule, kl={"coefficient": BETA})(tokens.evidence()).credit
    return [advantage.tokens for advantage in credit.values()]


def close(found: list[tuple[float, ...]], expected: list[tuple[float, ...]]) -> None:
    for own, other in zip(found, expected, strict=True):
        # verl adds 1e-8 to what its means divide by.
        assert own == pytest.approx(other, rel=1e-8, abs=1e-8)


@pytest.mark.parametrize("gamma", [1.0, 0.9])
@pytest.mark.parametrize("seed", range(3))
def test_sums_to_go_whitened_are_verls_reinforce_plus_plus(gamma: float, seed: int) -> None:
    tokens = Tokens(seed)
    expected_BT, _ = algos.compute_reinforce_plus_plus_outcome_advantage(
        tokens.rewards_BT, tokens.mask_BT.double(), config=SimpleNamespace(gamma=gamma)
    )
    rule = {"assign": {"kind": "gae", "values": "none", "gamma": gamma}, "baseline": {"kind": "whiten"}}
    close(judged(tokens, **rule), tokens.of(expected_BT))


@pytest.mark.parametrize("lam", [1.0, 0.9, 0.0])
def test_gae_with_the_kl_in_the_reward_is_verls(lam: float) -> None:
    tokens = Tokens(7)
    mask_BT = tokens.mask_BT.double()
    expected_BT, returns_BT = algos.compute_gae_advantage_return(
        tokens.rewards_BT, tokens.values_BT * mask_BT, mask_BT, gamma=0.95, lam=lam
    )
    rule = {"assign": {"kind": "gae", "gamma": 0.95, "lam": lam}}
    close(judged(tokens, **rule, baseline={"kind": "whiten"}), tokens.of(expected_BT))
    credit = credit_stage(**rule, kl={"coefficient": BETA})(tokens.evidence()).credit
    close([advantage.returns for advantage in credit.values()], tokens.of(returns_BT))


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3", "abs"])
def test_the_estimators_are_verls(estimator: Any) -> None:
    made = torch.Generator().manual_seed(3)
    logprobs, reference = -torch.rand(2, 50, dtype=torch.float64, generator=made) * 4
    expected = algos.kl_penalty_forward(logprobs, reference, estimator).tolist()
    kl = KlInReward(coefficient=1, estimator=estimator, clamp=10)
    found = kl_per_token(tuple(logprobs.tolist()), tuple(reference.tolist()), kl)
    assert found == pytest.approx(expected, rel=1e-12, abs=1e-15)


def test_the_coefficient_adapts_as_verls_does() -> None:
    controller, beta = algos.AdaptiveKLController(0.2, 0.1, 100), 0.2
    for kl, n in ((0.05, 8), (0.11, 16), (3.0, 8), (-0.4, 4)):
        controller.update(kl, n)
        beta = adapted_kl_coefficient(beta, kl, 0.1, n, 100)
        assert beta == pytest.approx(controller.value, rel=1e-15)
