"""Protocol of engines, which sample completions for one or more policies."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Protocol

from marl.core.config import PluginConfig
from marl.core.types import Completion, Failure, Metrics, Request, Ticket, Usage
from marl.protocols.memory_estimates import FLOAT32_BYTES, MemorySaver, MemoryUse, ModelSize, Workload
from marl.protocols.models import LANGUAGE_MODEL, ModelConfig, ModelSource, Weights


class Engine(Protocol):
    """Sampler for one or more policies, with one base model in memory. Policies can come and go while it runs."""

    def submit(self, ticket: Ticket, request: Request) -> None: ...
    def step(self, wait_s: float) -> list[tuple[Ticket, Completion | Failure]]:
        """Return the finished requests, after waiting at most `wait_s`.

        With `wait_s = 0` the call blocks for nothing but the engine's own computation.
        """
        ...

    def cancel(self, tickets: Iterable[Ticket]) -> None: ...
    def load_weights(self, policy: str, weights: Weights, version: int) -> None: ...
    def add_policy(self, policy: str, source: ModelSource | None) -> None:
        """Start to sample for `policy`. Requests in flight continue unchanged.

        Raises:
            ValueError: if this engine cannot hold the policy's weights.
        """

    def remove_policy(self, policy: str) -> None:
        """Free the memory of `policy`. The policy can be added again, also with other weights.

        Raises:
            ValueError: if requests of `policy` are in flight; cancel them first.
        """


class WeightlessEngine:
    """Base class of engines that answer by rules, or through people or other machines. They serve any policy."""

    reason = "has no weights to load"
    """End of the error message of `load_weights`."""

    def load_weights(self, policy: str, weights: Weights, version: int) -> None:
        raise ValueError(f"policy {policy!r} {self.reason}")

    def add_policy(self, policy: str, source: ModelSource | None) -> None:
        """Do nothing: an engine without weights serves any policy."""

    def remove_policy(self, policy: str) -> None:
        """Do nothing: an engine without weights stores nothing for a policy."""


class WorkerEngine(WeightlessEngine):
    """Base class of engines with worker processes. An answer depends on the request alone, but its time does not."""


class RemoteEngine(WeightlessEngine):
    """Base class of engines that query another machine, so that answers may be late and cost money."""

    def __init__(self, address: str) -> None:
        self.address = address
        """URL or name of the other machine."""
        self.reason = f"speaks through {address}: there are no weights to load"
        self.spent: dict[str, Usage] = {}
        """Cost of each policy's answers in this run."""


class MeteredEngine:
    """Base class of engines that cache prompts and report metrics as `policy/NAME/...`."""

    @abstractmethod
    def end_step(self) -> dict[str, Metrics]:
        """Return the step's metrics of each policy, and drop all caches that a resumed run would not have."""


class SleepingEngine:
    """Base class of engines that can free their device memory between requests."""

    @abstractmethod
    def sleep(self) -> None:
        """Free device memory until the next request or weights arrive. Do nothing if requests are in flight."""


class EngineConfig(PluginConfig):
    """Settings of an engine."""

    group: ClassVar[str] = "engines"
    needs_model: ClassVar[bool] = False
    """True if the engine samples from a model's weights; False for a scripted player."""
    family: ClassVar[str] = LANGUAGE_MODEL
    """Family of models that the engine samples from, if `needs_model`."""
    is_rule_based: ClassVar[bool] = False
    """True if answers depend on the request alone, like a verifier's. Random play never replaces such an engine."""
    serves_several_policies: ClassVar[bool] = False
    """True if `build_shared` can make one engine for several policies with a common base."""
    token_level: ClassVar[bool] = True
    """True if the engine can score a given text and continue token ids."""
    supports_structured: ClassVar[bool] = False
    """True if the engine can restrict answers to JSON or to legal moves (`sampling.structured`)."""

    @property
    def max_wait_s(self) -> float:
        """Time limit of one request (s) in the engine's settings; 0 if they set no limit."""
        return 0.0

    @property
    def sleeps(self) -> bool:
        """Return True if the engine frees device memory while learners train."""
        return False

    def expect_model(self, source: ModelSource | None) -> ModelSource:
        """Return `source`, the weights of a policy with this engine.

        Raises:
            ValueError: if the policy has no model.
        """
        if source is None:
            raise ValueError(f"engine {self.kind!r} speaks for a model: give the policy a `model`")
        return source

    def memory(self, sizes: Sequence[ModelSize], work: Workload, device_bytes: float | None) -> Iterable[MemoryUse]:
        """Return the memory uses of sampling for policies of these `sizes`.

        By default the engine holds its own copy of the weights, including the base of an adapter. `device_bytes` is the
        memory of the GPU, for an engine that reserves a share of it, or None if the engine runs on the CPU.
        """
        adapters = sum(FLOAT32_BYTES * size.adapter.parameters for size in sizes if size.adapter)
        yield MemoryUse("weights to sample with", sizes[0].weight_bytes * sizes[0].parameters + adapters)

    def memory_savers(self) -> Iterable[MemorySaver]:
        """Return alternative values of settings that reduce the engine's memory use."""
        return ()

    def model_conflicts(self, model: ModelConfig) -> Iterable[str]:
        """Yield an error message for each setting of `model` that the engine does not support."""
        return ()

    @abstractmethod
    def build(self, source: ModelSource | None) -> Engine:
        """Build the engine, ready to sample."""

    def build_shared(self, sources: Mapping[str, ModelSource]) -> Engine:
        """Return one engine for all policies in `sources`, with one copy of their common base in memory.

        Raises:
            ValueError: if the engine serves a single policy.
        """
        raise ValueError(f"engine {self.kind!r} speaks with one set of weights, not for {', '.join(sources)}")
