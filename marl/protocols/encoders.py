"""Protocol of text encoders, which turn texts into vectors for networks that are no language models."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol, Self

from marl.core.config import PluginConfig
from marl.protocols.models import ModelContext

if TYPE_CHECKING:
    from torch import Tensor, nn


class TextEncoder(Protocol):
    """Torch module that maps texts to vectors. Turns record the `ids` of texts instead of vectors."""

    vocabulary: int
    """Number of different ids; ids count from 0."""

    def ids(self, text: str) -> list[int]:
        """Return the ids of `text`, the encoder's only input."""
        ...

    def __call__(self, texts: Sequence[Sequence[int]]) -> Tensor:
        """Return [texts, width], one vector for the ids of each text. A text without ids has a vector, too."""
        ...

    def parameters(self) -> Iterator[nn.Parameter]: ...


class TextEncoderConfig(PluginConfig):
    """Settings of a text encoder."""

    group: ClassVar[str] = "encoders"

    def prepare(self, context: ModelContext) -> Self:
        """Check that the encoder's input files or models exist, and return the settings with resolved paths.

        Raises:
            ValueError: naming the policy, if a file or model is missing or cannot be used.
        """
        return self

    @abstractmethod
    def build(self, width: int) -> TextEncoder:
        """Return a new encoder with `width` outputs, initialised from torch's global random generator."""
