"""Protocol of engines, which sample completions for one or more policies."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Literal, Protocol, Self

from marl.core.config import PluginConfig
from marl.core.types import Completion, CompletionFailure, MetricsByPolicy, Request, Ticket
from marl.core.usage import RemoteUsage
from marl.protocols.memory_estimates import FLOAT32_BYTES, MemorySavingSetting, MemoryUse, ModelSize, Workload
from marl.protocols.models import LANGUAGE_MODEL, ModelConfig, ModelSource, Weights
from marl.protocols.tasks import TaskConfig, Tool

CacheAtUpdate = Literal["keep", "recompute"]
"""What happens to the keys and values of open completions when new weights arrive."""


class Engine(Protocol):
    """Sampler for one or more policies, with one base model in memory. Policies can be added and removed."""

    def submit(self, ticket: Ticket, request: Request) -> None: ...
    def step(self, wait_s: float) -> list[tuple[Ticket, Completion | CompletionFailure]]:
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
    """Base class of engines without weights, such as rules, people and other machines. They serve any policy."""

    reason = "has no weights to load"
    """End of the error message about an attempt to load weights, after the policy's name."""

    def load_weights(self, policy: str, weights: Weights, version: int) -> None:
        raise ValueError(f"policy {policy!r} {self.reason}")

    def add_policy(self, policy: str, source: ModelSource | None) -> None:
        """Do nothing, because an engine without weights serves any policy."""

    def remove_policy(self, policy: str) -> None:
        """Do nothing, because an engine without weights stores nothing for a policy."""


class WorkerProcessEngine(WeightlessEngine):
    """Base class of engines with worker processes. Answers are deterministic, their timing is not."""


class RemoteEngine(WeightlessEngine):
    """Base class of engines that send requests to another machine. Answers may be slow and may cost money."""

    def __init__(self, address: str) -> None:
        self.address = address
        """URL or name of the other machine."""
        self.reason = f"speaks through {address}: there are no weights to load"
        self.spent: dict[str, RemoteUsage] = {}
        """Policy -> cost of its answers in this run."""

    def max_usage(self, request: Request) -> RemoteUsage:
        """Return the most that the answer to `request` can take and cost, retries included.

        By default, nothing is sent again, and prices are unknown: `max_tokens` at no cost.
        """
        return RemoteUsage(completion_tokens=request.sampling.max_tokens)


class PolicyMetricsEngine:
    """Base class of engines that cache prompts and report metrics of each policy."""

    @abstractmethod
    def step_metrics(self) -> MetricsByPolicy:
        """Return policy -> its metrics of the step so far."""

    @abstractmethod
    def end_step(self) -> None:
        """Reset the metrics for a new step, and drop all caches that a resumed run would not have."""

    def take_step_metrics(self) -> MetricsByPolicy:
        """Return policy -> its metrics of the step, and end the step."""
        metrics = self.step_metrics()
        self.end_step()
        return metrics


class SleepingEngine:
    """Base class of engines that can free their device memory between requests."""

    @abstractmethod
    def sleep(self) -> None:
        """Free device memory until the next request, or until new weights arrive. Do nothing if requests are open."""


class EngineConfig(PluginConfig):
    """Base class of the settings of an engine."""

    group: ClassVar[str] = "engines"
    needs_model: ClassVar[bool] = False
    """True if the engine samples from a model's weights; False for other engines, such as scripted players."""
    family: ClassVar[str] = LANGUAGE_MODEL
    """Family of models from which the engine samples. Without `needs_model` it has no meaning."""
    is_rule_based: ClassVar[bool] = False
    """True if the engine's answers depend on the request alone, such as a verifier's. Random play keeps this engine."""
    serves_several_policies: ClassVar[bool] = False
    """True if `build_shared` can make one engine for several policies with a common base model."""
    token_level: ClassVar[bool] = True
    """True if the engine can compute log-probabilities of a given text, and continue given token ids."""
    runs_programs: ClassVar[bool] = False
    """True if the engine runs programs that call models: it builds a `ModelCallingEngine`."""
    supports_structured: ClassVar[bool] = False
    """True if the engine can restrict answers to JSON or to legal moves (`sampling.structured`)."""

    @property
    def needs_segments(self) -> bool:
        """Return True if the engine scores the segments of other agents' answers, which a role must then mark."""
        return False

    @property
    def request_time_limit_s(self) -> float:
        """Return the engine's own time limit of one request in seconds, retries included; 0 if it has none."""
        return 0.0

    def describe_tools(self) -> tuple[Tool, ...]:
        """Return the descriptions of the tools whose calls the engine answers."""
        return ()

    @property
    def needs_earlier_calls(self) -> bool:
        """True if the engine answers calls of tools whose results depend on the earlier calls of the episode."""
        return False

    @property
    def exclusive_addresses(self) -> Sequence[str]:
        """Return the addresses of servers whose weights the engine replaces, so that no other engine may use them."""
        return ()

    def for_simulator(self, index: int, simulators: int) -> Self:
        """Return the settings of the engine in simulator `index` (from 0) of `simulators`."""
        return self

    @property
    def can_sleep(self) -> bool:
        """Return True if the engine frees its device memory while learners train."""
        return False

    @property
    def may_differ_from_learner(self) -> bool:
        """Return True if settings may change the engine's log-probabilities, such as a quantization."""
        return False

    def with_task(self, task: TaskConfig) -> Self:
        """Return these settings, completed by the task of the game at which the engine answers."""
        return self

    def require_model(self, source: ModelSource | None) -> ModelSource:
        """Return `source`, the source of a policy's weights, if it is not None.

        Raises:
            ValueError: if the policy has no model.
        """
        if source is None:
            raise ValueError(f"engine {self.kind!r} speaks for a model: give the policy a `model`")
        return source

    @property
    def counts_cost(self) -> bool:
        """Return True if the engine knows the prices of its answers."""
        return False

    def memory_uses(
        self, sizes: Sequence[ModelSize], work: Workload, device_bytes: float | None
    ) -> Iterable[MemoryUse]:
        """Return the memory uses of sampling the texts `work` for policies with models of these `sizes`.

        By default the engine has a copy of the weights, including the base model of an adapter. `device_bytes` is the
        memory of the GPU, for an engine that reserves a share of it, or None if the engine runs on the CPU.
        """
        adapter_bytes = FLOAT32_BYTES * sum([size.adapter.parameters for size in sizes if size.adapter])
        yield MemoryUse("weights to sample with", sizes[0].weight_bytes * sizes[0].parameters + adapter_bytes)

    def memory_saving_settings(self) -> Iterable[MemorySavingSetting]:
        """Return alternative values of settings that reduce the engine's memory use."""
        return ()

    def model_conflict_messages(self, model: ModelConfig) -> Iterable[str]:
        """Yield an error message for each setting of `model` that the engine does not support."""
        return ()

    @abstractmethod
    def build(self, source: ModelSource | None) -> Engine:
        """Return a new engine, ready to sample. `source` has the weights, or is None for an engine without weights."""

    def build_shared(self, sources: Mapping[str, ModelSource]) -> Engine:
        """Return one engine for all policies in `sources`, with one copy of their common base model in memory.

        Raises:
            ValueError: if the engine serves a single policy.
        """
        raise ValueError(f"engine {self.kind!r} speaks with one set of weights, not for {', '.join(sources)}")
