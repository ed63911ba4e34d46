"""More minibatches than samples, and the count of what an update has changed."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from marl.core.types import Sample
from marl.protocols import CountsStateChanges
from marl.trainers.imitation.settings import Sft
from marl.trainers.learner import TooFewSamples
from marl.trainers.optim.settings import GradientLearnerConfig
from marl.trainers.policy_gradient.presets import Gspo
from marl.trainers.policy_gradient.settings import Grpo
from tests.support.learning_samples import SamplePlan, context, equal_weights, make_samples, turn, weights

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


def test_an_update_ends_where_the_policy_has_moved_by_more_than_stop_at_kl() -> None:
    samples = make_samples(SamplePlan(distinct=8, count=8, answer=(4, 5)))
    free = Grpo(lr=2e-2, epochs=6, fidelity=None, old="read")
    stopped = free.model_copy(update={"stop_at_kl": 1e-3})

    def updated(settings: Grpo) -> dict[str, float]:
        learner = settings.build(context())
        turns = [turn(sample.prompt_ids, sample.token_ids) for sample in samples]
        read = [
            replace(sample, reading=r)
            for sample, r in zip(samples, learner.read(turns, frozenset({"logprobs"})), strict=True)
        ]
        return dict(learner.update(read))

    one_epoch = sum(len(sample.token_ids) for sample in samples)
    whole, early = updated(free), updated(stopped)
    assert whole["tokens"] == 6 * one_epoch
    assert whole["kl_update"] > 1e-3
    # The second epoch finds the policy too far from the one before the update, so it takes no step.
    assert early["tokens"] == 2 * one_epoch
    assert 1e-3 < early["kl_update"] < whole["kl_update"]
    assert "kl_update" not in updated(free.model_copy(update={"epochs": 1}))


@pytest.mark.parametrize("seed", range(4))
def test_stop_at_kl_leaves_an_update_its_first_step_even_after_a_minibatch_without_rows(seed: int) -> None:
    samples = make_samples(SamplePlan(distinct=4, count=4))
    samples[0] = replace(samples[0], finish="length")
    settings = Grpo(lr=1e-2, minibatches=4, filter_cut=True, fidelity=None, stop_at_kl=1e-9)
    learner: Any = settings.build(context(seed=seed))
    before = weights(learner)
    learner.update(samples)
    assert not equal_weights(weights(learner), before)


def test_stop_at_kl_without_a_second_step_is_refused() -> None:
    with pytest.raises(ValueError, match=r"stop_at_kl=0.1 has no effect with epochs=1 and minibatches=1"):
        Grpo(stop_at_kl=0.1)


def broken(*_: object) -> None:
    raise MemoryError
