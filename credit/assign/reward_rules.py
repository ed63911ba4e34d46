"""Rules that compute the credit of a turn from the rewards and the graph of its own episode.

A turn that several episodes of the step share, because forks continue from it, gets its credit from the first episode,
in which it was sampled.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Self

from pydantic import Field, model_validator

from marl.core.graph import Trajectory
from marl.core.types import Advantage, Credit, Reward, TurnId
from marl.credit.assign.edges import EdgeFollowingAssign
from marl.credit.assign.teams import CreditTeam, TeamAssign, add_single_agent_teams, check_teams_disjoint
from marl.protocols import AssignConfig, Evidence


class AgentReturnAssign(AssignConfig):
    """Each turn earns its agent's return in the episode."""

    kind: str = "outcome"
    to_go: bool = False
    """True: a turn earns only the agent's rewards from this turn on, instead of its full return."""

    @property
    def credit_depends_on_reward_time(self) -> bool:
        """Return True with `to_go`: then turns of an agent may earn different amounts."""
        return self.to_go

    def __call__(self, evidence: Evidence) -> Credit:
        credit: Credit = {}
        # Equal returns share one object: building one for each turn takes a third of the rule's time.
        advantage_of_return = cache(Advantage)
        for trajectory in evidence.trajectories:
            if self.to_go:
                for turn, return_to_go in _returns_to_go(trajectory):
                    credit.setdefault(turn, Advantage(return_to_go))
                continue
            returns = trajectory.returns
            for turn in trajectory.turns:
                credit.setdefault(turn.id, advantage_of_return(returns.get(turn.agent, 0.0)))
        return credit


def _returns_to_go(trajectory: Trajectory) -> Iterator[tuple[TurnId, float]]:
    """Yield (turn id, sum of its agent's rewards from this turn on) for each turn, from the last to the first."""
    rewards: dict[TurnId, list[Reward]] = defaultdict(list)
    for reward in trajectory.rewards:
        rewards[reward.turn].append(reward)
    # Iterating from the last turn to the first makes each return-to-go a running sum.
    returns: dict[str, float] = {}
    for turn in reversed(trajectory.turns):
        for reward in rewards.get(turn.id, ()):
            returns[reward.agent] = returns.get(reward.agent, 0.0) + reward.value
        yield turn.id, returns.get(turn.agent, 0.0)


class FullTeamRewardAssign(TeamAssign):
    """Each turn of a team's members earns the full reward of the team in the episode.

    As in GRPO with a conversation as one sample, and in MAGRPO's joint return (arXiv 2508.04652).
    """

    kind: str = "uniform"

    def __call__(self, evidence: Evidence) -> Credit:
        credit: Credit = {}
        for trajectory in evidence.trajectories:
            team_reward: dict[str, float] = {}
            for agents, reward in self.agent_groups_with_shared_reward(trajectory, evidence):
                team_reward.update(dict.fromkeys(agents, reward))
            for turn in trajectory.turns:
                if turn.agent in team_reward:
                    credit.setdefault(turn.id, Advantage(team_reward[turn.agent]))
        return credit


class LastSpeaker(TeamAssign):
    """The last turn of a team earns the team's reward in the episode; the team's other turns earn 0.

    Then only final answers are trained. The credit of an episode sums to its reward.
    """

    kind: str = "last_speaker"

    def __call__(self, evidence: Evidence) -> Credit:
        credit: Credit = {}
        for trajectory in evidence.trajectories:
            pools: dict[str, tuple[frozenset[str], float]] = {}
            for pool in self.agent_groups_with_shared_reward(trajectory, evidence):
                pools.update(dict.fromkeys(pool[0], pool))
            for turn in reversed(trajectory.turns):
                if turn.agent in pools:
                    agents, reward = pools[turn.agent]
                    credit.setdefault(turn.id, Advantage(reward))
                    # The loop runs backwards and the team's last turn has the full reward, so its earlier turns earn 0.
                    pools.update(dict.fromkeys(agents, (agents, 0.0)))
        return credit


class RewardFlowAssign(EdgeFollowingAssign):
    """A reward flows back from readers to the turns that they read, within the team of the rewarded agent.

    A turn keeps its credit and passes on `decay` times its credit, in equal parts, to the turns that it read. So a
    turn that a rewarded turn read over k edges earns `decay ** k`, and the number of readers does not multiply a
    reward. One backward pass computes c(u) = r(u) + decay * sum over v that read u of c(v) / reads(v).
    """

    kind: str = "flow"
    decay: float = Field(default=0.9, ge=0, le=1)
    """Share of a turn's credit that is passed back to the turns that it read."""
    teams: tuple[tuple[str, ...], ...] = ()
    """Agents that share rewards; an agent in no team gets only its own rewards."""

    @model_validator(mode="after")
    def _check_teams_disjoint(self) -> Self:
        check_teams_disjoint(self.teams)
        return self

    def agent_groups_with_shared_reward(
        self, trajectory: Trajectory, evidence: Evidence
    ) -> Sequence[tuple[frozenset[str], float]]:
        teams = add_single_agent_teams(self.teams, trajectory, evidence.non_rule_based_agents(trajectory))
        return [(agents, CreditTeam(agents).total_reward(trajectory)) for agents in teams]

    def __call__(self, evidence: Evidence) -> Credit:
        credit: Credit = {}
        for trajectory in evidence.trajectories:
            for agents in add_single_agent_teams(self.teams, trajectory, list(trajectory.deal.seats)):
                # Rewards flow through turns of other teams, too, but such turns get no credit for them.
                earned = CreditTeam(agents).rewards_by_turn(trajectory)
                for turn in reversed(trajectory.turns):
                    value = earned.get(turn.id, 0.0)
                    if value and (sources := trajectory.sources(turn.id, self.along)):
                        share = self.decay * value / len(sources)
                        for source in sources:
                            earned[source] = earned.get(source, 0.0) + share
                for turn in trajectory.turns:
                    if turn.agent in agents:
                        credit.setdefault(turn.id, Advantage(earned.get(turn.id, 0.0)))
        return credit
