"""A policy and its critic: what each learns from, and what it leaves alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from marl.core.types import Advantage, Reading, Sample
from marl.trainers.policy_gradient.critic_settings import CriticConfig
from marl.trainers.policy_gradient.presets import Pspo
from marl.trainers.policy_gradient.settings import Grpo, Ppo
from tests.support.learning_samples import (
    SamplePlan,
    TinySource,
    context,
    distance,
    equal_weights,
    flat,
    make_sample,
    make_samples,
    turn,
    weights,
)
from tests.support.value_samples import (
    built,
    gradients,
    head_of,
    read_before,
    valued_samples,
    with_random_critic,
    with_value_targets,
)

TRUNK, SEPARATE = CriticConfig(where="trunk"), CriticConfig()
BOTH = pytest.mark.parametrize("critic", [TRUNK, SEPARATE], ids=["trunk", "separate"])


def hand(model: Any, head: tuple[Tensor, Tensor], one: Sample, detach: bool = False) -> Tensor:
    """Return [T], values of the states before each token, from one unpadded forward pass of the inner model."""
    ids = torch.tensor([[*one.prompt_ids, *one.token_ids]])
    states = model.model(ids).last_hidden_state[0, len(one.prompt_ids) - 1 : -1]
    return (states.detach() if detach else states) @ head[0][0] + head[1][0]


def value_part(learner: Any, samples: list[Sample], first: bool, clip: float | None) -> dict[str, Tensor]:
    """Return the gradient of ½ mean max((v - R)², (v_near - R)²) over all tokens with a target, by autograd."""
    model, head = TinySource().model(), head_of(learner)
    losses = []
    for one in samples:
        wanted = slice(0, 1) if first else slice(None)
        v = hand(model, head, one)[wanted]
        target, old = torch.tensor(one.advantage.returns), read_before(one)[wanted]
        losses.append((v - target) ** 2)
        if clip is not None:
            near = torch.minimum(torch.maximum(v, old - clip), old + clip)
            losses[-1] = torch.maximum(losses[-1], (near - target) ** 2)
    (0.5 * torch.cat(losses).mean()).backward()
    learnt = dict(model.named_parameters()) | {"critic/head.weight": head[0], "critic/head.bias": head[1]}
    return {name: p.grad for name, p in learnt.items() if p.grad is not None}


@BOTH
@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("first", [False, True], ids=["every token", "first token"])
def test_the_values_gradient_is_that_of_their_loss_written_out(
    critic: CriticConfig, clip: float | None, first: bool
) -> None:
    samples = [
        replace(s, advantage=Advantage(0.0)) for s in make_samples(SamplePlan())
    ]  # no gradient of the policy's own
    samples = with_value_targets(samples, first=first)
    learner = built(Ppo(critic=critic.model_copy(update={"clip": clip, "coefficient": 0.5})))
    expected = value_part(learner, samples, first, clip)
    computed = gradients(learner, samples)
    for name, gradient in expected.items():
        place = name if critic.where == "trunk" or name.startswith("critic/") else f"critic/body.{name}"
        assert distance(computed[place], 0.5 * gradient) < 1e-5, place


def test_the_clip_stops_values_that_have_gone_too_far() -> None:
    one = make_sample(
        (1, 2), (3,), (-3.0,), advantage=Advantage(0.0, returns=(2.0,)), reading=Reading((-3.0,), values=(-1.0,))
    )
    learner = Ppo(critic=CriticConfig(clip=0.5)).build(context())
    metrics = learner.update([one])
    # The head says 0, more than .5 above -1: its loss is that of -.5, 2.5²/2, and 0² would have been nearer: 2²/2.
    assert metrics["value_loss"] == pytest.approx(3.125)
    assert metrics["value_clip_fraction"] == 1.0
    assert torch.equal(head_of(learner)[1], torch.zeros(1))


@BOTH
def test_a_critic_apart_leaves_the_policy_to_learn_as_without_one(critic: CriticConfig) -> None:
    critic = critic.model_copy(update={"detach": critic.where == "trunk", "lr": 3e-2})
    with_one, without = Ppo(lr=1e-2, critic=critic).build(context()), Grpo(lr=1e-2).build(context())
    for seed in range(3):
        samples = with_value_targets(make_samples(SamplePlan(), seed=seed), first=True, same=True)
        with_one.update(samples)
        without.update(samples)
    assert equal_weights(weights(with_one), weights(without))


def test_values_of_a_trunk_move_the_policy_unless_they_are_detached() -> None:
    samples = [replace(s, advantage=replace(s.advantage, value=0.0)) for s in valued_samples()]
    for detach in (False, True):
        learner = built(Ppo(lr=1e-2, critic=CriticConfig(where="trunk", detach=detach)))
        before = weights(learner)
        learner.update(samples)
        assert equal_weights(weights(learner), before) == detach


@BOTH
def test_in_the_warm_up_the_critic_alone_learns(critic: CriticConfig) -> None:
    settings = Ppo(lr=1e-2, weight_decay=0.1, minibatches=2, critic=critic.model_copy(update={"warm_up": 2}))
    learner = settings.build(context())
    before, heads = weights(learner), []
    for update in range(2):
        learner.update(valued_samples(seed=update))
        heads.append(head_of(learner)[0])
    assert equal_weights(weights(learner), before)
    assert heads[0].abs().sum() > 0
    assert not torch.equal(*heads)
    assert all(name.startswith("critic/") for name in learner.state_dict()["optimizer"]), "no moments either"
    learner.update(valued_samples(seed=2))
    assert not equal_weights(weights(learner), before)


@pytest.mark.parametrize(
    ("critic", "least"),
    [(TRUNK, 0.9), (SEPARATE, 0.9), (CriticConfig(where="trunk", detach=True), 0.6)],
    ids=["trunk", "separate", "head"],
)
def test_the_critic_learns_what_explains_its_targets(critic: CriticConfig, least: float) -> None:
    samples = [
        replace(s, advantage=Advantage(0.0, returns=(0.1 * s.prompt_ids[0],)))
        for s in valued_samples(distinct=16, count=16)
    ]
    learner = Ppo(lr=1e-2, betas=(0.9, 0.99), critic=critic.model_copy(update={"clip": None})).build(context(steps=60))
    targets = torch.tensor([s.advantage.returns[0] for s in samples])

    def explained() -> float:
        turns = [turn(s.prompt_ids, s.token_ids) for s in samples]
        read = learner.read(turns, frozenset({"values"}))
        rest = targets - torch.tensor([reading.values and reading.values[0] for reading in read])
        return float(1 - rest.var() / targets.var())

    assert explained() == 0, "a new head says 0 of every state"
    for _ in range(60):
        learner.update(samples)
    assert explained() > least


@BOTH
def test_the_gradient_does_not_depend_on_micro_batches(critic: CriticConfig) -> None:
    samples = valued_samples(distinct=16, count=30)
    whole = flat(gradients(built(Ppo(critic=critic)), samples))
    for micro_tokens in (1, 30, 60):
        assert distance(flat(gradients(built(Ppo(critic=critic, micro_tokens=micro_tokens)), samples)), whole) < 1e-6


@BOTH
def test_samples_merge_only_if_their_targets_are_equal(critic: CriticConfig) -> None:
    texts = make_samples(SamplePlan(distinct=3, count=30))
    read = {s.token_ids: v.reading for s, v in zip(texts, with_value_targets(texts), strict=True)}
    samples = [
        replace(s, advantage=replace(s.advantage, returns=(float(i % 2),)), reading=read[s.token_ids])
        for i, s in enumerate(texts)
    ]
    merged, single = (built(Ppo(critic=critic, merge=merge)) for merge in (True, False))
    assert distance(flat(gradients(merged, samples)), flat(gradients(single, samples))) < 1e-6
    rows = merged.objective.rows(samples)
    kinds = {(s.token_ids, s.advantage.value >= 0, s.advantage.returns) for s in samples}
    assert len(rows) == len(kinds) < len(samples)


@BOTH
def test_a_restored_learner_continues_bit_for_bit(critic: CriticConfig) -> None:
    settings = Ppo(lr=1e-2, minibatches=3, epochs=2, schedule="cosine", critic=critic.model_copy(update={"warm_up": 2}))
    options: dict[str, Any] = {"attention_dropout": 0.3}
    learner, other = settings.build(context(**options)), settings.build(context(**options))
    for i in range(3):
        learner.update(valued_samples(seed=i))
    state = learner.state_dict()
    learned = [learner.update(valued_samples(seed=i)) for i in (3, 4)]
    torch.rand(7)
    other.load_state_dict(state)
    assert [other.update(valued_samples(seed=i)) for i in (3, 4)] == learned
    assert equal_weights(weights(other), weights(learner))
    critics = [other.state_dict()["modules"]["critic"], learner.state_dict()["modules"]["critic"]]
    assert equal_weights(*critics)


@BOTH
def test_what_is_read_is_what_the_head_says_of_an_unpadded_text(critic: CriticConfig) -> None:
    learner = with_random_critic(Ppo(critic=critic).build(context(attention_dropout=0.3)))
    model, head = TinySource().model().eval(), head_of(learner)
    turns = [turn((1, 2), (3, 4, 5)), turn((6, 7, 8, 9), (1,)), turn((6,), (2, 2))]
    read = learner.read(turns, frozenset({"logprobs", "values"}))
    for each, reading in zip(turns, read, strict=True):
        completion = each.completion
        with torch.no_grad():
            states = model.model(torch.tensor([[*completion.prompt_ids, *completion.token_ids]])).last_hidden_state[0]
            values = (states @ head[0][0] + head[1][0])[len(completion.prompt_ids) - 1 :].tolist()
        assert [*(reading.values or ()), reading.next_value] == pytest.approx(values, abs=1e-5)
    assert learner.read(turns)[0].values is None, "unless they are wanted"


def test_credit_that_gives_no_value_targets_is_refused() -> None:
    learner = Ppo(critic=CriticConfig(clip=None)).build(context())
    with pytest.raises(
        ValueError, match=r"credit gave none of 12 turns any.*; choices: credit\.assign: gae or chain_gae"
    ):
        learner.update(make_samples(SamplePlan()))
    learner.update([])


def test_targets_and_values_must_fit_the_tokens() -> None:
    learner = Ppo().build(context())
    three = Advantage(1.0, returns=(1.0, 2.0, 3.0))
    with pytest.raises(ValueError, match=r"has 4 tokens, but advantage\.returns has 3 numbers"):
        learner.update(
            [make_sample((1,), (2, 3, 4, 5), (-3.0,) * 4, advantage=three, reading=Reading((), values=(0.0,) * 4))]
        )
    with pytest.raises(ValueError, match=r"critic\.clip needs the values read of turn \('episode', 0\), got none"):
        learner.update([make_sample((1,), (2, 3, 4), (-3.0,) * 3, advantage=three)])


def test_values_are_read_only_where_the_loss_needs_them() -> None:
    assert Ppo(fidelity=None).build(context()).needed_reading_fields == {"values"}
    assert Ppo(fidelity=None, critic=CriticConfig(clip=None)).build(context()).needed_reading_fields == frozenset()


def test_settings_that_have_no_effect_are_refused() -> None:
    with pytest.raises(ValueError, match="model: 'x' has no effect with where: 'trunk'"):
        CriticConfig.model_validate({"where": "trunk", "model": {"path": "x"}})
    with pytest.raises(ValueError, match="detach: True has no effect with where: 'separate'"):
        CriticConfig(detach=True)


def test_pspo_takes_one_ratio_and_one_value_a_turn() -> None:
    samples = with_value_targets(make_samples(SamplePlan(answer=(2, 5))), first=True)
    options: Any = {"reference": None, "critic": CriticConfig(where="trunk", clip=None, coefficient=1.0)}
    learner = built(Pspo(**options))
    model, head = TinySource().model(), head_of(learner)
    policy, value = [], []
    for one in samples:
        ids = torch.tensor([[*one.prompt_ids, *one.token_ids]])
        logprobs = model(ids).logits[0, len(one.prompt_ids) - 1 : -1].log_softmax(-1)
        logprobs = logprobs[range(len(one.token_ids)), one.token_ids]
        ratio, a = (logprobs - torch.tensor(one.logprobs)).mean().exp(), one.advantage.value
        bounded = torch.minimum(ratio * a, ratio.clamp(1 - 3e-4, 1 + 4e-4) * a)
        policy.append(-bounded * len(one.token_ids))
        value.append((hand(model, head, one)[0] - one.advantage.returns[0]) ** 2)
    tokens = sum(len(one.token_ids) for one in samples)
    (torch.stack(policy).sum() / tokens + 0.5 * torch.stack(value).mean()).backward()
    expected = {name: p.grad for name, p in model.named_parameters()}
    computed = gradients(learner, samples)
    assert all(distance(computed[name], gradient) < 1e-5 for name, gradient in expected.items())


def test_pspo_is_kept_close_to_its_start_by_default() -> None:
    anchor = Pspo().reference
    assert anchor is not None
    assert (anchor.coefficient, anchor.estimator, anchor.refresh) == (0.001, "k3", None)
