"""OpenAI-compatible endpoint on loopback that misbehaves on request."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class RequestHandler(BaseHTTPRequestHandler):
    """One connection."""

    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.act(body, dict(self.headers))(self)

    def send(self, body: bytes, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"content-length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words: Any) -> None:
        """Log nothing."""


Act = Callable[[RequestHandler], None]


class Server(ThreadingHTTPServer):
    """Server that performs one act per request; the last one again and again."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 256  # with 5, connections of many requests at once are reset, and may count as billed

    def __init__(self, acts: Sequence[Act]) -> None:
        super().__init__(("127.0.0.1", 0), RequestHandler)
        self._acts = list(acts)
        self._lock = threading.Lock()
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.over = threading.Event()
        """Ends the acts that pretend to be slow."""
        self.left = threading.Event()
        """A client closed its connection while it was kept waiting."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def act(self, body: dict[str, Any], headers: dict[str, str]) -> Act:
        with self._lock:
            self.bodies.append(body)
            self.headers.append({name.lower(): value for name, value in headers.items()})
            return self._acts.pop(0) if len(self._acts) > 1 else self._acts[0]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that leave."""


@contextmanager
def serving(*acts: Act) -> Iterator[Server]:
    with Server(acts) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.over.set()
            server.shutdown()


def chat(content: Any = "hello", finish: Any = "stop", usage: Any = (3, 2), **message: Any) -> bytes:
    """Return the body of a response."""
    choice = {"index": 0, "message": {"role": "assistant", "content": content, **message}, "finish_reason": finish}
    used = {"usage": {"prompt_tokens": usage[0], "completion_tokens": usage[1]}} if usage else {}
    return json.dumps({"object": "chat.completion", "choices": [choice], **used}).encode()


def replies_with_text(content: Any = "hello", **more: Any) -> Act:
    return lambda visit: visit.send(chat(content, **more))


def replies_with_bytes(body: bytes, status: int = 200, **headers: str) -> Act:
    return lambda visit: visit.send(body, status, **headers)


def never_replies(visit: RequestHandler) -> None:
    """Read the request and send nothing."""
    visit.connection.settimeout(0.02)
    while not visit.server.over.is_set():
        try:
            if not visit.connection.recv(1):
                visit.server.left.set()
                return
        except TimeoutError:
            continue


def trickles(visit: RequestHandler) -> None:
    """Send a byte now and then: no pause is long, and the body never ends."""
    visit.send_response(200)
    visit.send_header("content-length", "1000000")
    visit.end_headers()
    while not visit.server.over.wait(0.02):
        visit.wfile.write(b" ")


def drops_connection(visit: RequestHandler) -> None:
    """Send half a response, then close the connection."""
    body = chat()
    visit.send_response(200)
    visit.send_header("content-length", str(len(body)))
    visit.end_headers()
    visit.wfile.write(body[: len(body) // 2])


def resets(visit: RequestHandler) -> None:
    """Reset the connection."""
    visit.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    visit.connection.close()


def floods(visit: RequestHandler) -> None:
    """Send a response without end."""
    visit.send_response(200)
    visit.end_headers()
    while not visit.server.over.is_set():
        visit.wfile.write(b" " * 2**20)
