"""HTTP server of the page: read-only, for one user on this machine.

The standard library's server suffices for a dozen read-only paths. It listens on the loopback interface only. A random
token in the printed URL becomes a cookie. The `Host` header of every request is checked against DNS rebinding. A strict
Content-Security-Policy prevents model text from running as a script or loading resources.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Mapping
from contextvars import copy_context
from hmac import compare_digest
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from pydantic_core import to_json

from marl.core.errors import FolderError
from marl.view.page.assets import media_type, read_asset
from marl.view.page.page_data import NotFoundError, PageApi

HOST = "127.0.0.1"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_REFRESH_S = 2.0
"""Interval between two checks for newly recorded steps [s]."""
_TEXT = "text/plain; charset=utf-8"


class PageServer(ThreadingHTTPServer):
    """Server of the page of several runs, with a thread that keeps the episode indexes current."""

    daemon_threads = True

    def __init__(self, data: PageApi, port: int = 0) -> None:
        """Listen on `port` of the loopback interface (0: any free port).

        Raises:
            OSError: if the port is taken.
        """
        # New threads start with an empty context, but plug-in imports that the user approved are context variables.
        self._context = copy_context()
        self._closed = threading.Event()
        self._indexer = threading.Thread(target=self._context.copy().run, args=(self._keep_indexing,), daemon=True)
        self.data = data
        super().__init__((HOST, port), _Handler)
        self.token = secrets.token_urlsafe(24)
        self.cookie = f"marl_{self.server_port}"  # browsers share cookies between all ports of a host
        self.hosts = frozenset(f"{name}:{self.server_port}" for name in (HOST, "localhost"))
        self._indexer.start()

    @property
    def url(self) -> str:
        """Address of the page, including the token."""
        return f"http://{HOST}:{self.server_port}/?token={self.token}"

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        self._context.copy().run(super().process_request_thread, request, client_address)

    def server_close(self) -> None:
        self._closed.set()
        super().server_close()
        if self._indexer.is_alive():
            self._indexer.join()

    def _keep_indexing(self) -> None:
        # `_closed` is checked per step, because one step may take seconds to index.
        while not self._closed.is_set():
            for run in self.data.runs.values():
                for step in run.index.unindexed_steps():
                    if self._closed.is_set():
                        return
                    run.index.add(step)
            self._closed.wait(_REFRESH_S)


class _Handler(BaseHTTPRequestHandler):
    server: PageServer  # type: ignore[assignment]
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "marl", ""
    timeout = 60
    disable_nagle_algorithm = True
    wbufsize = -1  # buffers headers and body into one packet

    def do_GET(self) -> None:
        if self.headers.get("Host") not in self.server.hosts:
            self._refuse(403, "this page is only for the address that `marl view` printed")
            return
        url = urlsplit(self.path)
        query = dict(parse_qsl(url.query, max_num_fields=50))
        if url.path == "/" and self._is_token(query.get("token", "")):
            self._enter()
        elif not self._is_known():
            self._refuse(403, "open the address that `marl view` printed: it holds the token of this page")
        elif url.path.startswith("/api/"):
            self._answer(url.path.removeprefix("/api/"), query)
        else:
            self._send_file("index.html" if url.path == "/" else url.path.removeprefix("/static/"))

    def _is_token(self, token: str) -> bool:
        # Constant time, so that response times reveal nothing about the token.
        return compare_digest(token.encode(), self.server.token.encode())

    def _is_known(self) -> bool:
        scheme, _, token = self.headers.get("Authorization", "").partition(" ")
        if scheme == "Bearer" and self._is_token(token):
            return True
        try:
            cookie = SimpleCookie(self.headers.get("Cookie", "")).get(self.server.cookie)
        except CookieError:
            return False
        return cookie is not None and self._is_token(cookie.value)

    def _enter(self) -> None:
        """Move the token from the address to a cookie, so that the browser's history does not store it."""
        cookie = f"{self.server.cookie}={self.server.token}; Path=/; HttpOnly; SameSite=Strict"
        self._send(303, b"", _TEXT, {"Location": "/", "Set-Cookie": cookie})

    def _answer(self, path: str, query: Mapping[str, str]) -> None:
        try:
            answer = self.server.data.answer(path, query)
        except NotFoundError as error:
            self._fail(404, error)
        except (ValueError, FolderError) as error:
            self._fail(400, error)
        else:
            # JSON has no NaN or infinity; `value` in words.js converts their names back.
            self._send(200, to_json(answer, inf_nan_mode="strings"), "application/json")

    def _fail(self, status: int, error: Exception) -> None:
        self._send(status, to_json({"error": str(error)}), "application/json")

    def _send_file(self, name: str) -> None:
        try:
            self._send(200, read_asset(name), media_type(name))
        except LookupError:
            self._refuse(404, "there is no such page")

    def _refuse(self, status: int, reason: str) -> None:
        self._send(status, f"{reason}\n".encode(), _TEXT)

    def _send(self, status: int, body: bytes, kind: str, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {
            **_HEADERS,
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            **(headers or {}),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse any request other than a valid GET."""
        self.close_connection = True
        refused = 405 if code == 501 else code
        self._send(refused, b"", _TEXT, {"Connection": "close", **({"Allow": "GET"} if refused == 405 else {})})

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the base class calls it so)
        """Log nothing: one line per request would flood the terminal."""
