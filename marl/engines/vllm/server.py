"""A vLLM server as an alternative to an engine in this process: requests, answers and weights travel over HTTP."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from hashlib import sha256
from typing import Any, Protocol, TypeVar
from uuid import uuid4

import httpx2
from pydantic import BaseModel, TypeAdapter, ValidationError
from torch import Tensor
from vllm import SamplingParams
from vllm.lora.request import LoRARequest

from marl.core.errors import EngineError
from marl.engines.background_requests import BackgroundRequests
from marl.engines.openai.api_key import ApiKey
from marl.engines.vllm.core import VLLMRequest
from marl.engines.vllm.installation import TESTED_VERSION
from marl.engines.vllm.server_responses import GenerateResponse, ModelList, ServerInfo, ServerOutput, ServerVersion
from marl.host.outside import parse_json

_Response = TypeVar("_Response", bound=BaseModel)
_PARAMS = TypeAdapter(SamplingParams)
_RETRIED_STATUSES = (408, 425, 429, 500, 502, 503, 504)
_NOT_FOUND = 404
_START = "VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --enable-scale-out --logprobs-mode processed_logprobs"
"""Command for a server with replaceable weights."""


class ServerOptions(Protocol):
    """Settings of the connection to a server. `VLLMServer` explains every field."""

    base_url: str
    path: str | None
    frozen: bool
    concurrency: int
    timeout_s: float
    retries: int
    backoff_s: float

    def key(self) -> str: ...


class UnknownRouteError(EngineError):
    """The server has no such route, or no such model."""


class ServerCore:
    """A vLLM server with the methods of `LocalCore`. Weights go through a folder readable by both machines.

    Each set of weights gets a unique name. The server returns the name with every answer, so that a restarted server,
    or weights of another run, are detected.
    """

    accepts_tensors = False

    def __init__(self, settings: ServerOptions, context: int) -> None:
        """`context`: maximum number of tokens of a prompt and its completion.

        Raises:
            ValueError: if the server runs another version, or does not support the settings.
            EngineError: if the server does not answer.
        """
        self._settings, self._key = settings, ApiKey(settings.key())
        self._name, self._loads = f"marl-{uuid4().hex[:12]}", 0
        self._adapters: set[str] = set()
        self._http = httpx2.AsyncClient(
            headers={"Content-Type": "application/json", **self._key.headers},
            follow_redirects=False,
            limits=httpx2.Limits(max_connections=settings.concurrency),
            timeout=None,
        )
        self._requests: BackgroundRequests[str, ServerOutput] = BackgroundRequests()
        self._model = self._check(context)

    @property
    def has_source_weights(self) -> bool:
        """True if the server has the weights of the policy's model. A server with updates may hold any weights."""
        return self._settings.frozen

    def add(self, job: VLLMRequest) -> None:
        """Send a request."""
        self._requests.submit(job.id, self._generate(job))

    def step(self, wait_s: float) -> list[ServerOutput]:
        """Return the answers that have arrived, after at most `wait_s` seconds.

        Raises:
            EngineError: if the server does not answer, refuses a request, or has other weights.
        """
        return [output for _, output in self._requests.take(wait_s)]

    def abort(self, ids: Iterable[str]) -> None:
        """Cancel requests and close their connections."""
        self._requests.cancel(ids)

    def reload(self, tensors: Mapping[str, Tensor] | str) -> None:
        """Overwrite all weights of the server in place, from a folder."""
        if self._settings.frozen:
            raise ValueError(f"engine.frozen: true, so the weights of {self._settings.base_url} stay as they are")
        self._loads += 1
        self._call("collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": tensors}})
        self._call("update_weight_version", {"new_version": f"{self._name}/{self._loads}"})

    def load_adapter(self, adapter: LoRARequest) -> None:
        """Load an adapter into the server from its folder. It replaces the adapter with the same number."""
        name = self._adapter_name(adapter.lora_int_id)
        self._call("v1/load_lora_adapter", {"lora_name": name, "lora_path": adapter.lora_path, "load_inplace": True})
        self._adapters.add(name)

    def drop_adapter(self, number: int) -> None:
        """Unload the adapter with this number from the server."""
        name = self._adapter_name(number)
        self._call("v1/unload_lora_adapter", {"lora_name": name})
        self._adapters.discard(name)

    def transfer_folder(self) -> tempfile.TemporaryDirectory[str]:
        """Return a temporary folder for weights, readable by the server."""
        return tempfile.TemporaryDirectory(dir=self._settings.path, prefix=f"{self._name}-")

    def sleep(self) -> None:
        """Do nothing: a server manages its own memory."""

    def close(self) -> None:
        """Unload the adapters of this run from the server, and close all connections."""
        self._requests.cancel()
        with suppress(EngineError):  # a server that is gone has forgotten them
            for name in sorted(self._adapters):
                self._call("v1/unload_lora_adapter", {"lora_name": name})
        self._requests.run(self._http.aclose(), self._settings.timeout_s)

    def _check(self, context: int) -> str:
        """Return the name of the server's model, after a check of version, context and settings."""
        settings = self._settings
        server = f"engine.base_url: {settings.base_url}"
        version = self._parse(ServerVersion, self._call("version"), "version").version
        if version != TESTED_VERSION and not version.startswith(f"{TESTED_VERSION}."):
            raise ValueError(f"{server} runs vLLM {version}, and this engine works with {TESTED_VERSION}")
        model = self._parse(ModelList, self._call("v1/models"), "v1/models").data[0]
        if context > model.max_model_len:
            raise ValueError(f"{server} holds {model.max_model_len} tokens; give engine.max_context, at most as many")
        if not settings.frozen:
            # A server without development mode lacks the routes for new weights, this one among them.
            try:
                info = self._parse(ServerInfo, self._call("server_info?config_format=json"), "server_info")
            except UnknownRouteError as error:
                raise ValueError(f"{server} takes no new weights; start it by {_START}, or set frozen: true") from error
            if info.logprobs_mode != "processed_logprobs":
                raise ValueError(f"{server} reports {info.logprobs_mode}; start it by {_START}")
        return model.id

    def _adapter_name(self, number: int) -> str:
        # Equal for all versions of an adapter, so that a new version replaces the old one in its slot.
        return f"{self._name}/{number}"

    async def _generate(self, job: VLLMRequest) -> ServerOutput:
        """Return the output of a request.

        Raises:
            EngineError: if there is no answer, or the server sampled with weights of another run.
        """
        params: dict[str, Any] = _PARAMS.dump_python(job.params, mode="json", exclude_none=True)
        scored = params.get("logprob_token_ids")
        if scored:
            # The server reports `logprobs` tokens in all, of which one is the sampled token.
            params |= {"logprob_token_ids": scored * 2, "logprobs": 2}
        body = {
            "model": self._adapter_name(job.adapter.lora_int_id) if job.adapter else self._model,
            "token_ids": list(job.prompt_ids),
            "sampling_params": params,
            # Hashed: the server accepts neither slashes nor more than 128 characters.
            "cache_salt": sha256(f"{self._name}/{job.salt}".encode()).hexdigest(),
        }
        response = self._parse(GenerateResponse, await self._fetch("inference/v1/generate", body), "generate")
        output = response.output(job.id, tuple(job.prompt_ids), all_scores=bool(scored))
        foreign = {version for version in response.versions if not version.startswith(f"{self._name}/")}
        if foreign and not self._settings.frozen:
            raise EngineError(
                f"{self._settings.base_url} sampled with weights {min(foreign)!r}, which this run has not sent: it was "
                "started anew, or another run uses it"
            )
        return output

    def _call(self, path: str, body: Mapping[str, Any] | None = None) -> bytes:
        """Return the answer to one request; block until it arrives. Errors are those of `_fetch`."""
        return self._requests.run(self._fetch(path, body))

    async def _fetch(self, path: str, body: Mapping[str, Any] | None) -> bytes:
        """Return the body of a successful response to a POST request, or to a GET request without a body.

        Raises:
            UnknownRouteError: if the server has no such route, or no such model.
            EngineError: if the last attempt gets no answer, or the server refuses the request.
        """
        url, settings, problem = f"{self._settings.base_url}/{path}", self._settings, ""
        for attempt in range(settings.retries + 1):
            await asyncio.sleep(settings.backoff_s * (2**attempt - 1))
            try:
                async with asyncio.timeout(settings.timeout_s):
                    content = None if body is None else json.dumps(body)
                    response = await self._http.request("GET" if body is None else "POST", url, content=content)
            except TimeoutError:
                problem = f"none within {settings.timeout_s:g} s (engine.timeout_s)"
                continue
            except httpx2.HTTPError as error:
                problem = f"{type(error).__name__}: {self._key.excerpt(str(error))}"
                continue
            if response.is_success:
                return response.content
            problem = f"HTTP {response.status_code}: {self._key.excerpt(response.text)}"
            if response.status_code == _NOT_FOUND:
                raise UnknownRouteError(f"{url}: {problem}")
            if response.status_code not in _RETRIED_STATUSES:
                break
        raise EngineError(f"{url} gave no answer: {problem}")

    def _parse(self, kind: type[_Response], body: bytes, path: str) -> _Response:
        """Return a response of class `kind`; raise EngineError if `body` is none."""
        try:
            return kind.model_validate(parse_json(body.decode()))
        except (ValueError, ValidationError) as error:
            problem = self._key.excerpt(str(error))
            raise EngineError(f"{self._settings.base_url}/{path}: an answer that cannot be read: {problem}") from error
