"""The server of the page answers its own user on this machine, and nobody and nothing else."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from marl.commands.consent import require_consent
from marl.core.plugins import import_check
from marl.scenario.trust import consent_check
from marl.view.page.page_data import PageApi
from marl.view.page.server import PageServer
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
        "127.0.0.1",
        "",
        f"127.0.0.1:{server.server_port}.evil.example",
    ):
        assert ask(server, "/api/runs", Host=host, **known)[0] == 403
    assert ask(server, "/api/runs", Host=f"localhost:{server.server_port}", **known)[0] == 200


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
    with require_consent(), PageServer(Gated([kuhn_run(tmp_path / "run", steps=1)])) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        assert ask(server, "/api/gates", Authorization=f"Bearer {server.token}")[:2] == (200, "true")
        server.shutdown()


def test_the_page_is_served_without_torch() -> None:
    modules = "marl.view.page.server, marl.view.page.report, marl.commands.web_view"
    code = f"import sys, {modules}; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
