"""`marl top`: a dashboard of a run on the terminal, during training and afterwards."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, NoReturn

import typer
from rich.live import Live

from marl.commands.terminal import RunPath
from marl.view.console import ConsoleRaisingBrokenPipe
from marl.view.resilient_output import tolerate_broken_output
from marl.view.run_dashboard import TerminalSize, render_dashboard
from marl.view.run_follower import RunFollower

app = typer.Typer()


@app.command(name="top")
def show_live_run_status(
    run: RunPath,
    once: Annotated[bool, typer.Option("--once", help="Print one frame and end; the default in a pipe.")] = False,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between two frames.")] = 1.0,
) -> None:
    """Watch a run: progress, speed, roles, policies, alarms, the last recorded episode. Read-only; q leaves."""
    follower = RunFollower(run)
    with tolerate_broken_output():
        console = ConsoleRaisingBrokenPipe()
        if once or not console.is_terminal:
            console.print(render_dashboard(follower.read_run_snapshot(), TerminalSize(console.width)), soft_wrap=False)
        else:
            screen = Live(console=console, screen=True, auto_refresh=False)
            with _quit_on_signals(), _key_reader() as wait_for_key, screen as live:
                key = ""
                while key.lower() not in ("q", "\x03", "\x04"):
                    live.update(
                        render_dashboard(follower.read_run_snapshot(), TerminalSize(*console.size)), refresh=True
                    )
                    key = wait_for_key(every)


@contextmanager
def _quit_on_signals() -> Iterator[None]:
    """End the body silently on Ctrl-C, and by SystemExit on SIGTERM or SIGHUP, so that the terminal is restored."""

    def exit_with_signal(number: int, _: object) -> NoReturn:
        raise SystemExit(128 + number)

    previous = {number: signal.signal(number, exit_with_signal) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def _key_reader() -> Iterator[Callable[[float], str]]:
    """Yield a function that waits for a key for at most the given time [s], and returns the key or ""."""
    stdin = sys.stdin.fileno()
    keyboards = [stdin] if os.isatty(stdin) else []

    def wait_for_key(wait_s: float) -> str:
        ready, _, _ = select.select(keyboards, [], [], wait_s)
        # An empty read means that the terminal was closed, which counts as the key q.
        return (os.read(stdin, 1).decode(errors="replace") or "q") if ready else ""

    if not keyboards:
        yield wait_for_key
        return
    previous = termios.tcgetattr(stdin)
    # In cbreak mode, keys arrive without Enter and are not echoed.
    tty.setcbreak(stdin)
    try:
        yield wait_for_key
    finally:
        termios.tcsetattr(stdin, termios.TCSADRAIN, previous)
