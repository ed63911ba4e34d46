"""Losses, value and gradient, against verl's own functions on the same tensors."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import pytest
import torch

from marl.trainers.batching.aggregation import MinibatchTotals, masked_sum, row_loss_weights
from marl.trainers.forward.divergences import entropy, sampled_kl
from marl.trainers.policy_gradient.critic import value_loss
from marl.trainers.policy_gradient.losses import (
    cispo,
    clipped_surrogate,
    gmpo,
    gspo,
    gspo_token,
    reinforce,
    sapo,
    with_clamped_log_ratio,
)
from marl.trainers.policy_gradient.mismatch import tis
from tests.support.loss_samples import LossCase, expect_equal_losses, random_case, single_token_case

core = pytest.importorskip("verl.trainer.ppo.core_algos")
ActorConfig = pytest.importorskip("verl.workers.config").ActorConfig

MODES = ("token_mean", "token_sum", "seq_mean_token_sum", "seq_mean_token_mean", "seq_mean_token_sum_norm")
CLIP = (0.2, 0.28)
NORM = 9
SIZES = {"strategy": "fsdp", "rollout_n": 1, "use_dynamic_bsz": True}
GAPS = (-19.9, -2.0, -0.3, -0.1, 0.0, 0.1, 0.2, 0.3, 1.0, 1.5, 8.0, 19.9)

ROW_LIMIT = 10.0
"""Greatest log-ratio of a row in verl's GSPO; the paper has none."""

OURS = {
    "vanilla": lambda c: clipped_surrogate(c.logprobs, c.old, c.advantages, c.mask, CLIP, dual_clip=3.0)[0],
    "gspo": lambda c: gspo_token(c.logprobs, c.old, c.advantages, c.mask, CLIP, ROW_LIMIT)[0],
    "cispo": lambda c: cispo(c.logprobs, c.old, c.advantages, c.mask, (1 - CLIP[0], 1 + CLIP[1]))[0],
    "sapo": lambda c: sapo(c.logprobs, c.old, c.advantages, c.mask, (1.0, 1.05)),
    "gpg": lambda c: reinforce(c.logprobs, c.advantages, c.mask),
}


def whole(case: LossCase) -> MinibatchTotals:
    return MinibatchTotals(samples=int(case.mask.any(1).sum()), tokens=int(case.mask.sum()))


def aggregated(loss_BT, case: LossCase, mode: str, totals: MinibatchTotals | None = None):
    norm = NORM if mode.endswith("norm") else None
    scale = row_loss_weights(mode, case.mask.sum(1), totals or whole(case), norm)
    return (scale * masked_sum(loss_BT, case.mask)).sum()


def settings(**batch: Any):
    clip = {"clip_ratio_low": CLIP[0], "clip_ratio_high": CLIP[1]}
    return ActorConfig(**SIZES, **clip, global_batch_info={"loss_scale_factor": NORM, **batch})


def verls(name: str, case: LossCase, mode: str, weights=None, **batch: Any):
    loss_of, mask = core.get_policy_loss_fn(name), case.mask.to(case.logprobs.dtype)
    bits = {"loss_agg_mode": mode.replace("_", "-"), "config": settings(**batch), "rollout_is_weights": weights}
    return loss_of(case.old, case.logprobs, case.advantages, mask, **bits)[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("name", "mode"), [*product(("vanilla", "gspo", "cispo", "gpg"), MODES), ("sapo", "seq_mean_token_mean")]
)
def test_each_policy_loss_in_each_aggregation_is_that_of_verl(name, mode, dtype):
    case = random_case(dtype)
    expect_equal_losses(lambda c: aggregated(OURS[name](c), c, mode), lambda c: verls(name, c, mode), case)


@pytest.mark.parametrize("name", OURS)
def test_ratios_from_e_to_the_minus_20_to_e_to_the_20_agree_with_verl(name):
    for gap, advantage in product(GAPS, (-1.5, 0.0, 2.0)):
        if name == "gspo" and gap < -ROW_LIMIT:
            continue  # verl clamps a row's log-ratio from above alone
        case = single_token_case(gap, advantage)
        expect_equal_losses(
            lambda c: OURS[name](c).sum(), lambda c: verls(name, c, "seq_mean_token_mean"), case, still=True
        )


def test_verls_clamp_of_the_log_ratio_is_within():
    for gap, advantage in product((-30.0, -20.5, 20.5, 30.0), (-1.5, 2.0)):
        expect_equal_losses(
            lambda c: OURS["gpg"](c).sum() + reinforced_ratio(c),
            lambda c: verls("gpg", c, "token_sum") + verl_ratio(c),
            single_token_case(gap, advantage),
            still=True,
        )


def reinforced_ratio(case: LossCase):
    """An unclipped surrogate of log-probabilities kept within 20 nats."""
    loss = with_clamped_log_ratio(partial(clipped_surrogate, clip=(1.0, torch.inf)), 20.0)
    return loss(case.logprobs, case.old, case.advantages, case.mask)[0].sum()


