"""The training loop, which is the same for all algorithms.

A step chooses start states, plays episodes, reads the played turns with the learners (log-probabilities, values),
assigns credit, updates the policies, and publishes the new weights to the engines.
"""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from types import TracebackType

from marl.core.errors import NonFiniteError, OutOfMemoryRunError, RunError, RunFolderError, is_out_of_memory
from marl.core.graph import Trajectory
from marl.core.seeds import hash_to_seed
from marl.core.types import Metrics, Sample, Turn, TurnId
from marl.credit_stage.records import with_token_statistics
from marl.evaluation.evaluate import Evaluator
from marl.host.garbage_collection import collect_garbage_of_step
from marl.metrics.alarms import Alarm, AlarmMonitor, AlarmStopError, ProxyMonitor
from marl.metrics.collapse import most_common_move
from marl.metrics.trajectory_metrics import edited_history_metrics, summarize_trajectories, usage_metrics
from marl.protocols import HasPopulation, TokenLogprobsAndEntropies, TracksPolicyUpdates
from marl.runs import checkpoint
from marl.runs.best_checkpoint import BestEvaluationTracker
from marl.runs.failed_updates import save_failed_batch
from marl.runs.run_folder import RunFolder
from marl.runs.status import RunActivity
from marl.training.archive import RunWeightArchive
from marl.training.failure_advice import divergence_advice, failed_resume_advice, out_of_memory_advice
from marl.training.run import Run
from marl.training.stop_request import STEP_S, UPDATE_S, StopDeadlineExceeded, StopRequest
from marl.view.console import RunMonitor
from marl.view.turn_examples import example_model_turn_lines

# Metrics of this module (name | unit | meaning), which `tests/bench/figures.py` copies into marl/README.md.
METRICS = """
step/tokens | tokens | sampled or scored so far in the run, in training and for credit (evaluation left out)
step/eval_tokens | tokens | sampled or scored so far in the run, in evaluation
time/STAGE | s | wall-clock time of a stage of the step: `step` (the sum of `play`, `read`, `credit`, `learn`,
    `publish`), and `record`, `evaluate`
episode/dropped | episodes | dropped in this step because the game raised (`schedule.on_error: drop`)
episode/unjudged | episodes | left out of this step because a verifier's or tool's process failed for no fault of
    theirs
policy/POLICY/total_... | as above | the same five, of the whole run, evaluation included
"""

PUBLISH_PAUSES_S = (0.5, 5.0)
"""Pauses before further attempts to load new weights into an engine that failed, in seconds."""
HELD_OUT_RECORDED = 32
"""Maximum number of episodes of one evaluation that are written to the run's folder."""


class StageTimer:
    """Timer of the stages of one step, which measures the metrics `time/STAGE` [s]."""

    def __init__(self) -> None:
        self.metrics: Metrics = {}
        self.stage, self.since = "", time.time()
        """Name of the latest stage, and the time at which it began [seconds since 1970]."""

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        started, self.stage, self.since = time.perf_counter(), stage, time.time()
        yield
        name = f"time/{stage}"
        self.metrics[name] = self.metrics.get(name, 0.0) + time.perf_counter() - started


