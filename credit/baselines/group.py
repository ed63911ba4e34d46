"""Baselines that compare with peers in the same step: GRPO, RLOO, OPO, AT-GRPO, Dr. MAS, TRR++, MAGRPO."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from credit.assign.teams import check_disjoint, named_teams
from credit.baselines.peers import (
    ALIKE,
    Comparison,
    PeerBaseline,
    PeerSettings,
    best_of_all,
    exact_mean,
    judged_turns,
    mean_by_length,
    mean_of_all,
    mean_of_others,
    problem_of,
    prompt_of,
)
from credit.baselines.whiten import Whiten
from marl.config import Config
from marl.protocols import Evidence, Likeness, Peers
from marl.types import Advantage, Credit, Turn, TurnId

if TYPE_CHECKING:
    from marl.graph import Trajectory

JointAction = tuple[str, Hashable, dict[TurnId, Turn]]
"""Episode, (start, team), and the turns of the team's members: all of the episode, or those of a round."""


class StandardDeviation(Config):
    """Settings of a division by the standard deviation with ddof 1 (verl, TRL)."""

    std: bool | Literal["batch"] = True
    """Divide by the standard deviation of the peers; `batch`: by that of all worths of the step (TRL's and ms-swift's
    `scale_rewards=batch`); false: by nothing (Dr. GRPO, arXiv 2503.20783)."""
    epsilon: float = Field(default=1e-6, ge=0)
    """Added to the standard deviation: verl 1e-6, TRL and ms-swift 1e-4, OpenRLHF 1e-9."""


class Group(PeerSettings, StandardDeviation):
    """GRPO: minus the mean of the peers in this step, by default divided by their spread (arXiv 2402.03300)."""

    kind: str = "group"
    like: Likeness = "start"
    """Property that peers share. `start`: whole episodes that began in the same state, one value for each agent in
    each; `prompt`: turns with the same prompt, token for token; `problem`: agents that work on the same problem, in one
    episode or in several, one value for each agent in each episode."""

    @property
    def by_episode(self) -> bool:
        """Return True unless turns with the same prompt are compared."""
        return self.like != "prompt"

    def peer_baseline(self, evidence: Evidence, earned: Credit) -> PeerBaseline:
        return PeerBaseline(*ALIKE[self.like], mean_of_all, self.std, self.epsilon)


class RlooBaseline(PeerSettings):
    """RLOO (arXiv 2402.14740): minus the mean of the other peers, R_i - sum over j != i of R_j / (G - 1).

    A turn's own episode has no say in its baseline, so the policy gradient stays unbiased, also where an agent's turns
    earn different amounts. For that, a turn that several forks share is compared with the episodes that do not hold
    it; one that all hold has no peers.
    """

    kind: str = "rloo"
    like: Likeness = "start"
    """Property that peers share (see `group`)."""
    whiten: bool = False
    """Whiten afterwards, (A - mean) / (std + whiten_epsilon) over all turns of the step: TRL's
    `normalize_advantages`."""
    whiten_epsilon: float = Field(default=1e-4, ge=0)
    """Added to the deviation that `whiten` divides by."""

    def peer_baseline(self, evidence: Evidence, earned: Credit) -> PeerBaseline:
        return PeerBaseline(*ALIKE[self.like], mean_of_others, equal="turns")

    def compare(self, evidence: Evidence, earned: Credit) -> Comparison:
        comparison = super().compare(evidence, earned)
        if not self.whiten:
            return comparison
        whole = Whiten(unit="sequence", guard="std", epsilon=self.whiten_epsilon)
        return replace(comparison, credit=whole.whitened(comparison.credit, evidence, comparison.idle))


class LengthWeighted(PeerSettings):
    """OPO, as in verl: minus the mean of the peers, each weighed by its tokens, sum of L_j R_j / sum of L_j.

    L counts the completion tokens of the turns that are judged. Peers without any token have no baseline and get 0.
    """

    kind: str = "opo"
    like: Likeness = "start"
    """Property that peers share (see `group`)."""

    def peer_baseline(self, evidence: Evidence, earned: Credit) -> PeerBaseline:
        return PeerBaseline(*ALIKE[self.like], mean_by_length)


