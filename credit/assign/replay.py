"""Credit by several rollouts from the exact state before and after a turn."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Literal

from pydantic import PositiveInt

from marl.core.graph import Trajectory
from marl.core.types import Fork, TurnId
from marl.credit.assign.rollouts import CreditRollouts, RolloutAssign
from marl.credit.assign.teams import Team
from marl.protocols import Evidence

State = tuple[TurnId, frozenset[str]]
"""Key of a state: the turn that follows it, and the team whose reward is estimated. Forks that share the turn share it.
"""


class Replay(RolloutAssign):
    """Each turn earns the change of the expected reward that it made, estimated by rollouts from around it.

    `vine` (VinePPO, arXiv 2410.01679): A = V(after the turn) - V(before it), where V is the team's mean reward over
    `samples` rollouts from there. After the last turn, and where only answers by rule remain, V is the recorded reward.
    Unbiased for the advantage of the turn. The state before one turn is the state after the previous one, so this
    takes `samples` rollouts for each turn if all turns get credit, and up to twice as many if only some do.

    `siblings` (C3, arXiv 2603.06859): A = R - the mean of `samples` other rollouts from before the turn. Also unbiased,
    but R is a single draw of the continuation, so more samples do not make A exact. `samples` rollouts for each turn.

    Rewards count over the full episode; rewards before the turn are equal in all rollouts and cancel.
    """

    kind: str = "replay"
    form: Literal["vine", "siblings"] = "vine"
    """`vine`: value after the turn minus value before it; `siblings`: recorded reward minus the mean of other
    rollouts."""
    samples: PositiveInt = 8
    """Rollouts from each state."""

    def credit_values(self, evidence: Evidence, rollouts: CreditRollouts) -> Iterator[tuple[TurnId, float]]:
        probes = list(self._probes(evidence))
        forks: dict[State, tuple[Fork, Team]] = {}
        for trajectory, team, indices in probes:
            for index in indices:
                fork = Fork(trajectory, index, n=self.samples)
                forks.setdefault(_state(trajectory, index, team), (fork, team))
        values = dict(zip(forks, rollouts.mean_rewards(list(forks.values())), strict=True))
        for trajectory, team, indices in probes:
            before, *after = [values[_state(trajectory, index, team)] for index in indices]
            value = after[0] if after else team.total_reward(trajectory)
            if before is not None and value is not None:
                yield trajectory.turns[indices[0]].id, value - before

    def _probes(self, evidence: Evidence) -> Iterator[tuple[Trajectory, Team, tuple[int, ...]]]:
        """Yield the index of each credited turn, and the index of the next turn that is no answer by rule.

        The second index is left out if the value after the turn needs no rollouts.
        """
        for trajectory in evidence.trajectories:
            free = [turn.id[1] for turn in trajectory.turns if turn.role not in evidence.rule_based_roles]
            following = dict(pairwise(free)) if self.form == "vine" else {}
            for team, turns in self.credited_turns(trajectory, evidence):
                for turn in turns:
                    index = turn.id[1]
                    yield trajectory, team, (index, following[index]) if index in following else (index,)


def _state(trajectory: Trajectory, index: int, team: Team) -> State:
    return trajectory.turns[index].id, team.agents
