"""The training loop: deal -> play -> read -> judge -> learn. It knows no algorithm's name, and there is no other."""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType

from marl.errors import FolderError, NonFinite, OutOfMemory, is_out_of_memory
from marl.evaluation.evaluate import Evaluator
from marl.graph import Trajectory
from marl.metrics.alarms import Alarm, AlarmMonitor, Collapse
from marl.metrics.collapse import most_common_move
from marl.metrics.summaries import summarize, usage_metrics
from marl.protocols import FollowsLearning
from marl.runs import checkpoint
from marl.runs.best_checkpoint import Best
from marl.runs.failed_updates import keep
from marl.runs.run_folder import RunFolder
from marl.runs.status import Activity
from marl.seeds import seed_of
from marl.training.archive import RunArchive
from marl.training.failures import divergence_advice, memory_advice, resume_advice
from marl.training.interrupt import STEP_S, UPDATE_S, Interrupt, Stopped
from marl.training.run import Run
from marl.types import Metrics, Sample, TokenFigures, Turn, TurnId
from marl.view.console import Monitor
from marl.view.examples import examples

HELD_OUT_RECORDED = 32
"""Most episodes of an evaluation that are written."""
_LOST = ("episode/dropped", "episode/unjudged")


class Clock:
    """Seconds spent in each stage of a step, as `time/` metrics."""

    def __init__(self) -> None:
        self.metrics: Metrics = {}
        self.stage, self.since = "", time.time()
        """The stage that began last, and when, in seconds since 1970."""

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        started, self.stage, self.since = time.perf_counter(), stage, time.time()
        yield
        name = f"time/{stage}"
        self.metrics[name] = self.metrics.get(name, 0.0) + time.perf_counter() - started


