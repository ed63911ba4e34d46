"""Losses that compare answers: against TRL, transformers and torch on the same tensors, and by enumeration."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional
from transformers import LlamaConfig, LlamaForTokenClassification

from marl.trainers.batching.aggregation import masked_difference, masked_mean_per_row, masked_sum
from marl.trainers.policy_gradient.prime import implicit_rewards
from marl.trainers.preferences.losses import dpo
from marl.trainers.reward_model.losses import bradley_terry, orm
from tests.support.loss_samples import LossCase, expect_equal_losses, random_case
from tests.support.trl_losses import trainer_stub

BETA = 0.4
OURS = {
    "sigmoid": ("sigmoid", 0.0, False),
    "aot_unpaired": ("sigmoid", 0.2, False),
    "robust": ("robust", 0.2, False),
    "hinge": ("hinge", 0.0, False),
    "ipo": ("ipo", 0.0, True),
    "sigmoid_norm": ("sigmoid", 0.0, True),
}
"""TRL's name -> our kind, smoothing, and whether gains are means. Of one pair, `aot_unpaired` is cDPO."""


def our_dpo(case: LossCase, kind: Any, smoothing: float, mean: bool):
    sum_of = masked_mean_per_row if mean else masked_sum
    better, worse = sum_of(masked_difference(case.logprobs, case.anchor, case.mask), case.mask).chunk(2)
    return dpo(better - worse, BETA, kind, smoothing).mean()


def trl_dpo(case: LossCase, loss_type: str):
    trl = pytest.importorskip("trl.trainer.dpo_trainer")
    facts = {"beta": BETA, "label_smoothing": 0.2, "loss_types": [loss_type], "loss_weights": [1.0]}
    plain = {"ld_alpha": None, "precompute_ref_logps": True, "f_divergence_type": "reverse_kl", "use_weighting": False}
    trainer = trainer_stub(trl.DPOTrainer, **facts, **plain)
    better, worse = (case.anchor * case.mask).sum(1).chunk(2)
    mask = torch.cat([torch.zeros(len(case.mask), 1), case.mask], 1).long()
    inputs = {
        "input_ids": torch.zeros_like(mask),
        "attention_mask": torch.ones_like(mask),
        "completion_mask": mask,
        "ref_chosen_logps": better,
        "ref_rejected_logps": worse,
    }
    nothing = torch.zeros(case.mask.shape)
    outputs = SimpleNamespace(log_probs=case.logprobs, entropy=nothing, mean_logits=nothing, is_top1=nothing.bool())
    return trainer._compute_loss(lambda **_: outputs, inputs, False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("loss_type", OURS)
def test_each_preference_loss_is_that_of_trl(loss_type, dtype):
    for seed, rows in ((0, [0, 2]), (0, [1, 3]), (1, [2, 3]), (2, [0, 1])):
        case = random_case(dtype, seed=seed, full=True)
        pair = case.over(lambda tensor, rows=rows: tensor[rows])
        expect_equal_losses(
            lambda c: our_dpo(c, *OURS[loss_type]), lambda c: trl_dpo(c, loss_type), pair, still=loss_type == "hinge"
        )


@pytest.mark.parametrize("kind", ["sigmoid", "robust", "hinge", "ipo"])
def test_losses_of_several_pairs_are_their_mean(kind):
    case, smoothing = random_case(full=True), 0.2 if kind == "robust" else 0.0
    names = {"ipo": "ipo"}
    expect_equal_losses(
        lambda c: our_dpo(c, kind, smoothing, kind == "ipo"), lambda c: trl_dpo(c, names.get(kind, kind)), case
    )


@pytest.mark.parametrize(("kind", "smoothing"), [("sigmoid", 0.0), ("sigmoid", 0.2), ("hinge", 0.0), ("ipo", 0.0)])
def test_losses_of_summed_gains_are_those_of_trls_cpo_trainer(kind, smoothing):
    cpo = pytest.importorskip("trl.experimental.cpo.cpo_trainer")
    trainer = trainer_stub(cpo.CPOTrainer, beta=BETA, alpha=0.0, loss_type=kind, label_smoothing=smoothing)

    def theirs(case: LossCase):
        better, worse = ((case.logprobs - case.anchor) * case.mask).sum(1).chunk(2)
        return trainer.cpo_loss(better, worse)[0].mean()

    expect_equal_losses(lambda c: our_dpo(c, kind, smoothing, False), theirs, random_case(full=True))


def test_the_robust_loss_is_unbiased_when_pairs_are_flipped():
    h = torch.linspace(-3, 3, 7, dtype=torch.float64)
    flipped = 0.7 * dpo(h, BETA, "robust", 0.3) + 0.3 * dpo(-h, BETA, "robust", 0.3)
    torch.testing.assert_close(flipped, dpo(h, BETA))


@pytest.mark.parametrize(("kind", "smoothing"), [("sigmoid", 0.0), ("sigmoid", 0.1), ("robust", 0.1), ("hinge", 0.0)])
def test_gains_of_thousands_of_nats_stay_finite(kind, smoothing):
    h = torch.tensor([-1e5, -1e3, 0.0, 1e3, 1e5], requires_grad=True)
    loss = dpo(h, 1.0, kind, smoothing)
    loss.sum().backward()
    assert loss.isfinite().all()
    assert h.grad is not None
    assert h.grad.isfinite().all()
    assert loss[0].item() == pytest.approx({"robust": 1e5 * 0.9 / 0.8}.get(kind, 1e5 * (1 - smoothing)), rel=1e-4)


def test_settings_that_have_no_meaning_are_named():
    with pytest.raises(ValueError, match="kind='kto'"):
        dpo(torch.zeros(1), BETA, "kto")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"smoothing=0\.1 has no meaning with kind='ipo'"):
        dpo(torch.zeros(1), BETA, "ipo", 0.1)


