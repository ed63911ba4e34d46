"""HTTP server with the routes of a vLLM server that loads weights. It samples one token, without a model."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from marl.engines.vllm.installation import SUPPORTED_VLLM_VERSION

_GET: dict[str, Any] = {
    "version": {"version": SUPPORTED_VLLM_VERSION},
    "v1/models": {"data": [{"id": "base", "max_model_len": 512}]},
    "server_info": {"vllm_config": {"model_config": {"logprobs_mode": "processed_logprobs"}}},
}


class _RequestHandler(BaseHTTPRequestHandler):
    server: StandIn

    def do_GET(self) -> None:
        self._send(_GET[self.path.strip("/").partition("?")[0]])

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        answer = self.server.answer(self.path.strip("/"), body)
        # A server that dies while it samples closes the connection without an answer.
        if answer is not None:
            self._send(answer)

    def _send(self, answer: Any, status: int = 200) -> None:
        content = json.dumps(answer).encode()
        self.send_response(200 if answer else 404)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *words: Any) -> None:
        """Log nothing."""


class StandIn(ThreadingHTTPServer):
    """Server that holds its answers back until `resume`, and records the names of its weights."""

    daemon_threads, block_on_close = True, False

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _RequestHandler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.version, self.adapters = "default", dict[str, str]()
        """Name of the full weights, and name -> folder of each adapter."""
        self.received = threading.Semaphore(0)
        """Semaphore that is released when a request to sample arrives."""
        self.sampled: list[str] = []
        """Model of each answered request."""
        self._may_answer, self._is_dead = threading.Event(), False
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def resume(self) -> None:
        """Answer the requests that were held back, and all later ones at once."""
        self._may_answer.set()

    def die(self) -> None:
        """Close the port and all connections."""
        self._is_dead = True
        self._may_answer.set()
        self.shutdown()
        self.server_close()

    def answer(self, route: str, body: dict[str, Any]) -> Any:
        """Return the answer to a POST request, {} for a model that is not loaded, or None if the server has died."""
        match route:
            case "update_weight_version":
                self.version = body["new_version"]
            case "v1/load_lora_adapter":
                self.adapters[body["lora_name"]] = body["lora_path"]
            case "v1/unload_lora_adapter":
                del self.adapters[body["lora_name"]]
            case "inference/v1/generate":
                return self._sample(body["model"])
        return {"ok": True}

    def _sample(self, model: str) -> Any:
        version = self.version
        if model != "base" and model not in self.adapters:
            return {}
        self.received.release()
        self._may_answer.wait()
        if self._is_dead:
            return None
        self.sampled.append(model)
        logprobs = {"content": [{"token_id": 7, "logprob": -0.5}]}
        choice = {"token_ids": [7], "finish_reason": "length", "logprobs": logprobs}
        return {"choices": [{**choice, "weight_versions": [{"version": version}]}]}


@contextmanager
def stand_ins(count: int) -> Iterator[list[StandIn]]:
    """Yield `count` servers, and end those that are left at the end."""
    servers = [StandIn() for _ in range(count)]
    try:
        yield servers
    finally:
        for server in servers:
            server.die()
