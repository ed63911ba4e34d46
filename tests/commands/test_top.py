"""`marl top` and the live table of `marl train` on a real pseudo-terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import pytest
import yaml

from marl.runs.status import STATUS_FILE, RunActivity, RunStatus
from tests.support.recorded_runs import HOSTILE, kuhn_run
from tests.support.run_processes import RunWorkspace

_STYLES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_DEADLINE_S = 120.0


class Terminal:
    """A process on a terminal of its own."""

    def __init__(self, process: subprocess.Popen[bytes], master: int) -> None:
        self.process, self._master, self.output = process, master, ""

    def until(self, text: str) -> str:
        """Read on until a text has been shown; return all output so far."""
        ends = time.monotonic() + _DEADLINE_S
        while text not in _STYLES.sub("", self.output):
            assert time.monotonic() < ends, self.output
            ready, _, _ = select.select([self._master], [], [], 1.0)
            if ready:
                self._read()
        return self.output

    def press(self, key: str) -> None:
        os.write(self._master, key.encode())

    def ended(self) -> int:
        """Read to the end; return the exit status."""
        ends = time.monotonic() + _DEADLINE_S
        while select.select([self._master], [], [], max(0.0, ends - time.monotonic()))[0] and self._read():
            pass
        return self.process.wait(max(1.0, ends - time.monotonic()))

    def _read(self) -> bool:
        try:
            self.output += os.read(self._master, 1 << 16).decode(errors="replace")
        except OSError:  # the other side is closed
            return False
        return True

    def settings(self) -> list[object]:
        return termios.tcgetattr(self._master)


def _as_at_a_terminal() -> None:
    """Let Ctrl-C be a signal to this process, even if the tests run in the background, where it is ignored."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def on_terminal(*words: str, width: int = 100, height: int = 40, **environment: str) -> Iterator[Terminal]:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
    given = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-m", "marl", *words],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        preexec_fn=_as_at_a_terminal,
        env=given | {"TERM": "xterm-256color"} | environment,
    )
    terminal = Terminal(process, master)
    before = terminal.settings()
    os.close(slave)
    try:
        yield terminal
        assert terminal.settings()[:4] == before[:4]
    finally:
        process.kill()
        process.wait()
        os.close(master)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MARL_CACHE", str(tmp_path / "cache"))
    return kuhn_run(tmp_path / "run", steps=3, said=HOSTILE)


def test_top_follows_a_run_until_q_is_pressed(run: Path) -> None:
    with on_terminal("top", str(run), "--every", "0.1", width=300) as terminal:
        terminal.until("step 3/3")
        with (run / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"step": 2777, "role/odd\x1b[2Jrole/turns": 1.0}) + "\n")
        output = terminal.until("step 2777/3")
        assert "\x1b[?1049h" in output
        terminal.press("q")
        assert terminal.ended() == 0
        assert "\x1b[?1049l" in terminal.output
    assert "\x1b[2J" not in terminal.output
    assert r"odd\x1b[2Jrole" in terminal.output
    assert "\x1b[31mred" not in terminal.output
    assert r"\x1b[31mred" in terminal.output


def test_status_and_top_name_the_same_state_of_a_run_that_was_killed(run: Path) -> None:
    killed = RunStatus("node1", 7, time.time() - 100, ended=False, activity=RunActivity(3, 9, "play", 0.0))
    (run / STATUS_FILE).write_text(json.dumps(asdict(killed)))
    said = [
        subprocess.run([sys.executable, "-m", "marl", *words], capture_output=True, text=True, check=True).stdout
        for words in (("status", str(run)), ("top", str(run), "--once"))
    ]
    assert said[0].startswith("died: step 3 of 9; process 7 on node1 was last heard of 1 min 4")
    assert re.search(r"newest row \d+ s old", said[0])
    assert "died" in said[1].splitlines()[0]
    assert "was last heard of 1 min 4" in said[1]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["ctrl-c", "SIGTERM"])
def test_the_terminal_is_restored_however_top_is_left(how: str, run: Path) -> None:
    with on_terminal("top", str(run)) as terminal:
        terminal.until("step 3/3")
        if how == "SIGTERM":
            os.kill(terminal.process.pid, signal.SIGTERM)
        else:
            terminal.press("\x03")
        assert terminal.ended() == (128 + signal.SIGTERM if how == "SIGTERM" else 0)
        assert "\x1b[?1049l" in terminal.output
        assert "Traceback" not in terminal.output


@pytest.mark.slow
def test_training_on_a_terminal_shows_progress_roles_and_an_episode(desk: RunWorkspace) -> None:
    file = desk.path / "scenario.yaml"
    file.write_text(yaml.safe_dump(desk.scenario))
    cache = str(desk.path / "cache")
    words = ("train", str(file), "schedule.steps=4")
    with on_terminal(*words, "--out", str(desk.path / "shown"), MARL_CACHE=cache) as terminal:
        assert terminal.ended() == 0
    output = _STYLES.sub("", terminal.output)
    assert "step 4/4  100%" in output
    assert re.search(r"role +seats' return +trend", output)
    assert re.search(r"episode 00000\d\.\d+\.\d, step \d", output)
    with on_terminal(*words, "--no-episodes", "--out", str(desk.path / "plain"), MARL_CACHE=cache) as terminal:
        assert terminal.ended() == 0
    assert not re.search(r"episode 00000\d\.\d+\.\d, step \d", terminal.output)
