"""A credit rule on sampled episodes of a task, against exact values: is it what it means to be, and at what cost?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, pvariance
from typing import Any

from credit.validation.correlation import mean, pearson, spearman, spread
from credit.validation.estimands import Estimand, PerPlay, Undefined, advantage
from credit.validation.tasks import STEPS, Task, seated
from credit.validation.world import Cell, World, cells
from marl.graph import Trajectory
from marl.judging.judge import Judge
from marl.parts import find
from marl.protocols import Engine, ExperienceConfig
from marl.scenario.schema import CreditConfig
from marl.training.run import Run
from marl.types import Completion, Failure, Request, Ticket

RECOVERED = 0.95
"""Correlation with its own estimand from which a method counts as right ..."""
SPREAD = 0.25
"""... where that estimand has at least this standard deviation; below, noise decides."""


@dataclass(frozen=True, slots=True)
class Method:
    """A credit rule, and what it estimates."""

    name: str
    credit: Mapping[str, Any]
    """As in a scenario."""
    estimand: Estimand | None
    """None: it has no exact one."""
    rehearsals: int = 0
    """How many times it judges the episodes before those judgements count: for rules that learn from steps before."""
    experience: Mapping[str, Any] | None = None
    """What plays the episodes, as in a scenario; None: those that all methods share."""


@dataclass(frozen=True, slots=True)
class Row:
    """What was found. Correlations, bias and spread weigh moves by how often they are made."""

    method: str
    task: str
    own: float | None
    """Pearson, of mean credit per (history, move) with the method's own exact estimand."""
    own_spread: float | None
    """Standard deviation of that estimand."""
    recovered: bool | None
    """None: there is no estimand, or its spread is too small to tell."""
    pearson: float | None
    """Of mean credit with the exact sequential advantage."""
    spearman: float | None
    exact_pearson: float | None
    """Of the exact estimand with the exact sequential advantage, turn by turn over all plays: what is left of the
    difference when nothing is averaged and nothing is noise."""
    bias: float | None
    """Mean of (mean credit - own estimand)."""
    error: float | None
    """Root of the mean square of the same."""
    variance: float
    """Mean variance of the credit of one turn among turns with the same history and move."""
    fewest: int
    """Samples of the rarest (history, move)."""
    generations: float
    """Answers that were sampled for credit, for each judged turn."""
    tokens: float
    """Tokens that were sampled or scored for credit, for each judged turn."""


