"""One sitting of training: the loop, followed on the console, in event files and by trackers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from marl.metrics.alarms import Collapse
from marl.runs.run_folder import RunFolder
from marl.scenario.schema import Scenario
from marl.training.loop import Monitor
from marl.training.resume import Start, train
from marl.types import Metrics
from marl.view.closing_report import closing
from marl.view.console import follow
from marl.view.trackers import Events, Tracked


@dataclass(frozen=True, slots=True)
class Callback:
    """A function that wants every step's metrics."""

    function: Callable[[int, Metrics], None]

    def begin(self, folder: RunFolder) -> None:
        """Steps that were done before are not repeated."""

    def log(self, step: int, metrics: Metrics) -> None:
        self.function(step, metrics)

    def say(self, message: str) -> None:
        """Numbers only."""

    def close(self) -> None:
        """Nothing to put away."""


def session(
    scenario: Scenario, folder: Path, start: Start, on_step: Callable[[int, Metrics], None] | None = None
) -> bool:
    """Train with everything a person expects to see; returns whether it went to the end.

    Ctrl-C ends it with a checkpoint, a second one (or one before the first step) at once, without.
    """
    home = RunFolder(folder)
    watch = follow(Console(), scenario.schedule.steps, home.path.name)
    monitors: list[Monitor] = [watch, Events()]
    monitors += [Tracked(name) for name in scenario.track]
    monitors += [Callback(on_step)] if on_step else []
    try:
        finished = train(scenario, home.path, start, monitors)
    except KeyboardInterrupt:
        finished = False
    except Collapse:
        watch.say(closing(home, False, scenario.evaluate))
        raise
    watch.say(closing(home, finished, scenario.evaluate))
    return finished
