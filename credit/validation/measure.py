"""Credit rules on sampled episodes of small games, beside exact values: correlation, bias, variance and cost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean, pvariance
from typing import Any

import numpy as np

from credit.validation.enumeration import Cell, EnumeratedGame, cells_of
from credit.validation.estimands import Estimand, Undefined, advantage
from marl.evaluation.evaluate import move_probabilities
from marl.evaluation.game_tree import grow
from marl.graph import Trajectory
from marl.judging.judge import Judge
from marl.parts import find
from marl.protocols import Engine, ExperienceConfig, WeightlessEngine
from marl.rollout.simulator import RolloutSimulator
from marl.scenario.schema import CreditConfig, Scenario
from marl.training.build import build
from marl.training.run import Run
from marl.types import Request, Ticket

STEPS = 4
"""Steps of a run in which the judged episodes are played ..."""
GROUP = 8
"""... in groups of this size that begin alike."""
RECOVERED = 0.95
"""Correlation with its own estimand from which a method counts as right ..."""
SPREAD = 0.25
"""... where that estimand has at least this standard deviation; below, noise decides."""
_ROUNDING = 1e-9
Numbers = Sequence[float]

# --- tasks ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CheckTask:
    """A cooperative game that can be enumerated, played by the embedded tiny model in every seat."""

    name: str
    game: Mapping[str, Any]
    default: Mapping[str, str]
    """Agent -> the move that stands for doing nothing, for rules that take agents away."""

    def scenario(self, episodes: int, seed: int) -> Scenario:
        """Return a scenario with one policy for all seats: the tiny model, which knows the format of moves only.

        Sampled at temperature 0.5, it says hardly anything but moves in their canonical texts, so that their
        probabilities are those of the moves.
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
    """Return the moves for doing nothing in a layered hint: the first word, and in the last layer the first symbol."""
    moves = ["one"] * sum(layers[:-1]) + ["red"] * layers[-1]
    return {f"agent_{place}": move for place, move in enumerate(moves)}


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
    """Return a run whose episodes contain each play about `samples` times, and the game under its policies.

    Every move's probability is that of its text.
    """
    run = build(task.scenario(1, seed))
    scenario, simulator = run.scenario, run.simulator
    tree = grow(scenario.game, simulator.casting, scenario.seats)
    chances = move_probabilities(simulator, list(tree.requests.values()))
    strategy = dict(zip(tree.requests, chances, strict=True))
    game = EnumeratedGame(scenario.game, simulator.casting, scenario.seats, strategy)
    legal = [play for play in game.plays if all(decision.cell.move is not None for decision in play.decisions)]
    return build(task.scenario(samples * len(legal), seed)), game


# --- methods and results ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Method:
    """A credit rule, and its estimand."""

    name: str
    credit: Mapping[str, Any]
    """As in a scenario."""
    estimand: Estimand | None
    """None: it has no exact one."""
    rehearsals: int = 0
    """Rounds in which it judges the episodes before its judgements count: for rules that learn from steps before."""
    experience: Mapping[str, Any] | None = None
    """Experience that plays the episodes, as in a scenario; None: the episodes that all methods share."""


@dataclass(frozen=True, slots=True)
class MethodResult:
    """Figures of a method on a task. Correlations, bias and spread weigh moves by how often they are made."""

    method: str
    task: str
    own_pearson: float | None
    """Pearson, of mean credit per (history, move) with the method's own exact estimand."""
    own_spread: float | None
    """Standard deviation of that estimand."""
    recovered: bool | None
    """None: there is no estimand, or its spread is too small to tell."""
    pearson: float | None
    """Of mean credit with the exact sequential advantage."""
    spearman: float | None
    exact_pearson: float | None
    """Of the exact estimand with the exact sequential advantage, turn by turn over all plays: the difference that is
    left when nothing is averaged and nothing is noise."""
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


