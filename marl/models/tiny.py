"""Settings of the embedded tiny model, which is built from a seed and trains on a laptop."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from marl.host.paths import cache_folder
from marl.models.pretrained import PretrainedSource, TransformersModelConfig
from marl.protocols import ImitationWarmUp, ModelPreparation

_FORMAT = 3
"""Version of the builder, which is increased whenever equal settings build a different model."""
_SETTINGS_OUTSIDE_BUILD = {"kind", "dtype", "device", "attention", "chat_template_kwargs", "warm_up", "words"}
"""Settings that do not change the built folder. The texts of `words` are hashed with those of the corpus."""


class Tiny(TransformersModelConfig):
    """A small Llama or Qwen3 with random weights, in an ordinary Hugging Face folder."""

    kind: str = "tiny"
    architecture: Literal["llama", "qwen3"] = "llama"
    """Architecture, by its name in Transformers."""
    hidden: int = Field(default=32, ge=2, le=8192)
    """Width of the residual stream."""
    layers: int = Field(default=1, ge=1, le=256)
    """Number of layers."""
    heads: int = Field(default=2, ge=1)
    """Number of attention heads."""
    kv_heads: int | None = Field(default=None, ge=1)
    """Number of key and value heads. Default: equal to `heads`."""
    head_dim: int | None = Field(default=None, ge=2)
    """Width of an attention head, an even number. Default: hidden / heads."""
    intermediate: int | None = Field(default=None, ge=1, le=32768)
    """Width of the feed-forward layers. Default: 3 times hidden."""
    context: int = Field(default=512, ge=8, le=1_000_000)
    """Maximum length of prompt and completion together, in tokens."""
    tied: bool = True
    """Use one matrix for input and output embeddings."""
    initializer_range: float | None = Field(default=None, gt=0)
    """Standard deviation of the initial weights. Default: 1/sqrt(hidden), with which learning starts several times
    sooner than with the usual 0.02."""
    vocabulary: Literal["words", "bytes"] = "words"
    """Tokens: `words` has the words of the scenario's games and roles, `bytes` can encode any text."""
    words: tuple[str, ...] | None = None
    """Texts with further words of the vocabulary, beside those of the scenario's games and roles."""
    seed: int = 0
    """Seed of the initial weights, and of the episodes that give the words of the vocabulary."""
    warm_up: ImitationWarmUp | None = None
    """Imitation learning of the answers' format before the run starts. Default: no warm-up."""

    @model_validator(mode="after")
    def _check_head_sizes(self) -> Tiny:
        if self.head_dim is None and self.hidden % self.heads:
            raise ValueError(f"hidden: {self.hidden} is no multiple of heads: {self.heads}; give head_dim")
        if (self.head_dim or self.hidden // self.heads) % 2:
            raise ValueError("head_dim must be even: rotary embeddings turn pairs")
        if self.kv_heads is not None and self.heads % self.kv_heads:
            raise ValueError(f"heads: {self.heads} is no multiple of kv_heads: {self.kv_heads}")
        return self

    def prepare(self, context: ModelPreparation) -> PretrainedSource:
        base = self.cached_folder(context.corpus(self.seed) if self.vocabulary == "words" else ())
        return self.source(context.policy, context.warm_up(base, self.warm_up) if self.warm_up else base)

    @property
    def understands_instructions(self) -> bool:
        return False

    def cached_folder(self, corpus_texts: Iterable[str]) -> Path:
        """Return the folder of the model in `~/.cache/marl` (or in `MARL_CACHE`). A missing model is built.

        `corpus_texts` are texts whose words form the vocabulary, together with those of the texts in `words`.

        Raises:
            ValueError: if the vocabulary would have no words.
        """
        from marl.models.tiny_build import build_tiny_model

        texts = sorted({*corpus_texts, *(self.words or ())}) if self.vocabulary == "words" else []
        if self.vocabulary == "words" and not texts:
            raise ValueError("a tiny model with a vocabulary of words needs texts to take them from: give `words`")
        identity = [_FORMAT, self.model_dump(mode="json", exclude=_SETTINGS_OUTSIDE_BUILD), texts]
        name = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
        folder = cache_folder() / "tiny" / name
        if not folder.is_dir():
            build_tiny_model(self, folder, texts)
        return folder


def tiny_model_weight_shapes(model: Tiny, vocabulary_size: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the name and the shape of each weight of a tiny model."""
    hidden, inner = model.hidden, model.intermediate or 3 * model.hidden
    width = model.head_dim or hidden // model.heads
    queries, values = model.heads * width, (model.kv_heads or model.heads) * width
    yield "model.embed_tokens.weight", (vocabulary_size, hidden)
    for index in range(model.layers):
        layer = f"model.layers.{index}"
        for name, rows in (("q_proj", queries), ("k_proj", values), ("v_proj", values)):
            yield f"{layer}.self_attn.{name}.weight", (rows, hidden)
        yield f"{layer}.self_attn.o_proj.weight", (hidden, queries)
        for name in ("q_norm", "k_norm") if model.architecture == "qwen3" else ():
            yield f"{layer}.self_attn.{name}.weight", (width,)
        for name in ("gate_proj", "up_proj"):
            yield f"{layer}.mlp.{name}.weight", (inner, hidden)
        yield f"{layer}.mlp.down_proj.weight", (hidden, inner)
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"{layer}.{name}.weight", (hidden,)
    yield "model.norm.weight", (hidden,)
    if not model.tied:
        yield "lm_head.weight", (vocabulary_size, hidden)
