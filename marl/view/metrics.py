"""What happened in a step, in numbers: names are `scope/...`, see the table in the README."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from marl.graph import Trajectory
from marl.types import Metrics


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
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for trajectory in trajectories:
        for turn in trajectory.turns:
            count, said = counts[turn.role], turn.completion
            count["turns"] += 1
            count["tokens"] += len(said.token_ids)
            count["illegal"] += turn.action is None
            count["retries"] += turn.attempt > 0
            count["cut"] += said.finish == "length"
            count["overflow"] += said.finish == "overflow"
    return {
        f"role/{role}/{name}": count[name] / (1 if name == "turns" else count["turns"])
        for role, count in sorted(counts.items())
        for name in ("turns", "tokens", "illegal", "retries", "cut", "overflow")
    }