class AgentTurnGroup(PeerSettings, StandardDeviation):
    """AT-GRPO (arXiv 2510.11062): GRPO among an agent's nth turns with the same prompt, token for token.

    The paper's key is (problem, agent, turn). With `experience: tree` the peers are the candidates of one turn. Of
    episodes that have parted, nth turns do not share a state and are not compared: a mean per turn index would pay for
    going on. So without a tree hardly any turn but the first has peers, and the others get 0.
    """

    kind: str = "agent_turn_group"
    like: Literal["start", "problem"] = "start"
    """Peers' episodes: those that began in the same state, or that work on the same problem."""

    def peer_baseline(self, evidence: Evidence, earned: Credit) -> PeerBaseline:
        def key(trajectory: Trajectory, turn: Turn) -> Hashable:
            return _agent_key(self.like, trajectory, turn), turn.nth, prompt_of(turn)

        return PeerBaseline("prompt", key, lambda _, turn: turn.id, mean_of_all, self.std, self.epsilon)


class AgentGroup(PeerSettings, StandardDeviation):
    """Dr. MAS (arXiv 2602.08847): (r - mean) / (std + epsilon) over all turns of one agent in a group of episodes.

    Every turn counts, so an episode in which the agent spoke more often weighs more; in `group` each counts once.
    """

    kind: str = "agent_group"
    like: Literal["start", "problem"] = "start"
    """Peers' episodes: those that began in the same state, or that work on the same problem."""

    def peer_baseline(self, evidence: Evidence, earned: Credit) -> PeerBaseline:
        key = partial(_agent_key, self.like)
        return PeerBaseline(self.like, key, lambda _, turn: turn.id, mean_of_all, self.std, self.epsilon)


def _agent_key(like: str, trajectory: Trajectory, turn: Turn) -> Hashable:
    return (trajectory.start if like == "start" else problem_of(turn)), turn.agent, turn.role


class TaskRole(PeerSettings, StandardDeviation):
    """TRR++ (Absolute Zero, arXiv 2505.03335): (r - mean) / (std + epsilon) per task and role, over the whole step.

    An agent's work on one problem in one episode counts once. The game is the same for the whole step, so tasks differ
    only by the kinds of problems that `task` tells apart. Peers share neither start nor problem.
    """

    kind: str = "task_role"
    compares: ClassVar[bool] = False
    task: str = Field(default="", examples=["^[a-z]+"])
    """A regular expression: its match in a problem's key is the task (keys of `code` begin with a family's name, those
    of `arithmetic` hold the operator); empty: all problems are one task. Turns without a problem are one task."""

    @field_validator("task")
    @classmethod
    def _compiles(cls, task: str) -> str:
        try:
            re.compile(task)
        except re.error as error:
            raise ValueError(f"{task!r} is no regular expression: {error}") from None
        return task

    def peer_baseline(self, evidence: Evidence, earned: Credit) -> PeerBaseline:
        return PeerBaseline(
            like=None,
            key=lambda _, turn: (self._task(turn), turn.role),
            unit=lambda trajectory, turn: (trajectory.id, turn.agent, turn.problem),
            centre=mean_of_all,
            scale=self.std,
            epsilon=self.epsilon,
        )

    def _task(self, turn: Turn) -> str:
        """Raises:
        ValueError: if `task` has no match in the problem's key.
        """
        if not self.task or not turn.problem:
            return ""
        if not (match := re.search(self.task, turn.problem)):
            raise ValueError(
                f"credit.baseline.task: {self.task!r} finds nothing in {turn.problem!r} (turn {turn.id}); give "
                "one that finds something in every problem's key, or an empty one (all are one task)"
            )
        return match.group()


