"""The server of the page answers its own user on this machine, and nobody and nothing else."""

from __future__ import annotations

import http.client
import json
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from marl.commands.consent import require_consent_to_external_accesses
from marl.core.plugins import import_check
from marl.scenario.load import ScenarioError
from marl.scenario.trust import consent_check
from marl.view.page.page_data import PageApi
from marl.view.page.server import PageServer, page_access_token
from tests.support.recorded_runs import kuhn_run


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageServer]:
    folder = tmp_path_factory.mktemp("served")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MARL_CACHE", str(folder / "cache"))
        with PageServer(PageApi([kuhn_run(folder / "run")])) as made:
            thread = threading.Thread(target=made.serve_forever, args=(0.01,))
            thread.start()
            yield made
            made.shutdown()
            thread.join()


def ask(server: PageServer, path: str, method: str = "GET", **headers: str) -> tuple[int, str, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    connection.putrequest(method, path, skip_host=True)
    for name, value in {"Host": f"127.0.0.1:{server.server_port}", **headers}.items():
        connection.putheader(name, value)
    connection.endheaders()
    response = connection.getresponse()
    body = response.read().decode()
    connection.close()
    return response.status, body, dict(response.getheaders())


def test_nothing_is_answered_without_the_token(server: PageServer) -> None:
    for path in ("/", "/api/runs", "/static/app.js", "/?token=wrong", "/?token=", "/api/runs?token=" + server.token):
        status, body, headers = ask(server, path)
        assert (status, "Set-Cookie" in headers) == (403, False)
        assert "kuhn" not in body
    for cookie in ("marl=x", f"{server.cookie}=x", f"{server.cookie}=", "=;;=", f"marl_1={server.token}"):
        assert ask(server, "/api/runs", Cookie=cookie)[0] == 403


def test_the_token_becomes_a_cookie_and_leaves_the_address(server: PageServer) -> None:
    status, _, headers = ask(server, f"/?token={server.token}")
    assert (status, headers["Location"]) == (303, "/")
    assert headers["Set-Cookie"].endswith("; Path=/; HttpOnly; SameSite=Strict")
    cookie = headers["Set-Cookie"].partition(";")[0]
    assert "<title>marl</title>" in ask(server, "/", Cookie=cookie)[1]
    assert json.loads(ask(server, "/api/runs", Cookie=cookie)[1])["runs"][0]["name"] == "run"
    assert ask(server, "/api/runs", Authorization=f"Bearer {server.token}")[0] == 200


def test_another_name_for_this_machine_is_refused_whatever_the_token(server: PageServer) -> None:
    known = {"Authorization": f"Bearer {server.token}"}
    for host in (
        "evil.example",
        f"evil.example:{server.server_port}",
        "",
        f"127.0.0.1:{server.server_port}.evil.example",
        *("127.0.0.1.evil.example", "localhost:80@evil.example", "localhost.", "127.0.0.2", "0.0.0.0", "127.0.0.1:8O"),
    ):
        assert ask(server, "/api/runs", Host=host, **known)[0] == 403


def test_a_tunnel_from_another_port_of_this_machine_works(server: PageServer) -> None:
    known = {"Authorization": f"Bearer {server.token}"}
    for host in (f"localhost:{server.server_port}", "localhost:9999", "127.0.0.1", "[::1]:1234"):
        assert ask(server, "/api/runs", Host=host, **known)[0] == 200


def test_a_restarted_server_has_the_token_that_only_its_user_can_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    token, file = page_access_token(1234), tmp_path / "marl" / "view_1234.token"
    assert (len(token), file.stat().st_mode & 0o777) == (32, 0o600)
    assert page_access_token(1234) == token != page_access_token(1235)
    file.chmod(0o644)
    replaced = page_access_token(1234)
    assert (replaced != token, file.stat().st_mode & 0o777) == (True, 0o600)
    file.unlink()
    file.symlink_to(tmp_path / "elsewhere")
    assert page_access_token(1234) not in (token, replaced)
    assert not (tmp_path / "elsewhere").exists()


def test_a_run_that_begins_later_in_a_folder_of_runs_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MARL_CACHE", str(tmp_path / "cache"))
    runs = tmp_path / "runs"
    with pytest.raises(ScenarioError, match="no run here"):
        PageApi([runs])
    kuhn_run(runs / "b", steps=1)
    data = PageApi([runs])
    first = data.runs["b"]
    kuhn_run(runs / "a", steps=1)
    data.add_new_runs()
    assert (list(data.runs), data.runs["b"]) == (["b", "a"], first)
    assert data.answer("runs", {})["runs"][1]["name"] == "a"


def test_a_tab_that_is_closed_leaves_no_traceback(server: PageServer, capfd: pytest.CaptureFixture[str]) -> None:
    for _ in range(5):
        connection = socket.create_connection(("127.0.0.1", server.server_port))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, not a farewell
        connection.sendall(
            f"GET /api/runs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {server.token}\r\n\r\n".encode()
        )
        connection.close()
    time.sleep(0.3)
    assert ask(server, "/api/runs", Authorization=f"Bearer {server.token}")[0] == 200
    assert "Traceback" not in capfd.readouterr().err


def raw_answer(server: PageServer, request: str) -> bytes:
    """All bytes that the server sends until it closes the connection."""
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=20) as connection:
        connection.sendall(request.replace("HOST", f"127.0.0.1:{server.server_port}").encode())
        return b"".join(iter(lambda: connection.recv(65536), b""))


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        ("GET http://[ HTTP/1.1\r\nHost: HOST\r\n\r\n", 400),
        ("GET /api/runs HTTP/1.1\r\nHost: HOST\r\nHost: evil.example\r\n\r\n", 403),
        ("GET /api/runs HTTP/1.1\r\nHost: HOST\r\nContent-Length: 40\r\n\r\nGET / HTTP/1.1\r\nHost: HOST\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: HOST\r\n\r\nGET / HTTP/1.1\r\nHost: HOST\r\n\r\n", 403),
    ],
    ids=["no_address", "two_hosts", "body_with_a_request", "chunks_with_a_request", "second_without_token"],
)
def test_a_refused_request_is_answered_once_and_ends_its_connection(
    request_text: str, status: int, server: PageServer, capfd: pytest.CaptureFixture[str]
) -> None:
    answer = raw_answer(server, request_text)
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())
    assert answer.count(b"HTTP/1.1 ") == 1
    assert "Traceback" not in capfd.readouterr().err


