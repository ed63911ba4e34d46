"""Credit by several rollouts from the exact state before and after a turn."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Literal

from pydantic import PositiveInt

from marl.core.graph import Trajectory
from marl.core.types import Fork, TurnId
from marl.credit.assign.rollouts import CreditRolloutPlayer, RolloutAssign
from marl.credit.assign.teams import CreditTeam
from marl.protocols import Evidence

State = tuple[TurnId, frozenset[str]]
"""Key of a state in an episode: the next turn, and the agents of the team whose reward is estimated."""


class RolloutValueChangeAssign(RolloutAssign):
    """Each turn earns the change of the expected reward by its answer, estimated by rollouts before and after the turn.

    `vine` (VinePPO, arXiv 2410.01679): A = V(after the turn) - V(before the turn), where V is the team's mean reward
    over `samples` rollouts from that state. After the last turn, and where only rule-based turns remain, V is the
    recorded reward. A is an unbiased estimate of the turn's advantage. The state after a turn is the state before the
    next turn, so this takes `samples` rollouts per turn if all turns get credit, and up to twice as many otherwise.

    `siblings` (C3, arXiv 2603.06859): A = R - the mean of `samples` other rollouts from before the turn. Also unbiased,
    but R is a single draw of the continuation, so more samples do not make A exact. `samples` rollouts for each turn.

    Rewards count over the full episode; rewards before the turn are equal in all rollouts and cancel.
    """

    kind: str = "replay"
    form: Literal["vine", "siblings"] = "vine"
    """Estimate of a turn's credit. `vine`: value after the turn minus value before the turn; `siblings`: recorded
    reward minus the mean reward of other rollouts from before the turn."""
    samples: PositiveInt = 8
    """Number of rollouts from each state."""

    def turn_credits_from_rollouts(
        self, evidence: Evidence, rollouts: CreditRolloutPlayer
    ) -> Iterator[tuple[TurnId, float]]:
        # For each credited turn: episode, team, the state before the turn, and (for `vine`) the state after it.
        states: list[tuple[Trajectory, CreditTeam, State, State | None]] = []
        forks: dict[State, tuple[Fork, CreditTeam]] = {}
        for trajectory in evidence.trajectories:
            sampled = [turn.id for turn in trajectory.turns if turn.role not in evidence.rule_based_roles]
            next_turn = dict(pairwise(sampled)) if self.form == "vine" else {}
            for team, turns in self.credited_turns_by_team(trajectory, evidence):
                for turn in turns:
                    before: State = turn.id, team.agents
                    after: State | None = (next_turn[turn.id], team.agents) if turn.id in next_turn else None
                    states.append((trajectory, team, before, after))
                    for state in filter(None, (before, after)):
                        # The state before a turn that several forks share is played only once.
                        forks.setdefault(state, (Fork(trajectory, state[0][1], n=self.samples), team))
        values = dict(zip(forks, rollouts.mean_team_reward_per_fork(list(forks.values())), strict=True))
        for trajectory, team, before, after in states:
            value = values[after] if after else team.total_reward(trajectory)
            value_before = values[before]
            if value_before is not None and value is not None:
                yield before[0], value - value_before
