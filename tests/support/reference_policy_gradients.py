"""Policy gradients written a second time: a sample at a time, unpadded, with autograd."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from marl.core.types import Sample
from marl.trainers.policy_gradient.settings import Grpo
from tests.support.learning_samples import context, distance, first_step, flat

Token = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Log-probabilities, old ones, advantages, [T] each -> loss of each token."""


def clip(logprobs: Tensor, old: Tensor, a: Tensor) -> Tensor:
    r = torch.exp(logprobs - old)
    return -torch.minimum(r * a, r.clamp(0.8, 1.28) * a)


def dual(logprobs: Tensor, old: Tensor, a: Tensor) -> Tensor:
    r = torch.exp(logprobs - old)
    least = torch.minimum(r * a, r.clamp(0.8, 1.2) * a)
    return -torch.where(a < 0, torch.maximum(least, 1.3 * a), least)


def gspo(logprobs: Tensor, old: Tensor, a: Tensor) -> Tensor:
    s, mean = torch.exp((logprobs - old).mean()), a.mean()
    return -torch.minimum(s * mean, s.clamp(0.9, 1.1) * mean).expand(len(logprobs))


def gspo_token(logprobs: Tensor, old: Tensor, a: Tensor) -> Tensor:
    s = torch.exp((logprobs - old).mean()).detach() * torch.exp(logprobs - logprobs.detach())
    return -torch.minimum(s * a, s.clamp(0.9, 1.1) * a)


def sequence(logprobs: Tensor, old: Tensor, a: Tensor) -> Tensor:
    s, mean = torch.exp(logprobs.sum() - old.sum()), a.mean()
    return -torch.minimum(s * mean, s.clamp(0.8, 1.2) * mean).expand(len(logprobs))


def cispo(logprobs: Tensor, old: Tensor, a: Tensor) -> Tensor:
    return -torch.exp(logprobs - old).clamp(0.7, 1.4).detach() * a * logprobs


def sapo(logprobs: Tensor, old: Tensor, a: Tensor) -> Tensor:
    tau = torch.tensor([1.0 if x > 0 else 1.05 for x in a.tolist()])
    return -4 * a / tau / (1 + torch.exp(-tau * (torch.exp(logprobs - old) - 1)))


def gmpo(logprobs: Tensor, old: Tensor, a: Tensor) -> Tensor:
    # As in the authors' pseudo-code: the sign turns the minimum into the clip on one side.
    sign = torch.sign(a)
    signed = sign * (logprobs - old)
    clipped = sign * torch.minimum(signed, signed.clamp(-0.4, 0.4))
    return -(torch.exp(clipped.mean()) * a.mean()).expand(len(logprobs))


def reinforce(logprobs: Tensor, old: Tensor, a: Tensor) -> Tensor:
    return -a * logprobs


LOSSES: dict[str, tuple[Token, dict[str, Any]]] = {
    "clip": (clip, {"kind": "ppo_clip", "clip_high": 0.28}),
    "dual": (dual, {"kind": "ppo_clip", "dual_clip": 1.3}),
    "gspo": (gspo, {"kind": "gspo", "clip_low": 0.1, "clip_high": 0.1}),
    "gspo_token": (gspo_token, {"kind": "gspo_token", "clip_low": 0.1, "clip_high": 0.1}),
    "sequence": (sequence, {"kind": "rloo"}),
    "cispo": (cispo, {"kind": "cispo", "ratio_low": 0.7, "ratio_high": 1.4}),
    "sapo": (sapo, {"kind": "sapo"}),
    "gmpo": (gmpo, {"kind": "gmpo"}),
    "reinforce": (reinforce, {"kind": "reinforce"}),
}


def chosen(model: Any, one: Sample) -> Tensor:
    """Return [T], log-probabilities of a sample's tokens, with a gradient."""
    logits = model(torch.tensor([[*one.prompt_ids, *one.token_ids]])).logits[0, len(one.prompt_ids) - 1 : -1]
    return logits.log_softmax(-1).gather(1, torch.tensor(one.token_ids)[:, None])[:, 0]


def advantages(one: Sample) -> Tensor:
    return torch.tensor(one.advantage.tokens or (one.advantage.value,) * len(one.token_ids))


def aggregate(losses: Sequence[Tensor], mode: str, norm: int | None = None) -> Tensor:
    """Return the loss of all samples, from the losses of each one's tokens."""
    match mode:
        case "token_mean":
            return torch.cat(list(losses)).mean()
        case "seq_mean_token_mean":
            return torch.stack([loss.mean() for loss in losses]).mean()
        case "seq_mean_token_sum":
            return torch.stack([loss.sum() for loss in losses]).mean()
    assert norm
    return torch.stack([loss.sum() / norm for loss in losses]).mean()


def loss_gradient(model: Any, loss: Tensor) -> Tensor:
    """Return [P], its whole gradient."""
    gradients = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    return torch.cat([g.flatten() for g in gradients if g is not None])


def built(settings: Grpo, moved: float = 0.0) -> Any:
    """Return a learner whose model has left its anchors by so much."""
    learner: Any = settings.build(context())
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in learner.model.parameters():
            parameter.add_(moved * torch.randn_like(parameter))
    return learner


def update_gradient(learner: Any, samples: Sequence[Sample]) -> Tensor:
    """Return [P], the gradient of the learner's first step; its weights stay as they were."""
    before = copy.deepcopy(learner.model.state_dict())
    learner.metrics, gradients = first_step(learner, samples)
    learner.model.load_state_dict(before)
    return flat(gradients)


def gradient_error(learner: Any, samples: Sequence[Sample], loss: Tensor) -> float:
    """Return the distance of the learner's first gradient from that of `loss`, relative to it."""
    expected = loss_gradient(learner.model, loss)
    return distance(update_gradient(learner, samples), expected)
