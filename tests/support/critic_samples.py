"""Samples with value targets, and learners whose critics have something to say already."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from learning_samples import Plan, brief, make
from torch import Tensor

from marl.types import Reading, Sample
from trainers.settings import Ppo


def valued(samples: Sequence[Sample], *, first: bool = False, same: bool = False, seed: int = 7) -> list[Sample]:
    """With targets (of the first token only, or all equal to 1) and with values that were read before."""
    rng = random.Random(seed)
    found = []
    for sample in samples:
        many = len(sample.token_ids)
        returns = tuple(1.0 if same else rng.gauss(0.5, 1) for _ in range(1 if first else many))
        reading = Reading(sample.logprobs, values=tuple(rng.gauss(0, 0.7) for _ in range(many)))
        found.append(replace(sample, advantage=replace(sample.advantage, returns=returns), reading=reading))
    return found


def judged(seed: int = 0, **plan: Any) -> list[Sample]:
    return valued(make(Plan(**plan), seed=seed), seed=seed)


def built(settings: Ppo, **options: Any) -> Any:
    """A learner whose critic's head is not zero, so that its gradient reaches all that it reads."""
    return opinionated(settings.build(brief(**options)))


def opinionated(learner: Any) -> Any:
    rng = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in learner.objective.critic.head.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=rng) * 0.3)
    return learner


def head_of(learner: Any) -> tuple[Tensor, Tensor]:
    """A copy of the head's weight [1, H] and bias [1], to be differentiated by."""
    head = learner.objective.critic.head
    return head.weight.detach().clone().requires_grad_(), head.bias.detach().clone().requires_grad_()


def read_before(sample: Sample) -> Tensor:
    """[T] values."""
    assert sample.reading is not None
    return torch.tensor(sample.reading.values)


def gradients(learner: Any, samples: list[Sample]) -> dict[str, Tensor]:
    """Parameter -> gradient of the first optimizer step on `samples`, before it is clipped; the critic's apart."""
    caught: dict[str, Tensor] = {}
    clip = learner._optimizer.clip
    named = dict(learner.model.named_parameters())
    named |= {f"critic/{name}": p for name, p in learner.objective.critic.named_parameters()}

    def catch() -> Tensor:
        caught.update({name: p.grad.clone() for name, p in named.items() if p.grad is not None})
        return clip()

    learner._optimizer.clip = catch
    learner.update(samples)
    return caught


def flat(tensors: dict[str, Tensor]) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors.values()])