class Joint(PeerSettings):
    """MAGRPO (arXiv 2508.04652): all turns of a team's members get the advantage of the joint return, R^j - mean.

    The joint return R^j of an episode comes from what `earned` says of the members: each member's is the mean of its
    turns', and `common` joins those of the members that this rule judges. That is meant for rules that give all turns
    of a member the same (`outcome`, `uniform`); numbers for single tokens are lost. A turn that several forks share was
    part of several joint actions: its R is their mean.

    `per: round` with `assign: {kind: outcome, to_go: true}` gives the paper's R_t = r_t + mean of the continuations'
    R_t+1, with gamma 1: a round's joint action is its members' nth turns, and it is compared with those in which all
    members had the same prompts, token for token. That fits members who speak at once, and `experience: tree`; of
    episodes that have parted, later rounds have no peers and get 0. CoMLRL's cross mode, which pairs each answer of one
    member with every answer of the others, needs rewards of pairs that were never played and is not offered.
    """

    kind: str = "joint"
    teams: tuple[tuple[str, ...], ...] = ()
    """Agents that act jointly; agents in none of them act alone. Default: all are one team."""
    common: Literal["sum", "mean"] = "mean"
    """Joint return of what the members earned: their mean, where all are paid the same or `assign` gives each what the
    team was paid; their sum, where each is paid a share of its own."""
    per: Literal["episode", "round"] = "episode"
    """Unit with a joint return: a whole episode, or each round of its members' turns."""
    against: Literal["mean", "leave_one_out", "max"] = "mean"
    """Number to subtract: the mean of the group; that of the others (MARLOO); the best one (CoMLRL's "MAReMax", which
    is not ReMax: for that, see `greedy`)."""
    std: bool = False
    """Divide by max(std, epsilon), std with ddof 0: CoMLRL 1.4.3. Its older releases do not."""
    epsilon: float = Field(default=1e-6, ge=0)
    """Least deviation that `std` divides by."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        check_disjoint(self.teams)
        if self.std and self.against != "mean":
            raise ValueError(
                f"against: {self.against!r} makes no difference with std: true, which takes the mean off again (as in "
                "CoMLRL); use std: false, or against: mean"
            )
        return self

    def compare(self, evidence: Evidence, earned: Credit) -> Comparison:
        return super().compare(evidence, self._joint_returns(evidence, earned))

    def peer_baseline(self, evidence: Evidence, earned: Credit) -> PeerBaseline:
        """Return the comparison whose units are joint actions: a team's episodes, or its rounds."""
        labels: dict[tuple[str, TurnId], tuple[Hashable, Hashable]] = {}
        for episode, key, turns in self._joint_actions(evidence, earned):
            prompts = frozenset((turn.agent, turn.nth, prompt_of(turn)) for turn in turns.values())
            label = (key, episode) if self.per == "episode" else ((key, prompts), tuple(turns))
            labels.update(((episode, turn), label) for turn in turns)
        return PeerBaseline(
            like="start" if self.per == "episode" else "prompt",
            key=lambda trajectory, turn: labels[trajectory.id, turn.id][0],
            unit=lambda trajectory, turn: labels[trajectory.id, turn.id][1],
            centre={"mean": mean_of_all, "leave_one_out": mean_of_others, "max": best_of_all}[self.against],
            scale="population" if self.std else False,
            epsilon=self.epsilon,
        )

    def peers(self, evidence: Evidence, earned: Credit) -> Peers:
        """Return groups agent by agent: members who act together are compared as one, but have different prompts."""
        joint = super().peers(evidence, earned)
        agents = {turn.id: turn.agent for trajectory in evidence.trajectories for turn in trajectory.turns}
        groups: dict[Hashable, list[TurnId]] = defaultdict(list)
        for number, group in enumerate(joint.groups):
            for turn in group:
                groups[number, agents[turn]].append(turn)
        return Peers(joint.like, list(groups.values()))

    def joint_agents(self, trajectory: Trajectory, evidence: Evidence) -> Sequence[frozenset[str]]:
        players = [agent for agent, role in trajectory.deal.seats.items() if role not in evidence.rules]
        return named_teams(self.teams, trajectory, players) if self.teams else [frozenset(players)]

    def _joint_returns(self, evidence: Evidence, earned: Credit) -> Credit:
        """Return for every turn the mean joint return of the joint actions that it is part of."""
        returns: dict[TurnId, list[float]] = defaultdict(list)
        for _, _, turns in self._joint_actions(evidence, earned):
            members: dict[str, list[float]] = defaultdict(list)
            for turn in turns.values():
                members[turn.agent].append(earned[turn.id].value)
            means = [exact_mean(values) for values in members.values()]
            joint = sum(means) if self.common == "sum" else exact_mean(means)
            for turn in turns:
                returns[turn].append(joint)
        return {turn: Advantage(exact_mean(joint), (), earned[turn].returns) for turn, joint in returns.items()}

    def _joint_actions(self, evidence: Evidence, earned: Credit) -> list[JointAction]:
        """Return every joint action, in playing order.

        Raises:
            ValueError: if `teams` names an agent that the game does not have.
        """
        teams = {trajectory.id: self._teams(trajectory, evidence) for trajectory in evidence.trajectories}
        actions: dict[tuple[str, Hashable, int], dict[TurnId, Turn]] = defaultdict(dict)
        for trajectory, turn in judged_turns(evidence, earned):
            key = trajectory.start, teams[trajectory.id][turn.agent]
            actions[trajectory.id, key, turn.nth if self.per == "round" else 0][turn.id] = turn
        return [(episode, key, turns) for (episode, key, _), turns in actions.items()]

    def _teams(self, trajectory: Trajectory, evidence: Evidence) -> dict[str, Hashable]:
        """Return agent -> its team, as a set of (agent, role)."""
        roles, teams = trajectory.deal.seats, self.joint_agents(trajectory, evidence)
        return {agent: frozenset((a, roles[a]) for a in team) for team in teams for agent in team}
