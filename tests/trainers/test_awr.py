"""Advantage-weighted regression: against its solution in closed form, plain imitation, and numbers by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from marl.core.config import Sampling
from marl.core.types import Advantage, Reading
from marl.trainers.functions import advantage_weighted, positive_advantage_only
from marl.trainers.imitation.settings import Sft
from marl.trainers.policy_gradient.critic_settings import CriticConfig
from marl.trainers.policy_gradient.loss_settings import AwrLoss
from marl.trainers.policy_gradient.settings import Awr, Grpo
from tests.support.learning_samples import SamplePlan, context, equal_weights, make_samples, weights

ALL = torch.ones(1, 1, dtype=torch.bool)
DETACHED = CriticConfig(where="trunk", detach=True, clip=None)


@pytest.mark.parametrize(
    ("advantage", "weight", "clipped"),
    [(0.0, 1.0, False), (0.5 * math.log(2), 2.0, False), (-0.5 * math.log(4), 0.25, False), (9.0, 20.0, True)],
)
def test_a_token_weighs_e_to_the_advantage_over_beta_at_most_twenty(
    advantage: float, weight: float, clipped: bool
) -> None:
    logprobs = torch.tensor([[-1.5]], requires_grad=True)
    loss, bound = advantage_weighted(logprobs, torch.tensor([[advantage]]), ALL, 0.5, 20.0)
    loss.sum().backward()
    assert loss.item() == pytest.approx(1.5 * weight)
    assert logprobs.grad is not None
    assert (logprobs.grad.item(), bound.item()) == (pytest.approx(-weight), clipped)


def test_the_best_policy_near_the_one_that_played_is_found() -> None:
    """π ∝ μ exp(A / β) maximises E_π[A] - β KL(π ‖ μ) (1910.00177, equation 7); here from samples of μ alone."""
    played, worth, beta = torch.tensor([600, 300, 90, 10]), torch.tensor([-0.2, 0.1, 0.7, 0.4]), 0.4
    actions = torch.repeat_interleave(torch.arange(4), played)
    logits = torch.zeros(4, requires_grad=True)
    optimizer = torch.optim.LBFGS([logits], max_iter=200, tolerance_grad=1e-9)
    loss = AwrLoss(beta=beta)
    mask = torch.ones(len(actions), 1, dtype=torch.bool)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        logprobs = logits.log_softmax(0)[actions][:, None]
        value = loss(logprobs, logprobs.detach(), worth[actions][:, None], mask)[0].mean()
        value.backward()
        return value

    optimizer.step(closure)
    expected = torch.softmax((played / played.sum()).log() + worth / beta, 0)
    assert torch.allclose(logits.softmax(0), expected, atol=1e-5)


@pytest.mark.parametrize(("advantage", "weight"), [(0.3, 1.0), (7.0, 1.0), (0.0, 0.0), (-0.3, 0.0)])
def test_a_binary_weight_imitates_only_what_went_better_than_expected(advantage: float, weight: float) -> None:
    """CRR's indicator (2006.15134, equation 3), by hand."""
    logprobs = torch.tensor([[-1.5]], requires_grad=True)
    loss, bound = positive_advantage_only(logprobs, torch.tensor([[advantage]]), ALL)
    loss.sum().backward()
    assert logprobs.grad is not None
    assert (loss.item(), logprobs.grad.item(), bound.item()) == (1.5 * weight, -weight, False)
    assert positive_advantage_only(logprobs, torch.tensor([[advantage]]), ~ALL)[0].item() == 0


def test_a_binary_weight_plays_each_move_as_often_as_it_was_played_and_did_well() -> None:
    """Moves of a uniform player that did well 3, 1 and 0 times in 4: the best imitation plays 3/4, 1/4 and 0."""
    actions = torch.tensor([0] * 4 + [1] * 4 + [2] * 4)
    advantages = torch.tensor([1.0, 1.0, 1.0, -3.0, 2.0, -1.0, -1.0, -1.0, -0.5, -0.5, -0.5, 0.0])
    logits = torch.zeros(3, requires_grad=True)
    optimizer = torch.optim.Adam([logits], lr=0.1)
    loss, mask = AwrLoss(weight="binary"), torch.ones(len(actions), 1, dtype=torch.bool)
    for _ in range(200):
        optimizer.zero_grad()
        logprobs = logits.log_softmax(0)[actions][:, None]
        loss(logprobs, logprobs.detach(), advantages[:, None], mask)[0].sum().backward()
        optimizer.step()
    assert torch.allclose(logits.softmax(0), torch.tensor([0.75, 0.25, 0.0]), atol=0.01)


def test_with_advantages_of_zero_it_is_imitation_whatever_the_recorded_log_probabilities_are() -> None:
    samples = [
        replace(s, advantage=Advantage(0.0, returns=(0.0,) * len(s.token_ids)), logprobs=(-9.0,) * len(s.token_ids))
        for s in make_samples(SamplePlan())
    ]
    learners = [Awr(lr=1e-2, critic=DETACHED, fidelity=None), Sft(lr=1e-2)]
    after = []
    for settings in learners:
        learner = settings.build(context())
        for _ in range(3):
            learner.update(samples)
        after.append(weights(learner))
    for name, weight in after[1].items():
        assert torch.allclose(after[0][name], weight, atol=1e-6), name


def test_values_are_learnt_beside_it_and_read() -> None:
    samples = [
        replace(s, advantage=Advantage(0.3, returns=(1.0,) * len(s.token_ids)), reading=Reading(s.logprobs))
        for s in make_samples(SamplePlan())
    ]
    learner = Awr(lr=1e-2, fidelity=None).build(context())
    first, last = learner.update(samples), {}
    for _ in range(8):
        last = learner.update(samples)
    assert last["value_loss"] < 0.5 * first["value_loss"]
    assert "values" in Awr().computable_reading_fields
    state = learner.state_dict()
    resumed = Awr(lr=1e-2, fidelity=None).build(context())
    resumed.load_state_dict(state)
    for each in (learner, resumed):
        each.update(samples)
    assert equal_weights(weights(learner), weights(resumed))


def test_any_sampling_can_be_learnt_from_and_options_of_other_losses_are_refused() -> None:
    assert Awr().supports(Sampling(top_p=0.5, temperature=0.3))
    assert not Grpo().supports(Sampling(top_p=0.5))
    with pytest.raises(ValueError, match="clip_low is an option of the loss"):
        Awr(clip_low=0.1)  # pyright: ignore[reportCallIssue]
    with pytest.raises(ValueError, match="max_weight"):
        AwrLoss(max_weight=0.5)
    with pytest.raises(ValueError, match=r"beta: 0\.3 has no effect with weight: binary; remove it, or choose exp"):
        AwrLoss(beta=0.3, weight="binary")
