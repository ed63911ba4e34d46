"""The embedded model: built from a seed, small enough to learn by reinforcement on a laptop."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from marl.models.pretrained import HeldModel, PretrainedSource
from marl.places import cache_folder
from marl.protocols import ModelContext, WarmUp

_FORMAT = 3
"""Raise it when the same settings build something else."""
_NOT_BUILT = {"kind", "dtype", "device", "attention", "chat_template_kwargs", "warm_up", "words"}
"""Settings that the built model does not depend on; of `words` it is their texts that count."""


class Tiny(HeldModel):
    """A small Llama or Qwen3 with random weights, as an ordinary Hugging Face folder."""

    kind: str = "tiny"
    architecture: Literal["llama", "qwen3"] = "llama"
    """Architecture, as transformers names it."""
    hidden: int = Field(32, ge=2)
    """Width of the residual stream."""
    layers: int = Field(1, ge=1)
    """Number of layers."""
    heads: int = Field(2, ge=1)
    """Number of attention heads."""
    kv_heads: int | None = Field(None, ge=1)
    """Number of key and value heads. Default: as many as heads."""
    head_dim: int | None = Field(None, ge=2)
    """Width of a head, an even number. Default: hidden / heads."""
    intermediate: int | None = Field(None, ge=1)
    """Width of the feed-forward layers. Default: 3 times hidden."""
    context: int = Field(512, ge=8)
    """Longest prompt and completion together, in tokens."""
    tied: bool = True
    """Use one matrix for input and output embeddings."""
    initializer_range: float | None = Field(None, gt=0)
    """Standard deviation of the weights. Default: 1/sqrt(hidden), with which learning starts several times sooner
    than with the usual 0.02."""
    vocabulary: Literal["words", "bytes"] = "words"
    """Tokens: `words` takes the words of the scenario's games and roles, `bytes` any text."""
    words: tuple[str, ...] | None = None
    """Texts whose words are the vocabulary, beside those that the scenario's games and roles use."""
    seed: int = 0
    """Seed of the weights, and of the episodes whose words are the vocabulary."""
    warm_up: WarmUp | None = None
    """Learn the format of the scenario's answers by imitation before anything else."""

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
        """Return the folder of the built model, built on first use and kept in `~/.cache/marl` (or in `MARL_CACHE`).

        `corpus`: texts that hold the words to know, beside `words`.

        Raises:
            ValueError: if there are no words to know.
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
