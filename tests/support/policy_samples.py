"""Policy gradients written a second time: a sample at a time, unpadded, with autograd."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from learning_samples import brief, distance
from torch import Tensor

from marl.types import Sample
from trainers.settings import Grpo

Token = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Log-probabilities, old ones, advantages, [T] each -> loss of each token."""


def clip(said: Tensor, old: Tensor, a: Tensor) -> Tensor:
    r = torch.exp(said - old)
    return -torch.minimum(r * a, r.clamp(0.8, 1.28) * a)


def dual(said: Tensor, old: Tensor, a: Tensor) -> Tensor:
    r = torch.exp(said - old)
    least = torch.minimum(r * a, r.clamp(0.8, 1.2) * a)
    return -torch.where(a < 0, torch.maximum(least, 1.3 * a), least)


def gspo(said: Tensor, old: Tensor, a: Tensor) -> Tensor:
    s, mean = torch.exp((said - old).mean()), a.mean()
    return -torch.minimum(s * mean, s.clamp(0.9, 1.1) * mean).expand(len(said))


def gspo_token(said: Tensor, old: Tensor, a: Tensor) -> Tensor:
    s = torch.exp((said - old).mean()).detach() * torch.exp(said - said.detach())
    return -torch.minimum(s * a, s.clamp(0.9, 1.1) * a)


def sequence(said: Tensor, old: Tensor, a: Tensor) -> Tensor:
    s, mean = torch.exp(said.sum() - old.sum()), a.mean()
    return -torch.minimum(s * mean, s.clamp(0.8, 1.2) * mean).expand(len(said))


def cispo(said: Tensor, old: Tensor, a: Tensor) -> Tensor:
    return -torch.exp(said - old).clamp(0.7, 1.4).detach() * a * said


def sapo(said: Tensor, old: Tensor, a: Tensor) -> Tensor:
    tau = torch.tensor([1.0 if x > 0 else 1.05 for x in a.tolist()])
    return -4 * a / tau / (1 + torch.exp(-tau * (torch.exp(said - old) - 1)))


def gmpo(said: Tensor, old: Tensor, a: Tensor) -> Tensor:
    # As in the authors' pseudo-code: the sign turns the minimum into the clip on one side.
    sign = torch.sign(a)
    signed = sign * (said - old)
    kept = sign * torch.minimum(signed, signed.clamp(-0.4, 0.4))
    return -(torch.exp(kept.mean()) * a.mean()).expand(len(said))


def reinforce(said: Tensor, old: Tensor, a: Tensor) -> Tensor:
    return -a * said


LOSSES: dict[str, tuple[Token, dict[str, Any]]] = {
    "clip": (clip, {"clip_high": 0.28}),
    "dual": (dual, {"dual_clip": 1.3}),
    "gspo": (gspo, {"loss": "gspo", "clip_low": 0.1, "clip_high": 0.1}),
    "gspo_token": (gspo_token, {"loss": "gspo_token", "clip_low": 0.1, "clip_high": 0.1}),
    "sequence": (sequence, {"loss": "sequence"}),
    "cispo": (cispo, {"loss": "cispo", "ratio_low": 0.7, "ratio_high": 1.4}),
    "sapo": (sapo, {"loss": "sapo"}),
    "gmpo": (gmpo, {"loss": "gmpo"}),
    "reinforce": (reinforce, {"loss": "reinforce"}),
}


def chosen(model: Any, one: Sample) -> Tensor:
    """[T] log-probabilities of a sample's tokens, with a gradient."""
    logits = model(torch.tensor([[*one.prompt_ids, *one.token_ids]])).logits[0, len(one.prompt_ids) - 1 : -1]
    return logits.log_softmax(-1).gather(1, torch.tensor(one.token_ids)[:, None])[:, 0]


def advantages(one: Sample) -> Tensor:
    return torch.tensor(one.advantage.tokens or (one.advantage.value,) * len(one.token_ids))


def aggregate(losses: Sequence[Tensor], mode: str, norm: int | None = None) -> Tensor:
    """The loss of all samples, from the losses of each one's tokens."""
    match mode:
        case "token_mean":
            return torch.cat(list(losses)).mean()
        case "seq_mean_token_mean":
            return torch.stack([loss.mean() for loss in losses]).mean()
        case "seq_mean_token_sum":
            return torch.stack([loss.sum() for loss in losses]).mean()
    assert norm
    return torch.stack([loss.sum() / norm for loss in losses]).mean()


def slope(model: Any, loss: Tensor) -> Tensor:
    """[P] its whole gradient."""
    found = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    return torch.cat([g.flatten() for g in found if g is not None])


def built(settings: Grpo, moved: float = 0.0) -> Any:
    """A learner whose model has left its anchors by so much."""
    learner = settings.build(brief())
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in learner.model.parameters():
            parameter.add_(moved * torch.randn_like(parameter))
    return learner


def caught(learner: Any, samples: Sequence[Sample]) -> Tensor:
    """[P] gradient of the learner's first step; its weights stay as they were."""
    before, found = copy.deepcopy(learner.model.state_dict()), []
    clip_norm = learner._optimizer.clip

    def catch() -> Tensor:
        found.append(torch.cat([p.grad.flatten() for p in learner._optimizer.parameters if p.grad is not None]))
        return clip_norm()

    learner._optimizer.clip = catch
    learner.metrics = learner.update(samples)
    learner.model.load_state_dict(before)
    return found[0]


def off(learner: Any, samples: Sequence[Sample], loss: Tensor) -> float:
    """How far the learner's first gradient is from that of `loss`, relative to it."""
    expected = slope(learner.model, loss)
    return distance(caught(learner, samples), expected)
