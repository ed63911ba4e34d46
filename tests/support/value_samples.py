"""Samples with value targets, and learners whose critics have something to say already."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from marl.core.types import Reading, Sample
from marl.trainers.policy_gradient.settings import Grpo
from tests.support.learning_samples import SamplePlan, context, first_step, make_samples


def with_value_targets(
    samples: Sequence[Sample], *, first: bool = False, same: bool = False, seed: int = 7
) -> list[Sample]:
    """Return samples with targets (of the first token only, or all equal to 1) and values read before."""
    rng = random.Random(seed)
    valued_samples = []
    for sample in samples:
        many = len(sample.token_ids)
        returns = tuple(1.0 if same else rng.gauss(0.5, 1) for _ in range(1 if first else many))
        reading = Reading(sample.logprobs, values=tuple(rng.gauss(0, 0.7) for _ in range(many)))
        valued_samples.append(replace(sample, advantage=replace(sample.advantage, returns=returns), reading=reading))
    return valued_samples


def valued_samples(seed: int = 0, **plan: Any) -> list[Sample]:
    return with_value_targets(make_samples(SamplePlan(**plan), seed=seed), seed=seed)


def built(settings: Grpo, **options: Any) -> Any:
    """Return a learner whose critic's head is not zero, so that its gradient reaches all that it reads."""
    return with_random_critic(settings.build(context(**options)))


def with_random_critic(learner: Any) -> Any:
    rng = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in learner.objective.modules["critic"].head.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=rng) * 0.3)
    return learner


def head_of(learner: Any) -> tuple[Tensor, Tensor]:
    """Return a copy of the head's weight [1, H] and bias [1], to be differentiated by."""
    head = learner.objective.modules["critic"].head
    return head.weight.detach().clone().requires_grad_(), head.bias.detach().clone().requires_grad_()


def read_before(sample: Sample) -> Tensor:
    """Return [T], the values."""
    assert sample.reading is not None
    return torch.tensor(sample.reading.values)


def gradients(learner: Any, samples: list[Sample]) -> dict[str, Tensor]:
    """Return parameter -> gradient of the first optimizer step on `samples`; of the critic `critic/...`."""
    return first_step(learner, samples)[1]
