"""Settings of text encoders: hashed words with learnt vectors, and hidden states of a language model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

from pydantic import Field, model_validator

from marl.models.pretrained import HeldModel, Pretrained, PretrainedSource
from marl.parts import Part
from marl.protocols import ModelContext, ModelSource, TextEncoderConfig

if TYPE_CHECKING:
    from marl.protocols import TextEncoder


class HashedWords(TextEncoderConfig):
    """Learns a vector for each word, each pair of neighbouring words and each whole text, which are hashed.

    The whole text makes it a table of information states where texts come again; words and pairs carry over to new
    ones (feature hashing, arXiv 0902.2206).
    """

    kind: str = "hashed_words"
    buckets: int = Field(default=4096, ge=16, le=2**24)
    """Number of vectors. Words that fall in one bucket share its vector."""

    def build(self, width: int) -> TextEncoder:
        from marl.models.encoder_modules import HashedWordEncoder

        return HashedWordEncoder(self.buckets, width)


class FrozenStates(TextEncoderConfig):
    """Reads the last hidden layer of a frozen language model, averaged over a text's tokens, by a learnt linear layer.

    With the `policy` of a speaker, questions and drafts are read as the speaker reads them when the run begins. Should
    the speaker learn, its readings stay as they were: what is in a replay buffer must mean the same to the end. Texts
    that come again are read once.
    """

    kind: str = "hidden_states"
    example = "model: models/base"
    model: Annotated[HeldModel | None, Part("models", HeldModel, path="pretrained", optional=True)] = None
    """The language model: a folder, a name on the hub, or `kind: tiny`. Null: that of `policy`."""
    policy: str | None = None
    """A policy whose language model, as it is at the start of the run, reads the texts."""
    remembered: int = Field(default=16384, ge=0)
    """Number of texts whose hidden states are remembered."""

    @model_validator(mode="after")
    def _one_model(self) -> Self:
        if (self.model is None) == (self.policy is None):
            both = f"model: {self.model.kind!r}, policy: {self.policy!r}" if self.model else "model: null, policy: null"
            raise ValueError(f"{both}: encoder {self.kind!r} reads by one model; give one of the two")
        return self

    def prepare(self, context: ModelContext) -> Self:
        source = self.model.prepare(context) if self.model else self._start(context)
        if not isinstance(source, PretrainedSource):
            reads = f"encoder {self.kind!r} reads whole models, not {self.model.kind if self.model else self.policy!r}"
            raise ValueError(f"policy {context.policy!r}: {reads}")
        held = self.model.saved(Path(source.path)) if self.model else _held(source)
        return self.model_copy(update={"model": held, "policy": None})

    def _start(self, context: ModelContext) -> ModelSource:
        try:
            return context.start_of(self.policy or "")
        except ValueError as error:
            raise ValueError(f"policy {context.policy!r}: encoder.policy: {error}") from error

    def build(self, width: int) -> TextEncoder:
        from marl.models.encoder_modules import HiddenStateEncoder, frozen_reader

        if not isinstance(self.model, Pretrained):
            raise ValueError(f"encoder {self.kind!r} is to be prepared before it is built")
        source = self.model.source("encoder", self.model.path, trust_remote_code=self.model.trust_remote_code)
        return HiddenStateEncoder(frozen_reader(source, self.remembered), width)


def _held(source: PretrainedSource) -> Pretrained:
    """Return the settings of a model that is there, held as its policy holds it."""
    return Pretrained(
        path=source.path,
        dtype=source.dtype,
        device=source.device,
        attention=source.attention,
        trust_remote_code=source.trust_remote_code,
        gguf_file=source.gguf_file,
    )
