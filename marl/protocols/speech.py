"""What engines must do, and where their weights come from."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from marl.config import Component
from marl.types import Completion, Failure, Request, Ticket

if TYPE_CHECKING:
    from torch import Tensor

    from marl.scenario import Scenario

    Weights = Iterable[tuple[str, Tensor]] | Path
    """Named tensors, or a folder that holds them."""


class ModelConfig(Component):
    """Where weights come from, and how they are held."""

    group: ClassVar[str] = "models"

    @abstractmethod
    def prepare(self, scenario: Scenario, policy: str) -> Source:
        """Make sure that the weights exist; say where."""


class Source(Protocol):
    """Weights and tokenizer on disk or on a hub. `load` may be called more than once: each copy is its own."""

    def model(self) -> Any: ...
    def tokenizer(self) -> Any: ...


class Engine(Protocol):
    """One base in memory that samples for one or more policies."""

    def submit(self, ticket: Ticket, request: Request) -> None: ...
    def step(self, wait_s: float) -> list[tuple[Ticket, Completion | Failure]]:
        """Whatever has finished. With `wait_s = 0` it never blocks on anything but its own arithmetic."""
        ...

    def cancel(self, tickets: Iterable[Ticket]) -> None: ...
    def load_weights(self, policy: str, weights: Weights, version: int) -> None: ...


class EngineConfig(Component):
    """Settings of an engine."""

    group: ClassVar[str] = "engines"
    speaks_for_models: ClassVar[bool] = False
    """Whether it needs a model's weights; those of scripted players are in their settings."""
    rule_bound: ClassVar[bool] = False
    """Whether its answers follow from the question alone, as a verifier's do: it is never replaced by random play."""

    @abstractmethod
    def build(self, source: Source | None) -> Engine:
        """An engine, ready to sample."""
