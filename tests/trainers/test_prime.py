"""PRIME against hand enumeration: what tokens are paid, how the model is taught, what is learnt from."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from marl.core.config import Sampling
from marl.core.types import Advantage, Reading, Sample, TurnId
from marl.credit.assign.process import ProcessRewardAssign
from marl.protocols import Evidence
from marl.trainers.policy_gradient.settings import Grpo, Prime
from tests.support.handmade_episodes import make_episode
from tests.support.learning_samples import (
    SamplePlan,
    context,
    distance,
    equal_weights,
    gradient,
    make_sample,
    make_samples,
    read_logprobs,
    turn,
    unpadded_logprobs,
    weights,
)

REWARDS = frozenset({"rewards"})


def built(**changes: Any) -> Any:
    return Prime(lr=1e-2, **changes).build(context())


def outcomes(count: int = 16, seed: int = 0) -> list[Sample]:
    """Ragged samples, some of them twice, of episodes that were paid 0 or 1."""
    return [replace(s, paid=float(at % 3 == 0)) for at, s in enumerate(make_samples(SamplePlan(10, count), seed))]


def nudged(learner: Any) -> Any:
    """A reward model that differs from its reference."""
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in learner.objective.prm.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return learner


def ratios(learner: Any, prompt_ids: tuple[int, ...], token_ids: tuple[int, ...]) -> torch.Tensor:
    """[T] log φ - log reference, each from an unpadded pass through the whole model."""
    by_model = [
        unpadded_logprobs(model, prompt_ids, token_ids).log_softmax(-1)[range(len(token_ids)), list(token_ids)]
        for model in (learner.objective.prm, learner.objective._reference)
    ]
    return by_model[0] - by_model[1]


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.7)], ids=["whole", "sharpened"])
def test_a_token_is_paid_beta_times_its_log_ratio_to_the_frozen_copy(sampling: Sampling) -> None:
    learner = nudged(built(prm={"beta": 0.3}))
    turns = [turn((1, 2, 3), (4, 5), sampling), turn((6,), (7, 8, 9, 10), sampling), turn((1,), (2,), sampling)]
    for one, reading in zip(turns, learner.read(turns, REWARDS), strict=True):
        expected = 0.3 * ratios(learner, one.completion.prompt_ids, one.completion.token_ids)
        assert reading.rewards == pytest.approx(expected.tolist(), abs=1e-5)


def test_before_it_has_learnt_every_token_is_paid_nothing() -> None:
    (reading,) = built().read([turn((1, 2, 3), (4, 5))], REWARDS)
    assert reading.rewards == (0.0, 0.0)


def test_its_loss_is_the_cross_entropy_of_outcomes_under_summed_log_ratios() -> None:
    learner, samples = nudged(built(prm={"beta": 0.3})), outcomes()
    logits = torch.stack([0.3 * ratios(learner, s.prompt_ids, s.token_ids).sum() for s in samples])
    expected = [
        -math.log(1 / (1 + math.exp(-z if s.paid else z))) for z, s in zip(logits.tolist(), samples, strict=True)
    ]
    right = [(z > 0) == bool(s.paid) for z, s in zip(logits.tolist(), samples, strict=True)]
    metrics = learner.update(samples)
    assert metrics["prm_loss"] == pytest.approx(sum(expected) / len(samples), rel=1e-5)
    assert metrics["prm_accuracy"] == pytest.approx(sum(right) / len(samples))
    assert metrics["loss"] == pytest.approx(metrics["policy_loss"] + metrics["prm_loss"], rel=1e-5)


def test_the_policy_and_the_reward_model_have_gradients_of_their_own() -> None:
    """The policy's is that of `grpo`, and the model's that of its own loss, by autograd on an independent graph."""
    samples, learner = outcomes(), built()
    both = gradient(Prime(lr=1e-2), samples)
    policy = gradient(Grpo(lr=1e-2), samples)
    assert distance(both[: len(policy)], policy) < 1e-6
    prm, reference = learner.objective.prm, learner.objective._reference
    loss = torch.tensor(0.0)
    for one in samples:
        ids, at = torch.tensor([[*one.prompt_ids, *one.token_ids]]), len(one.prompt_ids)
        logprobs = [m(ids).logits[0, at - 1 : -1].log_softmax(-1) for m in (prm, reference)]
        q: Any = sum((logprobs[0] - logprobs[1])[t, token] for t, token in enumerate(one.token_ids))
        loss = loss + torch.nn.functional.binary_cross_entropy(torch.sigmoid(0.05 * q), torch.tensor(one.paid))
    (loss / len(samples)).backward()
    expected = torch.cat([p.grad.flatten() for p in prm.parameters() if p.grad is not None])
    assert distance(both[len(policy) :], expected) < 1e-5


def test_merging_equal_answers_with_different_outcomes_changes_no_gradient() -> None:
    samples = outcomes(30)
    assert distance(gradient(Prime(lr=1e-2, merge=False), samples), gradient(Prime(lr=1e-2), samples)) < 1e-5


def test_what_is_often_right_is_paid_more_in_the_end() -> None:
    learner = built()
    good = [replace(make_sample((1, 2, 3), (4, 5), (-3.0, -3.0), advantage=0.0, turn=t), paid=1.0) for t in range(4)]
    bad = [
        replace(make_sample((1, 2, 3), (6, 7, 8), (-3.0,) * 3, advantage=0.0, turn=9 + t), paid=0.0) for t in range(4)
    ]
    losses = [learner.update(good + bad)["prm_loss"] for _ in range(15)]
    high, low = learner.read([turn((1, 2, 3), (4, 5)), turn((1, 2, 3), (6, 7, 8))], REWARDS)
    assert losses[-1] < losses[0]
    assert sum(high.rewards) > 0 > sum(low.rewards)


def test_the_reward_model_has_a_learning_rate_of_its_own() -> None:
    one, other = built(prm={"lr": 1e-2}), built(prm={"lr": 1e-4})
    before = [p.clone() for p in other.objective.prm.parameters()]
    for learner in (one, other):
        learner.update(outcomes())
    moved = [
        max(
            (a - b).detach().abs().max().item() for a, b in zip(learner.objective.prm.parameters(), before, strict=True)
        )
        for learner in (one, other)
    ]
    assert moved == pytest.approx([1e-2, 1e-4], rel=0.1)
    assert equal_weights(weights(one), weights(other))


def test_it_goes_on_exactly_where_it_stood() -> None:
    whole, first, second = built(minibatches=2), built(minibatches=2), nudged(built(minibatches=2))
    for step in range(4):
        whole.update(outcomes(seed=step))
    for step in range(2):
        first.update(outcomes(seed=step))
    second.load_state_dict(first.state_dict())
    for step in range(2, 4):
        second.update(outcomes(seed=step))
    one = turn((1, 2, 3), (4, 5, 6))
    assert equal_weights(weights(whole), weights(second))
    assert whole.read([one], REWARDS) == second.read([one], REWARDS)
    assert read_logprobs(whole, one) == read_logprobs(second, one)


# --- credit ---------------------------------------------------------------------------------------------------------


def answered(name: str, tokens: int, paid: float) -> Any:
    trajectory = make_episode(name, "a", [("a", paid, 0)] if paid else [], start="s")
    (one,) = trajectory.turns
    ids = tuple(range(tokens))
    trajectory.turns[0] = replace(one, completion=replace(one.completion, token_ids=ids, logprobs=(-1.0,) * tokens))
    return trajectory


def credit_of(
    rule: ProcessRewardAssign, rewards: dict[str, tuple[float, ...]], paid: dict[str, float]
) -> dict[TurnId, Advantage]:
    episodes = [answered(name, len(row), paid[name]) for name, row in rewards.items()]
    readings = {(name, 0): Reading((-1.0,) * len(row), rewards=row) for name, row in rewards.items()}
    return rule.build()(Evidence(episodes, "a_game", readings))


TOKENS = {"x": (0.2, -0.1, 0.4), "y": (0.3,), "z": (-0.2, 0.6)}
PAID = {"x": 1.0, "y": 0.0, "z": 1.0}


def test_the_published_advantage_of_every_token() -> None:
    """A_t = Σ_{s≥t} 0.9^{s-t} [r_s - mean over the others of their mean token reward] + R - mean of the others' R."""
    credit = credit_of(ProcessRewardAssign(learner=True, combine="prime_paper", discount=0.9), TOKENS, PAID)
    means = {"x": 0.5 / 3, "y": 0.3, "z": 0.2}
    for name, row in TOKENS.items():
        rest = [other for other in TOKENS if other != name]
        theirs = sum(means[other] for other in rest) / 2
        outcome = PAID[name] - sum(PAID[other] for other in rest) / 2
        expected = [
            sum(0.9 ** (s - t) * (row[s] - theirs) for s in range(t, len(row))) + outcome for t in range(len(row))
        ]
        assert credit[name, 0].tokens == pytest.approx(expected)
        assert credit[name, 0].value == pytest.approx(sum(expected) / len(row))


