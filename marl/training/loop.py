"""The training loop: deal -> play -> read -> judge -> learn. It knows no algorithm's name, and there is no other."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

from marl.errors import EndpointError, FolderError, NonFinite
from marl.evaluation.evaluate import Evaluator
from marl.graph import Trajectory
from marl.metrics.alarms import Alarm, AlarmMonitor, Collapse
from marl.metrics.collapse import most_common_move
from marl.metrics.summaries import summarize, usage_metrics
from marl.rollout.episode import GameError
from marl.runs import checkpoint
from marl.runs.best_checkpoint import Best
from marl.runs.failed_updates import keep
from marl.runs.run_folder import RunFolder
from marl.seeds import seed_of
from marl.training.run import Run
from marl.training.samples import collect
from marl.types import Metrics, Sample, Turn
from marl.view.console import Monitor


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
        self.requested = False
        # Python gives signals to the main thread; elsewhere they are for whoever started the thread.
        here = threading.current_thread() is threading.main_thread()
        self._signals = (signal.SIGINT, signal.SIGTERM) if here else ()

    def __enter__(self) -> Interrupt:
        self._before = {s: signal.signal(s, self._ask) for s in self._signals}
        return self

    def __exit__(self, *error: object) -> None:
        for name, handler in self._before.items():
            signal.signal(name, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        # Not print: a signal may come in the middle of one.
        with suppress(OSError):
            os.write(2, b"\nstopping after this step, with a checkpoint; once more stops at once\n")


class Training:
    """A run and its folder, step by step."""

    def __init__(self, run: Run, folder: RunFolder, monitors: Sequence[Monitor]) -> None:
        self.run, self.folder, self.monitors = run, folder, monitors
        self._evaluator = Evaluator(run.scenario, run.simulator)
        self._best, self._alarms = Best(run.scenario.evaluate), AlarmMonitor.of_scenario(run.scenario)
        self._saved = 0
        """Step of the newest checkpoint. Step 0 needs none: it follows from the scenario."""

    def __call__(self, stop: Interrupt) -> bool:
        """Train to the end; False if it was interrupted before.

        Raises:
            Collapse: if an alarm that ends the run is raised; after a checkpoint.
        """
        if self.run.step == 0:
            self._finish({}, Clock())
        while not self._done and not stop.requested:
            self._advance()
        self.save()
        if self._best.given_up:
            self._say(self._best.why)
        return self._done

    @property
    def _done(self) -> bool:
        return self.run.step == self.run.scenario.schedule.steps or self._best.given_up

    def _advance(self) -> None:
        clock = Clock()
        metrics, trajectories = self._step(clock)
        holding, raised = self._alarms(metrics)
        self._finish(metrics | holding, clock)
        if self.run.step % self.run.scenario.checkpoint.every == 0 or self.run.step == self._best.step:
            self.save()
        self._report_alarms(raised, trajectories)

    def _report_alarms(self, raised: Sequence[Alarm], trajectories: Sequence[Trajectory]) -> None:
        """Say which alarms were raised; one that ends the run does so after a checkpoint."""

        def turns(role: str) -> Iterator[Turn]:
            return (turn for trajectory in trajectories for turn in trajectory.turns if turn.role == role)

        messages = {alarm: alarm.message(most_common_move(turns(alarm.role))) for alarm in raised}
        for message in messages.values():
            self._say(message)
        if fatal := [message for alarm, message in messages.items() if self._alarms.ends_run(alarm)]:
            self.save()
            raise Collapse(f"stopped after step {self.run.step}, with a checkpoint (alarms.stop): {'; '.join(fatal)}")

    def _step(self, clock: Clock) -> tuple[Metrics, Sequence[Trajectory]]:
        run, step, dropped = self.run, self.run.step, self.run.simulator.dropped
        with clock("step"):
            with clock("play"), self._saving():
                trajectories = run.experience.gather(step, run.deals, run.simulator)
            with clock("read"):
                readings = run.read(trajectories)
            with clock("judge"):
                judgement = run.judged(trajectories, readings)
                batches = collect(trajectories, judgement, run.scenario.roles, readings)
            metrics = summarize(trajectories) | {"episode/dropped": float(run.simulator.dropped - dropped)}
            metrics |= run.experience.metrics() | judgement.metrics
            due = run.update_schedule(step, batches)
            with clock("learn"):
                metrics |= self._learn(due)
            with clock("publish"):
                for name in due:
                    run.publish(name, step + 1)
        run.step += 1
        with clock("record"):
            if self._recorded(run.step):
                self.folder.record(run.step, trajectories)
                self.folder.record_judgement(run.step, run.record(judgement, trajectories))
        return metrics, trajectories

    def _finish(self, metrics: Metrics, clock: Clock) -> None:
        """Evaluate if it is time, and write the step's row; if evaluation fails, the row without it."""
        measured: Metrics = {}

        def log() -> None:
            tokens = dict(self.run.simulator.tokens)
            evaluated = tokens.pop("eval", 0)
            sampled = {"step/tokens": float(sum(tokens.values())), "step/eval_tokens": float(evaluated)}
            spent = usage_metrics(self.run.simulator.spent, "total_")
            self._log(metrics | measured | sampled | spent | clock.metrics)

        if self._due:
            with clock("evaluate"), self._saving(log):
                measured = self._evaluator(self.run.step)
            self._best.expect(measured)
            self._best.take(self.run.step, measured)
        log()

    def _learn(self, samples: Mapping[str, list[Sample]]) -> Metrics:
        try:
            return self.run.update(samples)
        except NonFinite as error:
            error.add_note(self._keep_failed(error.policy, samples[error.policy]))
            raise

    def _keep_failed(self, policy: str, samples: list[Sample]) -> str:
        """Write the batch on which a learner failed; return a sentence about where it is."""
        folder = self.folder.path / "failed" / f"{self.run.step + 1:06d}" / policy
        try:
            keep(folder, self.run.learners[policy], samples)
        except FolderError as error:
            return f"The batch could not be kept: {error}"
        return f"The batch and the learner as it was are kept: marl rerun {folder}"

    @property
    def _due(self) -> bool:
        step, every = self.run.step, self.run.scenario.evaluate.every
        return self._evaluator.measures and (step % every == 0 or step == self.run.scenario.schedule.steps)

    def _recorded(self, step: int) -> bool:
        """Return True if this step's episodes are written; chosen by its number, so the same after a restart."""
        rate = self.run.scenario.checkpoint.trajectories
        return seed_of(self.run.scenario.schedule.seed, "record", step) < rate * 2**64

    def _log(self, metrics: Metrics) -> None:
        self.folder.log(self.run.step, metrics)
        for monitor in self.monitors:
            monitor.log(self.run.step, metrics)

    def _say(self, message: str) -> None:
        for monitor in self.monitors:
            monitor.say(message)

    def save(self) -> None:
        """Write a checkpoint of the steps done, unless there is one."""
        run = self.run
        if self._saved == run.step:
            return
        checkpoint.write(
            self.folder.checkpoints,
            run.step,
            run.state_dict(),
            run.save_policies,
            metrics_bytes=self.folder.settled_rows(),
            retention=checkpoint.Retention(run.scenario.checkpoint.keep, self._best.step),
        )
        self._saved = run.step

    def resume(self, step: int) -> None:
        """Go back to checkpoint `step`: weights, credit, files; everything that came after is cut off."""
        state = self.folder.rewind(step)
        if state is not None:
            try:
                self.run.load_state_dict(state)
            except KeyError as error:
                raise ValueError(
                    f"checkpoint {step:06d} does not fit the changed scenario: it has no {error}"
                ) from error
            self.run.step = self._saved = step
        # Neither has a state of its own: what they know is in the rows.
        for row in self.folder.rows():
            self._best.take(row["step"], row)
            self._alarms(row)

    @contextmanager
    def _saving(self, first: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Play changes no weights, so when it fails, the steps done so far are worth a checkpoint, made after `first`.

        What was counted while it failed is taken back: a run that goes on from here counts it again.
        """
        before = self.run.play_state()
        try:
            yield
        except (GameError, TimeoutError, EndpointError):
            self.run.restore_play_state(before)
            first()
            self.save()
            raise
