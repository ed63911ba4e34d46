"""Correlation, bias, variance and cost of credit rules on sampled episodes, measured against exact values."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean, pvariance
from typing import Any

import numpy as np

from marl.commands.credit_check.enumeration import EnumeratedGame, HistoryMove, cells_of
from marl.commands.credit_check.estimands import Estimand, UndefinedEstimand, advantage
from marl.core.plugins import find_plugin
from marl.core.types import Request, Ticket, TurnId
from marl.credit_stage.stage import CreditStage
from marl.evaluation.evaluate import move_probabilities
from marl.evaluation.game_tree import build_game_tree
from marl.protocols import Engine, ExperienceConfig, WeightlessEngine
from marl.rollout.simulator import RolloutSimulator
from marl.scenario.schema import CreditConfig, Scenario
from marl.training.build import build
from marl.training.run import Run

STEPS = 4
"""Number of training steps over which the episodes are divided."""
GROUP = 8
"""Number of episodes from the same start."""
RECOVERED = 0.95
"""Minimum correlation of a correct method with its own estimand."""
SPREAD = 0.25
"""Minimum standard deviation of an estimand; below it, noise decides the correlation."""
_ROUNDING = 1e-9
Numbers = Sequence[float]

# --- tasks ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CheckTask:
    """A cooperative, enumerable game with the embedded tiny model in every seat."""

    name: str
    game: Mapping[str, Any]
    default: Mapping[str, str]
    """Agent -> default move, for rules that replace the moves of absent agents."""

    def scenario(self, episodes: int, seed: int) -> Scenario:
        """Return a scenario with one policy for all seats: a tiny model that has learned only the format of moves.

        At temperature 0.5 nearly every answer is a move in its canonical text, so that the probability of that text is
        the probability of the move.
        """
        model = {"kind": "tiny", "hidden": 32, "layers": 1, "warm_up": {"steps": 60, "lr": 1e-2}}
        sampling = {"max_tokens": 4, "temperature": 0.5}
        groups = -(-episodes // (STEPS * GROUP))
        return Scenario.model_validate(
            {
                "game": self.game,
                "seats": dict.fromkeys(self.default, "player"),
                "roles": {"player": {"kind": "player", "policy": "actor", "sampling": sampling}},
                "policies": {"actor": {"model": model, "learner": {"kind": "grpo"}}},
                "schedule": {"steps": STEPS, "groups": groups, "group_size": GROUP, "seed": seed, "threads": 1},
            }
        )


def _layers(*layers: int) -> dict[str, str]:
    """Return the default moves of a layered hint game: the first word, and the first symbol in the last layer."""
    moves = ["one"] * sum(layers[:-1]) + ["red"] * layers[-1]
    return {f"agent_{index}": move for index, move in enumerate(moves)}


_TWO = {"agent_0": "a", "agent_1": "a"}
_THREE = {**_TWO, "agent_2": "a"}
TASKS = (
    CheckTask("hint", {"kind": "hint"}, {"speaker": "one", "guesser": "red"}),
    CheckTask("2B", {"kind": "matrix", "table": "qmix_2b"}, _TWO),
    CheckTask("matching", {"kind": "matrix", "table": "matching"}, _TWO),
    CheckTask("AND of 3", {"kind": "matrix", "table": "and"}, _THREE),
    CheckTask("climbing", {"kind": "matrix", "table": "climbing"}, _TWO),
    CheckTask("two-step", {"kind": "two_step"}, _TWO),
    CheckTask("additive", {"kind": "matrix", "table": "additive"}, _TWO),
    CheckTask("fork", {"kind": "layered_hint", "layers": [1, 2]}, _layers(1, 2)),
    CheckTask("join", {"kind": "layered_hint", "layers": [2, 1]}, _layers(2, 1)),
    CheckTask("fork-join", {"kind": "layered_hint", "layers": [1, 2, 1]}, _layers(1, 2, 1)),
)


def prepare(task: CheckTask, samples: int, seed: int) -> tuple[Run, EnumeratedGame]:
    """Return a run with about `samples` episodes for each play, and the enumerated game under the run's policies.

    The probability of a move is the probability of its text.
    """
    run = build(task.scenario(1, seed))
    scenario, simulator = run.scenario, run.simulator
    tree = build_game_tree(scenario.game, simulator.casting, scenario.seats)
    chances = move_probabilities(simulator, list(tree.requests.values()))
    strategy = dict(zip(tree.requests, chances, strict=True))
    game = EnumeratedGame(scenario.game, simulator.casting, scenario.seats, strategy)
    legal = [play for play in game.plays if all(decision.cell.move is not None for decision in play.decisions)]
    return build(task.scenario(samples * len(legal), seed)), game


# --- methods and results ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Method:
    """A credit rule and its estimand."""

    name: str
    credit: Mapping[str, Any]
    """The section `credit:` of a scenario."""
    estimand: Estimand | None
    """Exact estimand of the rule, or None if there is none."""
    warm_up_passes: int = 0
    """Passes over the episodes before credit counts, for rules that learn from earlier steps."""
    experience: Mapping[str, Any] | None = None
    """The section `experience:` of a scenario, or None for the episodes that all methods share."""


@dataclass(frozen=True, slots=True)
class MethodResult:
    """Metrics of a method on a task. Correlations, bias and spread weight each cell by its probability."""

    method: str
    task: str
    own_pearson: float | None
    """Pearson correlation of the mean credit of (history, move) with the method's own exact estimand."""
    own_spread: float | None
    """Standard deviation of the method's own estimand."""
    recovered: bool | None
    """True if `own_pearson` is at least `RECOVERED`; None without an estimand, or if its spread is below `SPREAD`."""
    pearson: float | None
    """Pearson correlation of mean credit with the exact sequential advantage."""
    spearman: float | None
    """Rank correlation of mean credit with the exact sequential advantage."""
    exact_pearson: float | None
    """Pearson correlation of the exact estimand with the exact sequential advantage, over the turns of all plays: an
    upper bound without sampling noise."""
    bias: float | None
    """Mean of (mean credit - own estimand) over cells."""
    error: float | None
    """Root mean square of (mean credit - own estimand) over cells."""
    variance: float
    """Mean variance of the credit of one turn among turns with the same history and move."""
    fewest: int
    """Number of samples of the rarest (history, move)."""
    generations: float
    """Number of answers sampled for credit, per credited turn."""
    tokens: float
    """Number of tokens sampled or scored for credit, per credited turn."""


