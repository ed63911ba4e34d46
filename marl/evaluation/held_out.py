"""Evaluation on held-out start states, which training never deals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from statistics import fmean

from marl.core.graph import Trajectory
from marl.core.seeds import seed_of
from marl.core.statistics import interval
from marl.core.types import Deal, Metrics
from marl.metrics.trajectory_metrics import game_measures, role_metrics
from marl.rollout.base import BaseSimulator
from marl.scenario.schema import Scenario

SAMPLED, GREEDY = "eval/held_out", "eval/held_out_greedy"
"""Metric scopes: sampling with the roles' own settings, and greedy decoding."""


def held_out_deals(scenario: Scenario, seed: int, episodes: int) -> list[Deal]:
    """Return up to `episodes` deals of held-out start states; the same `seed` gives the same deals."""
    deals: list[Deal] = []
    for index, start in enumerate(scenario.game.held_out(episodes)):
        name = f"held_out.{index}"
        deals.append(Deal(name, name, seed_of(seed, name), scenario.seats, "eval", options=start))
    return deals


class HeldOut:
    """Plays the same starts with the same seeds at every call, so that figures differ only by the weights."""

    def __init__(self, scenario: Scenario, simulator: BaseSimulator, episodes: int, *, greedy: bool = False) -> None:
        self._deals = held_out_deals(scenario, simulator.casting.seed, episodes)
        self._simulators = {SAMPLED: simulator.variant(simulator.casting)}
        if greedy:
            self._simulators[GREEDY] = simulator.greedy()
        self.played: Sequence[Trajectory] = ()
        """Episodes of the last call, sampled with the roles' own settings."""

    def __call__(self) -> Metrics:
        """Return the game's measures with intervals, and mean returns and role metrics without intervals."""
        played = {scope: simulator.play(self._deals) for scope, simulator in self._simulators.items()}
        self.played = played[SAMPLED]
        metrics: Metrics = {}
        for scope, trajectories in played.items():
            for name, value in summarize_play(trajectories).items():
                metrics[f"{scope}/{name}"] = value
        return metrics


def summarize_play(trajectories: Sequence[Trajectory]) -> Metrics:
    """Return the figures of episodes: measures with 95 % intervals, mean returns and role metrics.

    The mean of a measure is over the episodes that have it; a single value has no interval.
    """
    figures: Metrics = {"episodes": float(len(trajectories))}
    for name, values in game_measures(trajectories).items():
        figures |= with_bounds(name, interval(values))
    return figures | mean_returns(trajectories, "return/") | role_metrics(trajectories)


def mean_returns(trajectories: Sequence[Trajectory], prefix: str) -> Metrics:
    """Return `prefix` + agent -> mean return, for all agents in the order of their first episode."""
    returns: Metrics = {}
    for agent in dict.fromkeys(chain.from_iterable(trajectory.deal.seats for trajectory in trajectories)):
        returns[prefix + agent] = fmean(trajectory.returns.get(agent, 0.0) for trajectory in trajectories)
    return returns


def with_bounds(name: str, bounds: tuple[float, float, float]) -> Metrics:
    """Return `name`, `name`_low and `name`_high of (low, mean, high), without the bounds if they are not finite."""
    low, mean, high = bounds
    return {name: mean} | ({f"{name}_low": low, f"{name}_high": high} if math.isfinite(low) else {})
