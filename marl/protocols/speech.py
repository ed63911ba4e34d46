"""What engines must do, and where their weights come from."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from marl.config import Component
from marl.types import Completion, Failure, Request, Ticket, Usage

if TYPE_CHECKING:
    from torch import Tensor

    from marl.scenario.schema import Scenario

    Weights = Iterable[tuple[str, Tensor]] | Path
    """Named tensors, or a folder that holds them."""


class ModelConfig(Component):
    """Where weights come from, and how they are held."""

    group: ClassVar[str] = "models"

    @abstractmethod
    def prepare(self, scenario: Scenario, policies: Sequence[str]) -> Source:
        """Make sure that the weights, with which `policies` speak, exist; say where."""

    def shared(self) -> ModelConfig | None:
        """The base that policies whose models say the same share in memory; None if all weights are its own."""
        return None

    def saved(self, folder: Path) -> ModelConfig:
        """The same model with the weights that its learner saved in `folder`.

        Raises:
            ValueError: if it does not say how they are read.
        """
        raise ValueError(f"model {self.kind!r} does not say how saved weights are read; give it a method `saved`")


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


class Service:
    """Base of engines whose answers come from outside this machine: they may be late, and they may cost money."""

    def __init__(self, address: str) -> None:
        self.address = address
        """Where the answers come from."""
        self.spent: dict[str, Usage] = {}
        """What each policy's answers have cost in this run."""


class EngineConfig(Component):
    """Settings of an engine."""

    group: ClassVar[str] = "engines"
    speaks_for_models: ClassVar[bool] = False
    """Whether it needs a model's weights; those of scripted players are in their settings."""
    rule_bound: ClassVar[bool] = False
    """Whether its answers follow from the question alone, as a verifier's do: it is never replaced by random play."""
    serves: ClassVar[bool] = False
    """Whether one engine can speak for several policies with a base in common: it is then made by `serve`."""

    token_level: ClassVar[bool] = True
    """Whether it works with tokens: scores a text that it is given, and continues token ids."""

    @property
    def longest_s(self) -> float:
        """The longest that it may leave a question open by its own settings, in seconds; 0 where none limits it."""
        return 0.0

    @abstractmethod
    def build(self, source: Source | None) -> Engine:
        """An engine, ready to sample."""

    def serve(self, sources: Mapping[str, Source]) -> Engine:
        """One engine for all policies in `sources` (policy -> its weights), whose base it holds once.

        Raises:
            ValueError: if it cannot.
        """
        raise ValueError(f"engine {self.kind!r} speaks with one set of weights, not for {', '.join(sources)}")
