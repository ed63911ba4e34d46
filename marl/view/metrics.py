"""What happened in a step, in numbers: names are `scope/...`, see the table in the README."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from marl.graph import Trajectory
from marl.types import Metrics, Turn


def summarize(trajectories: Sequence[Trajectory]) -> Metrics:
    """`episode/` and `role/` metrics of a step's trajectories."""
    metrics: Metrics = {"episode/count": float(len(trajectories))}
    if not trajectories:
        return metrics
    metrics["episode/turns"] = sum(len(t.turns) for t in trajectories) / len(trajectories)
    metrics["episode/truncated"] = sum(t.end == "truncated" for t in trajectories) / len(trajectories)
    return metrics | _returns(trajectories) | _roles(trajectories)


def _returns(trajectories: Sequence[Trajectory]) -> Metrics:
    totals: dict[str, float] = defaultdict(float)
    for trajectory in trajectories:
        for agent in trajectory.deal.seats:
            totals[f"episode/return/{agent}"] += 0.0
        for reward in trajectory.rewards:
            role = trajectory.deal.seats[reward.agent]
            totals[f"episode/return/{reward.agent}"] += reward.value
            totals[f"role/{role}/reward/{reward.name}"] += reward.value
    return {name: total / len(trajectories) for name, total in totals.items()}


def _roles(trajectories: Sequence[Trajectory]) -> Metrics:
    spoken: dict[str, list[Turn]] = defaultdict(list)
    for trajectory in trajectories:
        for turn in trajectory.turns:
            spoken[turn.role].append(turn)
    return {f"role/{role}/{name}": value for role in sorted(spoken) for name, value in _manners(spoken[role]).items()}


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
