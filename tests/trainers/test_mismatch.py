"""Corrections for another sampler: against verl on the same tensors, and by hand."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch

from marl.trainers.policy_gradient.mismatch import (
    icepop,
    importance_ratios,
    mis,
    off_policy_sequence_mask,
    reject_by_divergence,
    tis,
    tis_within_sequence_bounds,
)
from tests.support.loss_samples import MASK, random_case

POISONS = (math.nan, math.inf, -math.inf)


def by_hand(old, sampled, mask, level):
    """Ratios of one row, in Python's own floats."""
    gaps = [o - s for o, s, m in zip(old.tolist(), sampled.tolist(), mask.tolist(), strict=True) if m]
    each = {"sequence": sum(gaps), "geometric": sum(gaps) / max(len(gaps), 1)}
    shown = iter(gaps)
    return [math.exp(each.get(level) or next(shown)) if m else 0.0 for m in mask.tolist()]


@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
@pytest.mark.parametrize("poison", POISONS)
def test_ratios_are_those_worked_out_by_hand(level, poison):
    case = random_case()
    expected = [by_hand(*row, level) for row in zip(case.old, case.sampled, case.mask, strict=True)]
    dirty = case.hidden(poison)
    got = importance_ratios(dirty.old, dirty.sampled, dirty.mask, level)
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("poison", POISONS)
@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("kind", ["tis", "mis"])
def test_truncated_and_masked_weights_are_verls(kind, level, poison):
    verl = pytest.importorskip("verl.trainer.ppo.rollout_corr_helper")
    case, bounds = random_case(), {"tis": (0.0, 1.3), "mis": (0.3, 3.0)}[kind]
    clean, dirty = case.hidden(0.0), case.hidden(poison)
    threshold = bounds[1] if kind == "tis" else "0.3_3.0"
    expected, _ = verl.compute_rollout_correction_weights(
        clean.old - clean.sampled, clean.mask.double(), level, threshold
    )
    weights_of = {"tis": tis, "mis": mis}[kind]
    got = weights_of(dirty.old, dirty.sampled, dirty.mask, level, bounds)
    torch.testing.assert_close(got, expected)
    assert len(got[MASK].unique()) > 2


def test_weights_stay_within_their_bounds_at_ratios_of_e_to_the_200():
    old, every = torch.tensor([[200.0, -200.0, 20.0, 0.5]]), torch.ones(1, 4, dtype=torch.bool)
    nothing = torch.zeros(1, 4)
    assert tis(old, nothing, every, "token", (0.5, 2.0)).tolist() == [[2.0, 0.5, 2.0, pytest.approx(math.exp(0.5))]]
    assert mis(old, nothing, every, "token", (0.5, 2.0)).tolist() == [[0, 0, 0, pytest.approx(math.exp(0.5))]]
    assert tis(old, nothing, every, "sequence", (0.5, 2.0)).tolist() == [[2.0] * 4]
    assert mis(old, nothing, every, "sequence", (0.5, 2.0)).tolist() == [[0.0] * 4]


def test_each_token_is_weighted_against_the_weights_that_sampled_it():
    # Two tokens of old weights, which gave them probabilities .5 and .8, and two of the learner's own weights.
    sampled = torch.tensor([[0.5, 0.8, 0.25, 0.1]]).log()
    learner = torch.tensor([[0.4, 0.2, 0.25, 0.1]]).log()
    every = torch.ones(1, 4, dtype=torch.bool)
    torch.testing.assert_close(tis(learner, sampled, every), torch.tensor([[0.8, 0.25, 1.0, 1.0]]))
    torch.testing.assert_close(icepop(learner, sampled, every), torch.tensor([[0.8, 0.0, 1.0, 1.0]]))


def test_icepop_drops_the_tokens_whose_ratio_is_out_of_bounds():
    old = torch.tensor([0.4, 0.6, 1.0, 4.9, 5.1]).log()[None]
    weights = icepop(old, torch.zeros(1, 5), torch.ones(1, 5, dtype=torch.bool))
    torch.testing.assert_close(weights, torch.tensor([[0.0, 0.6, 1.0, 4.9, 0.0]]))


