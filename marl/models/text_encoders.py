"""Settings of text encoders: hashed words with learnt vectors, and hidden states of a language model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

from pydantic import Field

from marl.models.pretrained import HeldModel, Pretrained, PretrainedSource
from marl.parts import Part
from marl.protocols import ModelContext, TextEncoderConfig

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

    With the folder or name of a speaker's own model, questions and drafts are read as the speaker reads them. Texts
    that come again are read once.
    """

    kind: str = "hidden_states"
    example = "model: models/base"
    model: Annotated[HeldModel, Part("models", HeldModel, path="pretrained")]
    """The language model: a folder, a name on the hub, or `kind: tiny`. It is used as it is at the start of the run."""
    remembered: int = Field(default=16384, ge=0)
    """Number of texts whose hidden states are remembered."""

    def prepare(self, context: ModelContext) -> Self:
        source = self.model.prepare(context)
        if not isinstance(source, PretrainedSource) or not isinstance(self.model, HeldModel):
            reads = f"encoder {self.kind!r} reads whole models, not {self.model.kind!r}"
            raise ValueError(f"policy {context.policy!r}: {reads}")
        return self.model_copy(update={"model": self.model.saved(Path(source.path))})

    def build(self, width: int) -> TextEncoder:
        from marl.models.encoder_modules import HiddenStateEncoder, frozen_reader

        if not isinstance(self.model, Pretrained):
            raise ValueError(f"encoder {self.kind!r} is to be prepared before it is built")
        source = self.model.source("encoder", self.model.path, trust_remote_code=self.model.trust_remote_code)
        return HiddenStateEncoder(frozen_reader(source, self.remembered), width)
