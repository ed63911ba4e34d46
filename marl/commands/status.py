"""`marl status`: who does what in a run, while it runs and afterwards."""

from __future__ import annotations

import time
from collections.abc import Iterator

import typer

from marl.commands.terminal import RunPath, echo
from marl.runs.liveness import SILENT_S
from marl.runs.status import RunStatus, read_status

app = typer.Typer()


@app.command()
def status(run: RunPath) -> None:
    """Print what a run does and since when, with `cluster` part by part; of one that has died, what it did last."""
    for line in status_lines(read_status(run), time.time()):
        echo(line)


def status_lines(status: RunStatus, now: float) -> Iterator[str]:
    """Yield the lines that tell a status at the time `now`."""
    activity, silent_s = status.activity, now - status.written
    if status.ended:
        state = f"ended {_ago(silent_s)}" + (f", by {status.problem}" if status.problem else "")
    elif silent_s > SILENT_S:
        state = f"silent for {silent_s:.0f} s: it has died, or its machine is not reached"
    else:
        state = f"{activity.stage or 'getting ready'} for {status.written - activity.since:.0f} s"
    yield f"step {activity.step} of {activity.steps}, {state} ({status.machine}, process {status.process})"
    for each in (*activity.simulators, *activity.learners):
        notes = [f"{each.open} episodes open"] if each.open else []
        notes += [f"restarted {each.restarts} times"] if each.restarts else []
        where = f" ({each.place})" if each.place else ""
        yield "; ".join([f"  {each.name}{where}: {each.doing} for {status.written - each.since:.0f} s", *notes])


def _ago(seconds: float) -> str:
    return f"{seconds:.0f} s ago" if seconds < 120 else f"{seconds / 60:.0f} minutes ago"
