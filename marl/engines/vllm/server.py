"""A vLLM server as an alternative to an engine in this process. Requests, answers and weights travel over HTTP."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

import httpx2
from pydantic import BaseModel, TypeAdapter, ValidationError
from torch import Tensor
from vllm import SamplingParams
from vllm.lora.request import LoRARequest

from marl.core.errors import EngineError
from marl.engines.background_requests import BackgroundCoroutines
from marl.engines.openai.api_key import ApiKey, api_key_from_environment
from marl.engines.vllm.core import VLLMRequest
from marl.engines.vllm.installation import SUPPORTED_VLLM_VERSION
from marl.engines.vllm.server_responses import (
    GenerateResponse,
    ModelListResponse,
    ServerInfoResponse,
    ServerOutput,
    VersionResponse,
)
from marl.host.untrusted_text import parse_json

if TYPE_CHECKING:
    # Imported for type checkers only: `server_settings` imports this module, so a second import would be circular.
    from marl.engines.vllm.server_settings import VLLMServer

_Response = TypeVar("_Response", bound=BaseModel)
_SAMPLING_PARAMS_ADAPTER = TypeAdapter(SamplingParams)
_RETRIED_STATUSES = (408, 425, 429, 500, 502, 503, 504)
_NOT_FOUND_STATUS = 404
_SERVER_START_COMMAND = "VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --enable-scale-out --logprobs-mode processed_logprobs"
"""Command that starts a server whose weights can be replaced."""


class UnknownRouteError(EngineError):
    """The server has no route, or no model, of the requested name."""


class VLLMServerConnection:
    """Connection to a vLLM server, with the methods of `LocalVLLM`. Weights are passed in a folder that both can read.

    Each set of weights gets a unique name. The server returns the name with every answer, so that a restarted server,
    or weights of another run, are detected.
    """

    accepts_tensors = False

    def __init__(self, settings: VLLMServer, context: int) -> None:
        """Check version, context and settings of the server.

        `context` is the maximum number of tokens of a prompt and its completion.

        Raises:
            ValueError: if the server runs another version, or does not support the settings.
            EngineError: if the server does not answer.
        """
        self._settings, self._key = settings, ApiKey(api_key_from_environment(settings.key_env))
        self._name, self._loads = f"marl-{uuid4().hex[:12]}", 0
        self._adapters: set[str] = set()
        self._http = httpx2.AsyncClient(
            headers={"Content-Type": "application/json", **self._key.headers},
            follow_redirects=False,
            limits=httpx2.Limits(max_connections=settings.concurrency),
            timeout=None,
        )
        self._requests: BackgroundCoroutines[str, ServerOutput] = BackgroundCoroutines()
        self.has_source_weights = settings.frozen
        """True if the server has the weights of the policy's model. Unless frozen, a server may hold any weights."""
        server = f"engine.base_url: {settings.base_url}"
        version = self._parse_response(VersionResponse, self._request_and_wait("version"), "version").version
        if version != SUPPORTED_VLLM_VERSION and not version.startswith(f"{SUPPORTED_VLLM_VERSION}."):
            # A server that is none may echo the key anywhere.
            shown = self._key.redacted_excerpt(version)
            raise ValueError(f"{server} runs vLLM {shown}, and this engine works with {SUPPORTED_VLLM_VERSION}")
        model = self._parse_response(ModelListResponse, self._request_and_wait("v1/models"), "v1/models").data[0]
        if context > model.max_model_len:
            raise ValueError(f"{server} holds {model.max_model_len} tokens; give engine.max_context, at most as many")
        self._model = model.id
        if settings.frozen:
            return
        # A server without development mode lacks the routes for new weights, and the route for its settings, too.
        try:
            info = self._parse_response(
                ServerInfoResponse, self._request_and_wait("server_info?config_format=json"), "server_info"
            )
        except UnknownRouteError as error:
            raise ValueError(
                f"{server} takes no new weights; start it by {_SERVER_START_COMMAND}, or set frozen: true"
            ) from error
        logprobs_mode = info.vllm_config.of_model.logprobs_mode
        if logprobs_mode != "processed_logprobs":
            shown = self._key.redacted_excerpt(logprobs_mode)
            raise ValueError(f"{server} reports {shown}; start it by {_SERVER_START_COMMAND}")

    def restart_processes(self) -> bool:
        """Return False, because only its owner can restart a server."""
        return False

    def queue_request(self, request: VLLMRequest) -> None:
        """Send `request` to the server."""
        self._requests.submit(request.id, self._generate(request))

    def step(self, wait_s: float) -> list[ServerOutput]:
        """Return the server's answers that have arrived, after a wait of at most `wait_s` seconds for the first.

        Raises:
            EngineError: if the server does not answer, refuses a request, or has other weights.
        """
        return [output for _, output in self._requests.take_finished(wait_s)]

    def abort_requests(self, request_ids: Iterable[str]) -> None:
        """Cancel the requests with these `request_ids` and close their connections."""
        self._requests.cancel(request_ids)

    def overwrite_all_weights(self, tensors_or_folder: Mapping[str, Tensor] | str) -> None:
        """Overwrite all weights of the server in place, from the folder `tensors_or_folder`."""
        if self._settings.frozen:
            raise ValueError(f"engine.frozen: true, so the weights of {self._settings.base_url} stay as they are")
        self._loads += 1
        self._request_and_wait(
            "collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": tensors_or_folder}}
        )
        self._request_and_wait("update_weight_version", {"new_version": f"{self._name}/{self._loads}"})

    def load_adapter(self, adapter: LoRARequest) -> None:
        """Load `adapter` into the server from its folder, in place of the adapter with the same number."""
        # An adapter keeps its name in all versions, so that a new version replaces the old one in its slot.
        name = f"{self._name}/{adapter.lora_int_id}"
        self._request_and_wait(
            "v1/load_lora_adapter", {"lora_name": name, "lora_path": adapter.lora_path, "load_inplace": True}
        )
        self._adapters.add(name)

    def unload_adapter(self, adapter_id: int) -> None:
        """Unload the adapter with this `adapter_id` from the server."""
        name = f"{self._name}/{adapter_id}"
        self._request_and_wait("v1/unload_lora_adapter", {"lora_name": name})
        self._adapters.discard(name)

    def create_transfer_folder(self) -> tempfile.TemporaryDirectory[str]:
        """Return a temporary folder for new weights, which the server can read."""
        return tempfile.TemporaryDirectory(dir=self._settings.path, prefix=f"{self._name}-")

    def sleep(self) -> None:
        """Do nothing, because a server manages its own memory."""

    def close(self) -> None:
        """Unload the adapters of this run from the server, and close all connections."""
        self._requests.cancel()
        # Errors are ignored: a server that has ended has nothing to unload.
        with suppress(EngineError):
            for name in sorted(self._adapters):
                self._request_and_wait("v1/unload_lora_adapter", {"lora_name": name})
        self._requests.run_and_wait(self._http.aclose(), self._settings.timeout_s)

    async def _generate(self, request: VLLMRequest) -> ServerOutput:
        """Return the server's answer to `request`.

        Raises:
            EngineError: if there is no answer, or the server sampled with weights of another run.
        """
        params: dict[str, Any] = _SAMPLING_PARAMS_ADAPTER.dump_python(request.params, mode="json", exclude_none=True)
        scored = params.get("logprob_token_ids")
        if scored:
            # `logprobs` counts the reported tokens, to which the sampled token belongs.
            params |= {"logprob_token_ids": scored * 2, "logprobs": 2}
        body = {
            "model": f"{self._name}/{request.adapter.lora_int_id}" if request.adapter else self._model,
            "token_ids": list(request.prompt_ids),
            "sampling_params": params,
            # The salt is hashed, because the server accepts neither slashes nor more than 128 characters.
            "cache_salt": sha256(f"{self._name}/{request.salt}".encode()).hexdigest(),
        }
        response = self._parse_response(
            GenerateResponse, await self._fetch_response_body("inference/v1/generate", body), "generate"
        )
        output = response.to_engine_output(
            request.id, tuple(request.prompt_ids), score_all_reported_tokens=bool(scored)
        )
        spans = () if self._settings.frozen else response.choices[0].weight_versions or ()
        for version in sorted(span.version for span in spans):
            if not version.startswith(f"{self._name}/"):
                shown = self._key.redacted_excerpt(version)
                raise EngineError(
                    f"{self._settings.base_url} sampled with weights {shown}, which this run has not sent: it was "
                    "started anew, or another run uses it"
                )
        return output

    def _request_and_wait(self, route: str, body: Mapping[str, Any] | None = None) -> bytes:
        """Call `_fetch_response_body`, and block this thread until the body arrives."""
        return self._requests.run_and_wait(self._fetch_response_body(route, body))

    async def _fetch_response_body(self, route: str, body: Mapping[str, Any] | None) -> bytes:
        """Return the body of the response to a POST request with `body`, or to a GET request if `body` is None.

        Raises:
            UnknownRouteError: if the server has no such route, or no such model.
            EngineError: if the last attempt gets no answer, or the server refuses the request.
        """
        url, settings, problem = f"{self._settings.base_url}/{route}", self._settings, ""
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
                problem = f"{type(error).__name__}: {self._key.redacted_excerpt(str(error))}"
                continue
            if response.is_success:
                return response.content
            problem = f"HTTP {response.status_code}: {self._key.redacted_excerpt(response.text)}"
            if response.status_code == _NOT_FOUND_STATUS:
                raise UnknownRouteError(f"{url}: {problem}")
            if response.status_code not in _RETRIED_STATUSES:
                break
        raise EngineError(f"{url} gave no answer: {problem}")

    def _parse_response(self, response_class: type[_Response], body: bytes, route: str) -> _Response:
        """Return `body` as an object of `response_class`. `route` is the route of the request, for messages.

        Raises:
            EngineError: if `body` is no such response.
        """
        try:
            return response_class.model_validate(parse_json(body.decode()))
        except (ValueError, ValidationError) as error:
            problem = self._key.redacted_excerpt(str(error))
            raise EngineError(f"{self._settings.base_url}/{route}: an answer that cannot be read: {problem}") from error
