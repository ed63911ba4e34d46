"""Connection to one vLLM server: requests, answers and weights travel over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TypeVar

import httpx2
from pydantic import BaseModel, TypeAdapter, ValidationError
from vllm import SamplingParams

from marl.core.errors import EngineError
from marl.engines.openai.api_key import ApiKey
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
_MAX_DIGITS = 18
"""Maximum number of digits of the number of an update."""
_SERVER_START_COMMAND = (
    "VLLM_SERVER_DEV_MODE=1 python -m vllm.entrypoints.openai.api_server --model MODEL --enable-scale-out "
    "--logprobs-mode processed_logprobs"
)
"""Command that starts a server whose weights can be replaced."""
NAME_PREFIX = "marl-"
"""First characters of the names under which runs load weights."""


class UnknownRouteError(EngineError):
    """The server has no route, or no model, of the requested name."""


class ServerLostError(EngineError):
    """The server gives no answer, fails at every attempt, or has lost the weights that the run has sent."""

    def __init__(self, message: str, *, answered: bool = False) -> None:
        super().__init__(message)
        self.answered = answered
        """True if the server answered, with an error or with other weights."""


@dataclass(slots=True)
class ServedWeights:
    """Weights that a server holds, or that all servers of a pool are to hold."""

    version: str = ""
    """Unique name of the full weights, or "" if they are those with which the server started."""
    folder: str = ""
    """Folder of the full weights, if `version` is not empty."""
    adapters: dict[int, str] = field(default_factory=dict)
    """Number of an adapter -> its folder."""
    update: int = 0
    """Number of the engine's last update of weights, under which the server reports tokens sampled after it."""
    recompute_cache: bool = False
    """True if open requests recompute their keys and values with these weights."""


