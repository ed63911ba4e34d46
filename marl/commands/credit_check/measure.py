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

from marl.commands.credit_check.enumeration import EnumeratedGame, HistoryAndMove, history_and_move_per_turn
from marl.commands.credit_check.estimands import Estimand, UndefinedEstimandError, exact_advantages
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
"""Number of training steps over which the sampled episodes are divided."""
GROUP = 8
"""Number of episodes from the same start, which form a group."""
RECOVERED = 0.95
"""Minimum correlation of a correct method's credit with its own estimand."""
SPREAD = 0.25
"""Minimum standard deviation of an estimand. Below this spread, sampling noise decides the correlation."""
_ROUNDING = 1e-9
"""Maximum product of two standard deviations of constant values, which differ from 0 only by rounding."""
Numbers = Sequence[float]


@dataclass(frozen=True, slots=True)
class CreditCheckTask:
    """A cooperative, enumerable game with the embedded tiny model in every seat."""

    name: str
    game: Mapping[str, Any]
    default_moves: Mapping[str, str]
    """Agent -> move that replaces the agent's moves in rules that compare with a default action."""

    def build_scenario(self, episodes: int, seed: int) -> Scenario:
        """Return a scenario with one policy for all seats: a tiny model that has learned only the format of moves.

        At temperature 0.5 nearly every answer is the canonical text of a move, so the probability of this text is taken
        as the probability of the move.
        """
        model = {"kind": "tiny", "hidden": 32, "layers": 1, "warm_up": {"steps": 60, "lr": 1e-2}}
        sampling = {"max_tokens": 4, "temperature": 0.5}
        groups = -(-episodes // (STEPS * GROUP))
        return Scenario.model_validate(
            {
                "game": self.game,
                "seats": dict.fromkeys(self.default_moves, "player"),
                "roles": {"player": {"kind": "player", "policy": "actor", "sampling": sampling}},
                "policies": {"actor": {"model": model, "learner": {"kind": "grpo"}}},
                "schedule": {"steps": STEPS, "groups": groups, "group_size": GROUP, "seed": seed, "threads": 1},
            }
        )


def _default_move_by_agent(*moves: str) -> dict[str, str]:
    """Return agent -> default move: `agent_0` has the first of `moves`, `agent_1` the second, and so on."""
    return {f"agent_{index}": move for index, move in enumerate(moves)}


_TWO, _THREE = _default_move_by_agent("a", "a"), _default_move_by_agent("a", "a", "a")
TASKS = (
    CreditCheckTask("hint", {"kind": "hint"}, {"speaker": "one", "guesser": "red"}),
    CreditCheckTask("2B", {"kind": "matrix", "table": "qmix_2b"}, _TWO),
    CreditCheckTask("matching", {"kind": "matrix", "table": "matching"}, _TWO),
    CreditCheckTask("AND of 3", {"kind": "matrix", "table": "and"}, _THREE),
    CreditCheckTask("climbing", {"kind": "matrix", "table": "climbing"}, _TWO),
    CreditCheckTask("two-step", {"kind": "two_step"}, _TWO),
    CreditCheckTask("additive", {"kind": "matrix", "table": "additive"}, _TWO),
    # In layered hint games, agents of the last layer name a symbol, and all other agents say a word.
    CreditCheckTask("fork", {"kind": "layered_hint", "layers": [1, 2]}, _default_move_by_agent("one", "red", "red")),
    CreditCheckTask("join", {"kind": "layered_hint", "layers": [2, 1]}, _default_move_by_agent("one", "one", "red")),
    CreditCheckTask(
        "fork-join", {"kind": "layered_hint", "layers": [1, 2, 1]}, _default_move_by_agent("one", "one", "one", "red")
    ),
)


def build_run_and_enumerated_game(
    task: CreditCheckTask, samples_per_play: int, seed: int
) -> tuple[Run, EnumeratedGame]:
    """Return a run that samples about `samples_per_play` episodes for each legal play of `task`, and the run's
    enumerated game.

    In the enumerated game, a move has the probability with which the run's policy answers with the move's text.
    """
    run = build(task.build_scenario(1, seed))
    scenario, simulator = run.scenario, run.simulator
    tree = build_game_tree(scenario.game, simulator.casting, scenario.seats)
    chances = move_probabilities(simulator, list(tree.requests.values()))
    strategy = dict(zip(tree.requests, chances, strict=True))
    game = EnumeratedGame(scenario.game, simulator.casting, scenario.seats, strategy)
    legal_plays = sum(None not in play.decisions[-1].cell.history_after_move.moves for play in game.plays)
    return build(task.build_scenario(samples_per_play * legal_plays, seed)), game


@dataclass(frozen=True, slots=True)
class CheckedCreditMethod:
    """A credit rule to be checked, and its estimand: the exact expected credit."""

    name: str
    credit: Mapping[str, Any]
    """Settings of the credit rule, as in the section `credit:` of a scenario."""
    estimand: Estimand | None
    """Exact expected credit of the rule, or None if no formula is known."""
    passes_before_measurement: int = 0
    """Number of passes over the episodes before credit is measured (default: 0), for rules that learn values."""
    experience: Mapping[str, Any] | None = None
    """Settings of the section `experience:`, or None to use the episodes that all methods share."""


@dataclass(frozen=True, slots=True)
class CreditMethodResult:
    """Metrics of a method on a task, averaged over pairs of history and move with their probabilities as weights."""

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
    """Pearson correlation of the exact estimand with the exact sequential advantage, over the turns of all plays: the
    upper bound of `pearson` without sampling noise."""
    bias: float | None
    """Mean difference between mean credit and the method's own estimand, over all pairs of history and move."""
    error: float | None
    """Root mean square of the difference between mean credit and own estimand, over all pairs of history and move."""
    variance: float
    """Variance of credit among turns with the same history and move, averaged over all pairs."""
    fewest: int
    """Number of sampled turns of the pair of history and move with the fewest samples."""
    generations: float
    """Number of answers that the method sampled in order to assign credit, per credited turn."""
    tokens: float
    """Number of tokens that the method sampled or scored to assign credit, per credited turn."""


class AnswerCountingEngine(WeightlessEngine):
    """Engine that passes requests on to another engine and counts the sampled answers."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.sampled = 0
        self.step, self.cancel = engine.step, engine.cancel

    def submit(self, ticket: Ticket, request: Request) -> None:
        self.sampled += request.forced is None
        self._engine.submit(ticket, request)


class CreditMethodMeasurement:
    """Measures methods on one task. All methods share the task's exact values and sampled episodes."""

    def __init__(self, task: CreditCheckTask, samples: int, seed: int) -> None:
        """Enumerate the game of `task`, and sample about `samples` episodes for each legal play of the game."""
        self.task, self.samples = task, samples
        self.run, self.game = build_run_and_enumerated_game(task, samples, seed)
        self._exact_advantages = _mean_estimand_by_legal_move(self.game, exact_advantages)
        self._steps = [self.run.simulator.play(self.run.deals(step)) for step in range(STEPS)]

    def __call__(self, method: CheckedCreditMethod) -> CreditMethodResult:
        """Assign credit to all episodes by `method`, step by step, and return the method's metrics."""
        # Each method gets a simulator of its own, so that its rollouts cannot change the next method's results.
        shared = self.run.simulator
        assert isinstance(shared, RolloutSimulator)
        engines = {name: AnswerCountingEngine(engine) for name, engine in shared.engines.items()}
        credit_stage = CreditStage(CreditConfig.model_validate(method.credit))
        run = replace(self.run, simulator=shared.variant(shared.casting, engines), credit_stage=credit_stage)
        steps = self._steps
        if method.experience:
            experience = find_plugin("experience", method.experience["kind"], ExperienceConfig)
            player = experience.model_validate(method.experience).build()  # type: ignore[attr-defined]
            # Tree sampling plays several episodes per start, so a quarter of the starts gives about as many turns.
            quarter = run.scenario.schedule.groups * run.scenario.schedule.group_size // 4
            steps = [player.gather(step, lambda at: run.deals(at)[:quarter], run.simulator) for step in range(STEPS)]
        samples: dict[HistoryAndMove, list[float]] = defaultdict(list)
        # Costs are differences of counters, which also hold earlier methods' costs and the rollouts of tree sampling.
        tokens_before, answers_before = shared.tokens["credit"], sum(engine.sampled for engine in engines.values())
        passes = method.passes_before_measurement + 1
        for number in range(passes):
            for trajectories in steps:
                credit = run.credit_stage(run.evidence(trajectories, run.read(trajectories))).credit
                if number < method.passes_before_measurement:
                    continue
                cells: dict[TurnId, HistoryAndMove] = {}
                for trajectory in trajectories:
                    # A turn that several branches of a tree share is one sample.
                    cells |= zip(
                        [turn.id for turn in trajectory.turns], history_and_move_per_turn(trajectory), strict=True
                    )
                for turn, cell in cells.items():
                    if turn in credit:
                        samples[cell].append(credit[turn].value)
        # Costs were summed over all passes, so they are divided by the credited turns of all passes.
        credited = max(sum(map(len, samples.values())) * passes, 1)
        answers = sum(engine.sampled for engine in engines.values()) - answers_before
        tokens = shared.tokens["credit"] - tokens_before
        return self._method_result(method, samples, answers / credited, tokens / credited)

    def _method_result(
        self,
        method: CheckedCreditMethod,
        credit_samples: Mapping[HistoryAndMove, Sequence[float]],
        generations: float,
        tokens: float,
    ) -> CreditMethodResult:
        """Return the metrics of a method that assigned `credit_samples` ((history, move) -> credit of each of its
        turns).

        The first `self.samples` turns of each pair count. `generations` and `tokens` are costs per credited turn.
        """
        estimand = exact_pearson = None
        if method.estimand:
            with suppress(UndefinedEstimandError):
                estimand = _mean_estimand_by_legal_move(self.game, method.estimand)
                exact_pearson = correlation_with_exact_advantages(self.game, method.estimand)
        means, variances, weights, counts = [], [], [], []
        exact, goal, squared_gaps, gaps = [], [], [], []
        for cell, exact_advantage in self._exact_advantages.items():
            if not credit_samples.get(cell):
                continue
            # Each cell contributes equally many samples, so that variances of frequent and rare cells are comparable.
            values = credit_samples[cell][: self.samples]
            means.append(fmean(values))
            variances.append(pvariance(values))
            weights.append(self.game.reach_probability(cell))
            counts.append(len(values))
            exact.append(exact_advantage)
            if estimand:
                goal.append(estimand[cell])
                gaps.append(means[-1] - estimand[cell])
                squared_gaps.append(gaps[-1] ** 2)
        similarity = weighted_pearson_correlation(means, goal, weights) if goal else None
        spread = weighted_std(goal, weights) if goal else None
        return CreditMethodResult(
            method=method.name,
            task=self.task.name,
            own_pearson=similarity,
            own_spread=spread,
            recovered=None if spread is None or spread < SPREAD else (similarity or 0.0) >= RECOVERED,
            pearson=weighted_pearson_correlation(means, exact, weights),
            spearman=weighted_spearman_correlation(means, exact, weights),
            exact_pearson=exact_pearson,
            bias=weighted_mean(gaps, weights) if gaps else None,
            error=weighted_mean(squared_gaps, weights) ** 0.5 if gaps else None,
            variance=weighted_mean(variances, weights),
            fewest=min(counts),
            generations=generations,
            tokens=tokens,
        )


def _mean_estimand_by_legal_move(game: EnumeratedGame, estimand: Estimand) -> dict[HistoryAndMove, float]:
    """Return (history, move) -> mean of `estimand` over the plays with this history and legal move."""
    averages = game.mean_credit_by_history_and_move(partial(estimand, game))
    return {cell: value for cell, value in averages.items() if cell.move is not None}


# --- weighted statistics (means, correlations) ------------------------------------------------------------------------


def correlation_with_exact_advantages(game: EnumeratedGame, estimand: Estimand) -> float | None:
    """Return the correlation of an estimand with the exact sequential advantage, over all turns of all plays."""
    estimates: list[float] = []
    exact: list[float] = []
    chances: list[float] = []
    for play in game.plays:
        estimates += estimand(game, play)
        exact += exact_advantages(game, play)
        chances += [play.probability] * len(play.decisions)
    return weighted_pearson_correlation(estimates, exact, chances)


def weighted_mean(values: Numbers, weights: Numbers) -> float:
    """Return the mean of `values` weighted by `weights`."""
    return float(np.average(values, weights=weights))


def weighted_std(values: Numbers, weights: Numbers) -> float:
    """Return the standard deviation of `values` weighted by `weights`."""
    squares = (np.asarray(values) - weighted_mean(values, weights)) ** 2
    return float(np.sqrt(np.average(squares, weights=weights)))


def weighted_pearson_correlation(x: Numbers, y: Numbers, weights: Numbers) -> float | None:
    """Return the weighted Pearson correlation of `x` and `y`, or None if one of them is constant."""
    scale = weighted_std(x, weights) * weighted_std(y, weights)
    if scale <= _ROUNDING:
        return None
    products = (np.asarray(x) - weighted_mean(x, weights)) * (np.asarray(y) - weighted_mean(y, weights))
    return float(np.average(products, weights=weights)) / scale


def weighted_spearman_correlation(x: Numbers, y: Numbers, weights: Numbers) -> float | None:
    """Return the weighted Spearman correlation of `x` and `y`, in which equal values share their mean rank."""
    ranks = []
    for values in (x, y):
        # Rounding makes values tie that differ only by float errors.
        rounded = np.round(np.asarray(values, dtype=float), 9)
        ranks.append([float((rounded < value).sum() + (rounded == value).sum() / 2) for value in rounded])
    return weighted_pearson_correlation(ranks[0], ranks[1], weights)
