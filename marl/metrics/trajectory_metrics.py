"""Metrics of the trajectories of one step. Names are `scope/...`; the table in marl/README.md lists all metrics."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from statistics import fmean

from marl.core.graph import Trajectory
from marl.core.types import Metrics, Turn, Usage
from marl.metrics.collapse import collapse_metrics, standard_deviation
from marl.scenario.games import HELD_OUT_SCOPES, SCOPES


def summarize(trajectories: Sequence[Trajectory]) -> Metrics:
    """Return the `episode/`, `role/` and `policy/` metrics of one step, with several games also as `game/NAME/...`."""
    games = {name: summarize_game(played) for name, played in trajectories_by_game(trajectories).items() if name}
    of_games = {f"game/{name}/{figure}": value for name in sorted(games) for figure, value in games[name].items()}
    return summarize_game(trajectories) | of_games


def trajectories_by_game(trajectories: Iterable[Trajectory]) -> dict[str, list[Trajectory]]:
    """Return name of a game -> trajectories of this game."""
    by_game: dict[str, list[Trajectory]] = defaultdict(list)
    for trajectory in trajectories:
        by_game[trajectory.deal.game].append(trajectory)
    return dict(by_game)


def summarize_game(trajectories: Sequence[Trajectory]) -> Metrics:
    """Return the metrics of trajectories, without a distinction by game."""
    metrics: Metrics = {"episode/count": float(len(trajectories))}
    if not trajectories:
        return metrics
    metrics["episode/turns"] = sum(len(t.turns) for t in trajectories) / len(trajectories)
    metrics["episode/truncated"] = sum(t.end == "truncated" for t in trajectories) / len(trajectories)
    metrics |= {f"episode/measure/{name}": fmean(values) for name, values in game_measures(trajectories).items()}
    usage: dict[str, Usage] = {}
    for turn in (turn for trajectory in trajectories for turn in trajectory.turns):
        if turn.completion.usage is not None:
            usage[turn.request.policy] = usage.get(turn.request.policy, Usage()) + turn.completion.usage
    return metrics | return_metrics(trajectories) | role_metrics(trajectories) | usage_metrics(usage)


def game_measures(trajectories: Iterable[Trajectory]) -> dict[str, list[float]]:
    """Return name of a measure -> values, one for every episode with this measure of the game."""
    values: dict[str, list[float]] = defaultdict(list)
    for trajectory in trajectories:
        for name, value in trajectory.findings.measures.items():
            values[name].append(value)
    return dict(values)


def return_metrics(trajectories: Sequence[Trajectory]) -> Metrics:
    """Return the mean return of every agent, the mean rewards of every role, and the spread of each role's returns."""
    totals: dict[str, float] = defaultdict(float)
    role_returns: dict[str, list[float]] = defaultdict(list)
    for trajectory in trajectories:
        seats, returns = trajectory.deal.seats, trajectory.returns
        for agent, role in seats.items():
            # An agent without rewards still gets a metric.
            totals[f"episode/return/{agent}"] += 0.0
            role_returns[role].append(returns.get(agent, 0.0))
        for reward in trajectory.rewards:
            totals[f"episode/return/{reward.agent}"] += reward.value
            totals[f"role/{seats[reward.agent]}/reward/{reward.name}"] += reward.value
    means = {name: total / len(trajectories) for name, total in totals.items()}
    return means | {f"role/{role}/reward_std": standard_deviation(values) for role, values in role_returns.items()}


def role_metrics(trajectories: Iterable[Trajectory]) -> Metrics:
    """Return the number of turns, the shares of failed turns and the collapse indicators of every role."""
    turns_of: dict[str, list[Turn]] = defaultdict(list)
    for trajectory in trajectories:
        for turn in trajectory.turns:
            turns_of[turn.role].append(turn)
    metrics: Metrics = {}
    for role, turns in sorted(turns_of.items()):
        for name, value in (_turn_figures(turns) | collapse_metrics(turns)).items():
            metrics[f"role/{role}/{name}"] = value
    return metrics


def _turn_figures(turns: Sequence[Turn]) -> Metrics:
    """Return the number of turns, the mean number of tokens per turn, and the shares of turns with each failure."""
    finishes = Counter([turn.completion.finish for turn in turns])
    totals = {
        "tokens": sum([len(turn.completion.token_ids) for turn in turns]),
        "illegal": sum([turn.action is None for turn in turns]),
        "retries": sum([turn.attempt > 0 for turn in turns]),
        "cut": finishes["length"],
        "overflow": finishes["overflow"],
        "aborted": finishes["aborted"],
    }
    return {"turns": float(len(turns)), **{name: total / len(turns) for name, total in totals.items()}}


def usage_metrics(usage: Mapping[str, Usage], prefix: str = "") -> Metrics:
    """Return the `policy/NAME/...` metrics of the usage of every remote policy."""
    metrics: Metrics = {}
    for policy, policy_usage in usage.items():
        for name, value in asdict(policy_usage).items():
            metrics[f"policy/{policy}/{prefix}{name}"] = float(value)
    return metrics


def held_out_metrics(names: Iterable[str]) -> list[str]:
    """Return the names of measures on held-out starts: eval/held_out/MEASURE and eval/GAME/held_out/MEASURE."""
    means = [name for name in names if name.startswith("eval/") and not name.endswith(("_low", "_high", "/episodes"))]
    return [name for name in means if name.count("/") < 4 and name.split("/")[-2] in HELD_OUT_SCOPES]


def matching_metrics(figures: Iterable[str], names: Iterable[str]) -> list[str]:
    """Return the names of metrics that belong to `figures`, in the order of `figures`.

    The figure eval/nashconv matches eval/nashconv and, with several games, eval/GAME/nashconv.
    """
    by_figure: dict[str, list[str]] = defaultdict(list)
    for name in names:
        scope, _, subpath = name.partition("/")
        game, _, figure = subpath.partition("/")
        by_figure[name].append(name)
        if figure and game not in SCOPES:
            by_figure[f"{scope}/{figure}"].append(name)
    return list(chain.from_iterable(by_figure.get(figure, ()) for figure in figures))
