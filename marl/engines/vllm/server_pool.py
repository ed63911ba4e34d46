"""Several vLLM servers as an alternative to an engine in this process."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
import warnings
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import httpx2
from torch import Tensor
from vllm.lora.request import LoRARequest

from marl.core.errors import EngineError, UserNotice
from marl.engines.background_requests import BackgroundCoroutines
from marl.engines.openai.api_key import ApiKey, api_key_from_environment
from marl.engines.vllm.core import VLLMRequest
from marl.engines.vllm.server import NAME_PREFIX, ServedWeights, ServerLostError, VLLMServerConnection
from marl.engines.vllm.server_responses import ServerOutput

if TYPE_CHECKING:
    # Imported for type checkers only: `server_settings` imports this module, so a second import would be circular.
    from marl.engines.vllm.server_settings import VLLMServer

_POLL_S = 0.2
"""Pause between two looks for a server that answers, in seconds."""
_MAX_LOSSES = 3
"""Number of times that a request may lose each server. A request that ends its server is not repeated for ever."""
_RECOVERY_S = 1.0
"""Pause between two attempts to reach a lost server, in seconds."""


class VLLMServerPool:
    """Connections to one or more vLLM servers with equal weights, with the methods of `LocalVLLM`.

    A request goes to the server with the fewest open requests. If a server is lost, other servers answer its requests.
    A lost server that answers again gets the newest weights before it gets requests. State changes in the event loop of
    the requests alone.
    """

    accepts_tensors = False

    def __init__(self, settings: VLLMServer, context: int) -> None:
        """Connect to all servers of `settings`.

        `context` is the maximum number of tokens of a prompt and its completion.

        Raises:
            ValueError: if a server runs another version, or does not support the settings.
            EngineError: if a server does not answer.
        """
        self._settings, self._context = settings, context
        self._name, self._loads = f"{NAME_PREFIX}{uuid4().hex[:12]}", 0
        key = ApiKey(api_key_from_environment(settings.key_env))
        self._http = httpx2.AsyncClient(
            headers={"Content-Type": "application/json", **key.headers},
            follow_redirects=False,
            limits=httpx2.Limits(max_connections=settings.concurrency),
            timeout=None,
        )
        self._requests: BackgroundCoroutines[str, ServerOutput] = BackgroundCoroutines()
        self.has_source_weights = settings.frozen
        """True if the servers have the weights of the policy's model. Unless frozen, servers may hold any weights."""
        self._update, self._recompute_next = 0, False
        self.discards_weights = self.lacks_weights = False
        """False: weights stay on a server."""
        self._wanted = ServedWeights()
        """Weights that every server is to hold."""
        self._folder = self.create_transfer_folder()
        """Folder with the newest full weights, for servers that are restarted."""
        self._servers = [VLLMServerConnection(url, settings, self._http, key, self._name) for url in settings.addresses]
        self._recoveries: set[asyncio.Task[None]] = set()
        self._notes: list[str] = []
        """Messages about servers that were lost or are there again."""
        self._requests.run_and_wait(self._check_all())

    def restart_processes(self) -> bool:
        """Return False, because only its owner can restart a server."""
        return False

    def queue_request(self, request: VLLMRequest) -> None:
        """Send `request` to the server with the fewest open requests."""
        self._requests.submit(request.id, self._generate(request))

    def step(self, wait_s: float) -> list[ServerOutput]:
        """Return the servers' answers that have arrived, after a wait of at most `wait_s` seconds for the first.

        Raises:
            EngineError: if no server answers for `engine.restart_s`, or a server refuses a request or has weights of
                another run.
        """
        notes, self._notes = self._notes, []
        for note in notes:
            warnings.warn(note, UserNotice, stacklevel=2)
        return [output for _, output in self._requests.take_finished(wait_s)]

    def abort_requests(self, request_ids: Iterable[str]) -> None:
        """Cancel the requests with these `request_ids` and close their connections."""
        self._requests.cancel(request_ids)

    def announce_update(self, number: int, *, recompute_cache: bool) -> None:
        """Give the next update of the weights a number, under which `updates_met_by` reports it.

        `recompute_cache`: True if open requests will continue with the new weights, so that `engine.cache_at_update`
        applies to their keys and values.
        """
        self._update = number
        self._recompute_next = recompute_cache and self._settings.cache_at_update == "recompute"

    def updates_met_by(self, output: ServerOutput) -> list[tuple[int, int]]:
        """Return (number of the last update of weights, index of the first token sampled after it), in order.

        The indices are those of the answer's tokens, from 0. Frozen servers report no updates.
        """
        spans = () if self._settings.frozen else output.outputs[0].weight_versions
        return [(int(span.version.rpartition("/")[2]), span.start) for span in spans]

    def overwrite_all_weights(self, tensors_or_folder: Mapping[str, Tensor] | str) -> None:
        """Overwrite all weights of the servers in place, from the files in the folder `tensors_or_folder`.

        The files move to a folder of this pool, from which servers that are restarted later read them.
        """
        if self._settings.frozen:
            servers = ", ".join(self._settings.addresses)
            raise ValueError(f"engine.frozen: true, so the weights of {servers} stay as they are")
        for file in Path(str(tensors_or_folder)).iterdir():
            os.replace(file, Path(self._folder.name) / file.name)
        self._loads += 1
        version = f"{self._name}/{self._loads}"
        self._change_weights(version=version, folder=self._folder.name)

    def load_adapter(self, adapter: LoRARequest) -> None:
        """Load `adapter` into the servers from its folder, in place of the adapter with the same number."""
        adapters = {**self._wanted.adapters, adapter.lora_int_id: adapter.lora_path}
        self._change_weights(adapters=adapters)

    def unload_adapter(self, adapter_id: int) -> None:
        """Unload the adapter with this `adapter_id` from the servers."""
        adapters = {number: folder for number, folder in self._wanted.adapters.items() if number != adapter_id}
        self._change_weights(adapters=adapters)

    def create_transfer_folder(self) -> tempfile.TemporaryDirectory[str]:
        """Return a temporary folder for new weights, which the servers can read."""
        return tempfile.TemporaryDirectory(dir=self._settings.path, prefix=f"{self._name}-")

    def sleep(self) -> None:
        """Do nothing, because a server manages its own memory."""

    def close(self) -> None:
        """Unload the adapters of this run from the servers, and close all connections."""
        self._requests.cancel()
        self._requests.run_and_wait(self._close())
        self._folder.cleanup()

    def _change_weights(self, **changes: Any) -> None:
        """Load the wanted weights, with `changes`, into all servers that answer. Lost servers load them later.

        Raises:
            EngineError: if a server refuses the weights.
        """
        wanted = replace(self._wanted, update=self._update, recompute_cache=self._recompute_next, **changes)
        self._recompute_next = False
        self._requests.run_and_wait(self._load_everywhere(wanted))

    async def _load_everywhere(self, wanted: ServedWeights) -> None:
        self._wanted = wanted
        servers = [server for server in self._servers if not server.problem]
        results = await asyncio.gather(*[server.load_missing(wanted) for server in servers], return_exceptions=True)
        refusals: list[BaseException] = []
        for server, result in zip(servers, results, strict=True):
            if isinstance(result, ServerLostError) and not result.answered:
                self._lose(server, result)
            elif isinstance(result, BaseException):
                server.forget_weights()
                refusals.append(result)
        if refusals:
            raise refusals[0]

    async def _check_all(self) -> None:
        await asyncio.gather(*[server.check(self._context) for server in self._servers])

    async def _generate(self, request: VLLMRequest) -> ServerOutput:
        """Return the answer of a server to `request`. If the server is lost, another one is asked.

        Raises:
            EngineError: as `step`, or if more servers are lost to the request than `_MAX_LOSSES` allows.
        """
        for losses_left in reversed(range(_MAX_LOSSES * len(self._servers))):
            server = await self._least_busy_server()
            server.open_requests += 1
            try:
                return await server.generate(request)
            except ServerLostError as error:
                self._lose(server, error)
                if not losses_left:
                    raise
            finally:
                server.open_requests -= 1
        raise AssertionError("a pool has at least one server")

    async def _least_busy_server(self) -> VLLMServerConnection:
        """Return the server with the fewest open requests, after a wait of at most `engine.restart_s` for any.

        Raises:
            EngineError: if all servers are lost, and none answers within this time.
        """
        deadline = time.monotonic() + self._settings.restart_s
        while True:
            servers = [server for server in self._servers if not server.problem]
            if servers:
                return min(servers, key=lambda server: server.open_requests)
            if time.monotonic() >= deadline:
                raise EngineError("; ".join(server.problem for server in self._servers))
            await asyncio.sleep(_POLL_S)

    def _lose(self, server: VLLMServerConnection, error: ServerLostError) -> None:
        """Give no more requests to `server`, until it answers and has the newest weights."""
        if server.problem:
            return
        server.problem = str(error)
        server.forget_weights()
        self._notes.append(f"{error}; other servers answer its requests until it is there again")
        task = asyncio.create_task(self._recover(server))
        self._recoveries.add(task)
        task.add_done_callback(self._recoveries.discard)

    async def _recover(self, server: VLLMServerConnection) -> None:
        """Wait until `server` answers, and load the newest weights into it."""
        while server.problem:
            try:
                await server.check(self._context)
                await server.load_missing(self._wanted)
            except (EngineError, ValueError) as error:
                server.problem = str(error)
                server.forget_weights()
            else:
                # An update may have come while the server loaded the weights before it.
                if server.has_weights(self._wanted):
                    server.problem = ""
                    self._notes.append(f"{server.url} is there again")
                continue
            await asyncio.sleep(_RECOVERY_S)

    async def _close(self) -> None:
        for task in list(self._recoveries):
            task.cancel()
        # Errors are ignored: a server that has ended has nothing to unload.
        for server in self._servers:
            with suppress(EngineError):
                if not server.problem:
                    await server.unload_adapters()
        await self._http.aclose()
