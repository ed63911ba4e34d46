"""Twenty attacks on the gateway while a client of another attempt is served: each is refused, the client never is."""

from __future__ import annotations

import gzip
import json
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from typing import Any

import pytest

from marl.gateway.server import Gateway, generate_session_keys
from marl.gateway.sessions import AnsweringAgent
from marl.protocols import ProgramModelCall
from tests.gateway.conftest import AnsweredGateway

CHAT = "/v1/chat/completions"
CALL = {"model": "solver", "messages": [{"role": "user", "content": "hello"}]}
GIGABYTE = 1 << 30


class ServedClient:
    """Client of its own attempt, which asks without a pause and notes every answer and how long it took."""

    def __init__(self, gateway: Gateway, key: str) -> None:
        self._gateway, self._key = gateway, key
        self._ended = threading.Event()
        self.statuses: list[int] = []
        self.slowest_s = 0.0
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()

    def _ask(self) -> None:
        connection = HTTPConnection("127.0.0.1", self._gateway.port, timeout=30)
        while not self._ended.wait(0.005):
            begin_s = time.monotonic()
            connection.request("POST", CHAT, json.dumps(CALL), {"Authorization": f"Bearer {self._key}"})
            response = connection.getresponse()
            response.read()
            self.statuses.append(response.status)
            self.slowest_s = max(self.slowest_s, time.monotonic() - begin_s)

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()


class Attacker:
    """Sender of raw bytes with the key of an attempt of its own, which has ended."""

    def __init__(self, served: AnsweredGateway, key: str) -> None:
        self._port, self.key = served.gateway.port, key
        self.victim_key = served.key

    def send(self, *pieces: bytes) -> int:
        """Status of the response to these bytes, or 0 if the connection is closed without one."""
        with socket.create_connection(("127.0.0.1", self._port), timeout=20) as stream:
            received = b""
            try:
                for piece in pieces:
                    stream.sendall(piece)
                received = stream.recv(4096)
            except (BrokenPipeError, ConnectionResetError):
                return 0
        return int(received.split()[1]) if received.startswith(b"HTTP/") else 0

    def head(self, *lines: str, target: str = CHAT, method: str = "POST", host: str = "", key: str = "") -> bytes:
        """Head of a request. By default it has the key of the attempt that is served."""
        host = host or f"127.0.0.1:{self._port}"
        head = [f"{method} {target} HTTP/1.1", f"Host: {host}", f"Authorization: Bearer {key or self.victim_key}"]
        return "\r\n".join([*head, *lines, "", ""]).encode()

    def post(self, body: Any, *lines: str, **head: str) -> int:
        """Status of the response to one well-formed request."""
        text = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.send(self.head(f"Content-Length: {len(text)}", *lines, **head), text)


MEBIBYTE = b" " * (1 << 20)
CHUNK = b"100000\r\n" + MEBIBYTE + b"\r\n"
OTHERS_RESPONSE = {"model": "solver", "input": "x", "previous_response_id": "resp-1"}
OTHERS_TURN = {"turn": "chatcmpl-99999", "name": "brief", "value": 1, "key": "k"}
ATTACKS: dict[str, tuple[set[int], Callable[[Attacker], int]]] = {
    "key of an ended attempt": ({409}, lambda by: by.post(CALL, key=by.key)),
    "guessed key": ({401}, lambda by: by.post(CALL, key="marl-" + "0" * 32)),
    "no key": ({401}, lambda by: by.post(CALL, key=" ")),
    "foreign host": ({403}, lambda by: by.post(CALL, host="evil.example")),
    "host that begins like ours": ({403}, lambda by: by.post(CALL, host="127.0.0.1.evil.example")),
    "foreign absolute address": (
        {403, 404},
        lambda by: by.post(CALL, target=f"http://evil.example{CHAT}", host="evil"),
    ),
    "endless header": ({0, 400}, lambda by: by.send(by.head()[:-2] + b"X: ", *[b"x" * 65536] * 64)),
    "endlessly many headers": ({0, 400}, lambda by: by.send(by.head()[:-2], *[b"X-A: x\r\n" * 9999] * 64)),
    "endless request line": ({0, 400, 414}, lambda by: by.send(b"POST /" + b"a" * (1 << 20))),
    "body of a gigabyte": ({0, 413}, lambda by: by.send(by.head(f"Content-Length: {GIGABYTE}"), *[MEBIBYTE] * 64)),
    "chunks of a gigabyte": ({0, 413}, lambda by: by.send(by.head("Transfer-Encoding: chunked"), *[CHUNK] * 1024)),
    "gigabyte behind gzip": (
        {0, 400, 413},
        lambda by: by.post(gzip.compress(b" " * (GIGABYTE >> 2), 9) * 4, "Content-Encoding: gzip"),
    ),
    "two lengths": (
        {400},
        lambda by: by.send(by.head("Content-Length: 2", "Transfer-Encoding: chunked"), b"0\r\n\r\n"),
    ),
    "negative length": ({0, 400}, lambda by: by.send(by.head("Content-Length: -1"), b"{}")),
    "path out of the folder": ({404}, lambda by: by.post(CALL, target="/v1/../../etc/passwd")),
    "other method": ({405}, lambda by: by.post(b"", method="TRACE")),
    "deeply nested JSON": ({400}, lambda by: by.post(b"[" * 100_000 + b"]" * 100_000)),
    "number without end": ({400}, lambda by: by.post(b'{"model": ' + b"9" * 1_000_000 + b"}")),
    "response of another attempt": ({404}, lambda by: by.post(OTHERS_RESPONSE, target="/v1/responses")),
    "reward for a turn of another attempt": (
        {404},
        lambda by: by.post(OTHERS_TURN, target="/v1/marl/rewards", method="PUT"),
    ),
}


@pytest.fixture
def attacked(served: AnsweredGateway) -> Iterator[tuple[Attacker, ServedClient]]:
    gateway, key, ended = served.gateway, next(generate_session_keys()), next(generate_session_keys())
    served.run(lambda: gateway.begin_session(ended, 9, {"solver": AnsweringAgent("solver", {})}))
    served.end(ended)
    sessions = {7: served.session}
    sessions[8] = served.run(lambda: gateway.begin_session(key, 8, {"solver": AnsweringAgent("solver", {})}))
    answer = served._answer

    def answer_of_its_session(call: ProgramModelCall) -> None:
        served.session = sessions[call.parent]
        answer(call)

    gateway._emit = answer_of_its_session
    for session in sessions.values():
        session.emit = answer_of_its_session
    client = ServedClient(gateway, key)
    yield Attacker(served, ended), client
    client.stop()


@pytest.mark.slow
def test_twenty_attacks_are_refused_while_another_client_is_served(
    attacked: tuple[Attacker, ServedClient], served: AnsweredGateway
) -> None:
    assert len(ATTACKS) == 20
    attacker, client = attacked
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for name, (statuses, attack) in ATTACKS.items():
        answered = len(client.statuses)
        assert attack(attacker) in statuses, name
        end_s = time.monotonic() + 20
        while len(client.statuses) < answered + 2 and time.monotonic() < end_s:
            time.sleep(0.005)
        assert len(client.statuses) >= answered + 2, name
    client.stop()
    assert set(client.statuses) == {200}
    assert all(call.parent == 8 for call in served.calls)
    # The attacks send bodies of 3 GiB together, one of them packed.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < 512 << 10
