"""What others wrote reaches the terminal as text, never as a command."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from marl.commands.play import play_and_print_episodes
from marl.core.config import Sampling
from marl.core.types import Message, Request
from marl.engines.scripted import Human, Random
from marl.runs.run_folder import RunFolder
from marl.scenario.load import validate
from marl.training.placement import simulator_from_engines
from marl.view.console import LineMonitor, LiveDashboard, WarmUpProgress, print_literally
from marl.view.curve_data import CurvePoint
from marl.view.curves import plot_curves, sparkline, text_chart
from marl.view.pictures import save_curves
from marl.view.trackers import TensorBoardEvents
from tests.support.command_line import run_marl
from tests.support.misbehaving_servers import replies_with_text, serving

NASTY = (
    "\x1b]0;owned\x07\x1b[2J\x9b31m \u202egnp.exe \u2066x\r over [red]r[/] [link=file:///etc/passwd]l[/link] [/] :boom:"
)
SPELLED = (
    r"\x1b]0;owned\x07\x1b[2J\x9b31m \u202egnp.exe \u2066x\x0d over "
    "[red]r[/] [link=file:///etc/passwd]l[/link] [/] :boom:"
)
OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def test_a_shown_text_is_neither_markup_nor_a_command() -> None:
    screen = io.StringIO()
    print_literally(Console(file=screen, force_terminal=True, width=40), f"{NASTY}\nsecond line")
    assert screen.getvalue() == f"{SPELLED}\nsecond line\n"


def test_progress_in_a_pipe_spells_out_what_a_terminal_would_obey(tmp_path: Path) -> None:
    screen = io.StringIO()
    lines = LineMonitor(Console(file=screen, width=400), 3)
    lines.show_message(NASTY)
    lines.log_metrics(3, {f"episode/measure/{NASTY}": 1.0})
    lines.begin(RunFolder(tmp_path / "[red]\x1b[2J"))
    assert not OBEYED.search(screen.getvalue())
    assert screen.getvalue().count(SPELLED) == 2
    assert r"[red]\x1b[2J: metrics.jsonl" in screen.getvalue()


def test_a_live_table_shows_names_as_they_are(tmp_path: Path) -> None:
    screen = io.StringIO()
    folder = RunFolder(tmp_path)
    folder.metrics_file.write_text(json.dumps({"step": 1, f"episode/measure/{NASTY}": 1.0, "alarm/[/]/x": 1.0}) + "\n")
    table = LiveDashboard(Console(file=screen, force_terminal=True, width=400), 3, f"[/bold]{NASTY}")
    table.begin(folder)
    table.show_message(NASTY)
    table.close()
    shown = screen.getvalue()
    assert f"[/bold]{SPELLED}" in shown
    assert f"episode/measure/{SPELLED}" in shown
    assert "alarm/[/]/x" in shown
    assert "\x1b[2J" not in shown
    assert "\x1b]" not in shown


def test_the_warm_up_of_a_policy_with_an_odd_name_is_announced(capsys: pytest.CaptureFixture[str]) -> None:
    WarmUpProgress("[/red]\x1b[2J", 5).close()
    assert capsys.readouterr().err.startswith(r"policy [/red]\x1b[2J: teaching a new tiny model")


def kuhn(url: str) -> dict[str, Any]:
    """Kuhn poker of an endpoint with a pupil."""
    mate = {"kind": "openai", "base_url": url, "model": "m", "key_env": None, "timeout_s": 5.0}
    pupil = {"model": {"kind": "tiny"}, "learner": {"kind": "grpo"}}
    return {
        "game": {"kind": "kuhn_poker"},
        "seats": {"player_0": "mate", "player_1": "pupil"},
        "roles": {name: {"kind": "player", "policy": name} for name in ("mate", "pupil")},
        "policies": {"mate": {"engine": mate}, "pupil": pupil},
        "schedule": {"steps": 1, "groups": 1, "group_size": 2},
    }


def test_play_spells_out_what_a_model_says(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(replies_with_text(NASTY)) as server:
        scenario = validate(kuhn(server.url))
        engines = {"mate": scenario.policies["mate"].engine.build(None), "pupil": Random().build(None)}
        play_and_print_episodes(
            scenario, simulator_from_engines(scenario, engines), seat=None, episodes=2, out_file=None
        )
    out = capsys.readouterr().out
    assert "no legal move could be read" in out
    assert not OBEYED.search(out)


def test_a_person_reads_prompts_and_moves_that_cannot_move_the_cursor(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter(["\x1b[A", "go"])
    asked: list[str] = []
    monkeypatch.setattr("builtins.input", lambda question: (asked.append(question), next(answers))[1])
    seat = Human().build(None)
    options = {"go": "[go]", f"stay{NASTY}": "[stay]"}
    seat.submit(0, Request("person", (Message("user", NASTY),), Sampling(), options=options))
    seat.step(0.0)
    assert not OBEYED.search(capsys.readouterr().out + "".join(asked))
    assert SPELLED in asked[0]


@pytest.fixture
def odd_run(tmp_path: Path) -> Path:
    """A folder with rows whose names are formulas that no mathematics allows."""
    run = tmp_path / r"run$\frac{$"
    run.mkdir()
    (run / "scenario.yaml").write_text("")
    rows = [{"step": step, r"eval/$\undefined{$": float(step)} for step in range(3)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run


def test_names_of_curves_are_no_formulas(odd_run: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for name in ("scenario.yaml", "metrics.jsonl"):
        (other / name).write_bytes((odd_run / name).read_bytes())
    plot_curves([odd_run, other], [], None)
    assert (odd_run / "curves.png").stat().st_size > 1000
    save_curves(tmp_path / "x.png", {"$a_{": {"_$b^{": [CurvePoint(1, 1.0)], "$": [CurvePoint(1, 2.0)]}})


@pytest.mark.parametrize(
    "values", [[float("nan")], [1.0, float("inf"), 2.0], [1e308, -1e308], [float("-inf")] * 3, [5e-324, 0.0]]
)
def test_curves_of_numbers_that_are_not_finite_are_drawn_with_gaps(values: list[float]) -> None:
    assert len(sparkline(values, 10)) == len(values)
    lines = text_chart(list(enumerate(values)), 40, 5).split("\n")
    assert all(len(line) == 10 + len(values) for line in lines[:6])


def test_event_files_take_names_that_no_encoding_has(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    events = TensorBoardEvents()
    events.begin(folder)
    events.log_metrics(1, {"half \ud83d": 1.0, NASTY: 2.0})
    events.close()
    assert b"half \xef\xbf\xbd" in next((tmp_path / "events").iterdir()).read_bytes()


HOSTILE = 'schedule: {steps: 1, groups: 1, group_size: 1, "\\e[2J\\u202e[/]": 1}\n'


@pytest.mark.parametrize("command", ["check", "train", "play"])
def test_errors_that_quote_a_scenario_are_text(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "odd.yaml"
    file.write_text(HOSTILE)
    status, out, complaint = run_marl(monkeypatch, capsys, command, file)
    assert status == 2
    assert r"\x1b[2J\u202e[/]" in complaint
    assert not OBEYED.search(out + complaint)
