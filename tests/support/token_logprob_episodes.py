"""Episodes whose tokens have log-probabilities under a policy and its reference, written down by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from marl.core.graph import Trajectory
from marl.core.types import Reading
from marl.credit_stage.stage import CreditStage
from marl.protocols import Evidence
from marl.scenario.schema import CreditConfig
from tests.support.detailed_handmade_episodes import detailed_episode
from tests.support.handmade_episodes import TimedRewards, make_episode

Floats = Sequence[float]


def token_episode(name: str, agents: str, lengths: Sequence[int], paid: TimedRewards = (), **more: Any) -> Trajectory:
    """Turns of so many tokens, and what was paid after which."""
    made = detailed_episode(name, agents, lengths=lengths, **more)
    made.rewards, made.end = make_episode(name, agents, paid).rewards, "terminated"
    return made


def logprob_evidence(trajectories: Sequence[Trajectory], distances: Sequence[Floats | None], **more: Any) -> Evidence:
    """Turns whose tokens are so many nats likelier under the policy than under its reference; None: nobody read it."""
    turns = [turn.id for trajectory in trajectories for turn in trajectory.turns]
    readings = {
        turn: Reading(tuple(-1.0 for _ in row), reference=tuple(-1.0 - d for d in row), **more)
        for turn, row in zip(turns, distances, strict=True)
        if row is not None
    }
    return Evidence(trajectories, "a_game", readings)


def credit_stage(**rule: Any) -> CreditStage:
    return CreditStage(CreditConfig.model_validate({"baseline": {"kind": "none"}, **rule}))
