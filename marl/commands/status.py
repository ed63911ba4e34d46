"""`marl status`: the state of a run and the activity of each of its parts, while it runs and afterwards."""

from __future__ import annotations

import time
from collections.abc import Iterator

import typer

from marl.commands.terminal import RunPath, echo
from marl.runs.liveness import RunLiveness, determine_liveness, read_planned_steps
from marl.runs.metrics_tail import MetricsTail
from marl.runs.status import STATUS_FILE, RunStatus, read_status
from marl.scenario.load import ScenarioError

app = typer.Typer()


@app.command(name="status")
def print_run_status(run: RunPath) -> None:
    """Print the state of a run and the current activity of each part, or the last one of a run that died."""
    rows, planned = MetricsTail(run, max_rows=1).read_new_rows(), read_planned_steps(run)
    step = int(rows[-1]["step"]) if rows else 0
    state = determine_liveness(run, step, planned, time.time())
    if state.state == "folder gone":
        raise ScenarioError(state.details)
    if not (run / STATUS_FILE).is_file() and (run / "scenario.yaml").is_file():
        # No status file: the run comes from an older version of marl, or has not started yet.
        echo(_state_line(state, step, planned))
        return
    for line in status_lines(read_status(run), state):
        echo(line)


def status_lines(status: RunStatus, state: RunLiveness) -> Iterator[str]:
    """Yield one line on the run, then one on each simulator and learner."""
    activity = status.activity
    yield _state_line(state, activity.step, activity.steps)
    for worker in (*activity.simulators, *activity.learners):
        location = f" ({worker.place})" if worker.place else ""
        # An activity may begin just after the time that the status says.
        line = f"  {worker.name}{location}: {worker.doing} for {max(0.0, status.written - worker.since):.0f} s"
        if worker.open:
            line += f"; {worker.open} episodes open"
        if worker.restarts:
            line += f"; restarted {worker.restarts} times"
        yield line


def _state_line(state: RunLiveness, step: int, planned_steps: int | None) -> str:
    """Return one line with the state of a run, its progress, and the evidence for the state."""
    progress = f"step {step}" + (f" of {planned_steps}" if planned_steps else "")
    return "; ".join(filter(None, [f"{state.state}: {progress}", state.description]))
