"""Recomputation of the credit of a recorded step, by the run's own credit rule or another one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from marl.core.graph import Trajectory
from marl.credit_stage.records import RecomputedCredit
from marl.credit_stage.stage import CreditStage, StepCredit
from marl.experience.rollouts import Rollouts
from marl.protocols import Simulator
from marl.rollout.base import BaseSimulator
from marl.runs import checkpoint
from marl.runs.run_folder import RunFolder
from marl.scenario.load import ScenarioError
from marl.training.build import build
from marl.training.replaced_credit import credit_differences, scenario_with_credit_rule
from marl.training.restore import policies_with_saved_weights
from marl.training.run import Run, make_evidence


class CreditRecomputation:
    """Recorded step of a run, whose credit is recomputed.

    Weights are loaded only when a credit rule first samples or reads.

    Raises:
        ScenarioError: if there is no run, or the step was not recorded.
    """

    def __init__(self, folder: Path, step: int | None = None) -> None:
        """`step`: number of the recorded step (default: the last one)."""
        self._home = RunFolder(folder)
        self.scenario = self._home.scenario()
        self._recorded = self._home.recorded_steps()
        if not self._recorded:
            raise ScenarioError(f"{folder}: no trajectories were recorded (checkpoint.trajectories)")
        if step is not None and step not in self._recorded:
            choices = format_ranges(self._recorded)
            raise ScenarioError(f"--step {step}: no trajectories of this step were recorded; there are: {choices}")
        self.step = self._recorded[-1] if step is None else step
        self.trajectories = self._home.load_trajectories(self.step)
        self._checkpoints = checkpoint.intact_checkpoint_steps(self._home.checkpoints)
        self.notes: list[str] = []
        """Sentences for the user about how credit was recomputed."""

    def __call__(self, rule: str | None = None) -> RecomputedCredit:
        """Return the credit of the step by `rule`.

        A rule with a state first sees the earlier recorded steps, in order; the run's own rule starts from the newest
        checkpoint before the step.

        Args:
            rule: a kind (`shapley`), two kinds (`flow/role_average`), a baseline (`/none`), or YAML as under `credit:`
                or `assign:`; settings that it does not name are the run's (default: the run's own rule, whose credit
                is read from the record if the step has one).

        Raises:
            ScenarioError: if there is no such rule, or the rule does not fit the scenario.
        """
        name = rule or "the run's own rule"
        scenario = self.scenario if rule is None else scenario_with_credit_rule(self.scenario, rule)
        is_own_rule = scenario is self.scenario
        if is_own_rule and self._home.has_credit_record(self.step):
            row = next((row for row in self._home.rows() if row["step"] == self.step), {})
            metrics = {metric: value for metric, value in row.items() if metric.startswith(("credit/", "game/"))}
            tokens = int(metrics.get("credit/tokens", 0))
            return RecomputedCredit(name, self._home.read_credit_of_step(self.step), metrics, tokens)
        stage = CreditStage(scenario.credit, tuple(scenario.games))
        simulator = _LazySimulator(self)
        history = (
            self._restore_credit_stage_state(stage, simulator, is_own_rule=is_own_rule) if stage.may_have_state else []
        )
        tokens_before = simulator.sampled_or_scored_token_count
        step_credit = self._assign_credit(stage, simulator, self.trajectories)
        if stage.has_state and history:
            self.notes.append(f"{name} has a state: it {' and '.join(history)}")
        if not is_own_rule and (roles := sorted(scenario.credit.roles)):
            self.notes.append(
                f"{name} does not replace the rules of their own that these roles have: {', '.join(roles)}"
            )
        policies = {role: settings.policy for role, settings in self.scenario.roles.items()}
        record, tokens = (
            step_credit.to_credit_record(self.trajectories, policies),
            simulator.sampled_or_scored_token_count - tokens_before,
        )
        metrics = step_credit.metrics | {"credit/tokens": float(tokens)}
        differences = credit_differences(scenario, self.scenario)
        return RecomputedCredit(name, record, metrics, tokens, differences, tuple(self.notes))

    @cached_property
    def run(self) -> Run:
        """Run with the weights of the checkpoint whose step is closest to the weights that played the recorded step."""
        played_by = self.step - 1
        # If two checkpoints are equally close, the earlier one is used: its weights existed when the step was played.
        steps = [0, *(step for step in self._checkpoints if step <= self.step)]
        step = min(steps, key=lambda step: (abs(step - played_by), step))
        if step != played_by:
            self.notes.append(
                f"step {self.step} was played with the weights after step {played_by}, of which there is no "
                f"checkpoint; what was played or read here is by those "
                f"{f'after step {step}' if step else 'before training'}"
            )
        # Plain rollouts replace the experience, because a queue or league would play episodes that nobody needs.
        changes: dict[str, Any] = {"experience": Rollouts()}
        if not step:
            return build(self.scenario.model_copy(update=changes))
        changes["policies"] = policies_with_saved_weights(
            self.scenario, self._home.verified_policies_folder(step), keep_learners=True
        )
        run = build(self.scenario.model_copy(update=changes))
        state = checkpoint.read_checkpoint(self._home.checkpoints, step)[1]
        for policy, learner in run.learners.items():
            # The learner's state is loaded, too: the policy's folder lacks, for example, the critic.
            learner.load_state_dict(state["learners"][policy])
        run.publish()  # nothing but learned instructions, which no policy's folder gives to the roles
        return run

    def _restore_credit_stage_state(
        self, stage: CreditStage, simulator: _LazySimulator, *, is_own_rule: bool
    ) -> list[str]:
        """Restore the state of `stage` before the step, from a checkpoint and earlier steps; return remarks on it."""
        saved = 0
        if is_own_rule:
            saved = max((step for step in self._checkpoints if step < self.step), default=0)
        if saved:
            try:
                stage.load_state_dict(checkpoint.read_checkpoint(self._home.checkpoints, saved)[1]["credit"])
            except KeyError as error:
                raise ScenarioError(
                    f"{self._home.path}: checkpoint {saved:06d} is of another rule than the scenario names now: it has "
                    f"no {error}; name a rule with --with"
                ) from error
        seen = [step for step in self._recorded if saved < step < self.step]
        # Only after its first call does a rule know whether it has a state.
        for step in seen:
            self._assign_credit(stage, simulator, self._home.load_trajectories(step))
            if not stage.has_state:
                return []
        missed = sorted(set(range(saved + 1, self.step)) - set(seen))
        remarks: list[str] = []
        if seen:
            remarks.append(f"was shown the recorded steps before first ({format_ranges(seen)})")
        if missed:
            remarks.append(f"lacks steps that were not recorded ({format_ranges(missed)})")
        return remarks

    def _assign_credit(
        self, stage: CreditStage, simulator: _LazySimulator, trajectories: Sequence[Trajectory]
    ) -> StepCredit:
        readings = self.run.read(trajectories, stage.needed_reading_fields) if stage.needed_reading_fields else {}
        return stage(make_evidence(self.scenario, trajectories, readings, cast(Simulator, simulator)))


class _LazySimulator:
    """Simulator that is built on first use, so that a credit rule without play loads no weights."""

    def __init__(self, recomputation: CreditRecomputation) -> None:
        self._recomputation = recomputation
        self._simulator: BaseSimulator | None = None

    @property
    def sampled_or_scored_token_count(self) -> int:
        """Number of tokens that the rule has sampled or scored so far."""
        return self._simulator.tokens["credit"] if self._simulator else 0

    def __getattr__(self, name: str) -> Any:
        if self._simulator is None:
            # Each rule gets a simulator with counters of its own, so that rules do not affect each other's play.
            simulator = self._recomputation.run.simulator
            self._simulator = simulator.variant(simulator.casting)
            self._simulator.tokens = Counter()
        return getattr(self._simulator, name)


def format_ranges(step_numbers: Iterable[int]) -> str:
    """Return numbers in ascending order as text with ranges, such as `1-3, 7` for 1, 2, 3, 7."""
    ranges: list[tuple[int, int]] = []
    for number in step_numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1] = ranges[-1][0], number
        else:
            ranges.append((number, number))
    return ", ".join(f"{first}-{last}" if last > first else f"{first}" for first, last in ranges)
