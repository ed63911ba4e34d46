"""Settings of the engine that samples with a server of vLLM."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, field_validator

from marl.engines.openai.settings import endpoint_url, key_in, key_problems
from marl.engines.vllm.installation import problem
from marl.engines.vllm.limits import NO_DORA
from marl.models.adapter import Adapter
from marl.protocols import Engine, EngineConfig, ModelConfig, ModelSource
from marl.protocols.memory import MemoryUse, ModelSize, Workload

if TYPE_CHECKING:
    from marl.engines.vllm.server import ServerCore
    from marl.models.adapter import AdapterSource
    from marl.models.pretrained import PretrainedSource


class VLLMServer(EngineConfig):
    """Sampling by a server of vLLM, token for token: it takes the weights of policies that learn, or keeps its own."""

    kind: str = "vllm_server"
    example = 'base_url: "http://127.0.0.1:8000"'
    needs_model: ClassVar[bool] = True
    shares_base: ClassVar[bool] = True
    structures: ClassVar[bool] = True
    base_url: str
    """URL of the server, without `/v1`."""
    key_env: str | None = None
    """Name of the environment variable that holds the key of the server (`--api-key`). The routes by which it takes
    weights ask for none: keep the server off open networks. Null sends none."""
    path: str | None = None
    """Folder in which new weights are handed over, by a name that this machine and the server's have in common.
    Default: the folder for temporary files, for a server on this machine."""
    frozen: bool = False
    """Leave the weights of the server as they are, which must then be those of the policy's model."""
    max_context: int | None = Field(None, ge=2)
    """Longest prompt and completion together, in tokens. Default: what the model was made for."""
    max_adapters: PositiveInt | None = None
    """Most adapters that the server is given at once, at least one less than its `--max-loras`. Default: two more than
    there are at the start of a run."""
    concurrency: PositiveInt = 256
    """Requests in flight at once."""
    timeout_s: PositiveFloat = 100.0
    """Longest time of one attempt at a request, or at an update of weights, in seconds."""
    retries: int = Field(2, ge=0, le=30)
    """Further attempts after failed connections, late answers, and HTTP 408, 425, 429 and 5xx."""
    backoff_s: NonNegativeFloat = 0.5
    """Pause before the first retry, in seconds, longer before each further one."""

    @field_validator("base_url")
    @classmethod
    def _is_url(cls, url: str) -> str:
        return endpoint_url(url)

    @property
    def max_wait_s(self) -> float:
        return self.timeout_s * (self.retries + 1) + self.backoff_s * sum(2**n - 1 for n in range(self.retries + 1))

    def key(self) -> str:
        """Return the key, or "" if there is none."""
        return key_in(self.key_env)

    def missing(self) -> Iterable[str]:
        if message := problem():
            yield message
        yield from key_problems(self.key_env)

    def unfit(self, model: ModelConfig) -> Iterable[str]:
        if isinstance(model, Adapter) and model.use_dora:
            yield NO_DORA

    def memory(self, sizes: Sequence[ModelSize], work: Workload, device_bytes: float | None) -> Iterable[MemoryUse]:
        return ()

    def start(self, source: PretrainedSource, config: Any, context: int, adapters: Mapping[str, Any]) -> ServerCore:
        """Return the server, which holds the model already. `context`: most tokens of a prompt and its completion."""
        from marl.engines.vllm.server import ServerCore

        return ServerCore(self, context)

    def build(self, source: ModelSource | None) -> Engine:
        if source is None:
            raise ValueError("engine 'vllm_server' speaks for a model: give the policy a `model`")
        self._check_installation()
        from marl.engines.vllm.engine import VLLMEngine
        from marl.engines.vllm.whole_weights import WholeWeights

        return VLLMEngine(WholeWeights(cast("PretrainedSource", source), self), source.tokenizer())

    def build_shared(self, sources: Mapping[str, ModelSource]) -> Engine:
        self._check_installation()
        from marl.engines.vllm.adapters import Adapters
        from marl.engines.vllm.engine import VLLMEngine

        adapters = cast("Mapping[str, AdapterSource]", sources)
        return VLLMEngine(Adapters(adapters, self), next(iter(adapters.values())).tokenizer())

    def _check_installation(self) -> None:
        for message in self.missing():
            raise ValueError(f"engine 'vllm_server' {message}")
