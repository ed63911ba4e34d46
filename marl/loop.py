"""The training loop: deal -> play -> read -> judge -> learn. It knows no algorithm's name, and there is no other."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

from marl import checkpoint
from marl.batch import collect
from marl.errors import NonFinite
from marl.evaluate import Evaluator
from marl.failed import keep
from marl.folder import RunFolder
from marl.protocols import Evidence
from marl.rollout import GameError, seed_of
from marl.run import Run
from marl.types import Metrics, Sample
from marl.view.metrics import summarize

StepCallback = Callable[[int, Metrics], None]


class Monitor(Protocol):
    """Follows a run: the console, event files, a tracker."""

    def begin(self, folder: RunFolder) -> None:
        """Called once, when the folder is as the run will go on from."""

    def log(self, step: int, metrics: Metrics) -> None: ...
    def say(self, message: str) -> None: ...
    def close(self) -> None: ...


class Clock:
    """Seconds spent in each stage of a step, as `time/` metrics."""

    def __init__(self) -> None:
        self.metrics: Metrics = {}

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        name = f"time/{stage}"
        self.metrics[name] = self.metrics.get(name, 0.0) + time.perf_counter() - started


class Interrupt:
    """Ctrl-C asks the loop to stop after this step; a second one stops at once."""

    def __init__(self) -> None:
        self.asked = False

    def __enter__(self) -> Interrupt:
        self._before = {s: signal.signal(s, self._ask) for s in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *error: object) -> None:
        for name, handler in self._before.items():
            signal.signal(name, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True


class Training:
    """A run and its folder, step by step."""

    def __init__(self, run: Run, folder: RunFolder, monitors: list[Monitor]) -> None:
        self.run, self.folder, self.monitors = run, folder, monitors
        self._evaluator = Evaluator(run.scenario, run.table)
        self._saved = -1

    def __call__(self, stop: Interrupt) -> bool:
        """Train to the end; False if it was interrupted before."""
        run, schedule = self.run, self.run.scenario.schedule
        if run.step == 0:
            self._log(self._evaluate(Clock()) | {"step/tokens": 0.0})
        while run.step < schedule.steps and not stop.asked:
            metrics = self._step()
            self._log(metrics)
            if run.step % run.scenario.checkpoint.every == 0:
                self.save()
        self.save()
        return run.step == schedule.steps

    def _step(self) -> Metrics:
        run, clock, step = self.run, Clock(), self.run.step
        with clock("step"):
            with clock("play"), self._saving_on(GameError, TimeoutError):
                trajectories = run.experience.gather(run.deal(step), run.table)
            with clock("read"):
                readings = run.read(trajectories)
            with clock("judge"):
                evidence = Evidence(trajectories, run.scenario.game.kind, readings, run.table)
                judgement = run.judge(evidence)
                batches = collect(trajectories, judgement, run.scenario.roles, readings)
            metrics = summarize(trajectories) | judgement.metrics
            with clock("learn"):
                for name in run.learners:
                    metrics |= self._learn(name, batches.get(name, []))
            with clock("publish"):
                for name in run.learners:
                    run.publish(name, step + 1)
        run.step += 1
        with clock("record"):
            if self._recorded(run.step):
                self.folder.record(run.step, trajectories)
        if run.step % run.scenario.evaluate.every == 0 or run.step == run.scenario.schedule.steps:
            metrics |= self._evaluate(clock)
        return metrics | {"step/tokens": float(sum(run.table.tokens.values()))} | clock.metrics

    def _learn(self, name: str, samples: list[Sample]) -> Metrics:
        try:
            learned = self.run.learners[name].update(samples)
        except NonFinite as error:
            kept = self.folder.path / "failed" / f"{self.run.step + 1:06d}" / name
            keep(kept, self.run.learners[name], samples)
            error.add_note(f"The batch and the learner as it was are kept: marl rerun {kept}")
            raise
        return {f"policy/{name}/{key}": value for key, value in learned.items()}

    def _evaluate(self, clock: Clock) -> Metrics:
        if not self._evaluator.measures:
            return {}
        with clock("evaluate"), self._saving_on(GameError, TimeoutError):
            return self._evaluator(self.run.step)

    def _recorded(self, step: int) -> bool:
        """Whether this step's trajectories are written; chosen by its number, so the same after a restart."""
        rate = self.run.scenario.checkpoint.trajectories
        return seed_of(self.run.scenario.schedule.seed, "record", step) < rate * 2**64

    def _log(self, metrics: Metrics) -> None:
        self.folder.log(self.run.step, metrics)
        for monitor in self.monitors:
            monitor.log(self.run.step, metrics)

    def save(self) -> None:
        """Write a checkpoint of the steps done, unless there is one."""
        run = self.run
        if self._saved == run.step:
            return
        manifest = (run.step, self.folder.metrics.stat().st_size)
        keep = run.scenario.checkpoint.keep
        checkpoint.write(self.folder.checkpoints, manifest, run.state_dict(), run.save_policies, keep)
        self._saved = run.step

    def resume(self, step: int) -> None:
        """Go back to checkpoint `step`: weights, credit, files; everything that came after is cut off."""
        state = self.folder.rewind(step)
        if state is not None:
            self.run.load_state_dict(state)
            self.run.step = self._saved = step

    @contextmanager
    def _saving_on(self, *errors: type[Exception]) -> Iterator[None]:
        """Play changes no weights, so when it fails, the steps done so far are worth a checkpoint."""
        try:
            yield
        except errors:
            if self.run.step:
                self.save()
            raise
