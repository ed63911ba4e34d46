import math
import pickle
from dataclasses import replace
from typing import Any

import pytest

from marl.core.errors import NonFiniteError
from marl.trainers.imitation.options import SampleSelection
from marl.trainers.imitation.settings import Sft
from marl.trainers.optim.settings import KlAnchor
from marl.trainers.policy_gradient.settings import Grpo, Prime
from marl.trainers.preferences.settings import Dpo
from tests.support.learning_samples import SamplePlan, context, equal_weights, make_sample, make_samples, weights


def test_a_poisoned_advantage_is_named_and_the_weights_stay():
    samples = make_samples(SamplePlan(distinct=3, count=20))
    poisoned = [replace(s, advantage=replace(s.advantage, value=math.nan)) if s.id[1] == 7 else s for s in samples]
    learner: Any = Grpo(lr=1e-3, magnet=KlAnchor(coefficient=0.5)).build(context())
    before = weights(learner)
    with pytest.raises(
        NonFiniteError, match=r"policy 'actor': the loss .* episode 'episode', turn 7 \(role 'solver'\)"
    ) as error:
        learner.update(poisoned)
    assert (error.value.policy, error.value.quantity, error.value.samples) == ("actor", "loss", (("episode", 7),))
    assert equal_weights(weights(learner), before)
    assert learner.updates == 0


def test_a_poisoned_log_probability_is_named_even_if_clipping_would_hide_it():
    samples = [*make_samples(SamplePlan()), make_sample((1,), (2,), (-math.inf,), turn=99)]
    with pytest.raises(NonFiniteError) as error:
        Grpo().build(context()).update(samples)
    assert error.value.samples == (("episode", 99),)


def test_an_exploding_ratio_is_named():
    samples = [*make_samples(SamplePlan()), make_sample((1,), (2,), (-200.0,), advantage=-1.0, turn=99)]
    learner = Grpo().build(context())
    before = weights(learner)
    with pytest.raises(NonFiniteError, match="the loss is not finite") as error:
        learner.update(samples)
    assert error.value.samples == (("episode", 99),)
    assert equal_weights(weights(learner), before)


def test_an_exploding_gradient_of_a_finite_loss_is_named():
    # e^85 is finite in float32, its square is not.
    samples = [*make_samples(SamplePlan()), make_sample((1,), (2,), (-88.0,), advantage=-1.0, turn=99)]
    learner: Any = Grpo(max_norm=1e30).build(context())
    before = weights(learner)
    with pytest.raises(NonFiniteError, match="the gradient is not finite") as error:
        learner.update(samples)
    assert error.value.samples == (("episode", 99),)
    assert equal_weights(weights(learner), before)
    assert all(p.grad is None for p in learner.model.parameters())


def test_after_an_error_the_next_update_is_a_whole_one_and_a_restored_one_goes_on():
    settings = Grpo(minibatches=4, lr=1e-3)
    learner, other = settings.build(context()), settings.build(context())
    poisoned = [*make_samples(SamplePlan()), make_sample((1,), (2,), (-math.inf,), turn=99)]
    with pytest.raises(NonFiniteError) as first:
        learner.update(poisoned)
    state = learner.state_dict()
    assert state["minibatch"] > 0, "or this test shows nothing"
    other.load_state_dict(state)
    with pytest.raises(NonFiniteError) as again:
        other.update(poisoned)
    assert again.value.samples == first.value.samples
    assert equal_weights(weights(other), weights(learner)), "no minibatch was learnt from twice"
    assert other.state_dict()["minibatch"] == state["minibatch"]
    for one in (learner, other):
        assert one.update(make_samples(SamplePlan()))["tokens"] == sum(
            len(s.token_ids) for s in make_samples(SamplePlan())
        )


def test_the_error_survives_the_way_between_processes():
    error = NonFiniteError("actor", "loss", [make_sample((1,), (2,), (-1.0,), turn=4)])
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.policy, copy.quantity, copy.samples) == (str(error), "actor", "loss", (("episode", 4),))


@pytest.mark.parametrize("settings", [Dpo(), Sft(keep=SampleSelection(at_least=0.5)), Prime()])
def test_a_poisoned_reward_is_named_where_a_comparison_would_hide_it(settings: Any):
    samples = [make_sample((1, 2), (3 + i,), (-1.0,), turn=i, paid=float(i % 2)) for i in range(4)]
    samples[2] = replace(samples[2], paid=math.nan)
    learner = settings.build(context())
    before = weights(learner)
    with pytest.raises(NonFiniteError, match=r"the reward is not finite at episode 'episode', turn 2"):
        learner.update(samples)
    assert equal_weights(weights(learner), before)
