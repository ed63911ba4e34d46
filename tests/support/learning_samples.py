"""Tiny models and made-up samples."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from marl.core.config import Sampling
from marl.core.types import Advantage, Completion, Metrics, Request, Sample, Turn
from marl.protocols import LearnerBuildArguments
from marl.trainers.batching.batches import Batch
from marl.trainers.forward.model_inputs import hidden_states
from marl.trainers.forward.token_outputs import logits

VOCABULARY = 40


class Tokenizer:
    """Stands in for a tokenizer, which learners only save."""

    def save_pretrained(self, folder: Path) -> None:
        (folder / "tokenizer.json").write_text("{}")


@dataclass
class TinySource:
    """A one-layer model of 14k parameters, the same each time."""

    options: dict[str, Any] = field(default_factory=dict)
    path, dtype, adapter = "", "float32", None

    def model(self) -> Any:
        torch.manual_seed(0)
        sizes: dict[str, Any] = {
            "vocab_size": VOCABULARY,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 1,
        }
        heads: dict[str, Any] = {"num_attention_heads": 2, "num_key_value_heads": 2, "initializer_range": 0.15}
        return LlamaForCausalLM(LlamaConfig(**{**sizes, **heads, "max_position_embeddings": 128, **self.options}))

    def tokenizer(self) -> Tokenizer:
        return Tokenizer()


def context(steps: int = 10, seed: int = 0, source: TinySource | None = None, **options: Any) -> LearnerBuildArguments:
    return LearnerBuildArguments(policy="actor", source=source or TinySource(options), steps=steps, seed=seed)


@dataclass(frozen=True)
class SamplePlan:
    """Sizes of the samples that `make` makes."""

    distinct: int = 12
    count: int = 12
    prompt: tuple[int, int] = (3, 9)
    answer: tuple[int, int] = (1, 5)
    noise: float = 0.5
    """Standard deviation of the behaviour's log-probabilities around -3.5."""


def make_samples(plan: SamplePlan, seed: int = 0, sampling: Sampling | None = None) -> list[Sample]:
    """Samples of random tokens; equal tokens have equal log-probabilities, but advantages of their own."""
    rng = random.Random(seed)

    def words(low: int, high: int) -> tuple[int, ...]:
        return tuple(rng.randrange(VOCABULARY) for _ in range(rng.randint(low, high)))

    texts = [(words(*plan.prompt), words(*plan.answer)) for _ in range(plan.distinct)]
    logprobs = [tuple(rng.gauss(-3.5, plan.noise) for _ in answer) for _, answer in texts]
    picks = [i if i < plan.distinct else rng.randrange(plan.distinct) for i in range(plan.count)]
    return [
        make_sample(*texts[pick], logprobs[pick], advantage=rng.gauss(0, 1), turn=i, sampling=sampling)
        for i, pick in enumerate(picks)
    ]


def make_sample(
    prompt_ids: tuple[int, ...],
    token_ids: tuple[int, ...],
    logprobs: tuple[float, ...],
    *,
    advantage: float | Advantage = 1.0,
    turn: int = 0,
    sampling: Sampling | None = None,
    **more: Any,
) -> Sample:
    facts: dict[str, Any] = {
        "agent": "player_0",
        "role": "solver",
        "group": "g",
        "nth": 0,
        "end": "no",
        "versions": (0, 0),
    }
    advantage = advantage if isinstance(advantage, Advantage) else Advantage(advantage)
    return Sample(
        id=("episode", turn),
        prompt_ids=prompt_ids,
        token_ids=token_ids,
        logprobs=logprobs,
        sampling=sampling or Sampling(),
        earned=advantage.value,
        advantage=advantage,
        **{**facts, **more},
    )


def first_step(learner: Any, samples: Sequence[Sample]) -> tuple[Metrics, dict[str, Tensor]]:
    """Return the metrics of an update, and parameter -> gradient of its first optimizer step, before clipping."""
    optimizer, gradients = learner._optimizer, {}
    clip_gradients = optimizer.clip_gradients

    def catch() -> Tensor:
        named = zip(optimizer.names, optimizer.parameters, strict=True)
        gradients.update(gradients or {name: p.grad.clone() for name, p in named if p.grad is not None})
        return clip_gradients()

    optimizer.clip_gradients = catch
    metrics = learner.update(samples)
    optimizer.clip_gradients = clip_gradients
    return metrics, gradients


def flat(tensors: Mapping[str, Tensor]) -> Tensor:
    """Return [P], all tensors one after the other."""
    return torch.cat([tensor.flatten() for tensor in tensors.values()])


def gradient(settings: Any, samples: list[Sample], **options: Any) -> Tensor:
    """Return [P], the whole gradient, before it is clipped, of the first optimizer step on `samples`."""
    return flat(first_step(settings.build(context(**options)), samples)[1])


def distance(one: Tensor, other: Tensor) -> float:
    """Return the distance relative to the length of `other`."""
    return float((one - other).norm() / other.norm())


def weights(learner: Any) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in learner.publish()}


def equal_weights(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Return whether all tensors are equal, bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def turn(prompt_ids: tuple[int, ...], token_ids: tuple[int, ...], sampling: Sampling | None = None) -> Turn:
    completion = Completion("", prompt_ids, token_ids, (0.0,) * len(token_ids), "stop")
    request = Request("actor", (), sampling or Sampling())
    return Turn(("e", 0), "player_0", 0, 0, "solver", request, completion, None)


def read_logprobs(learner: Any, *turns: Turn) -> list[tuple[float, ...]]:
    return [reading.logprobs for reading in learner.read(turns)]


def unpadded_logprobs(model: Any, prompt_ids: tuple[int, ...], token_ids: tuple[int, ...]) -> torch.Tensor:
    """Return [T, V], logits at the completion tokens, from one unpadded forward pass."""
    with torch.no_grad():
        return model(torch.tensor([[*prompt_ids, *token_ids]])).logits[0, len(prompt_ids) - 1 : -1]


def log_distributions(model: Any, batch: Batch) -> Tensor:
    """Return [N, V], log-probabilities at each row's temperature, before any truncation."""
    logits_NV = logits(model, hidden_states(model, batch.inputs).tokens_NH)
    if batch.sampling_N3 is not None:
        logits_NV = logits_NV / batch.sampling_N3[:, :1]
    return logits_NV.log_softmax(-1)