class Training:
    """A run and its folder, step by step."""

    def __init__(self, run: Run, folder: RunFolder, monitors: Sequence[Monitor]) -> None:
        self.run, self.folder, self.monitors = run, folder, monitors
        self._evaluator = Evaluator(run.scenario, run.simulator)
        self._best, self._alarms = Best(run.scenario.evaluate), AlarmMonitor.of_scenario(run.scenario)
        self._stop, self._clock = Interrupt(), Clock()
        self._saved = self._resumed = 0
        """Steps of the newest checkpoint and of the one that the run went on from. Step 0 needs none: it follows from
        the scenario."""
        self._unmeasured: Metrics | None = {}
        """Figures of the newest step, if it is still to be evaluated."""
        if isinstance(run.experience, FollowsLearning):
            run.experience.follow(RunArchive(run, folder))

    def __call__(self, stop: Interrupt) -> bool:
        """Train to the end; False if it was stopped before.

        Raises:
            Collapse: if an alarm that ends the run is raised; after a checkpoint.
            OutOfMemory: if memory is used up; after a checkpoint of the steps done, unless an update had begun to
                change weights.
        """
        self._stop = stop
        try:
            with stop.patient(math.inf):
                self._train()
        except Stopped:
            return False
        return self._done

    def _train(self) -> None:
        if self._unmeasured is not None:
            self._measure_late(self._unmeasured)
        while not self._done and not self._stop.requested:
            self._advance()
        self.save()
        if self._best.given_up:
            self._say(self._best.why)

    def _measure_late(self, metrics: Metrics) -> None:
        """Evaluate the newest step, which a run that went on from its checkpoint had yet to do."""
        self._finish(metrics, Clock())
        if self._saved:
            checkpoint.complete(self.folder.checkpoints, self._saved, self.folder.settled_rows())

    def activity(self) -> Activity:
        """Return what the run does at this moment; may be called from any thread."""
        run, clock = self.run, self._clock
        parts = tuple(run.simulator.status()), tuple(run.learners.status())
        return Activity(run.step, run.scenario.schedule.steps, clock.stage, clock.since, *parts)

    @property
    def _done(self) -> bool:
        return self.run.step >= self.run.scenario.schedule.steps or self._best.given_up

    def _advance(self) -> None:
        clock = self._clock = Clock()
        metrics, trajectories = self._step(clock)
        holding, raised = self._alarms(metrics)
        self._finish(metrics | holding, clock, trajectories)
        for monitor in self.monitors:
            monitor.played(self.run.step, trajectories)
        if self.run.step % self.run.scenario.checkpoint.every == 0 or self.run.step == self._best.step:
            self.save()
        self._report_alarms(raised, trajectories)

    def _report_alarms(self, raised: Sequence[Alarm], trajectories: Sequence[Trajectory]) -> None:
        """Say which alarms were raised; one that ends the run does so after a checkpoint."""

        def turns(alarm: Alarm) -> Iterator[Turn]:
            played = [trajectory for trajectory in trajectories if alarm.game in ("", trajectory.deal.game)]
            return (turn for trajectory in played for turn in trajectory.turns if turn.role == alarm.role)

        messages = {alarm: alarm.message(most_common_move(turns(alarm))) for alarm in raised}
        for message in messages.values():
            self._say(message)
        if fatal := [message for alarm, message in messages.items() if self._alarms.ends_run(alarm)]:
            self.save()
            raise Collapse(f"stopped after step {self.run.step}, with a checkpoint (alarms.stop): {'; '.join(fatal)}")

    def _step(self, clock: Clock) -> tuple[Metrics, Sequence[Trajectory]]:
        run, step = self.run, self.run.step
        dropped, unjudged = run.simulator.dropped, run.simulator.unjudged
        with clock("step"), self._rescued(clock, self.save):
            with self._stop.patient(STEP_S):
                with clock("play"):
                    trajectories = run.experience.gather(step, run.planned, run.simulator)
                with clock("read"):
                    readings = run.read(trajectories)
                with clock("judge"):
                    judgement = run.judged(trajectories, readings)
                    batches = run.samples(trajectories, judgement, readings)
                lost = run.simulator.dropped - dropped, run.simulator.unjudged - unjudged
                metrics = summarize(trajectories) | dict(zip(_LOST, map(float, lost), strict=True))
                metrics |= run.figures(trajectories) | judgement.metrics
            due = run.update_schedule(step, batches)
            tokens: dict[TurnId, TokenFigures] | None = {} if self._recorded(step + 1) else None
            with clock("learn"), self._stop.patient(UPDATE_S):
                metrics |= self._learn(due, tokens)
            with clock("publish"):
                run.publish_all(due, step + 1)
        run.step += 1
        with clock("record"):
            if tokens is not None:
                self.folder.record(run.step, trajectories)
                self.folder.record_judgement(run.step, run.record(judgement, trajectories, tokens))
        return metrics, trajectories

    def _finish(self, metrics: Metrics, clock: Clock, trajectories: Sequence[Trajectory] = ()) -> None:
        """Evaluate if it is time, and write the step's row; if evaluation fails, the row without it."""
        run, measured = self.run, Metrics()

        def log() -> None:
            evaluated = run.simulator.tokens["eval"]
            sampled = float(run.simulator.tokens.total() - evaluated)
            tokens = {"step/tokens": sampled, "step/eval_tokens": float(evaluated)}
            spent = usage_metrics(run.simulator.spent, "total_")
            self._log(metrics | measured | tokens | spent | run.mix.metrics() | clock.metrics)

        def save_unmeasured() -> None:
            length = self.folder.settled_rows()
            log()
            self.save(length, metrics)

        if due := self._due:
            with self._rescued(clock, save_unmeasured), clock("evaluate"), self._stop.patient(STEP_S):
                measured = self._evaluate()
            self._best.expect(measured)
            self._best.take(run.step, measured)
        log()
        run.mix.take(metrics | measured)
        for failure in run.simulator.take_failures():
            self._say(failure)
        if due:
            self._show_play(self._evaluator.played, trajectories)

    def _show_play(self, held_out: Sequence[Trajectory], trajectories: Sequence[Trajectory]) -> None:
        """Write the first held-out episodes of an evaluation, and print some turns of them, or of the step's own."""
        if held_out and self.run.scenario.checkpoint.trajectories:
            self.folder.record_held_out(self.run.step, held_out[:HELD_OUT_RECORDED])
        for line in examples(held_out or trajectories):
            self._say(line)

    def _evaluate(self) -> Metrics:
        """Return figures of the newest step; strategies are written if their average is measured."""
        measured = self._evaluator(self.run.step)
        if rows := self._evaluator.strategy_rows():
            self.folder.record_strategies(self.run.step, rows)
        return measured

    def _learn(self, samples: Mapping[str, list[Sample]], tokens: dict[TurnId, TokenFigures] | None) -> Metrics:
        try:
            return self.run.update(samples, tokens)
        except NonFinite as error:
            learner, step = self.run.scenario.policies[error.policy].learner, self.run.step
            # What failed here before does so without any damage.
            if 0 < step == self._resumed and not self._failed(error.policy).exists():
                error.add_note(resume_advice(step, checkpoint.whole(self.folder.checkpoints)))
            error.add_note(self._keep_failed(error.policy, samples[error.policy]))
            error.add_note(divergence_advice(error, samples[error.policy], learner))
            raise

    def _failed(self, policy: str) -> Path:
        """Return the folder for the batch on which a learner fails in this step."""
        return self.folder.path / "failed" / f"{self.run.step + 1:06d}" / policy

    def _keep_failed(self, policy: str, samples: list[Sample]) -> str:
        """Write the batch on which a learner failed; return a sentence about where it is."""
        folder = self._failed(policy)
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

    def save(self, metrics_bytes: int | None = None, unmeasured: Metrics | None = None) -> None:
        """Write a checkpoint of the steps done, unless there is one.

        `metrics_bytes`: length of metrics.jsonl up to it (default: as it is). `unmeasured`: figures of its step, if
        that is still to be evaluated; its row is not among those bytes.
        """
        run = self.run
        if self._saved == run.step:
            return
        checkpoint.write(
            self.folder.checkpoints,
            checkpoint.Moment(
                run.step, self.folder.settled_rows() if metrics_bytes is None else metrics_bytes, unmeasured
            ),
            run.state_dict(),
            run.save_policies,
            checkpoint.Retention(run.scenario.checkpoint.keep, self._best.step),
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
            self.run.step = self._saved = self._resumed = step
            self._unmeasured = self.folder.unmeasured(step)
        # None has a state of its own: what they know is in the rows, and in the files of strategies.
        for evaluated, strategies in self.folder.strategies():
            self._evaluator.take(evaluated, strategies)
        for row in self.folder.rows():
            self._best.take(row["step"], row)
            self._alarms(row)
            self.run.mix.take(row)
        if self._unmeasured:
            self._alarms(self._unmeasured)

    def _rescued(self, clock: Clock, save: Callable[[], None]) -> ExitStack:
        """Return a context that is left with a checkpoint of the steps done when it fails or is broken off.

        What the failed step changed short of weights is taken back: a run that goes on from here does it again. After
        an update that was not finite there is none: the weights before it may be what is wrong.
        """
        restore, before, stack = self.run.snapshot(), self.run.changes, ExitStack()

        def rescue(_: object, error: BaseException | None, tb: TracebackType | None) -> None:
            if error is None or type(error) is KeyboardInterrupt or isinstance(error, NonFinite):
                return
            if memory := is_out_of_memory(error):
                traceback.clear_frames(tb)  # what they hold would be in the way of a checkpoint
            learnt = clock.stage in ("learn", "publish") and (before is None or before != self.run.changes)
            note = self._broken_off if learnt else self._save_steps_done(restore, save)
            if memory:
                raise OutOfMemory(f"{memory_advice(self.run.scenario, clock.stage, error)}. {note}") from error
            error.add_note(note)

        stack.push(rescue)
        return stack

    @property
    def _broken_off(self) -> str:
        newest = f"checkpoint {self._saved:06d}" if self._saved else "no checkpoint yet"
        return f"Step {self.run.step + 1} was broken off in the middle of its update; to go on from: {newest}"

    def _save_steps_done(self, restore: Callable[[], None], save: Callable[[], None]) -> str:
        """Save the steps done; return a sentence about their checkpoint."""
        restore()
        try:
            save()
        except (FolderError, MemoryError, RuntimeError) as error:
            return f"The steps done could not be kept: {error}"
        if not self._saved:
            return "No step was done yet"
        return f"The steps done are kept: checkpoint {self._saved:06d}; to go on from it: --resume auto"
