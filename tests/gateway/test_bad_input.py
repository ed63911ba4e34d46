"""Requests that the gateway refuses, each with a message that names the fault; other clients stay served."""

from __future__ import annotations

import http.client
import json
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from marl.scenario.trust import external_accesses
from tests.gateway.conftest import AnsweredGateway

CHAT = "/v1/chat/completions"
HELLO = {"model": "solver", "messages": [{"role": "user", "content": "hello"}]}


def send(
    served: AnsweredGateway, body: Any, path: str = CHAT, method: str = "POST", **headers: str
) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Status, body and headers of the response to one request."""
    connection = http.client.HTTPConnection("127.0.0.1", served.gateway.port, timeout=10)
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection.request(method, path, text, {"Authorization": f"Bearer {served.key}", **headers})
    response = connection.getresponse()
    raw = response.read()
    return response.status, json.loads(raw) if raw.startswith(b"{") else {}, dict(response.headers)


def with_part(part: dict[str, Any]) -> dict[str, Any]:
    return {**HELLO, "messages": [{"role": "user", "content": [part]}]}


def with_call_arguments(arguments: str) -> dict[str, Any]:
    call = {"id": "a", "type": "function", "function": {"name": "add", "arguments": arguments}}
    return {**HELLO, "messages": [{"role": "assistant", "content": None, "tool_calls": [call]}]}


@pytest.mark.parametrize(
    ("body", "path", "status", "message"),
    [
        (HELLO, "/agents/critic/v1/chat/completions", 404, "agents: planner, solver"),
        ({**HELLO, "model": "gpt-5"}, CHAT, 404, "no agent 'gpt-5' here"),
        (
            with_part({"type": "image_url", "image_url": {"url": "x"}}),
            CHAT,
            400,
            "messages.0.content.0.type: 'image_url'",
        ),
        ({**HELLO, "tools": [{"type": "web_search"}]}, CHAT, 400, "tools.0"),
        (with_part({"type": "input_audio", "input_audio": {}}), CHAT, 400, "messages.0.content.0.type: 'input_audio'"),
        (
            {"model": "solver", "input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "/v1/responses",
            400,
            "input.0.content.0.type: 'input_image'",
        ),
        (with_part({"type": "image", "source": {}}), "/v1/messages", 400, "messages.0.content.0.type: 'image'"),
        (
            {**HELLO, "tools": [{"type": "web_search_20250305", "name": "web_search"}]},
            "/v1/messages",
            400,
            "tools.0.input_schema: Field required",
        ),
        (with_call_arguments("[1]"), CHAT, 400, "messages.0.tool_calls.0.function.arguments: must be a JSON object"),
        (with_call_arguments("{"), CHAT, 400, "messages.0.tool_calls.0.function.arguments: not valid JSON"),
        ({**HELLO, "n": 9}, CHAT, 400, "n: Input should be less than or equal to 8"),
        ({**HELLO, "messages": []}, CHAT, 400, "messages: List should have at least 1 item"),
        ({"model": "solver"}, CHAT, 400, "messages: Field required"),
        ({**HELLO, "messages": [{"role": "oracle", "content": "x"}]}, CHAT, 400, "messages.0.role: 'oracle'"),
        ({**HELLO, "temperature": -1}, CHAT, 400, "temperature"),
        ({**HELLO, "max_tokens": 0}, CHAT, 400, "max_tokens"),
        ({**HELLO, "top_p": 0}, CHAT, 400, "top_p"),
        ({**HELLO, "response_format": {"type": "grammar"}}, CHAT, 400, "response_format.type"),
        ({**HELLO, "response_format": {"type": "json_schema"}}, CHAT, 400, "response_format: Value error, the type"),
        ({"model": "solver", "input": "x", "text": {"format": {"type": "xml"}}}, "/v1/responses", 400, "text.format"),
        ({"model": "solver", "input": "x", "tools": [{"type": "web_search"}]}, "/v1/responses", 400, "tools.0.type"),
        ({"model": "solver", "input": "x", "previous_response_id": "resp-99"}, "/v1/responses", 404, "resp-99"),
        ({"model": "solver", "input": []}, "/v1/responses", 400, "input"),
        ({"model": "solver", "prompt": ["a", "b"]}, "/v1/completions", 400, "prompt"),
        ([HELLO], CHAT, 400, "the body must be a JSON object"),
        (b"{", CHAT, 400, "not valid JSON"),
        (b'{"model": NaN}', CHAT, 400, "not valid JSON"),
        (b"[" * 5000 + b"]" * 5000, CHAT, 400, "nested deeper"),
        (b"\xff\xfe", CHAT, 400, "not valid JSON"),
    ],
)
def test_a_wrong_request_is_refused_by_a_message_that_names_its_fault(
    served: AnsweredGateway, body: Any, path: str, status: int, message: str
) -> None:
    answered, fields, _ = send(served, body, path)
    assert answered == status
    assert message in fields["error"]["message"]
    assert served.calls == []


@pytest.mark.parametrize(
    "request_text",
    [
        "GET /v1/mod\0els HTTP/1.1\r\nHost: HOST\r\nAuthorization: Bearer KEY\r\n\r\n",
        "GET /v1/models HTTP/1.1\r\nHost: HOST\r\nAuthorization: Bearer KEY\0\r\n\r\n",
        "GET http://[ HTTP/1.1\r\nHost: HOST\r\nAuthorization: Bearer KEY\r\n\r\n",
        "POST PATH HTTP/1.1\r\nHost: HOST\r\nAuthorization: Bearer KEY\r\nContent-Length: 5\r\n"
        "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /v1/models HTTP/1.1\r\n\r\n",
        "POST PATH HTTP/1.1\r\nHost: HOST\r\nAuthorization: Bearer KEY\r\nContent-Encoding: gzip\r\n"
        "Content-Length: 5\r\n\r\nabcde",
    ],
    ids=["path", "header", "address", "two_lengths", "no_gzip"],
)
def test_what_is_no_http_is_refused_and_not_logged_with_the_key_in_its_lines(
    request_text: str, served: AnsweredGateway, caplog: pytest.LogCaptureFixture
) -> None:
    host = f"127.0.0.1:{served.gateway.port}"
    text = request_text.replace("HOST", host).replace("KEY", served.key).replace("PATH", CHAT)
    with socket.create_connection(("127.0.0.1", served.gateway.port), timeout=10) as connection:
        connection.sendall(text.encode())
        answer = connection.recv(65536)
    assert answer.partition(b" ")[2].startswith(b"400 ")
    assert caplog.records == []
    assert served.calls == []


def test_late_calls_are_not_to_be_repeated(served: AnsweredGateway) -> None:
    served.end()
    status, fields, headers = send(served, HELLO)
    assert (status, headers["x-should-retry"]) == (409, "false")
    assert "has ended" in fields["error"]["message"]
    assert served.key in served.gateway.late_keys
    served.begin(solver={})
    served.end(is_timed_out=True)
    status, _, headers = send(served, HELLO)
    assert (status, headers["x-should-retry"]) == (504, "false")


def test_late_calls_are_remembered_no_longer_than_their_keys(
    served: AnsweredGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("marl.gateway.server._MAX_ENDED_KEYS", 2)
    served.end()
    assert send(served, HELLO)[0] == 409
    for key in ("second", "third"):
        served.run(lambda key=key: served.gateway.begin_session(key, 8, {}))
        served.end(key)
    assert served.gateway.late_keys == set()


def test_a_client_that_is_killed_while_it_sends_is_not_logged(
    served: AnsweredGateway, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_connection(("127.0.0.1", served.gateway.port), timeout=10) as stream:
        stream.sendall(head(served, "Content-Length: 1000") + b'{"messages": [')
        time.sleep(0.1)
    assert still_serves(served)
    assert caplog.records == []


# --- attacks ----------------------------------------------------------------------------------------------------------


def raw(served: AnsweredGateway, *pieces: bytes, pause_s: float = 0.0) -> bytes:
    """Answer to bytes that are sent as they are; empty if the server closes the connection."""
    with socket.create_connection(("127.0.0.1", served.gateway.port), timeout=10) as stream:
        try:
            for piece in pieces:
                stream.sendall(piece)
                time.sleep(pause_s)
            return stream.recv(65536)
        except (BrokenPipeError, ConnectionResetError):
            return b""


def head(served: AnsweredGateway, *lines: str) -> bytes:
    host = f"Host: 127.0.0.1:{served.gateway.port}"
    key = f"Authorization: Bearer {served.key}"
    return "\r\n".join([f"POST {CHAT} HTTP/1.1", host, key, *lines, "", ""]).encode()


def still_serves(served: AnsweredGateway) -> bool:
    return send(served, HELLO)[0] == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Authorization": "Bearer marl-00000000000000000000000000000000"}, 401),
        ({"Authorization": ""}, 401),
        ({"Authorization": "Bearer None"}, 401),
        ({"Host": "evil.example"}, 403),
        ({"Host": "evil.example:80"}, 403),
        ({"Host": "127.0.0.1"}, 403),
    ],
)
def test_a_wrong_key_or_host_is_refused(served: AnsweredGateway, headers: dict[str, str], status: int) -> None:
    assert send(served, HELLO, **headers)[0] == status
    assert served.calls == []
    assert still_serves(served)


@pytest.mark.parametrize("path", ["/", "/v1/../etc/passwd", "/v1/chat/completions/x", "/agents//v1/chat/completions"])
def test_other_paths_do_not_exist(served: AnsweredGateway, path: str) -> None:
    assert send(served, HELLO, path)[0] in (400, 404)
    assert still_serves(served)


@pytest.mark.parametrize("method", ["GET", "DELETE", "OPTIONS", "TRACE"])
def test_other_methods_are_refused(served: AnsweredGateway, method: str) -> None:
    assert send(served, HELLO, method=method)[0] == 405
    assert still_serves(served)


def test_an_endless_header_is_refused(served: AnsweredGateway) -> None:
    answer = raw(served, head(served)[:-2] + b"X: ", *[b"x" * 65536] * 64)
    assert not answer or b" 400 " in answer.split(b"\r\n")[0]
    assert still_serves(served)


def test_endlessly_many_headers_are_refused(served: AnsweredGateway) -> None:
    answer = raw(
        served, head(served)[:-2], *[b"".join(b"X-%d-%d: x\r\n" % (i, j) for j in range(999)) for i in range(99)]
    )
    assert not answer or b" 400 " in answer.split(b"\r\n")[0]
    assert still_serves(served)


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_of_a_gigabyte_is_refused_before_it_is_in_memory(served: AnsweredGateway, chunked: bool) -> None:
    size = 1 << 20
    piece = (b"%x\r\n" % size + b" " * size + b"\r\n") if chunked else b" " * size
    length = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {1 << 30}"
    answer = raw(served, head(served, length), *[piece] * 64)
    assert not answer or b" 413 " in answer.split(b"\r\n")[0]
    assert still_serves(served)


def test_two_lengths_in_one_request_are_refused(served: AnsweredGateway) -> None:
    answer = raw(served, head(served, "Content-Length: 2", "Transfer-Encoding: chunked") + b"0\r\n\r\n")
    assert b" 400 " in answer.split(b"\r\n")[0]
    assert still_serves(served)


def test_a_connection_without_a_request_is_closed(monkeypatch: pytest.MonkeyPatch, served: AnsweredGateway) -> None:
    monkeypatch.setattr("marl.gateway.server._HEADER_S", 0.2)
    begin = time.monotonic()
    assert raw(served, b"POST /v1") == b""
    assert time.monotonic() - begin < 8
    assert still_serves(served)


def test_a_body_that_never_ends_is_refused(monkeypatch: pytest.MonkeyPatch, served: AnsweredGateway) -> None:
    monkeypatch.setattr("marl.gateway.server._BODY_S", 0.2)
    answer = raw(served, head(served, "Content-Length: 100"), b"{")
    assert b" 408 " in answer.split(b"\r\n")[0]
    assert still_serves(served)


def test_connections_beyond_the_limit_are_closed(monkeypatch: pytest.MonkeyPatch, served: AnsweredGateway) -> None:
    monkeypatch.setattr("marl.gateway.server.MAX_CONNECTIONS", 8)
    open_ones = [socket.create_connection(("127.0.0.1", served.gateway.port)) for _ in range(8)]
    time.sleep(0.2)
    assert raw(served, head(served)) == b""
    for stream in open_ones:
        stream.close()
    time.sleep(0.2)
    assert still_serves(served)


def test_the_server_listens_on_the_loopback_interface_alone(served: AnsweredGateway) -> None:
    with socket.socket() as stream:
        stream.settimeout(1)
        address = socket.gethostbyname(socket.gethostname())
        if address.startswith("127."):
            pytest.skip("this machine has no other address")
        assert stream.connect_ex((address, served.gateway.port)) != 0


@pytest.mark.parametrize("value", ["NaN", "Infinity", "1e9", '"1"x', "null"])
def test_a_reward_that_is_no_bounded_number_is_refused(served: AnsweredGateway, value: str) -> None:
    body = f'{{"agent": "solver", "name": "brief", "value": {value}, "key": "a"}}'.encode()
    assert send(served, body, "/v1/marl/rewards", "PUT")[0] == 400
    assert served.session.rewards == {}


def test_a_program_needs_consent_and_a_reward_or_measure_of_the_name_call_does_not(tmp_path: Path) -> None:
    (access,) = external_accesses({"policies": {"crew": {"engine": {"kind": "program", "call": "a:b"}}}}, tmp_path)
    assert (access.field, access.needs_consent) == ("policies.crew.engine.call", True)
    game = {"kind": "team", "rewards": {"solver": {"call": "0.2 * own.calls"}}, "measures": {"call": "solver.calls"}}
    assert not external_accesses({"game": game}, tmp_path)
    assert not external_accesses({"games": {"sums": {"game": game}}}, tmp_path)


def test_a_client_that_asks_before_it_sends_a_body_is_told_to_go_on(served: AnsweredGateway) -> None:
    body = json.dumps(HELLO).encode()
    with socket.create_connection(("127.0.0.1", served.gateway.port), timeout=10) as stream:
        stream.sendall(head(served, "Expect: 100-continue", f"Content-Length: {len(body)}"))
        assert stream.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        stream.sendall(body)
        assert stream.recv(65536).startswith(b"HTTP/1.1 200 OK\r\n")


def test_an_old_client_gets_no_line_that_it_does_not_know_before_the_response(served: AnsweredGateway) -> None:
    body = json.dumps(HELLO).encode()
    new_head = head(served, "Expect: 100-continue", f"Content-Length: {len(body)}")
    with socket.create_connection(("127.0.0.1", served.gateway.port), timeout=10) as stream:
        stream.sendall(new_head.replace(b"HTTP/1.1", b"HTTP/1.0"))
        time.sleep(0.1)  # the gateway reads the head before the body arrives
        stream.sendall(body)
        assert stream.recv(65536).startswith(b"HTTP/1.0 200 OK\r\n")


def test_models_can_be_asked_for_by_head(served: AnsweredGateway) -> None:
    assert send(served, b"", "/v1/models", "HEAD")[0] == 200


def test_the_agent_of_a_path_may_have_a_slash(served: AnsweredGateway) -> None:
    served.end()
    served.begin(**{"team/solver": {}})
    assert send(served, HELLO, f"/agents/team%2Fsolver{CHAT}")[0] == 200
    assert served.calls[-1].agent == "team/solver"