def test_a_cookie_of_backslashes_takes_no_time(server: PageServer) -> None:
    started = time.process_time()
    assert ask(server, "/api/runs", Cookie=f'{server.cookie}="{chr(92) * 60_000}"')[0] == 403
    assert time.process_time() - started < 1


def test_connections_that_send_no_token_in_time_are_closed(server: PageServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marl.view.page.server.HEADER_S", 0.5)
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=20) as slow:
        slow.sendall(b"GET / HTTP/1.1\r\nX: ")
        assert slow.recv(100) == b""
    known = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    for _ in range(2):
        known.request("GET", "/api/runs", headers={"Authorization": f"Bearer {server.token}"})
        assert known.getresponse().read()
        time.sleep(0.7)
    known.close()


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE", "X" * 500])
def test_there_is_no_method_but_get(method: str, server: PageServer) -> None:
    status, body, headers = ask(server, "/api/runs", method, Authorization=f"Bearer {server.token}")
    assert (status, headers["Allow"], body) == (405, "GET", "")


@pytest.mark.parametrize(
    "path",
    [
        *("/static/../server.py", "/static/..%2fserver.py", "/static//etc/passwd", "/static/%2e%2e/page_data.py"),
        *(
            "/static/",
            "/static/licences",
            "/etc/passwd",
            "//etc/passwd",
            "/static/app.js%00.html",
            "/api",
            "/index.html/x",
        ),
    ],
)
def test_no_path_leads_to_another_file(path: str, server: PageServer) -> None:
    status, body, _ = ask(server, path, Authorization=f"Bearer {server.token}")
    assert (status, body) == (404, "there is no such page\n")


