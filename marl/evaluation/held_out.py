"""Evaluation on starts that training never deals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean

from marl.graph import Trajectory
from marl.metrics.summaries import game_measures, role_metrics
from marl.rollout.base import BaseSimulator
from marl.scenario.schema import Scenario
from marl.seeds import seed_of
from marl.statistics import interval
from marl.types import Deal, Metrics

SAMPLED, GREEDY = "eval/held_out", "eval/held_out_greedy"
"""Scopes of the figures: as the roles sample, and always the most likely token."""


def held_out_deals(scenario: Scenario, seed: int, episodes: int) -> list[Deal]:
    """Return up to so many starts that training never deals, the same ones for the same seed of a run."""
    starts = scenario.game.held_out(episodes)
    names = [f"held_out.{index}" for index in range(len(starts))]
    return [
        Deal(name, name, seed_of(seed, name), scenario.seats, "eval", options=start)
        for name, start in zip(names, starts, strict=True)
    ]


class HeldOut:
    """Plays the same starts with the same seeds every time, so that figures differ only by the weights."""

    def __init__(self, scenario: Scenario, simulator: BaseSimulator, episodes: int, *, greedy: bool = False) -> None:
        self._deals = held_out_deals(scenario, simulator.casting.seed, episodes)
        self._simulators = {SAMPLED: simulator.variant(simulator.casting)}
        if greedy:
            self._simulators[GREEDY] = simulator.greedy()
        self.played: Sequence[Trajectory] = ()
        """Episodes of the last call, as the roles sample."""

    def __call__(self) -> Metrics:
        """Return the game's measures with intervals, and returns, figures of roles and signs of collapse without."""
        played = {scope: simulator.play(self._deals) for scope, simulator in self._simulators.items()}
        self.played = played[SAMPLED]
        figures = {scope: summarize_play(trajectories) for scope, trajectories in played.items()}
        return {f"{scope}/{name}": value for scope in figures for name, value in figures[scope].items()}


def summarize_play(trajectories: Sequence[Trajectory]) -> Metrics:
    """Return figures of episodes. An episode without a measure does not count for it; one alone has no interval."""
    figures: Metrics = {"episodes": float(len(trajectories))}
    for name, values in game_measures(trajectories).items():
        low, figures[name], high = interval(values)
        if math.isfinite(low):
            figures |= {f"{name}_low": low, f"{name}_high": high}
    agents = {agent: None for trajectory in trajectories for agent in trajectory.deal.seats}
    figures |= {f"return/{agent}": _mean_return(trajectories, agent) for agent in agents}
    return figures | role_metrics(trajectories)


def _mean_return(trajectories: Iterable[Trajectory], agent: str) -> float:
    return fmean(trajectory.returns.get(agent, 0.0) for trajectory in trajectories)