class CountedEngine(WeightlessEngine):
    """Engine that counts the answers sampled by another engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.sampled = 0
        self.step, self.cancel = engine.step, engine.cancel

    def submit(self, ticket: Ticket, request: Request) -> None:
        self.sampled += request.forced is None
        self._engine.submit(ticket, request)


class MethodBench:
    """A task with its exact values and its episodes, which all methods share."""

    def __init__(self, task: CheckTask, samples: int, seed: int) -> None:
        self.task, self.samples = task, samples
        self.run, self.game = prepare(task, samples, seed)
        self._sequential = _legal_averages(self.game, advantage)
        self._steps = [self.run.simulator.play(self.run.deals(step)) for step in range(STEPS)]

    def __call__(self, method: Method) -> MethodResult:
        """Assign credit to all episodes by `method`, step by step, and return its metrics."""
        # A simulator of its own: the play of one method must not change the results of the next one.
        shared = self.run.simulator
        assert isinstance(shared, RolloutSimulator)
        engines = {name: CountedEngine(engine) for name, engine in shared.engines.items()}
        credit_stage = CreditStage(CreditConfig.model_validate(method.credit))
        run = replace(self.run, simulator=shared.variant(shared.casting, engines), credit_stage=credit_stage)
        steps = self._steps
        if method.experience:
            experience = find_plugin("experience", method.experience["kind"], ExperienceConfig)
            player = experience.model_validate(method.experience).build()  # type: ignore[attr-defined]
            # A tree plays several episodes from each start, so a quarter of the starts gives about as many turns.
            quarter = run.scenario.schedule.groups * run.scenario.schedule.group_size // 4
            steps = [player.gather(step, lambda at: run.deals(at)[:quarter], run.simulator) for step in range(STEPS)]
        samples: dict[HistoryMove, list[float]] = defaultdict(list)
        tokens, sampled = shared.tokens["credit"], sum(engine.sampled for engine in engines.values())
        passes = method.warm_up_passes + 1
        for number in range(passes):
            for trajectories in steps:
                credit = run.credit_stage(run.evidence(trajectories, run.read(trajectories))).credit
                if number < method.warm_up_passes:
                    continue
                cells: dict[TurnId, HistoryMove] = {}
                for trajectory in trajectories:
                    # Branches of a tree share turns; each turn is one sample.
                    cells |= zip([turn.id for turn in trajectory.turns], cells_of(trajectory), strict=True)
                for turn, cell in cells.items():
                    if turn in credit:
                        samples[cell].append(credit[turn].value)
        # Costs are those of all passes, so they are divided by the credited turns of all passes.
        credited = max(sum(map(len, samples.values())) * passes, 1)
        sampled = sum(engine.sampled for engine in engines.values()) - sampled
        return self._result(method, samples, sampled / credited, (shared.tokens["credit"] - tokens) / credited)

    def _result(
        self, method: Method, credit: Mapping[HistoryMove, Sequence[float]], generations: float, tokens: float
    ) -> MethodResult:
        """Return the metrics of `credit`, cell -> samples; only the first `samples` samples of each cell count."""
        estimand = exact_pearson = None
        if method.estimand:
            with suppress(UndefinedEstimand):
                estimand = _legal_averages(self.game, method.estimand)
                exact_pearson = correlation_over_turns(self.game, method.estimand)
        means, variances, weights, counts = [], [], [], []
        exact, goal, squared_gaps, gaps = [], [], [], []
        for cell, sequential_advantage in self._sequential.items():
            if not credit.get(cell):
                continue
            # Frequent cells have many more samples; equal numbers make variances comparable.
            values = credit[cell][: self.samples]
            means.append(fmean(values))
            variances.append(pvariance(values))
            weights.append(self.game.chance(cell))
            counts.append(len(values))
            exact.append(sequential_advantage)
            if estimand:
                goal.append(estimand[cell])
                gaps.append(means[-1] - estimand[cell])
                squared_gaps.append(gaps[-1] ** 2)
        similarity = pearson(means, goal, weights) if goal else None
        spread = weighted_std(goal, weights) if goal else None
        return MethodResult(
            method=method.name,
            task=self.task.name,
            own_pearson=similarity,
            own_spread=spread,
            recovered=None if spread is None or spread < SPREAD else (similarity or 0.0) >= RECOVERED,
            pearson=pearson(means, exact, weights),
            spearman=spearman(means, exact, weights),
            exact_pearson=exact_pearson,
            bias=weighted_mean(gaps, weights) if gaps else None,
            error=weighted_mean(squared_gaps, weights) ** 0.5 if gaps else None,
            variance=weighted_mean(variances, weights),
            fewest=min(counts),
            generations=generations,
            tokens=tokens,
        )


def _legal_averages(game: EnumeratedGame, estimand: Estimand) -> dict[HistoryMove, float]:
    """Return cell -> estimand for the cells with a legal move."""
    return {cell: value for cell, value in game.average(partial(estimand, game)).items() if cell.move is not None}


# --- weighted statistics ----------------------------------------------------------------------------------------------


def correlation_over_turns(game: EnumeratedGame, estimand: Estimand) -> float | None:
    """Return the correlation of an estimand with the exact sequential advantage, over all turns of all plays."""
    estimands: list[float] = []
    advantages: list[float] = []
    chances: list[float] = []
    for play in game.plays:
        estimands += estimand(game, play)
        advantages += advantage(game, play)
        chances += [play.chance] * len(play.decisions)
    return pearson(estimands, advantages, chances)


def weighted_mean(values: Numbers, weights: Numbers) -> float:
    """Return the mean of `values` with `weights`."""
    return float(np.average(values, weights=weights))


def weighted_std(values: Numbers, weights: Numbers) -> float:
    """Return the standard deviation of `values` with `weights`."""
    squares = (np.asarray(values) - weighted_mean(values, weights)) ** 2
    return float(np.sqrt(np.average(squares, weights=weights)))


def pearson(x: Numbers, y: Numbers, weights: Numbers) -> float | None:
    """Return the weighted Pearson correlation, or None if `x` or `y` is constant."""
    scale = weighted_std(x, weights) * weighted_std(y, weights)
    if scale <= _ROUNDING:
        return None
    products = (np.asarray(x) - weighted_mean(x, weights)) * (np.asarray(y) - weighted_mean(y, weights))
    return float(np.average(products, weights=weights)) / scale


def spearman(x: Numbers, y: Numbers, weights: Numbers) -> float | None:
    """Return the weighted Spearman correlation; equal values share their mean rank."""
    ranks = []
    for values in (x, y):
        # Values that differ by rounding only count as equal.
        rounded = np.round(np.asarray(values, dtype=float), 9)
        ranks.append([float((rounded < value).sum() + (rounded == value).sum() / 2) for value in rounded])
    return pearson(ranks[0], ranks[1], weights)
