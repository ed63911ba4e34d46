"""`marl report`: one file that holds what the page shows, and nothing that a browser would run or load but the page."""

from __future__ import annotations

import gzip
import json
import random
import socket
from base64 import b64decode, b64encode
from collections import defaultdict
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from marl.commands.web_view import serve_web_view
from marl.runs.run_folder import RunFolder
from marl.scenario.load import ScenarioError
from marl.view.page.page_data import PageApi
from marl.view.page.report import write_report
from tests.support.command_line import marl_output
from tests.support.recorded_runs import HOSTILE, kuhn_run


class Reader(HTMLParser):
    """Collects elements with their attributes, and the text of each kind."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=False)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = defaultdict(list)
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        self.elements.append(("", {}))

    def handle_data(self, data: str) -> None:
        if self.elements:
            self.texts[self.elements[-1][0]].append(data)


def answers_in(report: Path) -> dict[str, Any]:
    """The answers in a report, by the addresses of the requests."""
    packed, _ = Reader(report.read_text()).texts["script"]
    return json.loads(gzip.decompress(b64decode(packed, validate=True)))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MARL_CACHE", str(tmp_path / "cache"))
    return kuhn_run(tmp_path / "run", said=HOSTILE)


def test_it_loads_nothing_and_runs_its_own_script_alone(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "report.html: 0." in marl_output(monkeypatch, capsys, "report", run)
    read = Reader((run / "report.html").read_text())
    assert not [each for each in read.elements if {"src", "href", "onerror", "onload"} & each[1].keys()]
    scripts = [attributes.get("type") for tag, attributes in read.elements if tag == "script"]
    assert scripts == ["application/gzip", None]
    policy = next(each["content"] for _, each in read.elements if each.get("http-equiv") == "Content-Security-Policy")
    _, script = read.texts["script"]
    for kind, text in (("script", script), ("style", "".join(read.texts["style"]))):
        assert f"{kind}-src 'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'" in (policy or "")
    assert "unsafe" not in (policy or "")
    told = answers_in(run / "report.html")['["episode",["episode","000002.0.0"],["run","run"],["step","2"]]']
    recorded = RunFolder(run).load_trajectory(2, 0)
    assert [turn["text"] for turn in told["turns"]] == [turn.completion.text for turn in recorded.turns]


def test_it_holds_as_many_episodes_as_are_asked_for_with_both_ends_of_the_run(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = run.parent / "six.html"
    marl_output(monkeypatch, capsys, "report", run, "--out", file, "--episodes", 6)
    episodes = answers_in(file)['["episodes",["run","run"]]']["episodes"]
    assert len(episodes) == 6
    assert {each["step"] for each in episodes} == {1, 2}
    groups = {(each["step"], each["group"]) for each in episodes}
    assert len(groups) <= 3


def test_three_runs_make_a_file_that_can_be_mailed_however_long_their_answers_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARL_CACHE", str(tmp_path / "cache"))
    rng = random.Random(0)
    runs = []
    for seed in range(3):
        long_answer = b64encode(rng.randbytes(200_000)).decode()  # as good as incompressible
        runs.append(kuhn_run(tmp_path / f"run_{seed}", steps=1, seed=seed, said=long_answer))
    file = tmp_path / "report.html"
    assert write_report(PageApi(runs), file, max_episodes=24) == file.stat().st_size <= 2_000_000
    answers = answers_in(file)
    listed = [(run.name, each) for run in runs for each in answers[f'["episodes",["run","{run.name}"]]']["episodes"]]
    assert 21 <= len(listed) < 24  # three of 24 episodes have long answers, of which not all have room
    for name, each in listed:
        assert f'["episode",["episode","{each["episode"]}"],["run","{name}"],["step","1"]]' in answers


def test_a_port_that_is_taken_is_named(run: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ScenarioError, match=f"--port {port}: .*; 0 takes any free one"):
            serve_web_view([run], port, browser=False)