def test_the_released_advantage_of_every_token() -> None:
    """As in PRIME's code: q over the batch's greatest |reward to go| + 1e-6, K/(K-1) r_t - Σ means/(K-1), whitened."""
    credit = credit_of(ProcessRewardAssign(learner=True, combine="prime_released"), TOKENS, PAID)
    # Rewards to go: x .5 .3 .4, y .3, z .4 .6.
    scaled = {name: [r / (0.6 + 1e-6) for r in row] for name, row in TOKENS.items()}
    total = sum(sum(row) / len(row) for row in scaled.values())
    raw = {}
    for name, row in scaled.items():
        terms = [r * 3 / 2 - total / 2 for r in row]
        outcome = PAID[name] * 3 / 2 - sum(PAID.values()) / 2
        raw[name] = [sum(terms[t:]) + outcome for t in range(len(row))]
    flat = torch.tensor([a for row in raw.values() for a in row], dtype=torch.float64)
    white = (flat - flat.mean()) * torch.rsqrt(flat.var() + 1e-8)
    advantages = [a for name in TOKENS for a in credit[name, 0].tokens]
    assert advantages == pytest.approx(white.tolist(), rel=1e-6)


def test_beta_drops_out_of_the_released_form() -> None:
    rule = ProcessRewardAssign(learner=True, combine="prime_released")
    small = {name: tuple(0.05 * r for r in row) for name, row in TOKENS.items()}
    one, other = credit_of(rule, TOKENS, PAID), credit_of(rule, small, PAID)
    assert [a for c in one.values() for a in c.tokens] == pytest.approx(
        [a for c in other.values() for a in c.tokens], rel=1e-3
    )


def test_other_sources_are_paid_at_a_turns_last_token() -> None:
    t = answered("x", 3, 0.0)
    t.rewards = [replace(r, name="hint") for r in answered("x", 3, 2.0).rewards]
    rule = ProcessRewardAssign(learner=True, rewards=("hint",), discount=0.5)
    credit = rule.build()(Evidence([t], "a_game", {("x", 0): Reading((-1.0,) * 3, rewards=(0.0, 0.0, 1.0))}))
    assert credit["x", 0].tokens == pytest.approx((0.75, 1.5, 3.0))
    assert rule.needed_reading_fields == rule.build().needed_reading_fields == REWARDS
    assert not ProcessRewardAssign(rewards=("hint",)).needed_reading_fields
