"""Settings of the embedded tiny model, which is built from a seed and trains on a laptop."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from marl.host.paths import cache_folder
from marl.models.pretrained import PretrainedSource, TransformersModelConfig
from marl.protocols import ModelContext, WarmUp

_FORMAT = 3
"""Version of the builder; to be increased when equal settings build another model."""
_NOT_BUILT = {"kind", "dtype", "device", "attention", "chat_template_kwargs", "warm_up", "words"}
"""Settings that do not change the built folder. `words` counts by its texts, which are hashed on their own."""


class Tiny(TransformersModelConfig):
    """A small Llama or Qwen3 with random weights, in an ordinary Hugging Face folder."""

    kind: str = "tiny"
    architecture: Literal["llama", "qwen3"] = "llama"
    """Architecture, by its name in Transformers."""
    hidden: int = Field(32, ge=2)
    """Width of the residual stream."""
    layers: int = Field(1, ge=1)
    """Number of layers."""
    heads: int = Field(2, ge=1)
    """Number of attention heads."""
    kv_heads: int | None = Field(None, ge=1)
    """Number of key and value heads. Default: equal to `heads`."""
    head_dim: int | None = Field(None, ge=2)
    """Width of an attention head, an even number. Default: hidden / heads."""
    intermediate: int | None = Field(None, ge=1)
    """Width of the feed-forward layers. Default: 3 times hidden."""
    context: int = Field(512, ge=8)
    """Maximum length of prompt and completion together [tokens]."""
    tied: bool = True
    """Use one matrix for input and output embeddings."""
    initializer_range: float | None = Field(None, gt=0)
    """Standard deviation of the initial weights. Default: 1/sqrt(hidden), with which learning starts several times
    sooner than with the usual 0.02."""
    vocabulary: Literal["words", "bytes"] = "words"
    """Tokens: `words` has the words of the scenario's games and roles, `bytes` can encode any text."""
    words: tuple[str, ...] | None = None
    """Texts with further words of the vocabulary, beside those of the scenario's games and roles."""
    seed: int = 0
    """Seed of the initial weights, and of the episodes that give the words of the vocabulary."""
    warm_up: WarmUp | None = None
    """Imitation learning of the answers' format before the run starts. Null: none."""

    @model_validator(mode="after")
    def _check_shapes(self) -> Tiny:
        if self.head_dim is None and self.hidden % self.heads:
            raise ValueError(f"hidden: {self.hidden} is no multiple of heads: {self.heads}; give head_dim")
        if (self.head_dim or self.hidden // self.heads) % 2:
            raise ValueError("head_dim must be even: rotary embeddings turn pairs")
        if self.kv_heads is not None and self.heads % self.kv_heads:
            raise ValueError(f"heads: {self.heads} is no multiple of kv_heads: {self.kv_heads}")
        return self

    def prepare(self, context: ModelContext) -> PretrainedSource:
        base = self.folder(context.corpus(self.seed) if self.vocabulary == "words" else ())
        return self.source(context.policy, context.warm_up(base, self.warm_up) if self.warm_up else base)

    @property
    def knows_language(self) -> bool:
        return False

    def folder(self, corpus: Iterable[str]) -> Path:
        """Return the folder of the built model, which is cached in `~/.cache/marl` (or in `MARL_CACHE`).

        `corpus` has texts with words of the vocabulary, beside the texts in `words`.

        Raises:
            ValueError: if the vocabulary would have no words.
        """
        from marl.models.tiny_build import build_tiny

        texts = sorted({*corpus, *(self.words or ())}) if self.vocabulary == "words" else []
        if self.vocabulary == "words" and not texts:
            raise ValueError("a tiny model with a vocabulary of words needs texts to take them from: give `words`")
        identity = [_FORMAT, self.model_dump(mode="json", exclude=_NOT_BUILT), texts]
        name = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
        folder = cache_folder() / "tiny" / name
        if not folder.is_dir():
            build_tiny(self, folder, texts)
        return folder
