"""Protocol of engines: a base in memory that samples for one or more policies."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol

from marl.config import Component
from marl.protocols.memory import FLOAT32, MemorySaver, MemoryUse, ModelSize, Workload
from marl.protocols.models import LANGUAGE_MODEL, ModelConfig, ModelSource
from marl.types import Completion, Failure, Metrics, Request, Ticket, Usage

if TYPE_CHECKING:
    from marl.protocols.models import Weights


class Engine(Protocol):
    """One base in memory that samples for one or more policies, which can come and go while it runs."""

    def submit(self, ticket: Ticket, request: Request) -> None: ...
    def step(self, wait_s: float) -> list[tuple[Ticket, Completion | Failure]]:
        """Return all answers that are ready. With `wait_s = 0` it blocks on nothing but its own arithmetic."""
        ...

    def cancel(self, tickets: Iterable[Ticket]) -> None: ...
    def load_weights(self, policy: str, weights: Weights, version: int) -> None: ...
    def add_policy(self, policy: str, source: ModelSource | None) -> None:
        """Sample for a further policy from now on; requests in flight go on unchanged.

        Raises:
            ValueError: if this engine cannot hold the policy's weights.
        """

    def remove_policy(self, policy: str) -> None:
        """Free what is held for a policy, which may then be added again, with other weights too.

        Raises:
            ValueError: if its requests are in flight; cancel them first.
        """


class WeightlessEngine:
    """Base of engines whose answers come from rules, people or other machines: they answer for any policy."""

    reason = "has no weights to load"
    """End of the error message when weights are to be loaded."""

    def load_weights(self, policy: str, weights: Weights, version: int) -> None:
        raise ValueError(f"policy {policy!r} {self.reason}")

    def add_policy(self, policy: str, source: ModelSource | None) -> None:
        """Accept a policy, which needs nothing here."""

    def remove_policy(self, policy: str) -> None:
        """Accept that a policy goes, for which nothing is held."""


class WorkerEngine(WeightlessEngine):
    """Base of engines whose answers follow from the request alone, but come from other processes, at any time."""


class Service(WeightlessEngine):
    """Base of engines whose answers come from outside this machine: they may be late, and they may cost money."""

    def __init__(self, address: str) -> None:
        self.address = address
        """Address from which answers come."""
        self.reason = f"speaks through {address}: there are no weights to load"
        self.spent: dict[str, Usage] = {}
        """Policy -> what its answers have cost in this run."""


class MeteredEngine:
    """Base of engines that remember prompts, and have figures of their own, reported as `policy/NAME/...`."""

    @abstractmethod
    def end_step(self) -> dict[str, Metrics]:
        """Return policy -> figures of the step, and forget what a run that is resumed from here would not know."""


class SleepingEngine:
    """Base of engines that can leave the memory of their device to others while nothing is asked of them."""

    @abstractmethod
    def sleep(self) -> None:
        """Free memory until requests or weights come, which wake it up; stay awake if requests are in flight."""


class EngineConfig(Component):
    """Settings of an engine."""

    group: ClassVar[str] = "engines"
    needs_model: ClassVar[bool] = False
    """True if it needs a model's weights; a scripted player is given by its settings."""
    family: ClassVar[str] = LANGUAGE_MODEL
    """Sort of weights that it samples from, where it needs a model."""
    rule_bound: ClassVar[bool] = False
    """True if its answers follow from the request alone, as a verifier's do: random play never replaces it."""
    shares_base: ClassVar[bool] = False
    """True if one engine can sample for several policies with a base in common: it is then made by `build_shared`."""
    token_level: ClassVar[bool] = True
    """True if it works with tokens: scores a given text, and continues token ids."""
    structures: ClassVar[bool] = False
    """True if it can limit answers to JSON or to legal moves (`sampling.structured`)."""

    @property
    def max_wait_s(self) -> float:
        """Longest time in seconds that a request may stay open by its own settings; 0 where none limits it."""
        return 0.0

    @property
    def sleeps(self) -> bool:
        """Return True if its engine frees memory while learners work."""
        return False

    def memory(self, sizes: Sequence[ModelSize], work: Workload, device_bytes: float | None) -> Iterable[MemoryUse]:
        """Return what sampling for policies of these sizes takes of memory.

        By default those are weights of its own, an adapter's base included.
        `device_bytes`: memory of the GPU, for an engine that claims a share of it; None: it runs on the processor.
        """
        adapters = sum(FLOAT32 * size.adapter.weights for size in sizes if size.adapter)
        yield MemoryUse("weights to sample with", sizes[0].weight_bytes * sizes[0].weights + adapters)

    def thrift(self) -> Iterable[MemorySaver]:
        """Return other values of its settings with which less memory is taken."""
        return ()

    def unfit(self, model: ModelConfig) -> Iterable[str]:
        """Yield a message for each thing about a model, known from its settings, that it cannot work with."""
        return ()

    @abstractmethod
    def build(self, source: ModelSource | None) -> Engine:
        """Return an engine, ready to sample."""

    def build_shared(self, sources: Mapping[str, ModelSource]) -> Engine:
        """Return one engine for all policies in `sources` (policy -> its weights), which holds their base once.

        Raises:
            ValueError: if it cannot.
        """
        raise ValueError(f"engine {self.kind!r} speaks with one set of weights, not for {', '.join(sources)}")
