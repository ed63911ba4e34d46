"""`marl top`: a run on the terminal, while it is trained and afterwards."""

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
from rich.console import Console
from rich.live import Live

from marl.commands.terminal import RunPath
from marl.view.console import Screen
from marl.view.run_frame import Screenful, run_frame
from marl.view.run_watch import RunWatch
from marl.view.streams import lasting_output

app = typer.Typer()


@app.command()
def top(
    run: RunPath,
    once: Annotated[bool, typer.Option("--once", help="Print one frame and end; so in a pipe.")] = False,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 1.0,
) -> None:
    """Watch a run: progress, speed, roles, policies, alarms, the last recorded episode. Read-only; q leaves."""
    watch = RunWatch(run)
    with lasting_output():
        console = Screen()
        if once or not console.is_terminal:
            console.print(run_frame(watch.look(), Screenful(console.width)), soft_wrap=False)
        else:
            _follow(watch, console, every)


def _follow(watch: RunWatch, console: Console, every_s: float) -> None:
    """Draw the run until q or Ctrl-C is pressed."""
    with _left_by_signals(), _keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(run_frame(watch.look(), Screenful(*console.size)), refresh=True)
            if pressed(every_s).lower() in ("q", "\x03", "\x04"):
                return


@contextmanager
def _left_by_signals() -> Iterator[None]:
    """Let Ctrl-C end what is within quietly, and other signals that ask to end do so after the terminal is restored."""

    def leave(number: int, _: object) -> NoReturn:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Yield a function that waits so many seconds for a key and returns it; "" for none."""
    number = sys.stdin.fileno()
    if not os.isatty(number):
        yield _no_key
        return
    before = termios.tcgetattr(number)
    tty.setcbreak(number)

    def pressed(wait_s: float) -> str:
        ready, _, _ = select.select([number], [], [], wait_s)
        # At the end of input there are no more keys, and no terminal either.
        return (os.read(number, 1).decode(errors="replace") or "q") if ready else ""

    try:
        yield pressed
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)


def _no_key(wait_s: float) -> str:
    select.select([], [], [], wait_s)
    return ""
