"""`marl status`: the activity of each part of a run, while it runs and afterwards."""

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
    """Print the current activity of each part of a run, or the last one of a run that died."""
    for line in status_lines(read_status(run), time.time()):
        echo(line)


def status_lines(status: RunStatus, now: float) -> Iterator[str]:
    """Yield one line on the run and one on each part, as of the time `now` [seconds since the epoch]."""
    activity, silent_s = status.activity, now - status.written
    if status.ended:
        ago = f"{silent_s:.0f} s ago" if silent_s < 120 else f"{silent_s / 60:.0f} minutes ago"
        state = f"ended {ago}" + (f", by {status.problem}" if status.problem else "")
    elif silent_s > SILENT_S:
        # A living run writes its status more often, so a long silence means that the process is gone.
        state = f"silent for {silent_s:.0f} s: it has died, or its machine is not reached"
    else:
        state = f"{activity.stage or 'getting ready'} for {status.written - activity.since:.0f} s"
    yield f"step {activity.step} of {activity.steps}, {state} ({status.machine}, process {status.process})"
    for worker in (*activity.simulators, *activity.learners):
        location = f" ({worker.place})" if worker.place else ""
        line = f"  {worker.name}{location}: {worker.doing} for {status.written - worker.since:.0f} s"
        if worker.open:
            line += f"; {worker.open} episodes open"
        if worker.restarts:
            line += f"; restarted {worker.restarts} times"
        yield line
