"""Settings of text encoders: hashed words with trained vectors, and hidden states of a frozen language model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from marl.core.config import DistinctValues
from marl.core.plugins import PluginField
from marl.models.pretrained import Pretrained, PretrainedSource, TransformersModelConfig
from marl.protocols import ModelPreparation, TextEncoder, TextEncoderConfig


class HashedWords(TextEncoderConfig):
    """Encoder with a trained vector for each hashed word, pair of neighbouring words, and full text.

    Vectors of full texts act as a table of recurring information states. Vectors of words and pairs generalise to new
    texts (feature hashing, arXiv 0902.2206).
    """

    kind: str = "hashed_words"
    features: DistinctValues[Literal["words", "pairs", "text"]] = Field(
        default=("words", "pairs", "text"), min_length=1
    )
    """Kinds of features that have vectors. A text that never occurred in training brings vectors of its unknown pairs
    and of the full text that were never trained: `[words]` generalises best to new combinations of known words."""
    buckets: int = Field(default=4096, ge=16, le=2**24)
    """Number of trained vectors. Words with equal hashes share a vector."""

    def build(self, width: int) -> TextEncoder:
        from marl.models.text_encoder_modules import HashedWordEncoder

        return HashedWordEncoder(self.buckets, width, self.features)


class FrozenHiddenStates(TextEncoderConfig):
    """Encoder that maps the mean last hidden state of a frozen language model by a trained linear layer.

    With `policy`, the encoder uses the policy's language model at the start of the run. The model stays frozen while
    the policy trains, so that entries of a replay buffer keep their meaning. Recurring texts are read once.
    """

    kind: str = "hidden_states"
    example = "model: models/base"
    model: Annotated[
        TransformersModelConfig | None, PluginField("models", TransformersModelConfig, path="pretrained", optional=True)
    ] = None
    """Language model: a folder, a name on the hub, or `kind: tiny`. Null: the model of `policy`."""
    policy: str | None = None
    """Policy whose language model, with its weights at the start of the run, reads the texts."""
    remembered: int = Field(default=16384, ge=0)
    """Number of texts whose hidden states are cached."""

    @model_validator(mode="after")
    def _check_either_model_or_policy(self) -> Self:
        if (self.model is None) == (self.policy is None):
            both = f"model: {self.model.kind!r}, policy: {self.policy!r}" if self.model else "model: null, policy: null"
            raise ValueError(f"{both}: encoder {self.kind!r} reads by one model; give one of the two")
        return self

    def prepare(self, context: ModelPreparation) -> Self:
        if self.model:
            source = self.model.prepare(context)
        else:
            try:
                source = context.source_of(self.policy or "")
            except ValueError as error:
                raise ValueError(f"policy {context.policy!r}: encoder.policy: {error}") from error
        if not isinstance(source, PretrainedSource):
            reads = f"encoder {self.kind!r} reads whole models, not {self.model.kind if self.model else self.policy!r}"
            raise ValueError(f"policy {context.policy!r}: {reads}")
        if self.model:
            model = self.model.with_saved_weights(Path(source.path))
        else:
            model = Pretrained(
                path=source.path,
                dtype=source.dtype,
                device=source.device,
                attention=source.attention,
                trust_remote_code=source.trust_remote_code,
                gguf_file=source.gguf_file,
            )
        return self.model_copy(update={"model": model, "policy": None})

    def build(self, width: int) -> TextEncoder:
        from marl.models.text_encoder_modules import HiddenStateEncoder, cached_frozen_text_encoder

        if not isinstance(self.model, Pretrained):
            raise ValueError(f"encoder {self.kind!r} is to be prepared before it is built")
        source = self.model.source("encoder", self.model.path, trust_remote_code=self.model.trust_remote_code)
        return HiddenStateEncoder(cached_frozen_text_encoder(source, self.remembered), width)
