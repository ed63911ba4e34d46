"""Metrics of a step's trajectories. Names are `scope/...`; the table in marl/README.md lists them all."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from statistics import fmean

from marl.graph import Trajectory
from marl.metrics.collapse import collapse_figures, standard_deviation
from marl.scenario.games import HELD_OUT_SCOPES, SCOPES
from marl.types import Metrics, Turn, Usage


def summarize(trajectories: Sequence[Trajectory]) -> Metrics:
    """Return `episode/` and `role/` metrics of a step's trajectories, and `policy/` ones of the cost of their turns.

    With several games the same of each, as `game/NAME/...`.
    """
    games = {name: summarize_game(played) for name, played in by_game(trajectories).items() if name}
    of_games = {f"game/{name}/{figure}": value for name in sorted(games) for figure, value in games[name].items()}
    return summarize_game(trajectories) | of_games


def by_game(trajectories: Iterable[Trajectory]) -> dict[str, list[Trajectory]]:
    """Return name of a game -> its trajectories."""
    played: dict[str, list[Trajectory]] = defaultdict(list)
    for trajectory in trajectories:
        played[trajectory.deal.game].append(trajectory)
    return dict(played)


def summarize_game(trajectories: Sequence[Trajectory]) -> Metrics:
    """Return the metrics of trajectories as if they were of one game."""
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
    """Return name -> values of the game's own measures: one for each episode that has it."""
    values: dict[str, list[float]] = defaultdict(list)
    for trajectory in trajectories:
        for name, value in trajectory.findings.measures.items():
            values[name].append(value)
    return dict(values)


def return_metrics(trajectories: Sequence[Trajectory]) -> Metrics:
    """Return the mean reward of each agent and each role over episodes, and the spread of a role's returns."""
    totals: dict[str, float] = defaultdict(float)
    role_returns: dict[str, list[float]] = defaultdict(list)
    for trajectory in trajectories:
        seats, returns = trajectory.deal.seats, trajectory.returns
        for agent, role in seats.items():
            totals[f"episode/return/{agent}"] += 0.0
            role_returns[role].append(returns.get(agent, 0.0))
        for reward in trajectory.rewards:
            totals[f"episode/return/{reward.agent}"] += reward.value
            totals[f"role/{seats[reward.agent]}/reward/{reward.name}"] += reward.value
    means = {name: total / len(trajectories) for name, total in totals.items()}
    return means | {f"role/{role}/reward_std": standard_deviation(values) for role, values in role_returns.items()}


def role_metrics(trajectories: Iterable[Trajectory]) -> Metrics:
    """Return each role's number of turns, shares of failed turns, and indicators of collapse."""
    turns_of: dict[str, list[Turn]] = defaultdict(list)
    for trajectory in trajectories:
        for turn in trajectory.turns:
            turns_of[turn.role].append(turn)
    figures = {role: _turn_figures(turns) | collapse_figures(turns) for role, turns in sorted(turns_of.items())}
    return {f"role/{role}/{name}": value for role, of_role in figures.items() for name, value in of_role.items()}


def _turn_figures(turns: Sequence[Turn]) -> Metrics:
    """Return the number of turns; per turn, the number of tokens and the shares of what went wrong."""
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
    """Return `policy/NAME/...` metrics of the usage of each policy that answers from outside."""
    figures = {policy: asdict(spent) for policy, spent in usage.items()}
    return {f"policy/{p}/{prefix}{name}": float(value) for p, spent in figures.items() for name, value in spent.items()}


def held_out_measures(names: Iterable[str]) -> list[str]:
    """Return those of these metrics that are measures on held-out starts: eval/held_out/..., eval/NAME/held_out/..."""
    of_one = [name for name in names if name.startswith("eval/") and not name.endswith(("_low", "_high", "/episodes"))]
    return [name for name in of_one if name.count("/") < 4 and name.split("/")[-2] in HELD_OUT_SCOPES]


def of_games(figures: Iterable[str], names: Iterable[str]) -> list[str]:
    """Return those of these metrics that are one of the figures, in their order: eval/nashconv, or eval/NAME/nashconv
    of one of several games."""
    whole: dict[str, list[str]] = defaultdict(list)
    for name in names:
        scope, _, rest = name.partition("/")
        game, _, figure = rest.partition("/")
        whole[name].append(name)
        if figure and game not in SCOPES:
            whole[f"{scope}/{figure}"].append(name)
    return [name for figure in figures for name in whole.get(figure, ())]
