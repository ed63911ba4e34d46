"""Protocol of text encoders: in which numbers a network that is no language model reads texts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol, Self

from marl.config import Component
from marl.protocols.models import ModelContext

if TYPE_CHECKING:
    from torch import Tensor, nn


class TextEncoder(Protocol):
    """Reads texts, of which `ids` are recorded with each turn; a torch module, whose parameters are learnt."""

    vocabulary: int
    """Number of different ids, from 0."""

    def ids(self, text: str) -> list[int]:
        """Return the numbers that stand for a text: all that the encoder knows of it."""
        ...

    def __call__(self, texts: Sequence[Sequence[int]]) -> Tensor:
        """Return [texts, width] from the ids of each text; a text without ids has a row, too."""
        ...

    def parameters(self) -> Iterator[nn.Parameter]: ...


class TextEncoderConfig(Component):
    """Settings of a text encoder."""

    group: ClassVar[str] = "encoders"

    def prepare(self, context: ModelContext) -> Self:
        """Make sure that what it reads exists; return the settings with which it is then built.

        Raises:
            ValueError: naming the policy, if it is not there or cannot be used.
        """
        return self

    @abstractmethod
    def build(self, width: int) -> TextEncoder:
        """Return a new encoder with `width` outputs, a torch module, by torch's own random numbers."""
