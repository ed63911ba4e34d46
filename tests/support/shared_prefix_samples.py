"""Texts that have much, little or nothing in common, and tiny models of several architectures."""

from __future__ import annotations

import random
from typing import Any

import torch
from transformers import AutoModelForCausalLM, Gemma2Config, GPT2Config, LlamaConfig, MistralConfig, Qwen3Config

from marl.core.config import Sampling
from marl.core.types import Advantage, Sample
from marl.trainers.batching.rows import BatchRow
from tests.support.learning_samples import make_sample

Text = tuple[tuple[int, ...], tuple[int, ...]]
SMALL: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "head_dim": 8,
}
CONFIGS = {
    "llama": LlamaConfig(**SMALL),
    "qwen3": Qwen3Config(**SMALL),
    "qwen3_windows": Qwen3Config(**SMALL, use_sliding_window=True, sliding_window=5, max_window_layers=1),
    "gemma2": Gemma2Config(**SMALL, sliding_window=5, attn_logit_softcapping=5.0, final_logit_softcapping=2.0),
    "gpt2": GPT2Config(vocab_size=40, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0),
    "mistral": MistralConfig(**SMALL, sliding_window=5),
}


def model_of(config: Any) -> Any:
    torch.manual_seed(0)
    config.initializer_range = 0.15
    return AutoModelForCausalLM.from_config(config).train()


def words(rng: random.Random, many: int) -> tuple[int, ...]:
    return tuple(rng.randrange(40) for _ in range(many))


def siblings(rng: random.Random) -> list[Text]:
    """Return groups of answers of several lengths to prompts of several lengths."""
    prompts = [words(rng, many) for many in (3, 12, 7, 9)]
    return [(prompt, words(rng, many)) for prompt in prompts for many in (1, 6, 2, 9, 5)]


def dialogues(rng: random.Random) -> list[Text]:
    """Return turns whose prompts are the prompt before, its answer, and another agent's text."""
    every = []
    for turns in (3, 5, 4):
        prompt = words(rng, 6)
        for _ in range(turns):
            answer = words(rng, rng.randint(1, 5))
            every.append((prompt, answer))
            prompt = prompt + answer + words(rng, rng.randint(0, 4))
    return every


def transcripts(rng: random.Random) -> list[Text]:
    """Return turns of several roles that continue one text, each after a text of its own, some with several answers."""
    text = words(rng, 15)
    roles = [words(rng, many) for many in (0, 3, 5)]
    return [(text + role, words(rng, rng.randint(1, 6))) for role in roles for _ in range(3)]


def short(rng: random.Random) -> list[Text]:
    """Return prompts and answers of one token."""
    prompts = [words(rng, many) for many in (1, 1, 9)]
    return [(prompt, words(rng, many)) for prompt in prompts for many in (1, 1, 3)]


def alike(rng: random.Random) -> list[Text]:
    """Return identical texts, and some that differ in their last token alone."""
    one, other = (words(rng, 5), words(rng, 4)), (words(rng, 5), words(rng, 1))
    return [one, one, other, (one[0], (*one[1][:-1], 39 - one[1][-1])), one, other]


def strangers(rng: random.Random) -> list[Text]:
    """Return texts with nothing in common."""
    return [((first, *words(rng, rng.randint(0, 9))), words(rng, rng.randint(1, 12))) for first in range(12)]


KINDS = {kind.__name__: kind for kind in (siblings, dialogues, transcripts, short, alike, strangers)}


def rows_of(kind: str, seed: int = 0, sampling: Sampling | None = None) -> list[BatchRow]:
    return [BatchRow(prompt, answer, sampling or Sampling()) for prompt, answer in KINDS[kind](random.Random(seed))]


def samples(seed: int = 0, sampling: Sampling | None = None) -> list[Sample]:
    """Return samples of all kinds of texts, with random advantages, rewards and value targets."""
    rng = random.Random(seed)
    made = []
    for nth, (prompt, answer) in enumerate(text for kind in KINDS.values() for text in kind(rng)):
        logprobs, worth = (rng.gauss(-3.5, 0.01),) * len(answer), rng.gauss(0, 1)
        advantage = Advantage(worth, returns=(worth,) * len(answer))
        made.append(make_sample(prompt, answer, logprobs, advantage=advantage, turn=nth, sampling=sampling, paid=worth))
    return made
