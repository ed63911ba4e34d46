"""Recorded play, judged again: what another credit rule would have said of a run's episodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from marl.experience.rollouts import Rollouts
from marl.graph import Trajectory
from marl.judging.judge import Judge, Judgement
from marl.protocols import Simulator
from marl.rollout.simulator import Table
from marl.runs import checkpoint
from marl.runs.run_folder import RunFolder
from marl.scenario.load import ScenarioError, validate
from marl.scenario.schema import PolicyConfig, Scenario
from marl.training.run import Run, build, evidence
from marl.types import Completion, Deal, Failure, Fork, Purpose, Request, Turn, TurnId


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a rule says of a recorded step."""

    rule: str
    """As it was asked for."""
    judgement: Judgement
    tokens: int
    """What it had sampled or scored for this step."""


class Recredit:
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
        """What a person should know of how it was judged."""

    def __call__(self, rule: str | None = None) -> Verdict:
        """Judge with `rule`: a kind (`shapley`), two (`flow/role_average`) or YAML as under `credit:`. None: the run's
        own, as it was then.

        A rule with a state sees the recorded steps before this one first, in order; the run's own goes on from the
        newest checkpoint before this step.

        Raises:
            ScenarioError: if there is no such rule, or it does not fit the scenario.
        """
        name = rule or "the run's own rule"
        scenario = self.scenario if rule is None else _with(self.scenario, rule)
        judge, play = Judge(scenario.credit), _Later(self)
        prepared = self._prepare(judge, play, own=rule is None) if judge.may_remember else []
        before = play.tokens
        judgement = self._judge(judge, play, self.trajectories)
        if judge.remembers and prepared:
            self.notes.append(f"{name} has a state: it {' and '.join(prepared)}")
        tokens = play.tokens - before
        judgement.metrics["credit/tokens"] = float(tokens)
        return Verdict(name, judgement, tokens)

    @cached_property
    def weights(self) -> Run:
        """The run's parts, with the weights nearest to those that played the step, at or before it."""
        meant = self.step - 1
        step = min([0, *(s for s in self._whole if s <= self.step)], key=lambda s: (abs(s - meant), s))
        if step != meant:
            self.notes.append(
                f"step {self.step} was played with the weights after step {meant}, of which there is no checkpoint; "
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

    def _prepare(self, judge: Judge, play: _Later, *, own: bool) -> list[str]:
        """Bring a rule's state to where it was before the step; returns what is to be said of that."""
        saved = max((s for s in self._whole if own and s < self.step), default=0)
        if saved:
            self._restore(judge, saved)
        seen = [s for s in self._recorded if saved < s < self.step]
        for step in seen:
            self._judge(judge, play, self._home.episodes(step))
            if not judge.remembers:
                return []
        lost = sorted(set(range(saved + 1, self.step)) - set(seen))
        shown = [f"was shown the recorded steps before first ({ranges(seen)})"] if seen else []
        return shown + ([f"lacks steps that were not recorded ({ranges(lost)})"] if lost else [])

    def _restore(self, judge: Judge, step: int) -> None:
        try:
            judge.load_state_dict(checkpoint.read(self._home.checkpoints, step)[1]["judge"])
        except KeyError as error:
            raise ScenarioError(
                f"{self._home.path}: checkpoint {step:06d} is of another rule than the scenario names now: it has no "
                f"{error}; name a rule with --with"
            ) from error

    def _judge(self, judge: Judge, play: _Later, trajectories: Sequence[Trajectory]) -> Judgement:
        play.hold(trajectories)
        readings = {}
        if judge.needs:
            self.weights.judge = judge
            readings = self.weights.read(trajectories)
        return judge(evidence(self.scenario, trajectories, readings, play))


class _Later:
    """A simulator that is made when it is first asked for something, so that no weight is loaded in vain."""

    def __init__(self, source: Recredit) -> None:
        self._source = source
        self._held: list[Trajectory] = []
        self._made: Table | None = None

    @property
    def tokens(self) -> int:
        """Sampled or scored so far."""
        return self._made.tokens["credit"] if self._made else 0

    @property
    def _table(self) -> Table:
        if self._made is None:
            # One of its own, so that of several rules each plays what it would play alone.
            table = self._source.weights.table
            self._made = table.beside(table.cast)
            self._made.tokens = Counter()
            self._made.hold(self._held)
        return self._made

    def hold(self, trajectories: Sequence[Trajectory]) -> None:
        """Make these episodes ready to be forked."""
        self._held = list(trajectories)
        if self._made:
            self._made.hold(self._held)

    def play(self, deals: Sequence[Deal]) -> list[Trajectory]:
        return self._table.play(deals)

    def fork(self, turn_id: TurnId, n: int, action: str | None = None) -> list[Trajectory]:
        return self._table.fork(turn_id, n, action)

    def branch(self, forks: Sequence[Fork]) -> list[list[Trajectory]]:
        return self._table.branch(forks)

    def score(self, requests: Sequence[Request], purpose: Purpose = "credit") -> list[Completion | Failure]:
        return self._table.score(requests, purpose)

    def greedy(self) -> Simulator:
        return self._table.greedy()

    def address(self, turn: Turn) -> Request:
        return self._table.address(turn)

    def question(self, role: str, agent: str, text: str) -> Request:
        return self._table.question(role, agent, text)


def ranges(numbers: Iterable[int]) -> str:
    """`1-3, 7` for 1, 2, 3, 7, which must be in order."""
    return ", ".join(f"{first}-{last}" if last > first else f"{first}" for first, last in _runs(list(numbers)))


def _runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    breaks = [i + 1 for i, (a, b) in enumerate(pairwise(numbers)) if b != a + 1]
    for first, end in pairwise([0, *breaks, len(numbers)]):
        yield numbers[first], numbers[end - 1]


def _with(scenario: Scenario, rule: str) -> Scenario:
    return validate({**scenario.model_dump(mode="json"), "credit": _settings(rule)}, f"--with {rule}")


def _settings(rule: str) -> dict[str, Any]:
    """What stands under `credit:`."""
    try:
        value = yaml.safe_load(rule)
    except yaml.YAMLError as error:
        raise ScenarioError(f"--with {rule}: not YAML: {error}") from error
    if isinstance(value, str):
        assign, slash, baseline = value.partition("/")
        return {"assign": assign} | ({"baseline": baseline} if slash else {})
    if not isinstance(value, dict):
        raise ScenarioError(
            f"--with {rule}: no rule; give a kind of assign (shapley), one with a baseline (flow/role_average), or "
            "YAML as under `credit:` ({assign: {kind: flow, decay: 0.5}, baseline: none})"
        )
    return value


def _restored(home: RunFolder, scenario: Scenario, step: int) -> Run:
    """The parts of a run as they were after `step`."""
    if not step:
        return build(scenario.model_copy(update={"experience": Rollouts()}))
    saved = home.checkpoints / f"{step:06d}" / "policies"
    policies = {name: _saved(policy, saved / name) for name, policy in scenario.policies.items()}
    run = build(scenario.model_copy(update={"experience": Rollouts(), "policies": policies}))
    state = checkpoint.read(home.checkpoints, step)[1]
    for name, learner in run.learners.items():
        # A learner knows more than the weights that speak, such as a critic.
        learner.load_state_dict(state["learners"][name])
    return run


def _saved(policy: PolicyConfig, folder: Path) -> PolicyConfig:
    if policy.learner is None or policy.model is None:
        return policy
    return policy.model_copy(update={"model": policy.model.saved(folder)})
