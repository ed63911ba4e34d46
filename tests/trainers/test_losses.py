import inspect
import math
from itertools import product
from typing import Any

import pytest
import torch

from marl.trainers import functions
from marl.trainers.batching.aggregation import MinibatchTotals, aggregate, masked_sum, row_loss_weights
from marl.trainers.forward.divergences import entropy, exact_kl, sampled_kl, sampler_kl
from marl.trainers.policy_gradient.losses import clipped_surrogate
from tests.support.loss_samples import random_case

ALL = torch.ones(1, 1, dtype=torch.bool)


def one(value):
    return torch.tensor([[float(value)]])


def surrogate(log_ratio, advantage, clip=(0.2, 0.3)):
    """Value, gradient to the log-probability, clipped: of a single token."""
    logprobs: Any = one(log_ratio).requires_grad_()
    loss, clipped = clipped_surrogate(logprobs, one(0), one(advantage), ALL, clip)
    loss.sum().backward()
    return loss.item(), logprobs.grad.item(), clipped.item()


@pytest.mark.parametrize(
    ("ratio", "advantage", "value", "slope", "clipped"),
    [
        (1.0, 2.0, -2.0, -2.0, False),
        (1.25, 2.0, -2.5, -2.5, False),
        (1.4, 2.0, -2.6, 0.0, True),
        (0.5, 2.0, -1.0, -1.0, False),
        (1.4, -2.0, 2.8, 2.8, False),
        (0.9, -2.0, 1.8, 1.8, False),
        (0.5, -2.0, 1.6, 0.0, True),
        (1.4, 0.0, 0.0, 0.0, False),
    ],
)
def test_the_clipped_surrogate_is_what_one_works_out_by_hand(ratio, advantage, value, slope, clipped):
    assert surrogate(math.log(ratio), advantage) == (pytest.approx(value), pytest.approx(slope), clipped)


def test_ratios_of_e_to_the_20_stay_exact_and_clipped_overflow_stays_harmless():
    assert surrogate(20, 1) == (pytest.approx(-1.3), 0.0, True)
    assert surrogate(20, -1) == (pytest.approx(math.exp(20)), pytest.approx(math.exp(20)), False)
    assert surrogate(-20, 1) == (pytest.approx(-math.exp(-20)), pytest.approx(-math.exp(-20)), False)
    assert surrogate(-20, -1) == (pytest.approx(0.8), 0.0, True)
    assert surrogate(200, 1) == (pytest.approx(-1.3), 0.0, True)
    assert surrogate(200, 0)[:2] == (0.0, 0.0)
    assert surrogate(200, -1)[0] == math.inf, "an overflow that counts is not hidden"


def test_summed_advantages_of_one_sign_give_the_summed_surrogate():
    for log_ratio, sign in product((-1.0, -0.1, 0.0, 0.1, 1.0), (1, -1)):
        parts = [surrogate(log_ratio, sign * a) for a in (0.5, 2.0, 0.25)]
        assert surrogate(log_ratio, sign * 2.75)[:2] == pytest.approx([sum(p[i] for p in parts) for i in (0, 1)])


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_nothing_behind_the_mask_reaches_a_value_or_a_gradient(poison):
    mask = torch.tensor([[True, True, False], [True, False, False]])
    clean = [torch.randn(2, 3, generator=torch.Generator().manual_seed(i)) for i in range(4)]
    dirty = [torch.where(mask, tensor, poison) for tensor in clean]

    def run(logprobs, old, advantages, anchor):
        logprobs = logprobs.clone().requires_grad_()
        loss = masked_sum(clipped_surrogate(logprobs, old, advantages, mask, (0.2, 0.2))[0], mask)
        for estimator in ("k1", "k2", "k3", "k1+", "k3+", "k3_is"):
            loss = loss + masked_sum(sampled_kl(logprobs, anchor, old, mask, estimator), mask)
        loss.sum().backward()
        return loss.detach(), logprobs.grad, masked_sum(sampler_kl(old, logprobs, mask), mask)

    for expected, got in zip(run(*clean), run(*dirty), strict=True):
        assert torch.equal(torch.where(expected.isnan(), 0, expected), got)
        assert got.isfinite().all()


@pytest.mark.parametrize(
    ("aggregation", "norm", "expected"),
    [
        ("token_mean", None, (1 + 2 + 3 + 10) / 4),
        ("token_sum", None, 16),
        ("seq_mean_token_sum", None, (6 + 10) / 2),
        ("seq_mean_token_mean", None, (2 + 10) / 2),
        ("seq_mean_token_sum_norm", 8, (6 + 10) / 2 / 8),
    ],
)
def test_each_aggregation_is_its_formula(aggregation, norm, expected):
    values = torch.tensor([[1.0, 2.0, 3.0], [10.0, math.nan, math.nan]])
    mask = torch.tensor([[True, True, True], [True, False, False]])
    scale = row_loss_weights(aggregation, mask.sum(1), MinibatchTotals(samples=2, tokens=4), norm)
    assert (scale * masked_sum(values, mask)).sum().item() == pytest.approx(expected)