class VLLMServerConnection:
    """Connection to one vLLM server. Weights are passed in a folder that both can read.

    Each set of weights gets a unique name. The server returns the name with every answer, so that a restarted server,
    or weights of another run, are detected. All coroutines run in one event loop.
    """

    def __init__(self, url: str, settings: VLLMServer, http: httpx2.AsyncClient, key: ApiKey, name: str) -> None:
        """`name`: name of the run's weights, with which the names of all versions and adapters begin."""
        self.url, self._settings, self._http, self._key, self._name = url, settings, http, key, name
        self.open_requests = 0
        """Number of requests in flight."""
        self.problem = ""
        """Message of the last failure while the server is lost, or "" if the server answers."""
        self._model = ""
        self._loaded = ServedWeights()
        self._loading = asyncio.Lock()

    async def check(self, context: int) -> None:
        """Check version, context and settings of the server.

        `context` is the maximum number of tokens of a prompt and its completion.

        Raises:
            ValueError: if the server runs another version, or does not support the settings.
            EngineError: if the server does not answer.
        """
        server = f"engine.base_url: {self.url}"
        version = self._parse_response(VersionResponse, await self._fetch("version"), "version").version
        if version != SUPPORTED_VLLM_VERSION and not version.startswith(f"{SUPPORTED_VLLM_VERSION}."):
            # A server that is none may echo the key anywhere.
            shown = self._key.redacted_excerpt(version)
            raise ValueError(f"{server} runs vLLM {shown}, and this engine works with {SUPPORTED_VLLM_VERSION}")
        model = self._parse_response(ModelListResponse, await self._fetch("v1/models"), "v1/models").data[0]
        if context > model.max_model_len:
            raise ValueError(f"{server} holds {model.max_model_len} tokens; give engine.max_context, at most as many")
        self._model = model.id
        if self._settings.frozen:
            return
        # A server without development mode lacks the routes for new weights, and the route for its settings, too.
        try:
            body = await self._fetch("server_info?config_format=json")
        except UnknownRouteError as error:
            raise ValueError(
                f"{server} takes no new weights; start it by {_SERVER_START_COMMAND}, or set frozen: true"
            ) from error
        info = self._parse_response(ServerInfoResponse, body, "server_info")
        logprobs_mode = info.vllm_config.of_model.logprobs_mode
        if logprobs_mode != "processed_logprobs":
            shown = self._key.redacted_excerpt(logprobs_mode)
            raise ValueError(f"{server} reports {shown}; start it by {_SERVER_START_COMMAND}")

    def has_weights(self, wanted: ServedWeights) -> bool:
        """Return True if the server holds the weights `wanted`."""
        loaded = self._loaded
        return (loaded.version, loaded.adapters, loaded.update) == (wanted.version, wanted.adapters, wanted.update)

    def forget_weights(self) -> None:
        """Record that the server may have lost all weights that this connection has sent."""
        self._loaded = ServedWeights()

    async def load_missing(self, wanted: ServedWeights) -> None:
        """Load the full weights and adapters in `wanted` that the server lacks, and unload all other adapters.

        The server pauses meanwhile, so that each token is sampled by weights of one name.

        Raises:
            EngineError: if the server does not answer, or refuses the weights.
        """
        async with self._loading:
            if self._settings.frozen:
                await self._load_into_paused_server(wanted)
                return
            await self._fetch("pause?mode=keep&clear_cache=false", {})
            try:
                await self._load_into_paused_server(wanted)
            except ServerLostError:
                # A lost server stays paused until it has loaded the newest weights.
                raise
            except EngineError:
                await self._fetch("resume", {})
                raise
            await self._fetch("resume", {})

    async def _load_into_paused_server(self, wanted: ServedWeights) -> None:
        # If the weights are forgotten in the meantime, what is loaded here is forgotten with them.
        loaded = self._loaded
        is_new = (wanted.version, wanted.update) != (loaded.version, loaded.update)
        if wanted.version != loaded.version:
            path = {"weights_path": wanted.folder}
            await self._fetch("collective_rpc", {"method": "reload_weights", "kwargs": path})
            loaded.version = wanted.version
        for number, folder in wanted.adapters.items():
            if loaded.adapters.get(number) != folder:
                # An adapter keeps its name in all versions, so that a new version replaces the old one in its slot.
                adapter = {"lora_name": self._adapter_name(number), "lora_path": folder, "load_inplace": True}
                await self._fetch("v1/load_lora_adapter", adapter)
                loaded.adapters[number] = folder
        for number in sorted(loaded.adapters.keys() - wanted.adapters.keys()):
            await self._fetch("v1/unload_lora_adapter", {"lora_name": self._adapter_name(number)})
            del loaded.adapters[number]
        if is_new:
            await self._fetch("update_weight_version", {"new_version": f"{self._name}/{wanted.update}"})
            loaded.update = wanted.update
        if wanted.recompute_cache:
            await self._fetch("reset_prefix_cache?reset_running_requests=true", {})

    async def unload_adapters(self) -> None:
        """Unload all adapters that this connection has loaded.

        Raises:
            EngineError: if the server does not answer.
        """
        await self.load_missing(replace(self._loaded, adapters={}))

    def _is_name_of_update(self, label: str) -> bool:
        """Return True if `label` names weights that this connection has sent."""
        name, _, number = label.rpartition("/")
        return name == self._name and number.isdecimal() and len(number) <= _MAX_DIGITS

    def _adapter_name(self, number: int) -> str:
        return f"{self._name}/{number}"

    async def generate(self, request: VLLMRequest) -> ServerOutput:
        """Return the server's answer to `request`.

        Raises:
            ServerLostError: if there is no answer, or the server was restarted and has lost the run's weights.
            EngineError: if the server refuses the request, or sampled with weights of another run.
        """
        params: dict[str, Any] = _SAMPLING_PARAMS_ADAPTER.dump_python(request.params, mode="json", exclude_none=True)
        scored = params.get("logprob_token_ids")
        if scored:
            # `logprobs` counts the reported tokens, to which the sampled token belongs.
            params |= {"logprob_token_ids": scored * 2, "logprobs": 2}
        body = {
            "model": self._adapter_name(request.adapter.lora_int_id) if request.adapter else self._model,
            "token_ids": list(request.prompt_ids),
            "sampling_params": params,
            # The salt is hashed, because the server accepts neither slashes nor more than 128 characters.
            "cache_salt": sha256(f"{self._name}/{request.salt}".encode()).hexdigest(),
        }
        try:
            answer = await self._fetch("inference/v1/generate", body)
        except UnknownRouteError as error:
            if request.adapter is None:
                raise
            # A restarted server has no adapter of this run.
            raise ServerLostError(str(error), answered=True) from error
        response = self._parse_response(GenerateResponse, answer, "generate")
        output = response.to_engine_output(
            request.id, tuple(request.prompt_ids), score_all_reported_tokens=bool(scored)
        )
        spans = () if self._settings.frozen else output.outputs[0].weight_versions
        for version in sorted(span.version for span in spans):
            if not self._is_name_of_update(version):
                shown = self._key.redacted_excerpt(version)
                message = f"{self.url} sampled with weights {shown}, which this run has not sent"
                if version.startswith(NAME_PREFIX):
                    raise EngineError(f"{message}: another run or another engine uses it")
                raise ServerLostError(f"{message}: it was started anew", answered=True)
        return output

    async def _fetch(self, route: str, body: Mapping[str, Any] | None = None) -> bytes:
        """Return the body of the response to a POST request with `body`, or to a GET request if `body` is None.

        Raises:
            UnknownRouteError: if the server has no such route, or no such model.
            ServerLostError: if the last attempt gets no answer, or an answer after which others are tried.
            EngineError: if the server refuses the request.
        """
        url, settings, problem, answered = f"{self.url}/{route}", self._settings, "", False
        for attempt in range(settings.retries + 1):
            await asyncio.sleep(settings.backoff_s * (2**attempt - 1))
            try:
                async with asyncio.timeout(settings.timeout_s):
                    content = None if body is None else json.dumps(body)
                    response = await self._http.request("GET" if body is None else "POST", url, content=content)
            except TimeoutError:
                answered = False
                problem = f"none within {settings.timeout_s:g} s (engine.timeout_s)"
                continue
            except httpx2.HTTPError as error:
                answered = False
                problem = f"{type(error).__name__}: {self._key.redacted_excerpt(str(error))}"
                continue
            if response.is_success:
                return response.content
            answered = True
            problem = f"HTTP {response.status_code}: {self._key.redacted_excerpt(response.text)}"
            if response.status_code == _NOT_FOUND_STATUS:
                raise UnknownRouteError(f"{url}: {problem}")
            if response.status_code not in _RETRIED_STATUSES:
                raise EngineError(f"{url} gave no answer: {problem}")
        raise ServerLostError(f"{url} gave no answer: {problem}", answered=answered)

    def _parse_response(self, response_class: type[_Response], body: bytes, route: str) -> _Response:
        """Return `body` as an object of `response_class`. `route` is the route of the request, for messages.

        Raises:
            EngineError: if `body` is no such response.
        """
        try:
            return response_class.model_validate(parse_json(body.decode()))
        except (ValueError, ValidationError) as error:
            problem = self._key.redacted_excerpt(str(error))
            raise EngineError(f"{self.url}/{route}: an answer that cannot be read: {problem}") from error
