"""Scenarios written to hang, crash or rob whoever checks them: a message, status 2, and soon."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from marl.commands import cli
from marl.scenario.load import ScenarioError, load
from marl.scenario.yaml_text import MAX_BYTES, MAX_VALUES, read_yaml
from tests.support.paths import ROOT

FILES = sorted((Path(__file__).parent / "hostile").glob("*.yaml"))
"""The first line of each is what the message must hold."""
SECONDS = 2.0


def check(monkeypatch: pytest.MonkeyPatch, file: Path) -> int:
    """Return the exit status of `marl check FILE`; it must come soon."""
    monkeypatch.setattr(sys, "argv", ["marl", "check", str(file)])
    monkeypatch.setattr(sys, "path", [*sys.path])
    began = time.process_time()
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert time.process_time() - began < SECONDS
    return int(left.value.code or 0)


@pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
def test_a_hostile_scenario_is_one_short_message(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(monkeypatch, file) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert file.read_text().split("\n")[0].removeprefix("# expect: ") in shown.err
    assert shown.err.startswith("marl: ")
    assert "Traceback" not in shown.err
    assert len(shown.err) < 10_000
    assert all(sign.isprintable() or sign == "\n" for sign in shown.err)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("game: [" + "1, " * 3_000_000 + "]", f"longer than {MAX_BYTES:,} characters"),
        ("game: [" + "1, " * 150_000 + "]", f"more than {MAX_VALUES} values"),
        ("- " + "x\n- " * 100_000, f"more than {MAX_VALUES} values"),
        ("{" * 500_000, "more than 40 lists and mappings within each other"),
        ("game: " + "9" * 500_000, "is no number of up to 63 bits"),
        ("game: " + "1:" * 250_000 + "1", "is no number of up to 63 bits"),
        ("a" * 500_000 + ": 1", "not YAML"),
        ("#\n" * 250_000, "got an empty file"),
        ("? " + "a" * 500_000, "unknown field"),
    ],
    ids=["megabytes", "values", "items", "braces", "digits", "base_60", "line", "comments", "key"],
)
def test_a_large_file_is_refused_soon(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "large.yaml").write_text(text)
    assert check(monkeypatch, tmp_path / "large.yaml") == 2
    said = capsys.readouterr().err
    assert message in said
    assert len(said) < 10_000


def test_a_file_without_end_is_not_read_to_its_end() -> None:
    with pytest.raises(ScenarioError, match="longer than"):
        load("/dev/zero")


def test_the_command_itself_shows_no_traceback() -> None:
    file = next(file for file in FILES if file.stem == "deep_brackets")
    done = subprocess.run([sys.executable, "-m", "marl", "check", file], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"marl: {file}: not YAML: line 2, column 46: more than 40 lists and mappings")


@pytest.mark.parametrize("value", ["2026-01-31", "=", "2001-12-14t21:59:43.10-05:00"])
def test_dates_are_text(value: str) -> None:
    assert read_yaml(f"a: {value}", "x") == {"a": value}


def test_what_people_write_is_read_as_ever() -> None:
    text = "a: &a {b: 1, c: [0x1F, 1.5e-3, -2, yes, ~]}\nd: {<<: *a, b: 2}\ne: *a\n3: x\nf: |\n  text\n"
    first = {"b": 1, "c": [31, 0.0015, -2, True, None]}
    assert read_yaml(text, "x") == {"a": first, "d": first | {"b": 2}, "e": first, 3: "x", "f": "text\n"}
