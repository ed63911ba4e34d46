"""Settings of the engine that samples with vLLM, and estimates of its memory. Neither vLLM nor torch is imported."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, Self, cast

from pydantic import Field, PositiveFloat, PositiveInt, field_validator, model_validator

from marl.core.errors import UserNotice
from marl.engines.vllm.arguments import ArgumentValue, check_arguments
from marl.engines.vllm.installation import is_vllm_cpu_build, vllm_installation_error
from marl.engines.vllm.limits import (
    DEFAULT_CPU_CACHE_MIB,
    DEFAULT_GPU_MEMORY_SHARE,
    DEFAULT_SPARE_ADAPTER_SLOTS,
    DORA_UNSUPPORTED_MESSAGE,
    cpu_head_width_error,
    round_up_to_supported_rank,
)
from marl.models.adapter import Adapter, AdapterSource
from marl.models.pretrained import PretrainedSource
from marl.models.tiny import Tiny
from marl.protocols import CacheAtUpdate, Engine, EngineConfig, ModelConfig, ModelSource
from marl.protocols.memory_estimates import (
    FLOAT32_BYTES,
    MemorySavingSetting,
    MemoryUse,
    ModelSize,
    Workload,
    adapter_base_memory_uses,
)

LEAST_SHARE, LEAST_SEQUENCES, LEAST_PREFILL = 0.3, 16, 2048
"""Lower limits of the settings suggested to save memory: smaller values would leave a GPU idle."""
_SHARE, _TOO_SMALL = "vLLM's share of memory", "is less than it must hold: give it a greater memory_share"
_LOGIT_COPIES = 4.0
"""Number of float32 tensors [completions, vocabulary] that sampling allocates: logits, probabilities, random divisors
and log-probabilities."""
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


class VLLMBackedConfig(EngineConfig):
    """Settings of an engine that samples with vLLM, in this process, in its own processes or on a server."""

    needs_model: ClassVar[bool] = True
    serves_several_policies: ClassVar[bool] = True
    supports_structured: ClassVar[bool] = True
    cache_at_update: CacheAtUpdate = "keep"
    """Keys and values of open completions when new weights arrive: `keep` those that the older weights computed, or
    `recompute` them with the new ones: vLLM then reads prompts and answers so far again, also those of other policies.
    Recorded log-probabilities are those of sampling in both cases."""

    def model_conflict_messages(self, model: ModelConfig) -> Iterable[str]:
        if isinstance(model, Adapter) and model.use_dora:
            yield DORA_UNSUPPORTED_MESSAGE

    def build(self, source: ModelSource | None) -> Engine:
        source = self.require_model(source)
        self._check_requirements()
        # The imports below load vLLM, so its installation is checked before.
        from marl.engines.vllm.engine import VLLMEngine
        from marl.engines.vllm.full_weights import VLLMFullWeights

        weights = VLLMFullWeights(cast("PretrainedSource", source), cast("Any", self))
        return VLLMEngine(weights, source.tokenizer())

    def build_shared(self, sources: Mapping[str, ModelSource]) -> Engine:
        self._check_requirements()
        from marl.engines.vllm.adapters import VLLMAdapters
        from marl.engines.vllm.engine import VLLMEngine

        adapters = cast("Mapping[str, AdapterSource]", sources)
        weights = VLLMAdapters(adapters, cast("Any", self))
        return VLLMEngine(weights, next(iter(adapters.values())).tokenizer())

    def _check_requirements(self) -> None:
        """Raise ValueError if a requirement, such as vLLM itself, is missing."""
        for message in self.unmet_requirements():
            raise ValueError(f"engine {self.kind!r} {message}")


class VLLM(VLLMBackedConfig):
    """Continuous batching over a paged, prefix-sharing cache by vLLM; new weights replace the old ones in place."""

    kind: str = "vllm"
    memory_share: float | None = Field(default=None, gt=0, le=1)
    """Share of the device's memory for vLLM, weights included. Default on a GPU: 0.5."""
    kv_cache_mib: PositiveInt | None = None
    """Size of the key-value cache in MiB, as an alternative to `memory_share`. Default on a CPU: 256."""
    max_context: int | None = Field(default=None, ge=2)
    """Maximum length of a prompt and its completion together, in tokens. Default: the model's number of positions."""
    max_sequences: PositiveInt = 256
    """Maximum number of completions sampled at once."""
    prefill_tokens: PositiveInt = 8192
    """Maximum number of tokens in one forward. At least `max_context` on a CPU, where vLLM cannot split a prompt."""
    block_size: PositiveInt | None = None
    """Tokens in a block of the cache. Prompts share whole blocks. A multiple of 32 on a CPU (default there: 32)."""
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """Precision of weights and cache. Default: the model's."""
    eager: bool | None = None
    """Run the model without compilation. Default: true on a CPU, where compiling takes longer than it saves."""
    tensor_parallel: PositiveInt = 1
    """Number of devices among which each layer is divided."""
    max_adapters: PositiveInt | None = None
    """Maximum number of adapters in memory. Default: two more than at the start of a run, for opponents added later."""
    sleep: bool = False
    """Free the device while learners work, as `sleep_level` says. No effect on a CPU."""
    sleep_level: Literal[1, 2] = 1
    """What `sleep` frees besides the key-value cache. 1: weights move to the host's memory. 2: weights are discarded,
    which takes no memory of the host, and are sent again when vLLM wakes up. Adapters need level 1."""
    process: bool = False
    """Run vLLM in separate processes, which start more slowly. Always true with `tensor_parallel` above 1."""
    timeout_s: PositiveFloat = 600.0
    """Maximum time of separate processes for copying new weights, in seconds."""
    args: dict[str, ArgumentValue] = Field(default_factory=dict)
    """Further arguments of vLLM's `EngineArgs`, under vLLM's names, such as `{quantization: fp8}`: numbers, truth
    values and single words. Names are compared with the installed vLLM. Arguments that the engine sets itself, or that
    may name a file, a host or code, are refused. A policy that learns needs `learner.fidelity` with them. Estimates of
    memory ignore them."""

    @field_validator("args")
    @classmethod
    def _check_args(cls, args: dict[str, ArgumentValue]) -> dict[str, ArgumentValue]:
        check_arguments(args)
        return args

    @model_validator(mode="after")
    def _check_one_memory_limit(self) -> Self:
        if self.memory_share is not None and self.kv_cache_mib is not None:
            raise ValueError("memory_share and kv_cache_mib both limit the cache; give one of them")
        return self

    @model_validator(mode="after")
    def _check_sleep_level(self) -> Self:
        if self.sleep_level != 1 and not self.sleep:
            raise ValueError(f"sleep_level: {self.sleep_level} has no effect with sleep: false; set sleep: true")
        return self

    @property
    def runs_in_this_process(self) -> bool:
        """Return True if vLLM runs in this process, False if it runs in separate processes."""
        devices = self.tensor_parallel
        for name in ("pipeline_parallel_size", "prefill_context_parallel_size"):
            devices *= int(self.args.get(name, 1))
        return not self.process and devices == 1 and "distributed_executor_backend" not in self.args

    @property
    def can_sleep(self) -> bool:
        return self.sleep

    @property
    def may_differ_from_learner(self) -> bool:
        return bool(self.args)

    def memory_uses(
        self, sizes: Sequence[ModelSize], work: Workload, device_bytes: float | None
    ) -> Iterator[MemoryUse]:
        """Yield the share of the device's memory reserved by vLLM, or all uses if the cache has a fixed size.

        If the share is too small for the weights, the number of bytes is infinite. `device_bytes` is the memory of the
        GPU, or None on a CPU.
        """
        size = sizes[0]
        number_bytes = _BYTES[self.dtype] if self.dtype else size.weight_bytes
        # On a CPU, vLLM packs the output head for faster products, and keeps this second copy.
        packed = size.vocabulary * size.hidden_size if device_bytes is None else 0
        weights = number_bytes * (size.parameters + packed) / self.tensor_parallel
        # The memory of adapters: vLLM's slots, a loaded copy of each adapter, and float32 tensors during updates.
        adapters, adapter_sizes = 0.0, [size.adapter for size in sizes if size.adapter]
        if adapter_sizes:
            largest = max(adapter_sizes, key=lambda adapter: adapter.parameters)
            slot = largest.parameters * round_up_to_supported_rank(largest.rank) / largest.rank
            # The added slot stays empty, for the reason given in `VLLMAdapters`.
            slots = (self.max_adapters or len(adapter_sizes) + DEFAULT_SPARE_ADAPTER_SLOTS) + 1
            parameters = sum(adapter.parameters for adapter in adapter_sizes)
            adapters = number_bytes * (slots * slot + parameters) + FLOAT32_BYTES * parameters
        tokens = min(work.distinct_prompts * work.max_prompt_tokens, max(self.prefill_tokens, self.max_sequences))
        # Activations are the hidden states of one layer (prompts) and the tables of logits (sampling).
        states = 3 * size.hidden_size + max(2 * size.query_size + 2 * size.key_size, 3 * size.intermediate_size)
        rows = min(work.completions, self.max_sequences)
        tables = rows * size.vocabulary * (FLOAT32_BYTES * _LOGIT_COPIES + number_bytes)
        activations = tokens * number_bytes * states / self.tensor_parallel + tables
        # Transformers creates the adapters on a base model before vLLM loads them.
        yield from adapter_base_memory_uses(size)
        if self.kv_cache_mib or (device_bytes is None and self.memory_share is None):
            yield MemoryUse("weights in vLLM", weights)
            yield MemoryUse("adapters in vLLM", adapters)
            yield MemoryUse("keys and values", (self.kv_cache_mib or DEFAULT_CPU_CACHE_MIB) * 2**20)
            yield MemoryUse("reading prompts or drawing tokens", activations, "play")
            return
        host_bytes = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
        share = (self.memory_share or DEFAULT_GPU_MEMORY_SHARE) * (device_bytes or host_bytes)
        is_enough = share > weights + adapters + activations
        yield MemoryUse(_SHARE, share) if is_enough else MemoryUse(f"{_SHARE} {_TOO_SMALL}", math.inf)

    def memory_saving_settings(self) -> Iterator[MemorySavingSetting]:
        if self.max_sequences > LEAST_SEQUENCES:
            yield MemorySavingSetting("max_sequences", max(LEAST_SEQUENCES, self.max_sequences // 2))
        if self.prefill_tokens > LEAST_PREFILL:
            yield MemorySavingSetting("prefill_tokens", max(LEAST_PREFILL, self.prefill_tokens // 2))
        if self.kv_cache_mib is None and (self.memory_share is None or self.memory_share > LEAST_SHARE):
            yield MemorySavingSetting("memory_share", LEAST_SHARE)

    def unmet_requirements(self) -> Iterable[str]:
        if message := vllm_installation_error():
            yield message

    def model_conflict_messages(self, model: ModelConfig) -> Iterable[str]:
        yield from super().model_conflict_messages(model)
        if isinstance(model, Adapter) and self.sleep_level != 1:
            yield f"sleep_level: {self.sleep_level}, but vLLM discards adapters with their base; choices: 1"
        base = model.shared_base() or model
        if isinstance(base, Tiny) and is_vllm_cpu_build():
            message = cpu_head_width_error(base.head_dim or base.hidden // base.heads)
            if message:
                yield message

    def start_vllm(
        self, source: PretrainedSource, model_config: Any, context_length: int, adapters: Mapping[str, Any]
    ) -> Any:
        """Start vLLM with the model of `source` and return a `LocalVLLM`.

        `model_config`: configuration of the model; `context_length`: maximum tokens of a prompt and its completion;
        `adapters`: vLLM's settings of adapters.
        """
        from marl.engines.vllm.core import LocalVLLM

        if is_vllm_cpu_build():
            if self.sleep:
                message = "engine.sleep: true has no effect on a processor, where vLLM frees no memory"
                warnings.warn(message, UserNotice, stacklevel=2)
            # The head width is checked now: vLLM would load the model, and only fail at the first forward.
            text = model_config.get_text_config()
            head_dim = text.to_dict().get("head_dim") or text.hidden_size // text.num_attention_heads
            if problem := cpu_head_width_error(head_dim):
                raise source.error_naming_policy_and_model(problem)
        return LocalVLLM(source, self, context_length, adapters)
