"""Credit by several rollouts from the exact state before and after a turn, or a segment of a turn."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Literal

from pydantic import PositiveInt

from marl.core.graph import Trajectory
from marl.core.types import Advantage, Fork, Turn, TurnId
from marl.credit.assign.rollouts import CreditRolloutPlayer, RolloutAssign
from marl.credit.assign.segments import segment_advantage
from marl.credit.assign.teams import CreditTeam
from marl.protocols import Evidence

State = tuple[TurnId, int, frozenset[str]]
"""Key of a state in an episode: the next turn, the number of its tokens that are generated already, and the agents of
the team whose reward is estimated."""


class RolloutValueChangeAssign(RolloutAssign):
    """Each turn earns the change of the expected reward by its answer, estimated by rollouts before and after the turn.

    `vine` (VinePPO, arXiv 2410.01679): A = V(after the turn) - V(before the turn), where V is the team's mean reward
    over `samples` rollouts from that state. After the last turn, and where only rule-based turns remain, V is the
    recorded reward. A is an unbiased estimate of the turn's advantage. The state after a turn is the state before the
    next turn, so this takes `samples` rollouts per turn if all turns get credit, and up to twice as many otherwise.

    `siblings` (C3, arXiv 2603.06859): A = R - the mean of `samples` other rollouts from before the turn. Also unbiased,
    but R is a single draw of the continuation, so more samples do not make A exact. `samples` rollouts for each turn.

    With `level: segment` the same holds for each segment of an answer (VinePPO itself): rollouts go on with the answer
    from the segment's end, and sample only what follows. All tokens of a segment have its credit. Their value targets
    are the values after the segment, with which Math-Shepherd (arXiv 2312.08935) labels a step.

    Rewards count over the full episode; rewards before the turn are equal in all rollouts and cancel.
    """

    kind: str = "replay"
    form: Literal["vine", "siblings"] = "vine"
    """Estimate of a turn's credit. `vine`: value after the turn minus value before the turn; `siblings`: recorded
    reward minus the mean reward of other rollouts from before the turn."""
    level: Literal["turn", "segment"] = "turn"
    """Steps that are credited: turns, or the segments of answers, which need `segments` of the role. A turn that a
    program asked for is always one step."""
    samples: PositiveInt = 8
    """Number of rollouts from each state."""

    @property
    def needs_segments(self) -> bool:
        return self.level == "segment"

    def turn_credits_from_rollouts(
        self, evidence: Evidence, rollouts: CreditRolloutPlayer
    ) -> Iterator[tuple[TurnId, float | Advantage]]:
        # For each credited turn: episode, team, the states before its steps, and (for `vine`) the state after it.
        turn_states: list[tuple[Trajectory, CreditTeam, Turn, list[State], State | None]] = []
        forks: dict[State, tuple[Fork, CreditTeam]] = {}
        for trajectory in evidence.trajectories:
            sampled = [turn.id for turn in trajectory.turns if turn.role not in evidence.rule_based_roles]
            next_turn = dict(pairwise(sampled)) if self.form == "vine" else {}
            for team, turns in self.credited_turns_by_team(trajectory, evidence):
                for turn in turns:
                    states = [(turn.id, begin, team.agents) for begin in self._first_tokens_of_steps(turn)]
                    after: State | None = (next_turn[turn.id], 0, team.agents) if turn.id in next_turn else None
                    turn_states.append((trajectory, team, turn, states, after))
                    for state in filter(None, (*states, after)):
                        (_, index), begin, _ = state
                        prefix = trajectory.turns[index].completion.token_ids[:begin]
                        # The state before a turn that several forks share is played only once.
                        forks.setdefault(state, (Fork(trajectory, index, prefix=prefix, n=self.samples), team))
        values = dict(zip(forks, rollouts.mean_team_reward_per_fork(list(forks.values())), strict=True))
        for trajectory, team, turn, states, after in turn_states:
            recorded = team.total_reward(trajectory)
            final = values[after] if after else recorded
            before = [value for value in map(values.__getitem__, states) if value is not None]
            if final is None or len(before) < len(states):
                continue
            targets = [*before[1:], final] if self.form == "vine" else [recorded] * len(before)
            earned = [target - value for target, value in zip(targets, before, strict=True)]
            by_segment = self.level == "segment" and not turn.inner
            yield turn.id, segment_advantage(turn, earned, targets) if by_segment else earned[0]

    def _first_tokens_of_steps(self, turn: Turn) -> list[int]:
        """Return the index of the first token of each step of `turn`: of its segments, or of the turn as one step."""
        if self.level == "turn" or turn.inner:
            return [0]
        return [0, *[last + 1 for last in turn.completion.segments[:-1]]]
