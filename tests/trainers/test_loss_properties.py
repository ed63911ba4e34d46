"""What every policy loss has in common: masks, merged samples, overflow, the policy gradient, low precision."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch

from marl.trainers.batching.aggregation import MinibatchTotals, masked_sum, row_loss_weights
from marl.trainers.policy_gradient.critic import value_loss
from marl.trainers.policy_gradient.losses import cispo, clipped_surrogate, gmpo, gspo, gspo_token, reinforce, rloo, sapo
from marl.trainers.policy_gradient.settings import Grpo
from tests.support.loss_samples import MASK, LossCase, random_case, single_token_case, value_and_gradient

CLIP = (0.2, 0.28)
LOSSES = {
    "reinforce": lambda c: reinforce(c.logprobs, c.advantages, c.mask),
    "clip": lambda c: clipped_surrogate(c.logprobs, c.old, c.advantages, c.mask, CLIP)[0],
    "dual clip": lambda c: clipped_surrogate(c.logprobs, c.old, c.advantages, c.mask, CLIP, dual_clip=3.0)[0],
    "gspo": lambda c: gspo(c.logprobs, c.old, c.advantages, c.mask, CLIP)[0],
    "gspo_token": lambda c: gspo_token(c.logprobs, c.old, c.advantages, c.mask, CLIP)[0],
    "sequence": lambda c: rloo(c.logprobs, c.old, c.advantages, c.mask, CLIP)[0],
    "cispo": lambda c: cispo(c.logprobs, c.old, c.advantages, c.mask, (0.5, 3.0))[0],
    "sapo": lambda c: sapo(c.logprobs, c.old, c.advantages, c.mask, (1.0, 1.05)),
    "gmpo": lambda c: gmpo(c.logprobs, c.old, c.advantages, c.mask, (0.4, 0.4))[0],
    "value": lambda c: value_loss(c.logprobs, c.anchor, c.old, c.mask, 0.2)[0],
}
POLICY = [name for name in LOSSES if name != "value"]
ROWS = ["gspo", "sequence", "gmpo"]


def mean_of_rows(loss_BT, mask):
    scale = row_loss_weights(
        "seq_mean_token_mean", mask.sum(1), MinibatchTotals(int(mask.any(1).sum()), int(mask.sum()))
    )
    return (scale * masked_sum(loss_BT, mask)).sum()


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", LOSSES)
def test_nothing_behind_the_mask_reaches_a_value_or_a_gradient(name, poison):
    case, loss_of = random_case(torch.float32), LOSSES[name]
    value, gradient = value_and_gradient(lambda c: loss_of(c).sum(), case)
    dirty_value, dirty_gradient = value_and_gradient(lambda c: loss_of(c).sum(), case.hidden(poison))
    assert torch.equal(value, dirty_value)
    assert torch.equal(gradient, dirty_gradient)
    assert (dirty_gradient[~MASK] == 0).all()
    assert (loss_of(case.hidden(poison))[~MASK] == 0).all()


@pytest.mark.parametrize("name", POLICY)
def test_the_sum_of_merged_samples_advantages_gives_the_sum_of_their_losses(name):
    case = random_case(rows=True)
    positive = case.advantages.abs()

    def of(advantages):
        return value_and_gradient(lambda c: LOSSES[name](c).sum(), replace(case, advantages=advantages))

    for sign in (1, -1):
        parts = [of(sign * weight * positive) for weight in (0.5, 2.0, 0.25)]
        for got, summed in zip(of(sign * 2.75 * positive), zip(*parts, strict=True), strict=True):
            torch.testing.assert_close(got, sum(summed))


@pytest.mark.parametrize("name", ["reinforce", "clip", "gspo_token", "cispo", "sapo", "gspo", "sequence", "gmpo"])
def test_where_nothing_moved_yet_every_loss_has_the_gradient_of_reinforce(name):
    """`sequence` has no mean over tokens, so neither has its REINFORCE."""
    case = random_case(rows=True)
    fresh = replace(case, old=case.logprobs)
    totals, lengths = MinibatchTotals(4, int(MASK.sum())), MASK.sum(1)

    def aggregate(loss_BT, mode):
        return (row_loss_weights(mode, lengths, totals) * masked_sum(loss_BT, MASK)).sum()

    _, gradient = value_and_gradient(lambda c: aggregate(LOSSES[name](c), "seq_mean_token_mean"), fresh)
    mode = "seq_mean_token_sum" if name == "sequence" else "seq_mean_token_mean"
    _, expected = value_and_gradient(lambda c: aggregate(LOSSES["reinforce"](c), mode), fresh)
    torch.testing.assert_close(gradient, expected)


def test_reinforce_descends_the_gradient_of_the_expected_return():
    """By enumeration of all answers of two tokens out of four."""
    generator = torch.Generator().manual_seed(2)
    answers = torch.tensor(list(product(range(4), repeat=2)))
    returns = torch.randn(16, generator=generator, dtype=torch.float64)
    logits = torch.randn(4, generator=generator, dtype=torch.float64).requires_grad_()
    chances = logits.log_softmax(0)[answers].sum(1).exp()
    expected = torch.autograd.grad((chances * returns).sum(), logits, retain_graph=True)[0]
    every = torch.ones(16, 2, dtype=torch.bool)
    rows = reinforce(logits.log_softmax(0)[answers], returns[:, None].expand(16, 2), every).sum(1)
    got = torch.autograd.grad((chances.detach() * rows).sum(), logits)[0]
    torch.testing.assert_close(-got, expected)


def test_an_unclipped_product_of_ratios_has_the_gradient_of_the_expected_return_off_policy():
    generator = torch.Generator().manual_seed(2)
    answers = torch.tensor(list(product(range(4), repeat=2)))
    returns, behind = torch.randn(16, generator=generator), torch.randn(4, generator=generator).log_softmax(0)
    logits = torch.randn(4, generator=generator).requires_grad_()
    logprobs, old, every = logits.log_softmax(0)[answers], behind[answers], torch.ones(16, 2, dtype=torch.bool)
    expected = torch.autograd.grad((logprobs.sum(1).exp() * returns).sum(), logits, retain_graph=True)[0]
    rows, _ = rloo(logprobs, old, returns[:, None].expand(16, 2), every, (1.0, math.inf))
    got = torch.autograd.grad((old.sum(1).exp() * rows.mean(1)).sum(), logits)[0]
    torch.testing.assert_close(-got, expected)


def test_gspo_of_rows_and_of_tokens_are_one_where_a_row_has_one_advantage():
    case = random_case(rows=True)
    for ours, theirs in zip(
        value_and_gradient(lambda c: mean_of_rows(LOSSES["gspo"](c), MASK), case),
        value_and_gradient(lambda c: mean_of_rows(LOSSES["gspo_token"](c), MASK), case),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", ROWS)
def test_losses_of_rows_take_the_mean_of_a_rows_advantages(name):
    case = random_case()
    # GMPO clips each token on the side of its own advantage: one sign, to see the mean alone.
    case = replace(case, advantages=case.advantages.abs())
    mean = (case.advantages * MASK).sum(1, keepdim=True) / MASK.sum(1, keepdim=True).clamp(min=1)
    same = replace(case, advantages=mean.expand_as(case.advantages))
    torch.testing.assert_close(LOSSES[name](case), LOSSES[name](same))


@pytest.mark.parametrize(
    ("name", "gap", "advantage", "value", "slope"),
    [
        ("clip", 200, 1, -1.28, 0.0),
        ("clip", 200, 0, 0.0, 0.0),
        ("dual clip", 200, -1, 3.0, 0.0),
        ("dual clip", -200, -1, 0.8, 0.0),
        ("dual clip", 1.0, -1, math.e, math.e),
        ("dual clip", 1.2, -2, 6.0, 0.0),
        ("gspo", 200, 1, -1.28, 0.0),
        ("gspo_token", 200, 1, -1.28, 0.0),
        ("sequence", 200, 1, -1.28, 0.0),
        ("cispo", 200, -1, 3 * (200 - 25), 3.0),
        ("cispo", -200, 2, -2 * 0.5 * (-200 - 25), -1.0),
        ("sapo", 200, 1, -4.0, 0.0),
        ("sapo", 200, -1, 4 / 1.05, 0.0),
        ("sapo", 20, 1, -4.0, 0.0),
        ("sapo", 0, -1, 2 / 1.05, 1.0),
        ("gmpo", 200, 1, -math.exp(0.4), 0.0),
        ("gmpo", -200, -1, math.exp(-0.4), 0.0),
        ("gmpo", 0.3, 2, -2 * math.exp(0.3), -2 * math.exp(0.3)),
    ],
)
def test_single_tokens_are_what_one_works_out_by_hand(name, gap, advantage, value, slope):
    got, gradient = value_and_gradient(lambda c: LOSSES[name](c).sum(), single_token_case(gap, advantage))
    assert got.item() == pytest.approx(value, rel=1e-5)
    assert gradient.item() == pytest.approx(slope, rel=1e-5)


@pytest.mark.parametrize("name", ["clip", "gspo", "gspo_token", "sequence", "gmpo"])
def test_an_overflow_that_counts_is_not_hidden(name):
    assert LOSSES[name](single_token_case(200, -1)).item() == math.inf


@pytest.mark.parametrize("kind", ["ppo_clip", "gspo", "gspo_token", "rloo", "gmpo"])
@pytest.mark.parametrize(("gap", "expected"), [(200.0, math.exp(3)), (3.5, math.exp(3)), (2.5, math.exp(2.5))])
def test_log_ratios_of_tokens_and_of_rows_are_clamped_where_a_limit_is_given(kind, gap, expected):
    settings: Any = {"kind": kind, "max_log_ratio": 3.0}
    loss = Grpo(loss=settings).loss.build()
    case = single_token_case(gap, -1.0)
    value, gradient = value_and_gradient(lambda c: loss(c.logprobs, c.old, c.advantages, c.mask)[0].sum(), case)
    assert value.item() == pytest.approx(expected, rel=1e-5)
    assert gradient.item() == (0.0 if gap > 3 else pytest.approx(expected, rel=1e-5))


@pytest.mark.parametrize("name", POLICY)
def test_a_token_without_an_advantage_teaches_nothing_however_unlikely_it_is(name):
    impossible = replace(single_token_case(0, 0.0), logprobs=torch.tensor([[-math.inf]]))
    value, gradient = value_and_gradient(lambda c: LOSSES[name](c).sum(), impossible)
    assert value == 0
    assert gradient.item() == 0


def test_an_unclipped_value_loss_is_half_the_square():
    case = random_case(seed=3)
    loss, clipped = value_loss(case.logprobs, case.anchor, case.old, case.mask)
    expected = torch.nn.functional.mse_loss(case.logprobs, case.anchor, reduction="none") / 2
    torch.testing.assert_close(loss, torch.where(MASK, expected, 0.0))
    assert not clipped.any()


def test_every_value_within_the_clip_has_the_gradient_of_the_square_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    values, old, targets = torch.randn(3, 4, 5000, generator=generator)
    every, clip = torch.ones(4, 5000, dtype=torch.bool), 0.5

    leaf = values.double().requires_grad_()  # the formula, as written, in float64
    near = leaf.clamp(old.double() - clip, old.double() + clip)
    squares = torch.maximum((leaf - targets.double()) ** 2, (near - targets.double()) ** 2)
    (squares.sum() / 2).backward()

    ours = values.clone().requires_grad_()
    loss, clipped = value_loss(ours, targets, old, every, clip)
    loss.sum().backward()
    assert ours.grad is not None
    assert leaf.grad is not None
    torch.testing.assert_close(ours.grad.double(), leaf.grad, rtol=1e-5, atol=1e-5)
    assert not (clipped & ((values - old).abs() < clip)).any()


@pytest.mark.parametrize("side", [1.0, -1.0])
def test_a_value_on_the_edge_of_the_clip_still_learns(side: float) -> None:
    value = torch.tensor([[0.25 + side * 0.5]], requires_grad=True)
    every = torch.ones(1, 1, dtype=torch.bool)
    value_loss(value, torch.tensor([[3 * side]]), torch.tensor([[0.25]]), every, 0.5)[0].sum().backward()
    assert value.grad is not None
    assert value.grad.item() == 0.25 + side * 0.5 - 3 * side


@pytest.mark.parametrize("name", LOSSES)
def test_numbers_of_low_precision_are_computed_and_summed_in_float32(name):
    case = random_case(torch.bfloat16)
    wide = case.over(lambda tensor: tensor.float() if tensor.is_floating_point() else tensor)
    assert LOSSES[name](case).dtype == torch.float32
    assert torch.equal(LOSSES[name](case), LOSSES[name](wide))
    thousand = torch.full((1, 1000), 1.0, dtype=torch.bfloat16)
    assert masked_sum(thousand + 0.0078125, torch.ones(1, 1000, dtype=torch.bool)).item() == 1007.8125


def test_which_tokens_were_clipped_is_told():
    gaps = torch.tensor([[0.5, -0.5, 0.5, -0.5, 0.1]])
    up, every = torch.tensor([[1.0, 1.0, -1.0, -1.0, 1.0]]), torch.ones(1, 5, dtype=torch.bool)
    zero = torch.zeros(1, 5)
    assert clipped_surrogate(gaps, zero, up, every, CLIP)[1].tolist() == [[True, False, False, True, False]]
    assert clipped_surrogate(gaps, zero, up, every, CLIP, 1.5)[1].tolist() == [[True, False, True, True, False]]
    assert cispo(gaps, zero, up, every, (0.7, 1.5))[1].tolist() == [[True, True, True, True, False]]
    assert gmpo(gaps, zero, up, every, (0.4, 0.4))[1].tolist() == [[True, False, False, True, False]]
    row = torch.full((1, 5), 0.5)
    assert gspo(row, zero, torch.ones(1, 5), every, CLIP)[1].all()
    assert not gspo(row, zero, -torch.ones(1, 5), every, CLIP)[1].any()


def test_rows_of_one_token_and_groups_without_a_difference_are_no_exception():
    same: Any = [torch.full((2, 1), -1.0) for _ in range(4)]
    one = LossCase(*[*same, torch.tensor([[0.0], [2.0]]), torch.ones(2, 1).bool()])
    for name in POLICY:
        value, gradient = value_and_gradient(lambda c, name=name: mean_of_rows(LOSSES[name](c), c.mask), one)
        assert value.isfinite()
        torch.testing.assert_close(gradient, torch.tensor([[0.0], [-1.0]]))