class Counted:
    """An engine, and how many answers it was asked for."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.asked = 0

    def submit(self, ticket: Ticket, request: Request) -> None:
        self.asked += request.forced is None
        self._engine.submit(ticket, request)

    def step(self, wait_s: float) -> list[tuple[Ticket, Completion | Failure]]:
        return self._engine.step(wait_s)

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        self._engine.cancel(tickets)

    def load_weights(self, policy: str, weights: Any, version: int) -> None:
        self._engine.load_weights(policy, weights, version)


class Bench:
    """A task with its exact values and its episodes, which are the same for every method."""

    def __init__(self, task: Task, samples: int, seed: int) -> None:
        self.task, self.samples = task, samples
        self.run, self.world = seated(task, samples, seed)
        self._sequential = _averages(self.world, advantage(self.world))
        self._steps: list[list[Trajectory]] = [self.run.table.play(self.run.deal(step)) for step in range(STEPS)]

    def __call__(self, method: Method) -> Row:
        """Have the method judge all episodes, step by step."""
        run, engines = self._run(method)
        steps = self._gathered(run, method.experience) if method.experience else self._steps
        found: dict[Cell, list[float]] = defaultdict(list)
        before, already = run.table.tokens["credit"], sum(engine.asked for engine in engines)
        for rehearsal in reversed(range(method.rehearsals + 1)):
            for trajectories in steps:
                credit = run.judge(run.evidence(trajectories, run.read(trajectories))).credit
                for cell, turn in [] if rehearsal else _turns(trajectories):
                    if turn in credit:
                        found[cell].append(credit[turn].value)
        judged = sum(map(len, found.values())) * (method.rehearsals + 1)
        spent = run.table.tokens["credit"] - before
        asked = sum(engine.asked for engine in engines) - already
        return self._row(method, found, (asked / max(judged, 1), spent / max(judged, 1)))

    def _run(self, method: Method) -> tuple[Run, list[Counted]]:
        """At a table of its own, so that what one method plays changes nothing for the next one."""
        table = self.run.table
        counted = {name: Counted(engine) for name, engine in table.engines.items()}
        own = table.beside(table.cast, counted)
        own.hold([trajectory for trajectories in self._steps for trajectory in trajectories])
        judge = Judge(CreditConfig.model_validate(method.credit))
        return replace(self.run, table=own, judge=judge), list(counted.values())

    def _gathered(self, run: Run, experience: Mapping[str, Any]) -> list[list[Trajectory]]:
        """Episodes of another kind of play; from a quarter of the starts, for it plays several courses of each."""
        part = find("experience", experience["kind"], ExperienceConfig).model_validate(experience)
        player = part.build()  # type: ignore[attr-defined]
        deals = [run.deal(step) for step in range(STEPS)]
        return [player.gather(some[: len(some) // 4], run.table) for some in deals]

    def _row(self, method: Method, found: Mapping[Cell, Sequence[float]], cost: tuple[float, float]) -> Row:
        """From as many samples of each cell as were asked for, the first ones."""
        at = [cell for cell in self._sequential if found.get(cell)]
        samples = [found[cell][: self.samples] for cell in at]
        means, weights = [fmean(values) for values in samples], [self.world.chance(cell) for cell in at]
        exact = [self._sequential[cell] for cell in at]
        own, ceiling = self._estimand(method)
        goal = [own[cell] for cell in at] if own else []
        gaps = [found - expected for found, expected in zip(means, goal, strict=bool(goal))] if goal else []
        similar = pearson(means, goal, weights) if goal else None
        width = spread(goal, weights) if goal else None
        return Row(
            method=method.name,
            task=self.task.name,
            own=similar,
            own_spread=width,
            recovered=None if width is None or width < SPREAD else (similar or 0.0) >= RECOVERED,
            pearson=pearson(means, exact, weights),
            spearman=spearman(means, exact, weights),
            exact_pearson=ceiling,
            bias=mean(gaps, weights) if gaps else None,
            error=mean([gap**2 for gap in gaps], weights) ** 0.5 if gaps else None,
            variance=mean([pvariance(values) for values in samples], weights),
            fewest=min(map(len, samples)),
            generations=cost[0],
            tokens=cost[1],
        )

    def _estimand(self, method: Method) -> tuple[dict[Cell, float] | None, float | None]:
        """Its value for each (history, move), and its correlation with the sequential advantage over single turns."""
        if method.estimand is None:
            return None, None
        try:
            own = method.estimand(self.world)
            return _averages(self.world, own), _ceiling(self.world, own)
        except Undefined:
            return None, None


def _turns(trajectories: Sequence[Trajectory]) -> list[tuple[Cell, Any]]:
    """Every turn once, with its cell."""
    found = {turn.id: cell for t in trajectories for cell, turn in zip(cells(t), t.turns, strict=True)}
    return [(cell, turn) for turn, cell in found.items()]


def _averages(world: World, figures: PerPlay) -> dict[Cell, float]:
    """Of each legal move in its history."""
    return {cell: value for cell, value in world.average(figures).items() if cell.move is not None}


def _ceiling(world: World, own: PerPlay) -> float | None:
    exact = advantage(world)
    triples = [
        (mine, best, play.chance) for play in world.plays for mine, best in zip(own(play), exact(play), strict=True)
    ]
    return pearson(*zip(*triples, strict=True))