class TrainingLoop:
    """Trains a run step by step, and writes the results to the run's folder."""

    def __init__(self, run: Run, folder: RunFolder, monitors: Sequence[RunMonitor]) -> None:
        self.run, self.folder, self.monitors = run, folder, monitors
        self._evaluator = Evaluator(run.scenario, run.simulator)
        self._best, self._alarms = (
            BestEvaluationTracker(run.scenario.evaluate),
            AlarmMonitor.from_scenario(run.scenario),
        )
        self._proxies = ProxyMonitor(run.scenario.alarms)
        self._stop, self._clock = StopRequest(), StageTimer()
        # A new run counts as saved at step 0, which needs no checkpoint: the scenario determines its state.
        self._saved_step = self._resumed_step = 0
        self._unevaluated: Metrics | None = {}
        """Metrics of the newest step if its evaluation is still to be done, else None."""
        self._unreported_alarms: list[Alarm] = []
        """Alarms of that step, which are reported after its evaluation."""
        if isinstance(run.experience, TracksPolicyUpdates):
            run.experience.set_archive(RunWeightArchive(run, folder))

    def __call__(self, stop: StopRequest) -> bool:
        """Train to the last step; return False if a stop request ended training early.

        Raises:
            AlarmStopError: if an alarm listed in `alarms.stop` is raised; a checkpoint is written first.
            OutOfMemoryRunError: if memory runs out. A checkpoint of the completed steps is written first, unless an
            update had
                already changed weights.
        """
        self._stop = stop
        try:
            with stop.grace_period(math.inf):
                if self._unevaluated is not None:
                    raised = self._unreported_alarms + self._evaluate_and_log(self._unevaluated, StageTimer())
                    # The checkpoint from which the run resumed must be marked as evaluated, too, before an alarm can
                    # end the run: a run that goes on after the alarm would evaluate again, and end again.
                    if self._saved_step:
                        metrics_bytes = self.folder.fsync_records()
                        checkpoint.mark_checkpoint_evaluated(self.folder.checkpoints, self._saved_step, metrics_bytes)
                    self._report_alarms(raised, ())
                while not self._reached_last_step and not stop.requested:
                    self.step()
                    collect_garbage_of_step()
                self.save_checkpoint()
                if self._best.out_of_patience:
                    self._print(self._best.stop_message)
        except StopDeadlineExceeded:
            return False
        return self._reached_last_step

    @property
    def _reached_last_step(self) -> bool:
        return self.run.step >= self.run.scenario.schedule.steps or self._best.out_of_patience

    def step(self) -> None:
        """Play one step and learn from it; log the metrics; evaluate and save a checkpoint if either is due."""
        run, step = self.run, self.run.step
        clock = self._clock = StageTimer()
        dropped, unverified = run.simulator.drops.count, run.simulator.unverified
        with clock("step"), self._checkpoint_on_failure(clock, self.save_checkpoint):
            with self._stop.grace_period(STEP_S):
                with clock("play"):
                    trajectories = run.experience.gather(step, run.deals_of_step_if_scheduled, run.simulator)
                with clock("read"):
                    readings = run.read(trajectories)
                with clock("credit"):
                    step_credit = run.assign_credit(trajectories, readings)
                    batches = run.samples(trajectories, step_credit, readings)
                metrics = summarize_trajectories(trajectories)
                metrics |= edited_history_metrics(trajectories, run.scenario.roles)
                metrics["episode/dropped"] = float(run.simulator.drops.count - dropped)
                metrics["episode/unjudged"] = float(run.simulator.unverified - unverified)
                turns = chain.from_iterable(trajectory.turns for trajectory in trajectories)
                metrics |= (
                    run.experience.metrics() | run.staleness.metrics(turns, step) | run.simulator.take_step_metrics()
                )
                metrics |= step_credit.metrics
            ready = run.update_schedule(step, batches)
            # The step number decides whether its episodes are recorded, so that a resumed run records the same steps.
            draw = hash_to_seed(run.scenario.schedule.seed, "record", step + 1)
            is_recorded = draw < run.scenario.checkpoint.trajectories * 2**64
            tokens: dict[TurnId, TokenLogprobsAndEntropies] | None = {} if is_recorded else None
            with clock("learn"), self._stop.grace_period(UPDATE_S):
                metrics |= self._update_policies(ready, tokens)
                for policy in ready:
                    run.schedule_publication(policy, step + 1)
                if isinstance(run.experience, TracksPolicyUpdates):
                    run.experience.on_policies_updated(ready, step + 1)
        run.step += 1
        # The step is complete: if an engine fails now, the step is recorded and saved all the same.
        publication_error = self._publish_once(clock)
        with clock("record"):
            if tokens is not None:
                self.folder.record_trajectories(run.step, trajectories)
                policy_of_role = {name: role.policy for name, role in run.scenario.roles.items()}
                record = step_credit.to_credit_record(trajectories, policy_of_role)
                self.folder.record_credit(run.step, with_token_statistics(record, trajectories, tokens))
        # The step's data is freed before the evaluation, which needs memory of its own.
        del readings, batches, ready, step_credit, tokens
        collapse_metrics, raised = self._alarms(metrics)
        metrics |= collapse_metrics
        if publication_error is not None:
            self._save_and_publish_again(metrics, clock, publication_error)
        raised += self._evaluate_and_log(metrics, clock, trajectories)
        for monitor in self.monitors:
            monitor.log_episodes(run.step, trajectories)
        if run.step % run.scenario.checkpoint.every == 0 or run.step == self._best.step:
            self.save_checkpoint()
        self._report_alarms(raised, trajectories)

    def _publish_once(self, clock: StageTimer) -> RunError | None:
        """Load the new weights into the engines. Return the error if an engine fails."""
        try:
            with clock("step"), clock("publish"):
                self.run.publish()
        except RunError as error:
            return error
        return None

    def _save_and_publish_again(self, metrics: Metrics, clock: StageTimer, error: RunError) -> None:
        """Save the finished step, whose `metrics` are not written yet, and try again to load its weights.

        Raises:
            RunError: if the engine fails in each attempt; the error says from which checkpoint the run goes on.
        """
        self.save_checkpoint(self.folder.fsync_records(), metrics)
        saved = f"checkpoint {self._saved_step:06d}"
        failure: RunError | None = error
        for pause_s in PUBLISH_PAUSES_S:
            self._print(f"{failure}; the step is kept ({saved}), and its weights are sent again in {pause_s:g} s")
            time.sleep(pause_s)
            if (failure := self._publish_once(clock)) is None:
                return
        self._append_and_report_metrics_row(metrics, clock)
        assert failure is not None
        failure.add_note(f"The steps done are kept: {saved}; to go on from it: {self.folder.resume_command}")
        raise failure

    def _update_policies(
        self, samples: Mapping[str, list[Sample]], token_figures: dict[TurnId, TokenLogprobsAndEntropies] | None
    ) -> Metrics:
        """Update the policies in `samples` and return their metrics; store the batch if an update is not finite."""
        try:
            return self.run.update(samples, token_figures)
        except NonFiniteError as error:
            step, policy = self.run.step, error.policy
            batch = samples[policy]
            folder = self.folder.path / "failed" / f"{step + 1:06d}" / policy
            # If the folder of the failed batch exists, the step had failed before: the checkpoint is not the cause.
            if 0 < step == self._resumed_step and not folder.exists():
                error.add_note(failed_resume_advice(step, checkpoint.intact_checkpoint_steps(self.folder.checkpoints)))
            try:
                save_failed_batch(folder, self.run.learners[policy], batch)
                error.add_note(f"The batch and the learner's state are kept: marl rerun {folder}")
            except RunFolderError as problem:
                error.add_note(f"The batch could not be kept: {problem}")
            error.add_note(divergence_advice(error, batch, self.run.scenario.policies[policy].learner))
            raise

    def _evaluate_and_log(
        self, metrics: Metrics, clock: StageTimer, trajectories: Sequence[Trajectory] = ()
    ) -> list[Alarm]:
        """Evaluate the run if an evaluation is due, and write the step's row of metrics. Return the alarms that the
        evaluation raised.

        If the evaluation fails, the row is written without its metrics.
        """
        run, scenario = self.run, self.run.scenario
        figures: Metrics = {}

        def save_checkpoint_without_evaluation() -> None:
            # The checkpoint stores the length without this row, because a resumed run writes the row again.
            length = self.folder.fsync_records()
            self._append_and_report_metrics_row(metrics, clock)
            self.save_checkpoint(length, metrics)

        is_last = run.step == scenario.schedule.steps
        evaluates = self._evaluator.requests_any_metrics and (run.step % scenario.evaluate.every == 0 or is_last)
        if evaluates:
            failure_context = self._checkpoint_on_failure(clock, save_checkpoint_without_evaluation)
            with failure_context, clock("evaluate"), self._stop.grace_period(STEP_S):
                figures = self._evaluator(run.step)
                if isinstance(run.experience, HasPopulation):
                    figures |= self._evaluator.population_metrics(run.experience.population())
                if rows := self._evaluator.move_probability_rows():
                    self.folder.record_strategies(run.step, rows)
            self._best.require_compared_metric(figures)
            self._best.update(run.step, figures)
        proxy_metrics, raised = self._proxies(figures)
        figures |= proxy_metrics
        self._append_and_report_metrics_row(metrics | figures, clock)
        run.game_mix.update_from_step_metrics(metrics | figures)
        for failure in run.simulator.take_failure_messages():
            self._print(failure)
        if evaluates:
            held_out = self._evaluator.held_out_episodes
            if held_out and scenario.checkpoint.trajectories:
                self.folder.record_held_out_episodes(run.step, held_out[:HELD_OUT_RECORDED])
            for line in example_model_turn_lines(held_out or trajectories):
                self._print(line)
        return raised

    def _append_and_report_metrics_row(self, metrics: Metrics, clock: StageTimer) -> None:
        """Append the metrics of the newest step to metrics.jsonl as one row, and pass them to the monitors."""
        run = self.run
        eval_tokens = run.simulator.tokens["eval"]
        sampled = float(run.simulator.tokens.total() - eval_tokens)
        tokens = {"step/tokens": sampled, "step/eval_tokens": float(eval_tokens)}
        totals = usage_metrics(run.simulator.usage_by_policy, "total_")
        row = metrics | tokens | totals | run.game_mix.metrics() | clock.metrics
        self.folder.append_metrics(run.step, row)
        for monitor in self.monitors:
            monitor.log_metrics(run.step, row)

    def _report_alarms(self, alarms: Sequence[Alarm], trajectories: Sequence[Trajectory]) -> None:
        """Print each raised alarm; if an alarm ends the run, save a checkpoint and raise `AlarmStopError`."""
        fatal_messages: list[str] = []
        for alarm in alarms:
            turns: list[Turn] = []
            for trajectory in trajectories:
                if alarm.game in ("", trajectory.deal.game):
                    turns += [turn for turn in trajectory.turns if turn.role == alarm.role]
            message = alarm.message(most_common_move(turns))
            self._print(message)
            if self._alarms.ends_run(alarm):
                fatal_messages.append(message)
        if fatal_messages:
            self.save_checkpoint()
            reasons = "; ".join(fatal_messages)
            raise AlarmStopError(f"stopped after step {self.run.step}, with a checkpoint (alarms.stop): {reasons}")

    def activity(self) -> RunActivity:
        """Return the current stage and the state of the run's processes. Any thread may call this method."""
        run, clock = self.run, self._clock
        simulators, learners = tuple(run.simulator.process_activities()), tuple(run.learners.process_activities())
        return RunActivity(run.step, run.scenario.schedule.steps, clock.stage, clock.since, simulators, learners)

    def _print(self, message: str) -> None:
        for monitor in self.monitors:
            monitor.show_message(message)

    def save_checkpoint(self, metrics_bytes: int | None = None, metrics_if_unevaluated: Metrics | None = None) -> None:
        """Write a checkpoint of the completed steps, unless the newest checkpoint already covers them.

        Args:
            metrics_bytes: length to which a resumed run cuts metrics.jsonl [bytes] (default: the current length).
            metrics_if_unevaluated: metrics of the newest step, if its evaluation is still to be done.
        """
        run = self.run
        if self._saved_step == run.step:
            return
        length = self.folder.fsync_records() if metrics_bytes is None else metrics_bytes
        checkpoint.write_checkpoint(
            self.folder.checkpoints,
            checkpoint.CheckpointMetadata(run.step, length, metrics_if_unevaluated),
            run.state_dict(),
            run.save_policies,
            checkpoint.CheckpointRetention(run.scenario.checkpoint.keep, self._best.step),
        )
        self._saved_step = run.step

    def resume(self, step: int) -> None:
        """Load checkpoint `step`, and remove everything later from the run's folder.

        Raises:
            ValueError: if the checkpoint lacks state that the changed scenario needs.
        """
        state = self.folder.rewind_to_checkpoint(step)
        if state is not None:
            try:
                self.run.load_state_dict(state)
            except KeyError as error:
                problem = f"checkpoint {step:06d} does not fit the changed scenario: it has no {error}"
                raise ValueError(problem) from error
            self.run.step = self._saved_step = self._resumed_step = step
            self._unevaluated = self.folder.metrics_if_unevaluated(step)
        # Evaluator, best step, alarms and game mix are in no checkpoint: metrics and strategy files give them.
        for evaluated_step, strategies in self.folder.iter_strategies():
            self._evaluator.add_recorded_strategies(evaluated_step, strategies)
        for row in self.folder.rows():
            self._best.update(row["step"], row)
            self._alarms(row)
            self._proxies(row)
            self.run.game_mix.update_from_step_metrics(row)
        if self._unevaluated:
            _, self._unreported_alarms = self._alarms(self._unevaluated)

    def _checkpoint_on_failure(self, clock: StageTimer, save_checkpoint: Callable[[], None]) -> ExitStack:
        """Return a context manager that calls `save_checkpoint` if its body raises an error or is interrupted.

        The state before the unfinished step is restored first, so that a resumed run repeats the step. Nothing is saved
        after a non-finite update, because the weights before the update may be its cause.
        """
        restore, change_counts, stack = (
            self.run.make_state_restorer(),
            self.run.learner_state_change_counts(),
            ExitStack(),
        )

        def save_after_error(_: object, error: BaseException | None, tb: TracebackType | None) -> None:
            # A plain KeyboardInterrupt is a second Ctrl-C: the user does not want to wait for a checkpoint.
            if error is None or type(error) is KeyboardInterrupt or isinstance(error, NonFiniteError):
                return
            if out_of_memory := is_out_of_memory(error):
                # Local variables of the failed calls are freed: they hold tensors, and the checkpoint needs memory.
                traceback.clear_frames(tb)
            updating = clock.stage == "learn"
            if updating and (change_counts is None or change_counts != self.run.learner_state_change_counts()):
                newest = f"checkpoint {self._saved_step:06d}" if self._saved_step else "no checkpoint yet"
                note = f"Step {self.run.step + 1} was broken off in the middle of its update; to go on from: {newest}"
            else:
                restore()
                note = "No step was done yet"
                try:
                    save_checkpoint()
                    if self._saved_step:
                        newest = f"checkpoint {self._saved_step:06d}"
                        note = f"The steps done are kept: {newest}; to go on from it: {self.folder.resume_command}"
                except (RunFolderError, MemoryError, RuntimeError) as save_error:
                    note = f"The steps done could not be kept: {save_error}"
            if out_of_memory:
                raise OutOfMemoryRunError(
                    f"{out_of_memory_advice(self.run.scenario, clock.stage, error)}. {note}"
                ) from error
            error.add_note(note)

        stack.push(save_after_error)
        return stack