class CountedEngine(WeightlessEngine):
    """An engine that counts the answers it samples."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.sampled = 0
        self.step, self.cancel = engine.step, engine.cancel

    def submit(self, ticket: Ticket, request: Request) -> None:
        self.sampled += request.forced is None
        self._engine.submit(ticket, request)


class Bench:
    """A task with its exact values and its episodes, which are the same for every method."""

    def __init__(self, task: CheckTask, samples: int, seed: int) -> None:
        self.task, self.samples = task, samples
        self.run, self.game = prepare(task, samples, seed)
        self._sequential = _legal_averages(self.game, advantage)
        self._steps = [self.run.simulator.play(self.run.deals(step)) for step in range(STEPS)]

    def __call__(self, method: Method) -> MethodResult:
        """Have the method judge all episodes, step by step."""
        # In a simulator of its own, so that what one method plays changes nothing for the next one.
        shared = self.run.simulator
        assert isinstance(shared, RolloutSimulator)
        engines = {name: CountedEngine(engine) for name, engine in shared.engines.items()}
        judge = Judge(CreditConfig.model_validate(method.credit))
        run = replace(self.run, simulator=shared.variant(shared.casting, engines), judge=judge)
        steps = _gather(run, method.experience) if method.experience else self._steps
        samples: dict[Cell, list[float]] = defaultdict(list)
        tokens, sampled = shared.tokens["credit"], sum(engine.sampled for engine in engines.values())
        for rehearsal in reversed(range(method.rehearsals + 1)):
            for trajectories in steps:
                credit = run.judge(run.evidence(trajectories, run.read(trajectories))).credit
                for turn, cell in {} if rehearsal else _cells(trajectories).items():
                    if turn in credit:
                        samples[cell].append(credit[turn].value)
        judged = max(sum(map(len, samples.values())) * (method.rehearsals + 1), 1)
        sampled = sum(engine.sampled for engine in engines.values()) - sampled
        return self._result(method, samples, sampled / judged, (shared.tokens["credit"] - tokens) / judged)

    def _result(
        self, method: Method, credit: Mapping[Cell, Sequence[float]], generations: float, tokens: float
    ) -> MethodResult:
        """Return figures from the first `samples` samples of each cell."""
        cells = [cell for cell in self._sequential if credit.get(cell)]
        samples = [credit[cell][: self.samples] for cell in cells]
        means, weights = [fmean(values) for values in samples], [self.game.chance(cell) for cell in cells]
        exact = [self._sequential[cell] for cell in cells]
        estimand, exact_pearson = self._estimand(method)
        goal = [estimand[cell] for cell in cells] if estimand else []
        gaps = [mean - expected for mean, expected in zip(means, goal, strict=True)] if goal else []
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
            error=weighted_mean([gap**2 for gap in gaps], weights) ** 0.5 if gaps else None,
            variance=weighted_mean([pvariance(values) for values in samples], weights),
            fewest=min(map(len, samples)),
            generations=generations,
            tokens=tokens,
        )

    def _estimand(self, method: Method) -> tuple[dict[Cell, float] | None, float | None]:
        """Return its value for each (history, move), and its correlation with the sequential advantage over turns."""
        if method.estimand is None:
            return None, None
        try:
            return _legal_averages(self.game, method.estimand), correlation_over_turns(self.game, method.estimand)
        except Undefined:
            return None, None


def _gather(run: Run, experience: Mapping[str, Any]) -> list[list[Trajectory]]:
    """Return episodes of another experience; from a quarter of the starts, for it plays several courses of each."""
    part = find("experience", experience["kind"], ExperienceConfig).model_validate(experience)
    player = part.build()  # type: ignore[attr-defined]
    quarter = run.scenario.schedule.groups * run.scenario.schedule.group_size // 4
    return [player.gather(step, lambda step: run.deals(step)[:quarter], run.simulator) for step in range(STEPS)]


def _cells(trajectories: Iterable[Trajectory]) -> dict[Any, Cell]:
    """Return turn -> its cell."""
    return {turn.id: cell for t in trajectories for cell, turn in zip(cells_of(t), t.turns, strict=True)}


def _legal_averages(game: EnumeratedGame, estimand: Estimand) -> dict[Cell, float]:
    """Return the estimand of each legal move in its history."""
    return {cell: value for cell, value in game.average(partial(estimand, game)).items() if cell.move is not None}


# --- weighted statistics ----------------------------------------------------------------------------------------------


def correlation_over_turns(game: EnumeratedGame, estimand: Estimand) -> float | None:
    """Return the correlation of an estimand with the exact sequential advantage, over all turns of all plays."""
    turns = [(play.chance, zip(estimand(game, play), advantage(game, play), strict=True)) for play in game.plays]
    return pearson(*zip(*[(figure, exact, chance) for chance, pairs in turns for figure, exact in pairs], strict=True))


def weighted_mean(values: Numbers, weights: Numbers) -> float:
    """Return the weighted mean."""
    return float(np.average(values, weights=weights))


def weighted_std(values: Numbers, weights: Numbers) -> float:
    """Return the weighted standard deviation."""
    squares = (np.asarray(values) - weighted_mean(values, weights)) ** 2
    return float(np.sqrt(np.average(squares, weights=weights)))


def pearson(x: Numbers, y: Numbers, weights: Numbers) -> float | None:
    """Return the weighted correlation; None if one of the two is the same everywhere."""
    scale = weighted_std(x, weights) * weighted_std(y, weights)
    if scale <= _ROUNDING:
        return None
    products = (np.asarray(x) - weighted_mean(x, weights)) * (np.asarray(y) - weighted_mean(y, weights))
    return float(np.average(products, weights=weights)) / scale


def spearman(x: Numbers, y: Numbers, weights: Numbers) -> float | None:
    """Return the weighted correlation of ranks; equal values share the mean of theirs."""
    return pearson(_ranks(x), _ranks(y), weights)


def _ranks(values: Numbers) -> list[float]:
    rounded = np.round(np.asarray(values, dtype=float), 9)
    return [float((rounded < value).sum() + (rounded == value).sum() / 2) for value in rounded]
