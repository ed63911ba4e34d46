"""Settings of the engine that samples with vLLM servers. This module imports neither vLLM nor torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, NonNegativeFloat, PositiveFloat, PositiveInt, field_validator

from marl.engines.openai.settings import api_key_errors, normalized_endpoint_url
from marl.engines.vllm.installation import vllm_installation_error
from marl.engines.vllm.settings import VLLMBackedConfig
from marl.models.pretrained import PretrainedSource
from marl.protocols.memory_estimates import MemoryUse, ModelSize, Workload

EndpointUrl = Annotated[str, AfterValidator(normalized_endpoint_url)]


class VLLMServer(VLLMBackedConfig):
    """Sampling by vLLM servers, token for token. Servers receive the weights of learners, or keep frozen ones."""

    kind: str = "vllm_server"
    example = 'base_url: "http://127.0.0.1:8000"'
    base_url: EndpointUrl | Annotated[list[EndpointUrl], Field(min_length=1)]
    """URL of the server, without `/v1`, or a list of the URLs of several servers. Each server takes the weights of one
    simulator: of n simulators, simulator i (from 0) uses every n-th server from server i on. Frozen servers serve all
    simulators."""
    key_env: str | None = None
    """Name of the environment variable with the key of the server (`--api-key`); null sends no key. The routes for new
    weights check no key: keep the server off open networks."""
    path: str | None = None
    """Folder for new weights, under the same path on this machine and on the server's. Default: the temporary folder,
    for a server on this machine."""
    frozen: bool = False
    """True to keep the server's weights, which must equal the weights of the policy's model."""
    max_context: int | None = Field(default=None, ge=2)
    """Maximum length of prompt and completion together, in tokens. Default: the model's number of positions."""
    max_adapters: PositiveInt | None = None
    """Maximum number of adapters on the server, at least one less than `--max-loras`. Default: two more than at the
    start of a run."""
    concurrency: PositiveInt = 256
    """Maximum number of requests in flight, to all servers together."""
    timeout_s: PositiveFloat = 100.0
    """Maximum time of one attempt at a request or at an update of weights, in seconds."""
    retries: int = Field(default=2, ge=0, le=30)
    """Further attempts after failed connections, late answers, and HTTP 408, 425, 429 and 5xx."""
    backoff_s: NonNegativeFloat = 0.5
    """Pause before the first retry, in seconds. The pause grows with each further retry."""
    restart_s: NonNegativeFloat = 240.0
    """Maximum time for which requests wait for a server to come back while none answers, in seconds."""

    @field_validator("base_url")
    @classmethod
    def _check_addresses_differ(cls, base_url: str | list[str]) -> str | list[str]:
        if isinstance(base_url, list) and (repeated := [url for url, count in Counter(base_url).items() if count > 1]):
            raise ValueError(f"names {', '.join(repeated)} more than once")
        return base_url

    @property
    def addresses(self) -> list[str]:
        """Return the URLs of all servers."""
        return [self.base_url] if isinstance(self.base_url, str) else self.base_url

    @property
    def request_time_limit_s(self) -> float:
        # These pauses are those of `VLLMServerConnection`: 0, then `backoff_s` times 1, 3, 7 and so on.
        pauses_s = self.backoff_s * sum(2**attempt - 1 for attempt in range(self.retries + 1))
        return self.timeout_s * (self.retries + 1) + pauses_s + self.restart_s

    @property
    def exclusive_addresses(self) -> Sequence[str]:
        return () if self.frozen else self.addresses

    def for_simulator(self, index: int, simulators: int) -> Self:
        if self.frozen:
            return self
        return self.model_copy(update={"base_url": self.addresses[index::simulators]})

    def unmet_requirements(self) -> Iterable[str]:
        if message := vllm_installation_error():
            yield message
        yield from api_key_errors(self.key_env)

    def memory_uses(
        self, sizes: Sequence[ModelSize], work: Workload, device_bytes: float | None
    ) -> Iterable[MemoryUse]:
        return ()

    def start_vllm(
        self, source: PretrainedSource, model_config: Any, context_length: int, adapters: Mapping[str, Any]
    ) -> Any:
        """Return a `VLLMServerPool` connected to servers that have loaded the model already.

        `context_length`: maximum number of tokens of a prompt and its completion.
        """
        from marl.engines.vllm.server_pool import VLLMServerPool

        return VLLMServerPool(self, context_length)