def test_an_unknown_aggregation_is_named():
    with pytest.raises(ValueError, match="'median'"):
        row_loss_weights("median", torch.tensor([1]), MinibatchTotals(1, 1))


@pytest.fixture
def three():
    """Logits of π, of an anchor and of an older π over five tokens, in float64."""
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(5, generator=generator, dtype=torch.float64) for _ in range(3)]


def kl_and_gradient(logits, anchor):
    """KL(π ‖ anchor) and p_a (log π_a - log anchor_a - KL), written out."""
    p, q = logits.softmax(0), anchor.softmax(0)
    kl = (p * (p.log() - q.log())).sum()
    return kl, p * (p.log() - q.log() - kl)


def test_the_exact_kl_and_its_gradient_are_the_formulas(three):
    logits, anchor = three[0].requires_grad_(), three[1]
    value = exact_kl(logits.log_softmax(0), anchor.log_softmax(0))
    value.backward()
    kl, gradient = kl_and_gradient(logits.detach(), anchor)
    assert torch.allclose(value, kl)
    assert torch.allclose(logits.grad, gradient)


@pytest.mark.parametrize(("estimator", "off_policy"), [("k2", False), ("k3_is", False), ("k3_is", True)])
def test_sampled_estimators_have_the_gradient_of_the_kl_in_expectation(three, estimator, off_policy):
    logits, anchor = three[0].requires_grad_(), three[1]
    behind = three[2] if off_policy else logits.detach()
    every = torch.ones(1, 5, dtype=torch.bool)
    rows = [tensor.log_softmax(0)[None] for tensor in (logits, anchor, behind)]
    estimates = sampled_kl(rows[0], rows[1], rows[2], every, estimator)
    expectation = (behind.softmax(0) * estimates[0]).sum()
    expectation.backward()
    kl, gradient = kl_and_gradient(logits.detach(), anchor)
    assert torch.allclose(logits.grad, gradient)
    if estimator == "k3_is":
        assert torch.allclose(expectation, kl)


def test_the_sampler_kl_is_unbiased_and_never_negative(three):
    policy, sampler = three[0].log_softmax(0), three[1].log_softmax(0)
    values = sampler_kl(sampler[None], policy[None], torch.ones(1, 5, dtype=torch.bool))[0]
    assert (values >= 0).all()
    assert torch.allclose((sampler.exp() * values).sum(), (sampler.exp() * (sampler - policy)).sum())


def test_the_entropy_and_its_gradient_are_the_formulas(three):
    logits = three[0].requires_grad_()
    value = entropy(logits.log_softmax(0))
    value.backward()
    p = logits.detach().softmax(0)
    assert torch.allclose(value, -(p * p.log()).sum())
    assert torch.allclose(logits.grad, -p * (p.log() + value.detach()))


def test_impossible_tokens_add_nothing_to_kl_and_entropy():
    logits: Any = torch.tensor([0.3, -0.2, -math.inf], requires_grad=True)
    anchor = torch.tensor([0.1, 0.4, -math.inf]).log_softmax(0)
    logprobs = logits.log_softmax(0)
    (exact_kl(logprobs, anchor) + entropy(logprobs)).backward()
    assert logits.grad.isfinite().all()
    assert exact_kl(logprobs, torch.zeros(3).log_softmax(0)).isfinite()
    assert exact_kl(torch.tensor([0.5, math.nan]), torch.zeros(2)).isnan(), "but what is not a number stays visible"


MODES = ("token_mean", "token_sum", "seq_mean_token_sum", "seq_mean_token_mean", "seq_mean_token_sum_norm")


@pytest.mark.parametrize("mode", MODES)
def test_aggregate_is_the_loss_of_a_whole_minibatch(mode: str) -> None:
    agg_loss = pytest.importorskip("verl.trainer.ppo.core_algos").agg_loss
    case = random_case()
    norm = 9 if mode.endswith("norm") else None
    expected = agg_loss(case.hidden(0.0).logprobs, case.mask.double(), mode.replace("_", "-"), loss_scale_factor=norm)
    for poison in (0.0, math.nan):
        torch.testing.assert_close(aggregate(case.hidden(poison).logprobs, case.mask, mode, norm), expected)
    assert aggregate(case.logprobs, torch.zeros_like(case.mask), mode, norm) == 0


def test_every_plain_function_takes_its_mask_after_all_numbers_of_tokens() -> None:
    for name in functions.__all__:
        arguments = list(inspect.signature(getattr(functions, name)).parameters)
        tensors = [argument for argument in arguments if argument.endswith("_BT")]
        assert arguments[: len(tensors)] == tensors, name
        if tensors:
            assert tensors[-1] == "mask_BT", name
        if "advantages_BT" in tensors and "old_logprobs_BT" in tensors:
            assert tensors == ["logprobs_BT", "old_logprobs_BT", "advantages_BT", "mask_BT"], name
