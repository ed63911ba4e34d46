"""Estimates of the KL divergence, by exact enumeration over a small vocabulary."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch

from marl.trainers.forward.divergences import sampled_kl
from marl.trainers.policy_gradient.losses import reinforce
from tests.support.loss_samples import random_case

VOCABULARY = 5
EVERY = torch.ones(VOCABULARY, 1, dtype=torch.bool)


@pytest.fixture
def logits():
    """Of π, of an anchor and of an older π over five tokens, in float64."""
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(VOCABULARY, generator=generator, dtype=torch.float64) for _ in range(3)]


def kl_of(upper, lower):
    p, q = upper.softmax(0), lower.softmax(0)
    return (p * (p.log() - q.log())).sum()


def gradient_of(value_of, point):
    leaf = point.clone().requires_grad_()
    return torch.autograd.grad(value_of(leaf), leaf)[0]


def expectation(estimator, policy, anchor, behind, limit=None):
    """Of the estimate over the tokens that `behind` draws, and of its gradient to π's logits."""

    def value_of(leaf):
        logprobs, anchor_logprobs, old = (x.log_softmax(0)[:, None] for x in (leaf, anchor, behind))
        return (behind.softmax(0) * sampled_kl(logprobs, anchor_logprobs, old, EVERY, estimator, limit)[:, 0]).sum()

    return value_of(policy).detach(), gradient_of(value_of, policy)


@pytest.mark.parametrize(
    ("estimator", "value", "gradient"),
    [
        ("k1", "kl", "zero"),
        ("k2", "half the mean square", "kl"),
        ("k3", "kl", "reversed kl"),
        ("k1+", "kl", "kl"),
        ("k3+", "kl", "kl"),
        ("k3_is", "kl", "kl"),
    ],
)
def test_each_estimate_and_its_gradient_are_on_average_what_they_are_documented_to_be(
    logits, estimator, value, gradient
):
    policy, anchor, _ = logits
    ratio = policy.log_softmax(0) - anchor.log_softmax(0)
    values = {"kl": kl_of(policy, anchor), "half the mean square": (policy.softmax(0) * ratio**2).sum() / 2}
    gradients = {
        "zero": torch.zeros_like(policy),
        "kl": gradient_of(lambda leaf: kl_of(leaf, anchor), policy),
        "reversed kl": gradient_of(lambda leaf: kl_of(anchor, leaf), policy),
    }
    got_value, got_gradient = expectation(estimator, policy, anchor, policy)
    torch.testing.assert_close(got_value, values[value])
    torch.testing.assert_close(got_gradient, gradients[gradient])


def test_the_corrected_estimate_is_right_on_the_tokens_of_an_older_policy(logits):
    policy, anchor, behind = logits
    value, gradient = expectation("k3_is", policy, anchor, behind)
    torch.testing.assert_close(value, kl_of(policy, anchor))
    torch.testing.assert_close(gradient, gradient_of(lambda leaf: kl_of(leaf, anchor), policy))


def test_k1_in_the_reward_of_a_whole_answer_has_the_gradient_of_the_kl(logits):
    """Σ_y π(y) · gradient of reinforce with the row's sum of -k1 as advantage = -∇KL of the answers."""
    policy, anchor, _ = logits
    answers = torch.tensor(list(product(range(VOCABULARY), repeat=2)))
    every = torch.ones(answers.shape, dtype=torch.bool)

    def loss_of(leaf):
        logprobs, anchor_logprobs = leaf.log_softmax(0)[answers], anchor.log_softmax(0)[answers]
        k1 = sampled_kl(logprobs, anchor_logprobs, logprobs.detach(), every, "k1").detach()
        rows = reinforce(logprobs, -k1.sum(1, keepdim=True).expand_as(k1), every).sum(1)
        return (logprobs.detach().sum(1).exp() * rows).sum()

    # Two tokens drawn independently: twice the KL of one.
    expected = gradient_of(lambda leaf: 2 * kl_of(leaf, anchor), policy)
    torch.testing.assert_close(gradient_of(loss_of, policy), expected)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3", "k1+", "k3+", "k3_is"])
def test_a_limit_bounds_the_estimate_and_keeps_its_gradient_finite(estimator):
    gaps = torch.tensor([[-200.0, -30.0, -1.0, 0.0, 1.0, 30.0]])
    logprobs = gaps.clone().requires_grad_()
    estimate = sampled_kl(
        logprobs, torch.zeros(1, 6), gaps, torch.ones(1, 6, dtype=torch.bool), estimator, max_estimate=10.0
    )
    estimate.sum().backward()
    assert logprobs.grad is not None
    assert logprobs.grad.isfinite().all()
    assert estimate.abs().max() == 10
    free = sampled_kl(gaps[:, 2:5], torch.zeros(1, 3), gaps[:, 2:5], torch.ones(1, 3, dtype=torch.bool), estimator)
    assert torch.equal(estimate[:, 2:5], free)


def test_an_overflow_that_counts_is_not_hidden():
    gap, zero, one = torch.tensor([[-200.0]]), torch.zeros(1, 1), torch.ones(1, 1, dtype=torch.bool)
    assert sampled_kl(gap, zero, gap, one, "k3").item() == math.inf
    assert sampled_kl(gap, zero, gap, ~one, "k3").item() == 0


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3", "k1+", "k3+", "k3_is"])
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_nothing_behind_the_mask_reaches_an_estimate_or_its_gradient(estimator, poison):
    case = random_case()
    results = []
    for shown in (case, case.hidden(poison)):
        leaf = shown.logprobs.clone().requires_grad_()
        estimate = sampled_kl(leaf, shown.anchor, shown.old, shown.mask, estimator)
        estimate.sum().backward()
        results.append((estimate.detach(), leaf.grad))
    (value, gradient), (dirty_value, dirty_gradient) = results
    assert torch.equal(value, dirty_value)
    assert torch.equal(gradient, dirty_gradient)


def test_an_unknown_estimator_is_named():
    with pytest.raises(ValueError, match="estimator='k4'"):
        sampled_kl(torch.zeros(1, 1), torch.zeros(1, 1), torch.zeros(1, 1), EVERY[:1], "k4")  # type: ignore[arg-type]
