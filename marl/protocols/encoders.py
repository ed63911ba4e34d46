"""Protocol of text encoders, which map texts to vectors for Q-networks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol, Self

from marl.core.config import PluginConfig
from marl.protocols.models import ModelPreparation

if TYPE_CHECKING:
    from torch import Tensor, nn


class TextEncoder(Protocol):
    """Torch module that maps texts to vectors. Trajectories record the ids of a text, not its vector."""

    vocabulary: int
    """Number of ids that the text encoder knows, from 0 to `vocabulary` - 1."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`, from which alone its vector is computed."""
        ...

    def __call__(self, texts: Sequence[Sequence[int]]) -> Tensor:
        """Return [texts, width]: one vector for the ids of each text, also for a text without ids."""
        ...

    def parameters(self) -> Iterator[nn.Parameter]: ...


class TextEncoderConfig(PluginConfig):
    """Base class of the settings of a text encoder."""

    group: ClassVar[str] = "encoders"

    def prepare(self, context: ModelPreparation) -> Self:
        """Check that files and models of the encoder exist, and return the settings with resolved paths.

        Raises:
            ValueError: naming the policy, if a file or model is missing or cannot be used.
        """
        return self

    @abstractmethod
    def build(self, width: int) -> TextEncoder:
        """Return a new encoder with vectors of length `width`, initialised by torch's global random generator."""
