"""Episodes whose tokens have log-probabilities under a policy and its reference, written down by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from by_hand import Paid, episode
from detailed_episodes import episode_of

from marl.graph import Trajectory
from marl.judging.judge import Judge
from marl.protocols import Evidence
from marl.scenario.schema import CreditConfig
from marl.types import Reading

Floats = Sequence[float]


def token_episode(name: str, agents: str, lengths: Sequence[int], paid: Paid = (), **more: Any) -> Trajectory:
    """Turns of so many tokens, and what was paid after which."""
    made = episode_of(name, agents, lengths=lengths, **more)
    made.rewards, made.end = episode(name, agents, paid).rewards, "terminated"
    return made


def far(trajectories: Sequence[Trajectory], distances: Sequence[Floats | None], **more: Any) -> Evidence:
    """Turns whose tokens are so many nats likelier under the policy than under its reference; None: nobody read it."""
    turns = [turn.id for trajectory in trajectories for turn in trajectory.turns]
    readings = {
        turn: Reading(tuple(-1.0 for _ in row), reference=tuple(-1.0 - d for d in row), **more)
        for turn, row in zip(turns, distances, strict=True)
        if row is not None
    }
    return Evidence(trajectories, "a_game", readings)


def judge(**rule: Any) -> Judge:
    return Judge(CreditConfig.model_validate({"baseline": {"kind": "none"}, **rule}))
