"""Losses, value and gradient, against TRL's own trainers on the same tensors."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from marl.core.statistics import adapted_entropy_coefficient
from marl.trainers.batching.aggregation import MinibatchTotals, masked_sum, row_loss_weights
from marl.trainers.policy_gradient.losses import cispo, clipped_surrogate, gmpo, gspo, gspo_token, rloo, sapo
from tests.support.loss_samples import LossCase, expect_equal_losses, random_case, single_token_case
from tests.support.trl_losses import policy_loss, trainer_stub

trl = pytest.importorskip("trl.trainer.grpo_trainer")
rloo_trainer = pytest.importorskip("trl.trainer.rloo_trainer")

CLIP = (0.2, 0.28)
GAPS = (-20.0, -2.0, -0.3, 0.0, 0.2, 0.3, 1.0, 1.5, 8.0, 20.0)
GRPO = trl.GRPOTrainer


def geometric_mean():
    return pytest.importorskip("trl.experimental.gmpo").GMPOTrainer


TRLS = {
    "clip": lambda: trainer_stub(GRPO),
    "dual": lambda: trainer_stub(GRPO, {"delta": 3.0}),
    "gspo": lambda: trainer_stub(GRPO, importance_sampling_level="sequence"),
    "gspo_token": lambda: trainer_stub(GRPO, importance_sampling_level="sequence"),
    "cispo": lambda: trainer_stub(GRPO, loss_type="cispo", epsilon_high=1.5),
    "sapo": lambda: trainer_stub(GRPO, loss_type="sapo"),
    "gmpo": lambda: trainer_stub(geometric_mean(), epsilon_low=0.4, epsilon_high=0.4),
    "rloo": lambda: trainer_stub(rloo_trainer.RLOOTrainer),
}
OURS = {
    "clip": lambda c: clipped_surrogate(c.logprobs, c.old, c.advantages, c.mask, CLIP)[0],
    "dual": lambda c: clipped_surrogate(c.logprobs, c.old, c.advantages, c.mask, CLIP, dual_clip=3.0)[0],
    "gspo": lambda c: gspo(c.logprobs, c.old, c.advantages, c.mask, CLIP)[0],
    "gspo_token": lambda c: gspo_token(c.logprobs, c.old, c.advantages, c.mask, CLIP)[0],
    "cispo": lambda c: cispo(c.logprobs, c.old, c.advantages, c.mask, (0.0, 1.5))[0],
    "sapo": lambda c: sapo(c.logprobs, c.old, c.advantages, c.mask, (1.0, 1.05)),
    "gmpo": lambda c: gmpo(c.logprobs, c.old, c.advantages, c.mask, (0.4, 0.4))[0],
    "rloo": lambda c: rloo(c.logprobs, c.old, c.advantages, c.mask, CLIP)[0],
}


def ours(name: str, case: LossCase):
    mode = "token_mean" if name == "cispo" else "seq_mean_token_mean"
    scale = row_loss_weights(mode, case.mask.sum(1), MinibatchTotals(len(case.mask), int(case.mask.sum())))
    return (scale * masked_sum(OURS[name](case), case.mask)).sum()


def theirs(name: str, case: LossCase):
    return policy_loss(TRLS[name](), case)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", OURS)
def test_each_policy_loss_is_that_of_trl(name, dtype, seed):
    case = random_case(dtype, rows=True, seed=seed, full=True)
    # The poison of a row's first token would hide the advantage that TRL reads there.
    expect_equal_losses(lambda c: ours(name, c), lambda c: theirs(name, unhidden(c, case)), case)


def unhidden(case: LossCase, whole: LossCase) -> LossCase:
    return LossCase(case.logprobs, case.old, case.anchor, case.sampled, whole.advantages, case.mask)


@pytest.mark.parametrize("name", OURS)
def test_ratios_from_e_to_the_minus_20_to_e_to_the_20_agree_with_trl(name):
    for gap, advantage in product(GAPS, (-1.5, 0.0, 2.0)):
        expect_equal_losses(
            lambda c: ours(name, c), lambda c: theirs(name, c), single_token_case(gap, advantage), still=True
        )


def test_the_entropy_coefficient_moves_as_in_trl():
    trainer = trainer_stub(
        GRPO,
        {"entropy_coef_delta": 0.03, "entropy_coef_max": 0.1},
        _entropy_bonus_enabled=True,
        use_adaptive_entropy=True,
        entropy_coef=0.05,
        _last_world_entropy=float("inf"),
        _entropy_window_stats=None,
    )
    coefficient, case = 0.05, random_case(rows=True, full=True)
    for measured in (0.1, 0.15, 0.2, 0.3, 0.3, 0.3, 0.3, 0.1):
        policy_loss(trainer, case.hidden(0.0), torch.full_like(case.logprobs, measured))
        coefficient = adapted_entropy_coefficient(coefficient, measured, 0.2 + 1e-12, step=0.03, maximum=0.1)
        assert coefficient == pytest.approx(trainer.entropy_coef, abs=1e-12)
