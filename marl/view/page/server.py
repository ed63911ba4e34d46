"""HTTP server of the page: read-only, for one user on this machine.

The standard library's server suffices for a dozen read-only paths. It listens on the loopback interface only. A random
token in the printed URL becomes a cookie. Each port has a token of its own in a file that only its user can read, so
that a restarted server knows the browser's tabs. The `Host` header of every request is checked against DNS rebinding:
it must be a loopback name, with any port, so that a tunnel may lead to the server from another port. A strict
Content-Security-Policy prevents model text from running as a script or loading resources.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import stat
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from contextvars import copy_context
from hmac import compare_digest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from pydantic_core import to_json

from marl.core.errors import RunFolderError
from marl.view.page.assets import MEDIA_TYPES, read_page_asset
from marl.view.page.page_data import NotFoundError, PageApi

HOST = "127.0.0.1"
DEFAULT_PORT = 6275
"""Port of `marl view` unless another program uses it: MARL on the keys of a telephone."""
_LOOPBACK_HOST = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d{1,5})?", re.ASCII)
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
_MAX_PARAMETERS = 50
_MAX_CONNECTIONS = 64
"""Maximum number of open connections, each of which has a thread. A browser opens six."""
HEADER_S = 20.0
"""Maximum time from the opening of a connection to its first request with a valid token, in seconds."""


class PageServer(ThreadingHTTPServer):
    """Server of the page of several runs, with a thread that keeps the episode indexes current."""

    daemon_threads = True
    request_queue_size = 128  # the default of 5 would let a browser with many requests wait for a second

    def __init__(self, data: PageApi, port: int = 0) -> None:
        """Listen on `port` of the loopback interface (0: any free port).

        Raises:
            OSError: if the port is taken.
        """
        # The context is copied into new threads, because approved plug-in imports are context variables.
        self._context = copy_context()
        self._closed = threading.Event()
        self._free_connections = threading.BoundedSemaphore(_MAX_CONNECTIONS)
        self.unknown_since: dict[socket.socket, float] = {}
        """Connection without a request with a valid token so far -> time of its opening [s]."""
        self._indexer = threading.Thread(target=self._context.copy().run, args=(self._index_new_steps,), daemon=True)
        self.data = data
        super().__init__((HOST, port), _PageRequestHandler)
        self.token = page_access_token(self.server_port) if port else secrets.token_urlsafe(24)
        self.cookie = f"marl_{self.server_port}"  # browsers share cookies between all ports of a host
        self._indexer.start()

    @property
    def url(self) -> str:
        """Address of the page, including the token."""
        return f"http://{HOST}:{self.server_port}/?token={self.token}"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Handle the requests of a connection in a new thread, or close the connection if too many are open."""
        if self._free_connections.acquire(blocking=False):
            self.unknown_since[request] = time.monotonic()
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Handle the requests of a connection in this thread, with the context in which the server was created."""
        try:
            self._context.copy().run(super().process_request_thread, request, client_address)
        finally:
            self.unknown_since.pop(request, None)
            self._free_connections.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report an error in a request's thread, but not the end of a connection whose browser tab was closed."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    def service_actions(self) -> None:
        """Close connections that had no valid request in time; otherwise they could keep the page from its user."""
        for connection, opened in list(self.unknown_since.items()):
            if time.monotonic() - opened > HEADER_S:
                with suppress(OSError):  # the connection may be closed already
                    connection.shutdown(socket.SHUT_RDWR)

    def server_close(self) -> None:
        self._closed.set()
        super().server_close()
        if self._indexer.is_alive():
            self._indexer.join()

    def _index_new_steps(self) -> None:
        """Index newly recorded steps of all runs until the server is closed."""
        # `_closed` is checked after every step, because indexing a single step may take seconds.
        while not self._closed.is_set():
            self.data.add_new_runs()
            for run in self.data.runs.values():
                for step in run.index.unindexed_steps():
                    if self._closed.is_set():
                        return
                    run.index.index_step(step)
            self._closed.wait(_REFRESH_S)


def page_access_token(server_port: int) -> str:
    """Return the token of a port from the user's state folder (`$XDG_STATE_HOME`, by default `~/.local/state`).

    The file is readable for its owner alone. A missing file, or one that others could read, gets a new token.

    Raises:
        OSError: if the file cannot be written.
    """
    file = (
        Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "marl" / f"view_{server_port}.token"
    )
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(FileNotFoundError):
        status = file.lstat()
        is_private = stat.S_ISREG(status.st_mode) and not status.st_mode & 0o077 and status.st_uid == os.getuid()
        if is_private and re.fullmatch(r"[\w-]{32}", token := file.read_text(errors="replace"), re.ASCII):
            return token
        file.unlink()
    token = secrets.token_urlsafe(24)
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
        opened.write(token)
    return token


class _PageRequestHandler(BaseHTTPRequestHandler):
    """Handler of the requests on one connection to the page server."""

    server: PageServer  # type: ignore[assignment]
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "marl", ""
    timeout = 60
    disable_nagle_algorithm = True
    wbufsize = -1  # headers and body are buffered, and so sent in one packet

    def do_GET(self) -> None:
        """Answer a GET request, if it is for this machine's own address and has the token."""
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or not _LOOPBACK_HOST.fullmatch(hosts[0]):
            self._send_error_response(
                403, "this page is only for this machine's own address, as `marl view` printed it"
            )
            return
        if self.headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in self.headers:
            # A body is refused, because if unread it would be taken for the next request on this connection.
            self._send_error_response(400, "a request has no body")
            return
        try:
            url = urlsplit(self.path)
        except ValueError:
            self._send_error_response(400, "this is no address")
            return
        try:
            query = dict(parse_qsl(url.query, max_num_fields=_MAX_PARAMETERS))
        except ValueError:
            self._send_error_response(400, f"an address has at most {_MAX_PARAMETERS} parameters")
            return
        if url.path == "/" and self._matches_token(query.get("token", "")):
            # After this redirect the token is in a cookie and not in the address, which the browser's history stores.
            cookie = f"{self.server.cookie}={self.server.token}; Path=/; HttpOnly; SameSite=Strict"
            self._send_response(303, b"", _TEXT, {"Location": "/", "Set-Cookie": cookie})
        elif self._has_valid_token():
            self.server.unknown_since.pop(self.connection, None)
            self._answer(url.path, query)
        else:
            self._send_error_response(403, "open the address that `marl view` printed: it holds the token of this page")

    def _answer(self, path: str, query: Mapping[str, str]) -> None:
        """Respond with the page, one of its files, or data."""
        if path.startswith("/api/"):
            status = 200
            try:
                answer = self.server.data.answer(path.removeprefix("/api/"), query)
            except NotFoundError as error:
                status, answer = 404, {"error": str(error)}
            except (ValueError, RunFolderError) as error:
                status, answer = 400, {"error": str(error)}
            except FileNotFoundError as error:  # the run's folder was moved away meanwhile
                status, answer = 404, {"error": f"{error.filename} is gone"}
            # JSON has no NaN or infinity; `value` in words.js converts their names back.
            self._send_response(status, to_json(answer, inf_nan_mode="strings"), "application/json")
        else:
            name = "index.html" if path == "/" else path.removeprefix("/static/")
            try:
                self._send_response(
                    200, read_page_asset(name), f"{MEDIA_TYPES[name[name.rindex('.') :]]}; charset=utf-8"
                )
            except LookupError:
                self._send_error_response(404, "there is no such page")

    def _matches_token(self, token: str) -> bool:
        """Return True if `token` is the server's token."""
        # The comparison takes constant time, so that response times reveal nothing about the token.
        return compare_digest(token.encode(), self.server.token.encode())

    def _has_valid_token(self) -> bool:
        """Return True if the request's Authorization header or cookie holds the server's token."""
        scheme, _, token = self.headers.get("Authorization", "").partition(" ")
        if scheme == "Bearer" and self._matches_token(token):
            return True
        # http.cookies takes quadratic time for some headers, and the cookie's value needs no unquoting.
        cookies = [cookie.strip().partition("=") for cookie in self.headers.get("Cookie", "").split(";")]
        return any(name == self.server.cookie and self._matches_token(value) for name, _, value in cookies)

    def _send_error_response(self, status: int, reason: str) -> None:
        """Send an error status with a line of text, and close the connection."""
        self.close_connection = True
        self._send_response(status, f"{reason}\n".encode(), _TEXT)

    def _send_response(
        self, status: int, body: bytes, content_type: str, headers: Mapping[str, str] | None = None
    ) -> None:
        """Send a response with a body of type `content_type`."""
        self.send_response(status)
        sizes = {"Content-Type": content_type, "Content-Length": str(len(body))}
        sizes |= {"Connection": "close"} if self.close_connection else {}
        for name, value in {**_HEADERS, **sizes, **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse any request other than a valid GET."""
        self.close_connection = True
        refused = 405 if code == 501 else code
        self._send_response(refused, b"", _TEXT, {"Allow": "GET"} if refused == 405 else {})

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the base class calls it so)
        """Log nothing: one line per request would flood the terminal."""
