"""What happened in a step, in numbers: names are `scope/...`, see the table in the README."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from statistics import fmean

from marl.graph import Trajectory
from marl.metrics.collapse import signs, spread
from marl.types import Metrics, Turn, Usage


def summarize(trajectories: Sequence[Trajectory]) -> Metrics:
    """`episode/` and `role/` metrics of a step's trajectories, and `policy/` ones of what their turns have cost."""
    metrics: Metrics = {"episode/count": float(len(trajectories))}
    if not trajectories:
        return metrics
    metrics["episode/turns"] = sum(len(t.turns) for t in trajectories) / len(trajectories)
    metrics["episode/truncated"] = sum(t.end == "truncated" for t in trajectories) / len(trajectories)
    metrics |= {f"episode/measure/{name}": fmean(values) for name, values in measured(trajectories).items()}
    return metrics | returns(trajectories) | of_roles(trajectories) | spending(_spent(trajectories))


def measured(trajectories: Iterable[Trajectory]) -> dict[str, list[float]]:
    """The figures that the game itself told, by name: one an episode that has it."""
    values: dict[str, list[float]] = defaultdict(list)
    for trajectory in trajectories:
        for name, value in trajectory.findings.measures.items():
            values[name].append(value)
    return dict(values)


def returns(trajectories: Sequence[Trajectory]) -> Metrics:
    """What each agent and each role was paid, mean over episodes, and how far a role's returns lie apart."""
    totals: dict[str, float] = defaultdict(float)
    for trajectory in trajectories:
        for agent in trajectory.deal.seats:
            totals[f"episode/return/{agent}"] += 0.0
        for reward in trajectory.rewards:
            role = trajectory.deal.seats[reward.agent]
            totals[f"episode/return/{reward.agent}"] += reward.value
            totals[f"role/{role}/reward/{reward.name}"] += reward.value
    means = {name: total / len(trajectories) for name, total in totals.items()}
    return means | {f"role/{role}/reward_std": spread(values) for role, values in _by_role(trajectories).items()}


def _by_role(trajectories: Iterable[Trajectory]) -> dict[str, list[float]]:
    """Returns: one for each seat of a role in each episode."""
    found: dict[str, list[float]] = defaultdict(list)
    for trajectory in trajectories:
        own = trajectory.returns
        for agent, role in trajectory.deal.seats.items():
            found[role].append(own.get(agent, 0.0))
    return found


def of_roles(trajectories: Iterable[Trajectory]) -> Metrics:
    """How each role speaks: manners, and signs of collapse."""
    spoken: dict[str, list[Turn]] = defaultdict(list)
    for trajectory in trajectories:
        for turn in trajectory.turns:
            spoken[turn.role].append(turn)
    figures = {role: _manners(turns) | signs(turns) for role, turns in sorted(spoken.items())}
    return {f"role/{role}/{name}": value for role, found in figures.items() for name, value in found.items()}


def _manners(turns: Sequence[Turn]) -> Metrics:
    """How many turns, and per turn: tokens, and the shares of what went wrong."""
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


def spending(spent: Mapping[str, Usage], prefix: str = "") -> Metrics:
    """`policy/` metrics of what each policy has cost."""
    figures = {policy: asdict(usage) for policy, usage in spent.items()}
    return {f"policy/{p}/{prefix}{name}": float(value) for p, usage in figures.items() for name, value in usage.items()}


def _spent(trajectories: Sequence[Trajectory]) -> dict[str, Usage]:
    spent: dict[str, Usage] = {}
    for turn in (turn for trajectory in trajectories for turn in trajectory.turns):
        if turn.completion.usage is not None:
            spent[turn.request.policy] = spent.get(turn.request.policy, Usage()) + turn.completion.usage
    return spent


def held_out_measures(names: Iterable[str]) -> list[str]:
    """Which of these metrics are measures on held-out starts."""
    scopes = ("eval/held_out/", "eval/held_out_greedy/")
    of_them = (name for name in names if name.startswith(scopes) and name.count("/") == 2)
    return [name for name in of_them if not name.endswith(("_low", "_high", "/episodes"))]