def test_every_answer_forbids_scripts_frames_and_copies(server: PageServer) -> None:
    known = {"Authorization": f"Bearer {server.token}"}
    for path, headers in (
        ("/", known),
        ("/api/runs", known),
        ("/static/app.js", known),
        ("/nothing", known),
        ("/", {}),
    ):
        answered = ask(server, path, **headers)[2]
        policy = answered["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert "unsafe" not in policy
        assert answered["X-Content-Type-Options"] == "nosniff"
        assert answered["Cache-Control"] == "no-store"
        assert not any(name.startswith("Access-Control") for name in answered)


def test_what_is_wrong_with_a_question_is_said_as_json(server: PageServer) -> None:
    known = {"Authorization": f"Bearer {server.token}"}
    status, body, headers = ask(server, "/api/episode?run=run&step=%3Cscript%3E", **known)
    assert (status, headers["Content-Type"]) == (400, "application/json")
    assert "must be a whole number" in json.loads(body)["error"]
    assert ask(server, "/api/episode?run=nope", **known)[0] == 404


def test_it_listens_on_this_machine_alone(server: PageServer) -> None:
    assert server.server_address[0] == "127.0.0.1"


def test_a_step_that_is_recorded_while_it_runs_appears(server: PageServer) -> None:
    run = next(iter(server.data.runs.values()))
    first = run.home.path / "trajectories" / "000001.jsonl.zst"
    first.with_name("000009.jsonl.zst").write_bytes(first.read_bytes())
    known = {"Authorization": f"Bearer {server.token}"}
    waited = threading.Event()
    for _ in range(100):
        if json.loads(ask(server, "/api/episodes?first=9&last=9", **known)[1])["count"] == 8:
            return
        waited.wait(0.1)
    pytest.fail("the step was not indexed in 10 seconds")


def test_what_the_user_agreed_to_holds_for_every_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Gated(PageApi):
        def answer(self, path: str, query: object) -> bool:
            return consent_check.get() is not None and import_check.get() is not None

    monkeypatch.setenv("MARL_CACHE", str(tmp_path / "cache"))
    with require_consent_to_external_accesses(), PageServer(Gated([kuhn_run(tmp_path / "run", steps=1)])) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        assert ask(server, "/api/gates", Authorization=f"Bearer {server.token}")[:2] == (200, "true")
        server.shutdown()


def test_the_page_is_served_without_torch() -> None:
    modules = "marl.view.page.server, marl.view.page.report, marl.commands.web_view"
    code = f"import sys, {modules}; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 10**400, "9" * 5000, "1e9", "NaN"])
@pytest.mark.parametrize(
    "path", ["rows?offset=", "rows?limit=", "row?step=", "episodes?first=", "episodes?limit=", "held_out?before="]
)
def test_numbers_that_no_run_can_have_are_refused(
    server: PageServer, path: str, number: object, capsys: pytest.CaptureFixture[str]
) -> None:
    status, body, _ = ask(server, f"/api/{path}{number}", Authorization=f"Bearer {server.token}")
    assert status == 400
    assert json.loads(body)["error"].startswith(path.partition("?")[2].rstrip("=") + ": ")
    assert len(body) < 1000
    assert capsys.readouterr().err == ""


def test_an_address_of_many_parameters_is_refused(server: PageServer, capsys: pytest.CaptureFixture[str]) -> None:
    path = "/api/runs?" + "&".join(f"a{number}=1" for number in range(60))
    assert ask(server, path, Authorization=f"Bearer {server.token}")[:2] == (
        400,
        "an address has at most 50 parameters\n",
    )
    assert capsys.readouterr().err == ""


def open_connections() -> int:
    return sum("process_request_thread" in thread.name for thread in threading.enumerate())


def wait_for_connections(expected: int) -> None:
    deadline = time.monotonic() + 20
    while open_connections() != expected and time.monotonic() < deadline:
        time.sleep(0.01)
    assert open_connections() == expected


def test_open_connections_are_limited_and_the_next_one_after_them_is_served(server: PageServer) -> None:
    wait_for_connections(0)
    connections = [socket.create_connection(("127.0.0.1", server.server_port), timeout=20) for _ in range(80)]
    # The server closes a connection above the limit, which a read shows.
    assert connections[-1].recv(1) == b""
    wait_for_connections(64)
    for connection in connections:
        connection.close()
    wait_for_connections(0)
    assert ask(server, "/api/runs", Authorization=f"Bearer {server.token}")[0] == 200