@pytest.mark.parametrize("centre", [None, 0.01])
@pytest.mark.parametrize("margin", [None, (0.0, 0.5, 2.0)])
def test_the_reward_models_loss_and_gradient_are_those_of_trl(centre, margin):
    trl = pytest.importorskip("trl.trainer.reward_trainer")
    trainer = trainer_stub(trl.RewardTrainer, {"center_rewards_coefficient": centre})
    scores = torch.tensor([0.3, -2.0, 40.0, 0.1, 1.5, -40.0], dtype=torch.float64)
    theirs, ours = (scores.clone().requires_grad_() for _ in range(2))
    extra: dict[str, Any] = {} if margin is None else {"margin": torch.tensor(margin, dtype=torch.float64)}

    def model(**_):
        return SimpleNamespace(logits=theirs[:, None])

    their_loss = trainer.compute_loss(model, {"attention_mask": torch.ones(6, 3), **extra})
    better, worse = ours.chunk(2)
    our_loss = bradley_terry(better, worse, extra.get("margin", 0.0), centre or 0.0).mean()
    their_loss.backward()
    our_loss.backward()
    torch.testing.assert_close(our_loss, their_loss)
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_the_outcome_reward_models_loss_is_torchs_cross_entropy():
    logits = torch.tensor([0.3, -2.0, 60.0, -60.0, 200.0], dtype=torch.float64)
    labels = torch.tensor([1.0, 0.0, 0.0, 1.0, 0.25], dtype=torch.float64)
    ours, theirs = (logits.clone().requires_grad_() for _ in range(2))
    loss, expected = orm(ours, labels), functional.binary_cross_entropy_with_logits(theirs, labels, reduction="none")
    torch.testing.assert_close(loss, expected)
    loss.sum().backward()
    expected.sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_the_process_reward_models_loss_is_that_of_a_token_classifier():
    """With two classes, as TRL's PRM has them: the cross-entropy of the difference of their logits where steps end."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": 20, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    sizes |= {"num_attention_heads": 2, "num_labels": 2}
    model: Any = LlamaForTokenClassification(LlamaConfig(**sizes)).eval()
    tokens = torch.randint(20, (3, 6))
    ends = torch.tensor([[0, 1, 0, 0, 0, 1], [0, 0, 0, 1, 0, 0], [0, 0, 0, 0, 0, 0]], dtype=torch.bool)
    right = torch.tensor([[0, 1, 0, 0, 0, 0], [0, 0, 0, 1, 0, 0], [0, 0, 0, 0, 0, 0]])
    theirs = model(tokens, labels=torch.where(ends, right, -100))
    theirs.loss.backward()
    expected = model.score.weight.grad.clone()
    model.zero_grad()
    logits = model(tokens).logits[ends]
    loss = orm(logits[:, 1] - logits[:, 0], right[ends]).mean()
    loss.backward()
    torch.testing.assert_close(loss, theirs.loss)
    torch.testing.assert_close(model.score.weight.grad, expected)


def test_primes_loss_is_the_cross_entropy_of_summed_implicit_rewards():
    correct = torch.tensor([1.0, 0.0, 1.0, 0.0], dtype=torch.float64)

    def ours(case: LossCase):
        rewards = implicit_rewards(case.logprobs, case.anchor, case.mask, 0.05)
        return orm(masked_sum(rewards, case.mask), correct).mean()

    def by_hand(case: LossCase):
        losses = []
        for logprobs, anchor, mask, right in zip(case.logprobs, case.anchor, case.mask, correct, strict=True):
            total: Any = sum(s - t for s, t, m in zip(logprobs, anchor, mask, strict=True) if m)
            chance = 1 / (1 + torch.exp(-0.05 * total))
            losses.append(-torch.log(chance if right else 1 - chance))
        return sum(losses[1:], losses[0]) / 4

    expect_equal_losses(ours, by_hand, random_case(full=True))


def test_implicit_rewards_are_those_whose_optimal_policy_is_the_model():
    """π ∝ reference · exp(r / β), whatever the constant: what DPO's derivation says of r."""
    generator = torch.Generator().manual_seed(1)
    model, reference = (torch.randn(6, generator=generator).log_softmax(0) for _ in range(2))
    rewards = implicit_rewards(model[:, None], reference[:, None], torch.ones(6, 1, dtype=torch.bool), BETA)[:, 0]
    torch.testing.assert_close((reference + rewards / BETA).softmax(0), model.exp())
