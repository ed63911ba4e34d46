"""Recompute the credit of a recorded step of a run, by the run's own credit rule or another one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import pairwise
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
from marl.scenario.load import ScenarioError, validate
from marl.scenario.yaml_text import read_yaml
from marl.training.build import build
from marl.training.restore import saved_policies
from marl.training.run import Run, make_evidence


class CreditRecomputation:
    """A recorded step of a run whose credit is recomputed.

    Weights are loaded when a rule first samples or reads.

    Raises:
        ScenarioError: if there is no run, or the step was not recorded.
    """

    def __init__(self, folder: Path, step: int | None = None) -> None:
        """`step`: number of the step (default: the last recorded one)."""
        self._home = RunFolder(folder)
        self.scenario = self._home.scenario()
        self._recorded = self._home.recorded_steps()
        if not self._recorded:
            raise ScenarioError(f"{folder}: no trajectories were recorded (checkpoint.trajectories)")
        if step is not None and step not in self._recorded:
            choices = ranges(self._recorded)
            raise ScenarioError(f"--step {step}: no trajectories of this step were recorded; there are: {choices}")
        self.step = self._recorded[-1] if step is None else step
        self.trajectories = self._home.load_trajectories(self.step)
        self._checkpoints = checkpoint.intact_steps(self._home.checkpoints)
        self.notes: list[str] = []
        """Remarks on the computation for the user."""

    def __call__(self, rule: str | None = None) -> RecomputedCredit:
        """Return the step's credit by a rule.

        A rule with a state first sees the earlier recorded steps, in order. The run's own rule starts from the newest
        checkpoint before this step instead.

        Args:
            rule: a kind (`shapley`), two kinds (`flow/role_average`), or YAML as under `credit:` or `assign:`. None:
                the recorded credit, or the run's own rule if credit was not recorded.

        Raises:
            ScenarioError: if there is no such rule, or the rule does not fit the scenario.
        """
        name = rule or "the run's own rule"
        if rule is None and self._home.has_credit(self.step):
            row = next((row for row in self._home.rows() if row["step"] == self.step), {})
            metrics = {key: value for key, value in row.items() if key.startswith(("credit/", "game/"))}
            tokens = int(metrics.get("credit/tokens", 0))
            return RecomputedCredit(name, self._home.read_credit(self.step), metrics, tokens)
        scenario = self.scenario
        if rule is not None:
            data = {**scenario.model_dump(mode="json"), "credit": _credit_data(rule)}
            scenario = validate(data, f"--with {rule}")
        stage = CreditStage(scenario.credit, tuple(scenario.games))
        simulator = _LazySimulator(self)
        history = self._restore_state(stage, simulator, is_own_rule=rule is None) if stage.may_have_state else []
        tokens_before = simulator.spent_tokens
        step_credit = self._assign_credit(stage, simulator, self.trajectories)
        if stage.has_state and history:
            self.notes.append(f"{name} has a state: it {' and '.join(history)}")
        policies = {role: settings.policy for role, settings in self.scenario.roles.items()}
        record, tokens = step_credit.to_record(self.trajectories, policies), simulator.spent_tokens - tokens_before
        return RecomputedCredit(name, record, step_credit.metrics | {"credit/tokens": float(tokens)}, tokens)

    @cached_property
    def run(self) -> Run:
        """Return the run with the weights of the closest checkpoint to the step, up to the step itself."""
        played_by = self.step - 1
        # The smaller step wins a tie: those weights existed when the step was played.
        steps = [0, *(step for step in self._checkpoints if step <= self.step)]
        step = min(steps, key=lambda step: (abs(step - played_by), step))
        if step != played_by:
            self.notes.append(
                f"step {self.step} was played with the weights after step {played_by}, of which there is no "
                f"checkpoint; what was played or read here is by those "
                f"{f'after step {step}' if step else 'before training'}"
            )
        # A queue or a league would play ahead; fresh play is enough to sample and read.
        changes: dict[str, Any] = {"experience": Rollouts()}
        if not step:
            return build(self.scenario.model_copy(update=changes))
        changes["policies"] = saved_policies(self.scenario, self._home.policies_folder(step), learn=True)
        run = build(self.scenario.model_copy(update=changes))
        state = checkpoint.read_checkpoint(self._home.checkpoints, step)[1]
        for policy, learner in run.learners.items():
            # The policy's folder holds the published weights alone; a critic, for example, is in the learner's state.
            learner.load_state_dict(state["learners"][policy])
        return run

    def _restore_state(self, stage: CreditStage, simulator: _LazySimulator, *, is_own_rule: bool) -> list[str]:
        """Bring a rule's state to the beginning of the step; return remarks on the steps that it saw and missed."""
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
        for step in seen:
            self._assign_credit(stage, simulator, self._home.load_trajectories(step))
            if not stage.has_state:
                return []
        missed = sorted(set(range(saved + 1, self.step)) - set(seen))
        remarks: list[str] = []
        if seen:
            remarks.append(f"was shown the recorded steps before first ({ranges(seen)})")
        if missed:
            remarks.append(f"lacks steps that were not recorded ({ranges(missed)})")
        return remarks

    def _assign_credit(
        self, stage: CreditStage, simulator: _LazySimulator, trajectories: Sequence[Trajectory]
    ) -> StepCredit:
        readings = self.run.read(trajectories, stage.needs) if stage.needs else {}
        return stage(make_evidence(self.scenario, trajectories, readings, cast(Simulator, simulator)))


class _LazySimulator:
    """Simulator that is built on first use, so that a rule which plays nothing loads no weights."""

    def __init__(self, recomputation: CreditRecomputation) -> None:
        self._recomputation = recomputation
        self._simulator: BaseSimulator | None = None

    @property
    def spent_tokens(self) -> int:
        """Return the number of tokens sampled or scored so far."""
        return self._simulator.tokens["credit"] if self._simulator else 0

    def __getattr__(self, name: str) -> Any:
        if self._simulator is None:
            # Each rule gets a variant with counters of its own, so that several rules do not affect each other's play.
            simulator = self._recomputation.run.simulator
            self._simulator = simulator.variant(simulator.casting)
            self._simulator.tokens = Counter()
        return getattr(self._simulator, name)


def ranges(numbers: Iterable[int]) -> str:
    """Return `1-3, 7` for 1, 2, 3, 7. The numbers must be in ascending order."""
    ascending = list(numbers)
    breaks = [i + 1 for i, (first, second) in enumerate(pairwise(ascending)) if second != first + 1]
    texts: list[str] = []
    for start, end in pairwise([0, *breaks, len(ascending)]):
        first, last = ascending[start], ascending[end - 1]
        texts.append(f"{first}-{last}" if last > first else f"{first}")
    return ", ".join(texts)


def _credit_data(rule: str) -> dict[str, Any]:
    """Return the data of a scenario's section `credit` for the text of a rule."""
    value = read_yaml(rule, f"--with {rule}")
    if isinstance(value, str):
        assign, slash, baseline = value.partition("/")
        return {"assign": assign, "baseline": baseline} if slash else {"assign": assign}
    if not isinstance(value, dict):
        raise ScenarioError(
            f"--with {rule}: no rule; give a kind of assign (shapley), one with settings ({{kind: flow, decay: 0.5}}), "
            "one with a baseline (flow/role_average), or YAML as under `credit:` ({assign: flow, baseline: none})"
        )
    return {"assign": value} if "kind" in value else value
