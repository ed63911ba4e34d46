"""Judge recorded episodes of a run again, by its own credit rule or another one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

from marl.experience.rollouts import Rollouts
from marl.graph import Trajectory
from marl.judging.by_game import GamesJudge
from marl.judging.judge import Judgement
from marl.judging.records import RejudgedStep
from marl.protocols import Simulator
from marl.rollout.base import BaseSimulator
from marl.runs import checkpoint
from marl.runs.run_folder import RunFolder
from marl.scenario.load import ScenarioError, validate
from marl.scenario.schema import Scenario
from marl.scenario.yaml_text import read_yaml
from marl.training.build import build
from marl.training.restore import saved_policies
from marl.training.run import Run, make_evidence


class Rejudge:
    """A recorded step of a run, to be judged again.

    Weights are loaded when a rule first asks for more play or for readings.

    Raises:
        ScenarioError: if there is no run, or the step was not recorded.
    """

    def __init__(self, folder: Path, step: int | None = None) -> None:
        self._home = RunFolder(folder)
        self.scenario = self._home.scenario()
        self._recorded = self._home.recorded()
        self.step = self._chosen(step)
        self.trajectories = self._home.episodes(self.step)
        self._whole = checkpoint.whole(self._home.checkpoints)
        self.notes: list[str] = []
        """Remarks on how it was judged, for whoever reads the result."""

    def __call__(self, rule: str | None = None) -> RejudgedStep:
        """Judge with `rule`: a kind (`shapley`), two (`flow/role_average`), or YAML as under `credit:` or `assign:`.

        None: the judgement that the run learnt from, as it was recorded; if it was not (older versions), its own rule
        judges again. A rule with a state sees the recorded steps before this one first, in order; the run's own goes on
        from the newest checkpoint before this step.

        Raises:
            ScenarioError: if there is no such rule, or it does not fit the scenario.
        """
        name = rule or "the run's own rule"
        if rule is None and self._home.has_judgement(self.step):
            return self._recorded_judgement(name)
        scenario = self.scenario if rule is None else _with(self.scenario, rule)
        judge, simulator = GamesJudge(scenario.credit, tuple(scenario.games)), _LazySimulator(self)
        history = self._prepare(judge, simulator, of_run=rule is None) if judge.may_have_state else []
        before = simulator.spent_tokens
        judgement = self._judge(judge, simulator, self.trajectories)
        if judge.has_state and history:
            self.notes.append(f"{name} has a state: it {' and '.join(history)}")
        policies = {role: settings.policy for role, settings in self.scenario.roles.items()}
        record, tokens = judgement.record(self.trajectories, policies), simulator.spent_tokens - before
        return RejudgedStep(name, record, judgement.metrics | {"credit/tokens": float(tokens)}, tokens)

    def _recorded_judgement(self, name: str) -> RejudgedStep:
        row = next((row for row in self._home.rows() if row["step"] == self.step), {})
        metrics = {name: value for name, value in row.items() if name.startswith(("credit/", "game/"))}
        return RejudgedStep(name, self._home.judgement(self.step), metrics, int(metrics.get("credit/tokens", 0)))

    @cached_property
    def run(self) -> Run:
        """Return the run's parts, with the weights nearest to those that played the step, at or before it."""
        played = self.step - 1
        step = min([0, *(s for s in self._whole if s <= self.step)], key=lambda s: (abs(s - played), s))
        if step != played:
            self.notes.append(
                f"step {self.step} was played with the weights after step {played}, of which there is no checkpoint; "
                f"what was played or read here is by those {f'after step {step}' if step else 'before training'}"
            )
        return _restored(self._home, self.scenario, step)

    def _chosen(self, step: int | None) -> int:
        have = self._recorded
        if not have:
            raise ScenarioError(f"{self._home.path}: no trajectories were recorded (checkpoint.trajectories)")
        if step is not None and step not in have:
            raise ScenarioError(f"--step {step}: no trajectories of this step were recorded; there are: {ranges(have)}")
        return have[-1] if step is None else step

    def _prepare(self, judge: GamesJudge, simulator: _LazySimulator, *, of_run: bool) -> list[str]:
        """Bring a rule's state to where it was before the step; return remarks on how."""
        saved = max((s for s in self._whole if of_run and s < self.step), default=0)
        if saved:
            self._restore(judge, saved)
        seen = [s for s in self._recorded if saved < s < self.step]
        for step in seen:
            self._judge(judge, simulator, self._home.episodes(step))
            if not judge.has_state:
                return []
        lost = sorted(set(range(saved + 1, self.step)) - set(seen))
        shown = [f"was shown the recorded steps before first ({ranges(seen)})"] if seen else []
        return shown + ([f"lacks steps that were not recorded ({ranges(lost)})"] if lost else [])

    def _restore(self, judge: GamesJudge, step: int) -> None:
        try:
            judge.load_state_dict(checkpoint.read(self._home.checkpoints, step)[1]["judge"])
        except KeyError as error:
            raise ScenarioError(
                f"{self._home.path}: checkpoint {step:06d} is of another rule than the scenario names now: it has no "
                f"{error}; name a rule with --with"
            ) from error

    def _judge(self, judge: GamesJudge, simulator: _LazySimulator, trajectories: Sequence[Trajectory]) -> Judgement:
        readings = {}
        if judge.needs:
            self.run.judge = judge
            readings = self.run.read(trajectories)
        return judge(make_evidence(self.scenario, trajectories, readings, cast(Simulator, simulator)))