def verl_ratio(case: LossCase):
    wide = ActorConfig(**SIZES, clip_ratio_low=1.0, clip_ratio_high=1e30, clip_ratio_c=1e30)
    loss_of, mask = core.get_policy_loss_fn("vanilla"), case.mask.float()
    return loss_of(case.old, case.logprobs, case.advantages, mask, config=wide)[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gspo_of_rows_is_verls_where_a_row_has_one_advantage(dtype):
    expect_equal_losses(
        lambda c: aggregated(gspo(c.logprobs, c.old, c.advantages, c.mask, CLIP)[0], c, "seq_mean_token_mean"),
        lambda c: verls("gspo", c, "seq_mean_token_mean"),
        random_case(dtype, rows=True),
    )


@pytest.mark.parametrize("gap", [9.0, 11.0, 30.0, 200.0])
@pytest.mark.parametrize("advantage", [-1.5, 2.0])
def test_the_clamp_of_a_rows_log_ratio_is_verls(gap, advantage):
    expect_equal_losses(
        lambda c: gspo(c.logprobs, c.old, c.advantages, c.mask, CLIP, ROW_LIMIT)[0].sum(),
        lambda c: verls("gspo", c, "seq_mean_token_mean"),
        single_token_case(gap, advantage),
        still=True,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gmpo_is_verls(dtype):
    expect_equal_losses(
        lambda c: aggregated(gmpo(c.logprobs, c.old, c.advantages, c.mask, CLIP)[0], c, "seq_mean_token_mean"),
        lambda c: verls("geo_mean", c, "seq_mean_token_mean"),
        random_case(dtype, full=True),
    )


def test_corrected_reinforce_is_verls():
    def weighted(case: LossCase):
        return tis(case.old, case.sampled, case.mask, "token", (0.0, 2.0))

    def ours(case: LossCase):
        return aggregated(
            weighted(case) * reinforce(case.logprobs, case.advantages, case.mask), case, "seq_mean_token_sum"
        )

    def theirs(case: LossCase):
        mask, weights = case.mask.to(case.logprobs.dtype), weighted(case)
        bits = {"config": settings(), "rollout_is_weights": weights}
        return core.compute_policy_loss_reinforce(case.sampled, case.logprobs, case.advantages, mask, **bits)[0]

    expect_equal_losses(ours, theirs, random_case())


@pytest.mark.parametrize("mode", MODES)
def test_two_micro_batches_with_the_denominators_of_the_whole_are_verls(mode):
    case = random_case()
    totals = whole(case)
    batch = {"batch_num_tokens": totals.tokens, "global_batch_size": totals.samples}
    for rows in ([0, 2], [1, 3, 4]):
        part = case.over(lambda tensor, rows=rows: tensor[rows])
        expect_equal_losses(
            lambda c: aggregated(OURS["vanilla"](c), c, mode, totals),
            lambda c: verls("vanilla", c, mode, **batch),
            part,
        )


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3", "k1+", "k3+"])
def test_each_estimate_of_the_kl_is_verls(estimator):
    limit = 10.0 if "k3" in estimator else None

    def ours(case: LossCase):
        return masked_sum(
            sampled_kl(case.logprobs, case.anchor, case.old, case.mask, estimator, limit), case.mask
        ).sum()

    def theirs(case: LossCase):
        return (core.kl_penalty(case.logprobs, case.anchor, estimator) * case.mask).sum()

    expect_equal_losses(ours, theirs, random_case())
    for gap in (-200.0, -30.0, -2.5, -2.0, -1e-3, 0.0, 1e-3, 2.0, 10.0, 12.0, 30.0):
        expect_equal_losses(ours, theirs, single_token_case(gap, 0.0, torch.float64), still=True)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("clip", [0.2, 100.0])
def test_the_clipped_value_loss_is_verls(mode, clip):
    case = random_case(seed=1)  # `logprobs` are the values here, `anchor` the targets

    def ours(c: LossCase):
        return aggregated(value_loss(c.logprobs, c.anchor, c.old, c.mask, clip)[0], c, mode)

    def theirs(c: LossCase):
        bits = {"loss_agg_mode": mode.replace("_", "-"), "loss_scale_factor": NORM}
        return core.compute_value_loss(c.logprobs, c.anchor, c.old, c.mask.double(), clip, **bits)[0]

    expect_equal_losses(ours, theirs, case)
    clipped = value_loss(case.logprobs, case.anchor, case.old, case.mask, clip)[1]
    share = core.compute_value_loss(case.logprobs, case.anchor, case.old, case.mask.double(), clip)[1]
    assert (clipped.sum() / case.mask.sum()).item() == pytest.approx(share.item())


def test_the_entropy_is_verls():
    logits = torch.randn(5, 6, 11, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    case, leaves = random_case(), [logits.clone().requires_grad_() for _ in range(2)]
    ours = aggregated(entropy(leaves[0].log_softmax(-1)), case, "seq_mean_token_mean")
    theirs = core.compute_entropy_loss(leaves[1], case.mask.double(), "seq-mean-token-mean")
    ours.backward()
    theirs.backward()
    torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=0)
    torch.testing.assert_close(leaves[0].grad, leaves[1].grad, rtol=1e-6, atol=1e-12)
