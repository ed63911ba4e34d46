"""The training loop: deal, play, read, assign credit, learn, publish. It knows no algorithm by name."""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType

from marl.core.errors import FolderError, NonFiniteError, OutOfMemory, is_out_of_memory
from marl.core.graph import Trajectory
from marl.core.seeds import seed_of
from marl.core.types import Metrics, Sample, TokenFigures, Turn, TurnId
from marl.evaluation.evaluate import Evaluator
from marl.metrics.alarms import Alarm, AlarmMonitor, CollapseError
from marl.metrics.collapse import most_common_move
from marl.metrics.trajectory_metrics import summarize, usage_metrics
from marl.protocols import TracksPolicyUpdates
from marl.runs import checkpoint
from marl.runs.best_checkpoint import BestTracker
from marl.runs.failed_updates import save_failed_batch
from marl.runs.run_folder import RunFolder
from marl.runs.status import RunActivity
from marl.training.archive import RunArchive
from marl.training.failure_advice import divergence_advice, memory_advice, resume_advice
from marl.training.run import Run
from marl.training.stop_request import STEP_S, UPDATE_S, StopDeadlineExceeded, StopRequest
from marl.view.console import Monitor
from marl.view.turn_examples import example_lines

HELD_OUT_RECORDED = 32
"""Maximum number of episodes of one evaluation written to the run's folder."""


class StageTimer:
    """Seconds spent in each stage of one step, as `time/` metrics."""

    def __init__(self) -> None:
        self.metrics: Metrics = {}
        self.stage, self.since = "", time.time()
        """Name of the latest stage, and its start time in seconds since 1970."""

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        started, self.stage, self.since = time.perf_counter(), stage, time.time()
        yield
        name = f"time/{stage}"
        self.metrics[name] = self.metrics.get(name, 0.0) + time.perf_counter() - started


