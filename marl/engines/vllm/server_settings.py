"""Settings of the engine that samples with a vLLM server. Light: no vLLM, no torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, field_validator

from marl.engines.openai.settings import endpoint_url, key_in, key_problems
from marl.engines.vllm.installation import installation_problem
from marl.engines.vllm.limits import NO_DORA
from marl.models.adapter import Adapter
from marl.models.pretrained import PretrainedSource
from marl.protocols import Engine, EngineConfig, ModelConfig, ModelSource
from marl.protocols.memory_estimates import MemoryUse, ModelSize, Workload


class VLLMServer(EngineConfig):
    """Sampling by a vLLM server, token for token. The server receives the weights of learners, or keeps frozen ones."""

    kind: str = "vllm_server"
    example = 'base_url: "http://127.0.0.1:8000"'
    needs_model: ClassVar[bool] = True
    serves_several_policies: ClassVar[bool] = True
    supports_structured: ClassVar[bool] = True
    base_url: str
    """URL of the server, without `/v1`."""
    key_env: str | None = None
    """Name of the environment variable with the key of the server (`--api-key`); null sends no key. The routes for new
    weights check no key: keep the server off open networks."""
    path: str | None = None
    """Folder for new weights, under the same path on this machine and on the server's. Default: the temporary folder,
    for a server on this machine."""
    frozen: bool = False
    """Keep the weights of the server, which must be those of the policy's model."""
    max_context: int | None = Field(None, ge=2)
    """Maximum length of prompt and completion together, in tokens. Default: the model's number of positions."""
    max_adapters: PositiveInt | None = None
    """Maximum number of adapters on the server, at least one less than `--max-loras`. Default: two more than at the
    start of a run."""
    concurrency: PositiveInt = 256
    """Maximum number of requests in flight."""
    timeout_s: PositiveFloat = 100.0
    """Maximum time of one attempt at a request or at an update of weights, in seconds."""
    retries: int = Field(2, ge=0, le=30)
    """Further attempts after failed connections, late answers, and HTTP 408, 425, 429 and 5xx."""
    backoff_s: NonNegativeFloat = 0.5
    """Pause before the first retry, in seconds; it grows with each further retry."""

    @field_validator("base_url")
    @classmethod
    def _is_url(cls, url: str) -> str:
        return endpoint_url(url)

    @property
    def max_wait_s(self) -> float:
        # The pauses before the attempts, as in `ServerCore`.
        pauses_s = self.backoff_s * sum(2**attempt - 1 for attempt in range(self.retries + 1))
        return self.timeout_s * (self.retries + 1) + pauses_s

    def key(self) -> str:
        """Return the key, or "" without one."""
        return key_in(self.key_env)

    def unmet_requirements(self) -> Iterable[str]:
        if message := installation_problem():
            yield message
        yield from key_problems(self.key_env)

    def model_conflicts(self, model: ModelConfig) -> Iterable[str]:
        if isinstance(model, Adapter) and model.use_dora:
            yield NO_DORA

    def memory(self, sizes: Sequence[ModelSize], work: Workload, device_bytes: float | None) -> Iterable[MemoryUse]:
        return ()

    def start(self, source: PretrainedSource, config: Any, context: int, adapters: Mapping[str, Any]) -> Any:
        """Return the `ServerCore` of a server that has loaded the model already.

        `context`: maximum number of tokens of a prompt and its completion.
        """
        from marl.engines.vllm.server import ServerCore

        return ServerCore(self, context)

    def build(self, source: ModelSource | None) -> Engine:
        source = self.expect_model(source)
        self._check_installation()
        # Only after the check: the module imports vLLM.
        from marl.engines.vllm.engine import build_engine

        return build_engine(self, source)

    def build_shared(self, sources: Mapping[str, ModelSource]) -> Engine:
        self._check_installation()
        from marl.engines.vllm.engine import build_shared_engine

        return build_shared_engine(self, sources)

    def _check_installation(self) -> None:
        for message in self.unmet_requirements():
            raise ValueError(f"engine 'vllm_server' {message}")
