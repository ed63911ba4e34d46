"""More minibatches than samples, and the count of what an update has changed."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import pytest

from marl.core.types import Sample
from marl.protocols import CountsStateChanges
from marl.trainers.imitation.settings import Sft
from marl.trainers.learner import TooFewSamples
from marl.trainers.optim.settings import GradientLearnerConfig
from marl.trainers.policy_gradient.presets import Gspo
from marl.trainers.policy_gradient.settings import Grpo
from tests.support.learning_samples import SamplePlan, context, equal_weights, make_samples, weights

LEARNERS: dict[str, GradientLearnerConfig] = {
    "gspo": Gspo(minibatches=7),
    "episodes": Grpo(minibatches=2, unit="episode", lr=1e-3),
    "sft": Sft(minibatches=7),
}


@pytest.mark.parametrize("name", LEARNERS)
def test_more_minibatches_than_samples_are_as_many_steps_as_there_are_samples_and_one_warning(name: str) -> None:
    learner = LEARNERS[name].build(context())
    few = make_samples(SamplePlan(distinct=3, count=3))
    before = weights(learner)
    message = r"policy 'actor': learner.minibatches: \d, but update 1 has \d to deal out"
    with pytest.warns(TooFewSamples, match=message):
        learner.update(few)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learner.update(few[:2])
    assert not equal_weights(weights(learner), before)


def test_enough_samples_and_none_at_all_are_no_reason_to_warn() -> None:
    learner = Gspo(minibatches=4).build(context())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learner.update(make_samples(SamplePlan(distinct=4, count=4)))
        learner.update([])


def changes_of(learner: object) -> int:
    assert isinstance(learner, CountsStateChanges)
    return learner.changes


def test_changes_are_counted_before_they_are_made() -> None:
    learner: Any = Gspo(minibatches=3).build(context())
    samples: Sequence[Sample] = make_samples(SamplePlan(distinct=6, count=6))
    assert changes_of(learner) == 0
    learner._optimizer_step = broken  # type: ignore[method-assign]  # memory that runs out in the first forward pass
    with pytest.raises(MemoryError):
        learner.update(samples)
    assert changes_of(learner) == 0
    del learner._optimizer_step
    learner.update(samples)
    assert changes_of(learner) >= 4


def broken(*_: object) -> None:
    raise MemoryError