def test_the_geometric_mean_keeps_rows_whatever_their_length():
    old = torch.tensor([[0.9] * 8, [4.0] + [0.9] * 7, [0.4] * 8, [0.4, 0.4] + [math.nan] * 6]).log()
    mask = torch.tensor([[True] * 8, [True] * 8, [True] * 8, [True] * 2 + [False] * 6])
    weights = tis_within_sequence_bounds(old, torch.zeros(4, 8), mask)
    expected = torch.tensor([[0.9] * 8, [4.0] + [0.9] * 7, [0.0] * 8, [0.0] * 8])
    torch.testing.assert_close(weights, expected)


@pytest.mark.parametrize("poison", POISONS)
@pytest.mark.parametrize(
    ("divergence", "span", "verls"),
    [(d, s, f"{v}_{d}") for d in ("k1", "k2", "k3") for s, v in (("token", "token"), ("sum", "seq_sum"))]
    + [(d, "mean", f"seq_mean_{d}") for d in ("k1", "k2", "k3")]
    + [(d, "max", f"seq_max_{d}") for d in ("k2", "k3")],
)
def test_rejection_leaves_the_tokens_that_verl_leaves(divergence, span, verls, poison):
    verl = pytest.importorskip("verl.trainer.ppo.rollout_corr_helper")
    low, high = {"token": (0.0, 0.3), "sum": (0.0, 1.5), "mean": (0.0, 0.4), "max": (0.0, 0.8)}[span]
    if divergence == "k1":
        low, high = 0.8, 4.0
    case = random_case(seed=4)
    clean, dirty = case.hidden(0.0), case.hidden(poison)
    # verl bounds 1 / r where it says r.
    threshold = f"{1 / high}_{1 / low}" if divergence == "k1" else str(high)
    expected, _ = verl.compute_rollout_rejection_mask(clean.old - clean.sampled, clean.mask.double(), verls, threshold)
    got = reject_by_divergence(dirty.old, dirty.sampled, dirty.mask, divergence, span, (low, high))
    assert torch.equal(got, expected.bool())
    assert 0 < got.sum() < MASK.sum()


@pytest.mark.parametrize("poison", POISONS)
def test_opsm_drops_the_rows_that_trl_drops(poison):
    trl = pytest.importorskip("trl.trainer.grpo_trainer")
    dropped = set()
    for seed, delta in product(range(5), (-0.5, -0.1, 0.0, 0.1, 0.5)):
        case = random_case(rows=True, seed=seed)
        clean, dirty = case.hidden(0.0), case.hidden(poison)
        trl_mask = trl.GRPOTrainer.get_off_policy_mask(
            case.advantages[:, :1], clean.logprobs, clean.sampled, clean.mask.double(), delta
        )
        got = off_policy_sequence_mask(dirty.logprobs, dirty.sampled, dirty.advantages, dirty.mask, delta)
        assert torch.equal(got, trl_mask.bool() & case.mask)
        dropped.add(int(trl_mask.sum()))
    assert len(dropped) > 1


def test_an_important_sample_has_the_expectation_of_the_learner():
    """Σ_a μ(a) r(a) f(a) = Σ_a π(a) f(a), for tokens and for pairs of them."""
    generator = torch.Generator().manual_seed(1)
    learner, sampler, worth = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    learner, sampler = learner.log_softmax(0), sampler.log_softmax(0)
    pairs = torch.cartesian_prod(torch.arange(4), torch.arange(4))
    old, drawn_with = learner[pairs], sampler[pairs]
    every = torch.ones(16, 2, dtype=torch.bool)
    weights = tis(old, drawn_with, every, "sequence", (0.0, math.inf))[:, 0]
    value = worth[pairs].sum(1)
    corrected = (drawn_with.sum(1).exp() * weights * value).sum()
    torch.testing.assert_close(corrected, (old.sum(1).exp() * value).sum())
