"""A server of vLLM in place of an engine in this process: requests, answers and new weights travel over HTTP."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from hashlib import sha256
from queue import Empty, Queue
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import httpx2
from pydantic import TypeAdapter, ValidationError
from torch import Tensor
from vllm import SamplingParams

from marl.engines.openai.endpoint import start_loop
from marl.engines.openai.key import Key
from marl.engines.vllm.answers import GeneratedTokens, ModelList, ServerInfo, ServerOutput, ServerVersion
from marl.engines.vllm.installation import TESTED
from marl.errors import EngineError
from marl.text import read_json

if TYPE_CHECKING:
    from vllm.lora.request import LoRARequest

    from marl.engines.vllm.core import PartRequest
    from marl.engines.vllm.server_settings import VLLMServer

_PARAMS = TypeAdapter(SamplingParams)
_RETRIED_STATUSES = (408, 425, 429, 500, 502, 503, 504)
_NOT_FOUND = 404
_START = "VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --enable-scale-out --logprobs-mode processed_logprobs"
"""Command that starts a server whose weights can be replaced."""


class UnknownRouteError(EngineError):
    """A server has nothing at an address, or knows no such model."""


class ServerCore:
    """A server of vLLM, with the methods of `Core`.

    Weights are handed over in a folder that both sides see. Each of them gets a name of its own, which the server
    repeats with every answer: one that was started anew, or given weights by somebody else, is found out.
    """

    takes_tensors = False

    def __init__(self, settings: VLLMServer, context: int) -> None:
        """`context`: most tokens of a prompt and its completion.

        Raises:
            ValueError: if the server is of another version, or cannot do what the settings want.
            EngineError: if it does not answer.
        """
        self._settings, self._key = settings, Key(settings.key())
        self._name, self._loads = f"marl-{uuid4().hex[:12]}", 0
        self._open: dict[str, Future[ServerOutput]] = {}
        self._done: Queue[str] = Queue()
        self._adapters: set[str] = set()
        self._http = httpx2.AsyncClient(
            headers={"Content-Type": "application/json", **self._key.headers},
            follow_redirects=False,
            limits=httpx2.Limits(max_connections=settings.concurrency),
            timeout=None,
        )
        self._loop = start_loop(self)
        self._model = self._check(context)

    @property
    def holds_source(self) -> bool:
        """True if its weights are those of the policy's model: a server that may be updated holds any."""
        return self._settings.frozen

    def add(self, job: PartRequest) -> None:
        """Send a request."""
        future = asyncio.run_coroutine_threadsafe(self._generate(job), self._loop)
        self._open[job.id], done = future, self._done
        future.add_done_callback(lambda _: done.put(job.id))

    def step(self, wait_s: float) -> list[ServerOutput]:
        """Return the answers that have come, after `wait_s` seconds at most.

        Raises:
            EngineError: if the server does not answer, refuses a request, or has other weights.
        """
        answers: list[ServerOutput] = []
        name = self._next(wait_s)
        while name is not None:
            # One that was cancelled is done, too, and another may have its name by now.
            if (future := self._open.get(name)) and future.done():
                del self._open[name]
                answers.append(future.result())
            name = self._next(0.0)
        return answers

    def abort(self, ids: Iterable[str]) -> None:
        """Forget requests, and close their connections."""
        for name in ids:
            if future := self._open.pop(name, None):
                future.cancel()

    def reload(self, tensors: Mapping[str, Tensor] | str) -> None:
        """Have the server overwrite all its weights in place with those in a folder."""
        if self._settings.frozen:
            raise ValueError(f"engine.frozen: true, so the weights of {self._settings.base_url} stay as they are")
        self._loads += 1
        self._call("collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": tensors}})
        self._call("update_weight_version", {"new_version": f"{self._name}/{self._loads}"})

    def load_adapter(self, adapter: LoRARequest) -> None:
        """Have the server read an adapter from its folder, in place of the one with the same number."""
        name = self._adapter_name(adapter)
        self._call("v1/load_lora_adapter", {"lora_name": name, "lora_path": adapter.lora_path, "load_inplace": True})
        self._adapters.add(name)

    def drop_adapter(self, number: int) -> None:
        """Have the server forget an adapter."""
        name = f"{self._name}/{number}"
        self._call("v1/unload_lora_adapter", {"lora_name": name})
        self._adapters.discard(name)

    def exchange(self) -> tempfile.TemporaryDirectory[str]:
        """Return a folder in which the server finds what is written there."""
        return tempfile.TemporaryDirectory(dir=self._settings.path, prefix=f"{self._name}-")

    def sleep(self) -> None:
        """Let the server be: its memory is its own."""

    def close(self) -> None:
        """Have the server forget what it was given for this run, and close all connections."""
        self.abort(list(self._open))
        with suppress(EngineError):  # a server that is gone has forgotten them
            for name in sorted(self._adapters):
                self._call("v1/unload_lora_adapter", {"lora_name": name})
        asyncio.run_coroutine_threadsafe(self._http.aclose(), self._loop).result(self._settings.timeout_s)

    def _check(self, context: int) -> str:
        """Return the name of the server's model, if it is of use."""
        settings = self._settings
        where = f"engine.base_url: {settings.base_url}"
        version = self._read(ServerVersion, self._call("version"), "version").version
        if version != TESTED and not version.startswith(f"{TESTED}."):
            raise ValueError(f"{where} runs vLLM {version}, and this engine works with {TESTED}")
        card = self._read(ModelList, self._call("v1/models"), "v1/models").data[0]
        if context > card.max_model_len:
            raise ValueError(f"{where} holds {card.max_model_len} tokens; give engine.max_context, at most as many")
        if not settings.frozen:
            try:
                info = self._read(ServerInfo, self._call("server_info?config_format=json"), "server_info")
            except UnknownRouteError as error:
                raise ValueError(f"{where} takes no new weights; start it by {_START}, or set frozen: true") from error
            if info.logprobs_mode != "processed_logprobs":
                raise ValueError(f"{where} reports {info.logprobs_mode}; start it by {_START}")
        return card.id

    def _adapter_name(self, adapter: LoRARequest) -> str:
        # The same for all versions, which replace each other in one place; each has a folder of its own.
        return f"{self._name}/{adapter.lora_int_id}"

    def _next(self, wait_s: float) -> str | None:
        try:
            return self._done.get(block=wait_s > 0, timeout=wait_s or None)
        except Empty:
            return None

    async def _generate(self, job: PartRequest) -> ServerOutput:
        params: dict[str, Any] = _PARAMS.dump_python(job.params, mode="json", exclude_none=True)
        if scored := params.get("logprob_token_ids"):
            # The server shows as many as are asked for, the sampled one among them.
            params |= {"logprob_token_ids": scored * 2, "logprobs": 2}
        body = {
            "model": self._adapter_name(job.adapter) if job.adapter else self._model,
            "token_ids": list(job.prompt_ids),
            "sampling_params": params,
            # It may hold neither slashes nor more than 128 letters.
            "cache_salt": sha256(f"{self._name}/{job.salt}".encode()).hexdigest(),
        }
        answer = self._read(GeneratedTokens, await self._fetch("inference/v1/generate", body), "generate")
        output = answer.output(job.id, tuple(job.prompt_ids), all_scores=bool(scored))
        strange = {version for version in answer.versions if not version.startswith(f"{self._name}/")}
        if strange and not self._settings.frozen:
            raise EngineError(
                f"{self._settings.base_url} sampled with weights {min(strange)!r}, which this run has not sent: it was "
                "started anew, or another run uses it"
            )
        return output

    def _call(self, path: str, body: Mapping[str, Any] | None = None) -> bytes:
        """Return the answer to one request, which is waited for.

        Raises:
            UnknownRouteError: if the server has no such route, or knows no such model.
            EngineError: if there is no answer, or it refuses.
        """
        return asyncio.run_coroutine_threadsafe(self._fetch(path, body), self._loop).result()

    async def _fetch(self, path: str, body: Mapping[str, Any] | None) -> bytes:
        url, settings, problem = f"{self._settings.base_url}/{path}", self._settings, ""
        for attempt in range(settings.retries + 1):
            await asyncio.sleep(settings.backoff_s * (2**attempt - 1))
            try:
                async with asyncio.timeout(settings.timeout_s):
                    sent = None if body is None else json.dumps(body)
                    response = await self._http.request("GET" if body is None else "POST", url, content=sent)
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

    def _read(self, kind: type[Any], body: bytes, path: str) -> Any:
        try:
            return kind.model_validate(read_json(body.decode()))
        except (ValueError, ValidationError) as error:
            problem = self._key.excerpt(str(error))
            raise EngineError(f"{self._settings.base_url}/{path}: an answer that cannot be read: {problem}") from error