class TrainingLoop:
    """Trains a run step by step and writes the results to the run's folder."""

    def __init__(self, run: Run, folder: RunFolder, monitors: Sequence[Monitor]) -> None:
        self.run, self.folder, self.monitors = run, folder, monitors
        self._evaluator = Evaluator(run.scenario, run.simulator)
        self._best, self._alarms = BestTracker(run.scenario.evaluate), AlarmMonitor.from_scenario(run.scenario)
        self._stop, self._clock = StopRequest(), StageTimer()
        # Both are step numbers. Step 0 needs no checkpoint: the scenario determines it.
        self._saved_step = self._resumed_step = 0
        self._unevaluated: Metrics | None = {}
        """Metrics of the newest step while its evaluation is outstanding, else None."""
        if isinstance(run.experience, TracksPolicyUpdates):
            run.experience.set_archive(RunArchive(run, folder))

    def __call__(self, stop: StopRequest) -> bool:
        """Train to the last step; return False if a stop request ended training early.

        Raises:
            CollapseError: if an alarm listed in `alarms.stop` is raised; a checkpoint is written first.
            OutOfMemory: if memory runs out. A checkpoint of the completed steps is written first, unless an update had
                already changed weights.
        """
        self._stop = stop
        try:
            with stop.grace_period(math.inf):
                if self._unevaluated is not None:
                    self._finish(self._unevaluated, StageTimer())
                    # The resumed checkpoint still says that its step lacks an evaluation.
                    if self._saved_step:
                        metrics_bytes = self.folder.fsync_records()
                        checkpoint.mark_evaluated(self.folder.checkpoints, self._saved_step, metrics_bytes)
                while not self._done and not stop.requested:
                    self.step()
                self.save()
                if self._best.out_of_patience:
                    self._say(self._best.stop_message)
        except StopDeadlineExceeded:
            return False
        return self._done

    @property
    def _done(self) -> bool:
        return self.run.step >= self.run.scenario.schedule.steps or self._best.out_of_patience

    def step(self) -> None:
        """Play and learn from one step, then evaluate, log and save where the step number calls for it."""
        run, step = self.run, self.run.step
        clock = self._clock = StageTimer()
        dropped, unverified = run.simulator.dropped, run.simulator.unverified
        with clock("step"), self._checkpoint_on_failure(clock, self.save):
            with self._stop.grace_period(STEP_S):
                with clock("play"):
                    trajectories = run.experience.gather(step, run.deals_ahead, run.simulator)
                with clock("read"):
                    readings = run.read(trajectories)
                with clock("credit"):
                    step_credit = run.assign_credit(trajectories, readings)
                    batches = run.samples(trajectories, step_credit, readings)
                metrics = summarize(trajectories)
                metrics["episode/dropped"] = float(run.simulator.dropped - dropped)
                metrics["episode/unjudged"] = float(run.simulator.unverified - unverified)
                metrics |= run.step_metrics(trajectories) | step_credit.metrics
            ready = run.update_schedule(step, batches)
            tokens: dict[TurnId, TokenFigures] | None = {} if self._is_recorded(step + 1) else None
            with clock("learn"), self._stop.grace_period(UPDATE_S):
                metrics |= self._learn(ready, tokens)
            with clock("publish"):
                run.publish_all(ready, step + 1)
        run.step += 1
        with clock("record"):
            if tokens is not None:
                self.folder.record_trajectories(run.step, trajectories)
                self.folder.record_credit(run.step, run.credit_record(step_credit, trajectories, tokens))
        del readings, batches, ready, step_credit, tokens  # freed before the evaluation, which needs memory of its own
        collapse_metrics, raised = self._alarms(metrics)
        self._finish(metrics | collapse_metrics, clock, trajectories)
        for monitor in self.monitors:
            monitor.log_episodes(run.step, trajectories)
        if run.step % run.scenario.checkpoint.every == 0 or run.step == self._best.step:
            self.save()
        self._report_alarms(raised, trajectories)

    def _is_recorded(self, step: int) -> bool:
        """Return True if the trajectories of `step` are written to disk."""
        # A function of the step's number, so that a resumed run records the same steps.
        rate = self.run.scenario.checkpoint.trajectories
        return seed_of(self.run.scenario.schedule.seed, "record", step) < rate * 2**64

    def _learn(self, samples: Mapping[str, list[Sample]], tokens: dict[TurnId, TokenFigures] | None) -> Metrics:
        """Update the policies in `samples` and return their metrics; keep the batch if an update is not finite."""
        try:
            return self.run.update(samples, tokens)
        except NonFiniteError as error:
            step, policy = self.run.step, error.policy
            batch = samples[policy]
            folder = self.folder.path / "failed" / f"{step + 1:06d}" / policy
            # A folder from an earlier attempt shows that an undamaged run fails here as well.
            if 0 < step == self._resumed_step and not folder.exists():
                error.add_note(resume_advice(step, checkpoint.intact_steps(self.folder.checkpoints)))
            try:
                save_failed_batch(folder, self.run.learners[policy], batch)
                error.add_note(f"The batch and the learner's state are kept: marl rerun {folder}")
            except FolderError as problem:
                error.add_note(f"The batch could not be kept: {problem}")
            error.add_note(divergence_advice(error, batch, self.run.scenario.policies[policy].learner))
            raise

    def _finish(self, metrics: Metrics, clock: StageTimer, trajectories: Sequence[Trajectory] = ()) -> None:
        """Evaluate if the step number calls for it, and write the step's row of metrics.

        If the evaluation fails, the row is written without it.
        """
        run, scenario = self.run, self.run.scenario
        figures: Metrics = {}

        def save_unevaluated() -> None:
            # The length is taken before the row is written: the resumed run writes the row again, with its evaluation.
            length = self.folder.fsync_records()
            self._log_row(metrics, clock)
            self.save(length, metrics)

        is_last = run.step == scenario.schedule.steps
        evaluates = self._evaluator.measures and (run.step % scenario.evaluate.every == 0 or is_last)
        if evaluates:
            failure_context = self._checkpoint_on_failure(clock, save_unevaluated)
            with failure_context, clock("evaluate"), self._stop.grace_period(STEP_S):
                figures = self._evaluator(run.step)
                if rows := self._evaluator.strategy_rows():
                    self.folder.record_strategies(run.step, rows)
            self._best.check_measured(figures)
            self._best.update(run.step, figures)
        self._log_row(metrics | figures, clock)
        run.game_mix.observe(metrics | figures)
        for failure in run.simulator.take_failure_messages():
            self._say(failure)
        if evaluates:
            held_out = self._evaluator.played
            if held_out and scenario.checkpoint.trajectories:
                self.folder.record_held_out(run.step, held_out[:HELD_OUT_RECORDED])
            for line in example_lines(held_out or trajectories):
                self._say(line)

    def _log_row(self, metrics: Metrics, clock: StageTimer) -> None:
        """Append the row of the newest step to metrics.jsonl, and pass it to the monitors."""
        run = self.run
        eval_tokens = run.simulator.tokens["eval"]
        sampled = float(run.simulator.tokens.total() - eval_tokens)
        tokens = {"step/tokens": sampled, "step/eval_tokens": float(eval_tokens)}
        totals = usage_metrics(run.simulator.usage, "total_")
        row = metrics | tokens | totals | run.game_mix.metrics() | clock.metrics
        self.folder.append_metrics(run.step, row)
        for monitor in self.monitors:
            monitor.log(run.step, row)

    def _report_alarms(self, raised: Sequence[Alarm], trajectories: Sequence[Trajectory]) -> None:
        """Print each raised alarm; if one ends the run, save a checkpoint and raise `CollapseError`."""
        fatal_messages: list[str] = []
        for alarm in raised:
            turns: list[Turn] = []
            for trajectory in trajectories:
                if alarm.game in ("", trajectory.deal.game):
                    turns += [turn for turn in trajectory.turns if turn.role == alarm.role]
            message = alarm.message(most_common_move(turns))
            self._say(message)
            if self._alarms.ends_run(alarm):
                fatal_messages.append(message)
        if fatal_messages:
            self.save()
            reasons = "; ".join(fatal_messages)
            raise CollapseError(f"stopped after step {self.run.step}, with a checkpoint (alarms.stop): {reasons}")

    def activity(self) -> RunActivity:
        """Return the current stage and the state of the run's processes; safe to call from any thread."""
        run, clock = self.run, self._clock
        simulators, learners = tuple(run.simulator.status()), tuple(run.learners.status())
        return RunActivity(run.step, run.scenario.schedule.steps, clock.stage, clock.since, simulators, learners)

    def _say(self, message: str) -> None:
        for monitor in self.monitors:
            monitor.say(message)

    def save(self, metrics_bytes: int | None = None, unmeasured: Metrics | None = None) -> None:
        """Write a checkpoint of the completed steps, unless the newest checkpoint already covers them.

        Args:
            metrics_bytes: length of metrics.jsonl to which a resumed run cuts the file (default: the current length).
            unmeasured: metrics of the newest step if its evaluation is outstanding; its row lies beyond
                `metrics_bytes`.
        """
        run = self.run
        if self._saved_step == run.step:
            return
        length = self.folder.fsync_records() if metrics_bytes is None else metrics_bytes
        checkpoint.write_checkpoint(
            self.folder.checkpoints,
            checkpoint.CheckpointMeta(run.step, length, unmeasured),
            run.state_dict(),
            run.save_policies,
            checkpoint.Retention(run.scenario.checkpoint.keep, self._best.step),
        )
        self._saved_step = run.step

    def resume(self, step: int) -> None:
        """Load checkpoint `step`, and cut off everything later in the run's folder.

        Raises:
            ValueError: if the checkpoint lacks a part that the changed scenario needs.
        """
        state = self.folder.rewind(step)
        if state is not None:
            try:
                self.run.load_state_dict(state)
            except KeyError as error:
                problem = f"checkpoint {step:06d} does not fit the changed scenario: it has no {error}"
                raise ValueError(problem) from error
            self.run.step = self._saved_step = self._resumed_step = step
            self._unevaluated = self.folder.unevaluated_metrics(step)
        # These objects save no state in checkpoints: the rows of metrics and the strategy files determine it.
        for evaluated_step, strategies in self.folder.strategies():
            self._evaluator.take(evaluated_step, strategies)
        for row in self.folder.rows():
            self._best.update(row["step"], row)
            self._alarms(row)
            self.run.game_mix.observe(row)
        if self._unevaluated:
            self._alarms(self._unevaluated)

    def _checkpoint_on_failure(self, clock: StageTimer, save: Callable[[], None]) -> ExitStack:
        """Return a context manager that calls `save` if its body raises or is interrupted.

        State changed by the unfinished step is restored first, so that a resumed run repeats the step. Nothing is saved
        after an update that was not finite, as the weights before the update may be the cause.
        """
        restore, update_counts, stack = self.run.snapshot(), self.run.update_counts, ExitStack()

        def rescue(_: object, error: BaseException | None, tb: TracebackType | None) -> None:
            # A plain KeyboardInterrupt is a second Ctrl-C: the user does not want to wait for a checkpoint.
            if error is None or type(error) is KeyboardInterrupt or isinstance(error, NonFiniteError):
                return
            if out_of_memory := is_out_of_memory(error):
                traceback.clear_frames(tb)  # tensors held by these frames would leave no memory for the checkpoint
            updating = clock.stage in ("learn", "publish")
            if updating and (update_counts is None or update_counts != self.run.update_counts):
                newest = f"checkpoint {self._saved_step:06d}" if self._saved_step else "no checkpoint yet"
                note = f"Step {self.run.step + 1} was broken off in the middle of its update; to go on from: {newest}"
            else:
                restore()
                note = self._try_to_save(save)
            if out_of_memory:
                raise OutOfMemory(f"{memory_advice(self.run.scenario, clock.stage, error)}. {note}") from error
            error.add_note(note)

        stack.push(rescue)
        return stack

    def _try_to_save(self, save: Callable[[], None]) -> str:
        """Call `save` and return a sentence for the user that names the newest checkpoint, or the reason for none."""
        try:
            save()
        except (FolderError, MemoryError, RuntimeError) as error:
            return f"The steps done could not be kept: {error}"
        if not self._saved_step:
            return "No step was done yet"
        return f"The steps done are kept: checkpoint {self._saved_step:06d}; to go on from it: --resume auto"