class _LazySimulator:
    """A simulator that is built when it is first asked for something, so that no weight is loaded in vain."""

    def __init__(self, rejudge: Rejudge) -> None:
        self._rejudge = rejudge
        self._built: BaseSimulator | None = None

    @property
    def spent_tokens(self) -> int:
        """Return the number of tokens sampled or scored so far."""
        return self._built.tokens["credit"] if self._built else 0

    def __getattr__(self, name: str) -> Any:
        if self._built is None:
            # One of its own, so that of several rules each plays what it would play alone.
            simulator = self._rejudge.run.simulator
            self._built = simulator.variant(simulator.casting)
            self._built.tokens = Counter()
        return getattr(self._built, name)


def ranges(numbers: Iterable[int]) -> str:
    """Return `1-3, 7` for 1, 2, 3, 7, which must be in order."""
    return ", ".join(f"{first}-{last}" if last > first else f"{first}" for first, last in _runs(list(numbers)))


def _runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    breaks = [i + 1 for i, (a, b) in enumerate(pairwise(numbers)) if b != a + 1]
    for first, end in pairwise([0, *breaks, len(numbers)]):
        yield numbers[first], numbers[end - 1]


def _with(scenario: Scenario, rule: str) -> Scenario:
    return validate({**scenario.model_dump(mode="json"), "credit": _settings(rule)}, f"--with {rule}")


def _settings(rule: str) -> dict[str, Any]:
    """Return the data that would stand under `credit:`."""
    value = read_yaml(rule, f"--with {rule}")
    if isinstance(value, str):
        assign, slash, baseline = value.partition("/")
        return {"assign": assign} | ({"baseline": baseline} if slash else {})
    if not isinstance(value, dict):
        raise ScenarioError(
            f"--with {rule}: no rule; give a kind of assign (shapley), one with settings ({{kind: flow, decay: 0.5}}), "
            "one with a baseline (flow/role_average), or YAML as under `credit:` ({assign: flow, baseline: none})"
        )
    return {"assign": value} if "kind" in value else value


def _restored(home: RunFolder, scenario: Scenario, step: int) -> Run:
    """Return the parts of a run as they were after `step`."""
    if not step:
        return build(scenario.model_copy(update={"experience": Rollouts()}))
    policies = saved_policies(scenario, home.policies(step), learn=True)
    run = build(scenario.model_copy(update={"experience": Rollouts(), "policies": policies}))
    state = checkpoint.read(home.checkpoints, step)[1]
    for name, learner in run.learners.items():
        # A learner has more than the weights that it publishes, such as a critic.
        learner.load_state_dict(state["learners"][name])
    return run
