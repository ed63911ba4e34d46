"""The whole GRPO loss, value and gradient, against TRL's own code on the same tensors."""

import math

import pytest
import torch

from marl.trainers.batching.aggregation import MinibatchTotals, masked_sum, row_loss_weights
from marl.trainers.forward.divergences import entropy, sampled_kl
from marl.trainers.policy_gradient.losses import clipped_surrogate
from tests.support.loss_samples import LossCase
from tests.support.trl_losses import policy_loss, trainer_stub

trl = pytest.importorskip("trl.trainer.grpo_trainer")

LENGTHS = (5, 2, 4, 1)
MASK = torch.arange(5) < torch.tensor(LENGTHS)[:, None]
BETA = 0.3


def tensors():
    generator = torch.Generator().manual_seed(0)
    logits, advantages = torch.randn(4, 5, 7, generator=generator), torch.randn(4, generator=generator)
    old, reference = (-2 + 0.6 * torch.randn(4, 5, generator=generator) for _ in range(2))
    return logits, advantages, old, reference


def chosen(logits):
    return logits.log_softmax(-1)[..., 0]


def trl_loss(loss_type, entropy_coef, logits, *rest):
    advantages, old, reference = rest
    entropy_bonus = {"_entropy_bonus_enabled": entropy_coef > 0, "entropy_coef": entropy_coef}
    trainer = trainer_stub(trl.GRPOTrainer, beta=BETA, loss_type=loss_type, **entropy_bonus)
    case = LossCase(chosen(logits), old, reference, old, advantages[:, None].expand(4, 5), MASK)
    return policy_loss(trainer, case, entropy(logits.log_softmax(-1)))


def our_loss(aggregation, norm, entropy_coef, logits, *rest):
    advantages, old, reference = rest
    logprobs = chosen(logits)
    loss = clipped_surrogate(logprobs, old, advantages[:, None].expand(4, 5), MASK, (0.2, 0.28))[0]
    loss = loss + BETA * sampled_kl(logprobs, reference, old, MASK, "k3_is")
    loss = loss - entropy_coef * entropy(logits.log_softmax(-1))
    scale = row_loss_weights(aggregation, MASK.sum(1), MinibatchTotals(4, sum(LENGTHS)), norm)
    return (scale * masked_sum(loss, MASK)).sum()


@pytest.mark.parametrize(
    ("loss_type", "aggregation", "norm", "entropy_coef"),
    [
        ("grpo", "seq_mean_token_mean", None, 0.0),
        ("bnpo", "token_mean", None, 0.1),
        ("dapo", "token_mean", None, 0.1),
        ("dr_grpo", "seq_mean_token_sum_norm", 5, 0.0),
        ("luspo", "seq_mean_token_sum", None, 0.0),
    ],
)
def test_the_loss_and_its_gradient_are_those_of_trl(loss_type, aggregation, norm, entropy_coef):
    logits, *rest = tensors()
    results = []
    for loss_of in (
        lambda x: trl_loss(loss_type, entropy_coef, x, *rest),
        lambda x: our_loss(aggregation, norm, entropy_coef, x, *rest),
    ):
        leaf = logits.clone().requires_grad_()
        loss = loss_of(leaf)
        loss.backward()
        results.append((loss.item(), leaf.grad))
    (theirs, their_gradient), (ours, our_gradient) = results
    assert math.isclose(ours, theirs, rel_tol=1e-6)
    assert torch.allclose(our_gradient, their_gradient, rtol=1e-5, atol=1e-7)
    assert our_gradient.abs().sum() > 0
