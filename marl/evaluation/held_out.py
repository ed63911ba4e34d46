"""Evaluation on held-out start states, which training never deals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from statistics import fmean

from marl.core.graph import Trajectory
from marl.core.seeds import hash_to_seed
from marl.core.statistics import confidence_interval
from marl.core.types import Deal, Metrics
from marl.metrics.forecasts import forecast_metrics
from marl.metrics.trajectory_metrics import measure_values_by_name, role_metrics
from marl.rollout.base import BaseSimulator
from marl.scenario.games import Forecast
from marl.scenario.schema import Scenario

# Metrics of this module (name | unit | meaning), which `tests/bench/figures.py` copies into marl/README.md.
METRICS = """
eval/held_out/MEASURE | the game's | mean of a measure on starts that training never deals
eval/held_out/MEASURE_episodes | episodes | number of episodes that have the measure; only if some lack it
eval/held_out/ROLE_fixes | share | a team's role is right, in episodes in which the verified role before it was wrong;
    of a name that no role has: a measure of the game
eval/held_out/ROLE_breaks | share | a team's role is wrong, in episodes in which the verified role before it was right;
    of a name that no role has: a measure of the game
eval/held_out/return/AGENT | reward | mean return of a seat there
eval/held_out/role/ROLE/... | as `role/ROLE/...` | turns and indicators of collapse there (rewards left out)
eval/held_out/episodes | episodes | played there
eval/held_out_greedy/... | as `eval/held_out/...` | the same at temperature 0
"""

SAMPLED_PREFIX, GREEDY_PREFIX = "eval/held_out", "eval/held_out_greedy"
"""Metric scopes: sampling with the roles' own settings, and greedy decoding."""


def held_out_deals(scenario: Scenario, seed: int, episodes: int) -> list[Deal]:
    """Return a deal for each of up to `episodes` held-out start states. The same `seed` gives the same deals."""
    deals: list[Deal] = []
    for index, start in enumerate(scenario.game.held_out_reset_options(episodes)):
        name = f"held_out.{index}"
        deals.append(Deal(name, name, hash_to_seed(seed, name), scenario.seats, "eval", options=start))
    return deals


class HeldOutEvaluator:
    """Evaluation on held-out starts, with the same seeds at every call, so that metrics differ only by the weights."""

    def __init__(self, scenario: Scenario, simulator: BaseSimulator, episodes: int, *, greedy: bool = False) -> None:
        self._deals = held_out_deals(scenario, simulator.casting.seed, episodes)
        self._forecasts = scenario.evaluate.forecasts
        self._simulators = {SAMPLED_PREFIX: simulator.variant(simulator.casting)}
        if greedy:
            self._simulators[GREEDY_PREFIX] = simulator.with_greedy_decoding()
        self.episodes_of_last_call: Sequence[Trajectory] = ()
        """Episodes of the last call, sampled with the roles' own settings."""

    def __call__(self) -> Metrics:
        """Play all starts, and return the metrics of `summarize_episodes` under `SAMPLED_PREFIX` and
        `GREEDY_PREFIX`."""
        metrics: Metrics = {}
        for scope, simulator in self._simulators.items():
            trajectories = simulator.play(self._deals)
            if scope == SAMPLED_PREFIX:
                self.episodes_of_last_call = trajectories
            metrics |= {f"{scope}/{name}": value for name, value in summarize_episodes(trajectories).items()}
            for name, forecast in self._forecasts.items():
                for metric, value in forecast_metrics(*_scores_and_outcomes(trajectories, forecast)).items():
                    metrics[f"{scope}/forecast/{name}/{metric}"] = value
        return metrics


def summarize_episodes(trajectories: Sequence[Trajectory]) -> Metrics:
    """Return metrics of episodes: the game's measures with 95 % intervals, mean returns and role metrics.

    The mean of a measure is over the episodes that have it; a single value has no interval.
    """
    figures: Metrics = {"episodes": float(len(trajectories))}
    for name, values in measure_values_by_name(trajectories).items():
        figures |= metric_with_interval(name, confidence_interval(values))
        if len(values) < len(trajectories):
            figures[f"{name}_episodes"] = float(len(values))
    return figures | mean_return_metrics(trajectories, "return/") | role_metrics(trajectories)


def _scores_and_outcomes(trajectories: Sequence[Trajectory], forecast: Forecast) -> tuple[list[float], list[float]]:
    """Return the scores and the outcomes of the episodes that have both measures."""
    scores: list[float] = []
    outcomes: list[float] = []
    for trajectory in trajectories:
        measures = trajectory.findings.measures
        if forecast.score in measures and forecast.outcome in measures:
            scores.append(measures[forecast.score])
            outcomes.append(measures[forecast.outcome])
    return scores, outcomes


def mean_return_metrics(trajectories: Sequence[Trajectory], name_prefix: str) -> Metrics:
    """Return the mean return of every agent as `PREFIX` + AGENT, in the order of the agents' first episodes."""
    returns: Metrics = {}
    for agent in dict.fromkeys(chain.from_iterable(trajectory.deal.seats for trajectory in trajectories)):
        returns[name_prefix + agent] = fmean(trajectory.returns.get(agent, 0.0) for trajectory in trajectories)
    return returns


def metric_with_interval(name: str, low_mean_high: tuple[float, float, float]) -> Metrics:
    """Return (low, mean, high) as the metrics NAME_low, NAME and NAME_high, without the bounds if they are infinite."""
    low, mean, high = low_mean_high
    return {name: mean} | ({f"{name}_low": low, f"{name}_high": high} if math.isfinite(low) else {})
