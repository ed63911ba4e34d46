"""Baselines that compare turns with peers of the same step: GRPO, RLOO, OPO, AT-GRPO, Dr. MAS, TRR++, MAGRPO."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Sequence
from functools import partial
from typing import ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from marl.core.config import Config
from marl.core.graph import Trajectory
from marl.core.types import Advantage, Credit, Metrics, Turn, TurnId
from marl.credit.assign.teams import check_disjoint, named_teams
from marl.credit.baselines.peer_baseline import (
    PEER_KEYS,
    PeerBaselineConfig,
    PeerFormula,
    PeerKeys,
    credited_turns,
    exact_mean,
    group_max,
    group_mean,
    leave_one_out_mean,
    length_weighted_mean,
    problem_of,
    prompt_key,
)
from marl.credit.baselines.whiten import WhitenBaseline
from marl.protocols import Evidence, Peers, SharedProperty

JointAction = tuple[str, Hashable, dict[TurnId, Turn]]
"""Episode, (start, team), and the turns of the team's members in the episode, or in one of its rounds."""


class StandardDeviation(Config):
    """Settings of a division by the standard deviation with ddof 1 (verl, TRL)."""

    std: bool | Literal["batch"] = True
    """Divide by the standard deviation of the peers; `batch`: of all compared numbers of the step (TRL's and ms-swift's
    `scale_rewards=batch`); false: do not divide (Dr. GRPO, arXiv 2503.20783)."""
    epsilon: float = Field(default=1e-6, ge=0)
    """Added to the standard deviation: verl 1e-6, TRL and ms-swift 1e-4, OpenRLHF 1e-9."""


class Group(PeerBaselineConfig, StandardDeviation):
    """GRPO: minus the mean of the peers in this step, by default divided by their standard deviation (arXiv
    2402.03300)."""

    kind: str = "group"
    like: SharedProperty = "start"
    """Property that peers share. `start`: full episodes from the same state, with one number for each agent and
    episode; `prompt`: turns with the same prompt, token for token; `problem`: agents that work on the same problem, in
    one episode or in several, with one number for each agent and episode."""

    @property
    def by_episode(self) -> bool:
        """Return True unless `like` is `prompt`: then turns are compared, not episodes."""
        return self.like != "prompt"

    @property
    def formula(self) -> PeerFormula:
        return PeerFormula(group_mean, self.std, self.epsilon)

    def peer_keys(self, evidence: Evidence, earned: Credit) -> PeerKeys:
        return PEER_KEYS[self.like]


class RlooBaseline(PeerBaselineConfig):
    """RLOO (arXiv 2402.14740): minus the mean of the other peers, R_i - sum over j != i of R_j / (G - 1).

    A turn's baseline does not depend on the turn's own episode, so the policy gradient stays unbiased, also where an
    agent's turns earn different amounts. Therefore a turn that several forks share is compared with the episodes
    without it; a turn that all of them share has no peers.
    """

    kind: str = "rloo"
    like: SharedProperty = "start"
    """Property that peers share (see `group`)."""
    whiten: bool = False
    """Whiten afterwards, (A - mean) / (std + whiten_epsilon) over all turns of the step (TRL's
    `normalize_advantages`)."""
    whiten_epsilon: float = Field(default=1e-4, ge=0)
    """Added to the standard deviation that `whiten` divides by."""

    @property
    def formula(self) -> PeerFormula:
        # Turns of one unit may earn different amounts, so a group without differences has equal turns, not equal units.
        return PeerFormula(leave_one_out_mean, equal="turns")

    def peer_keys(self, evidence: Evidence, earned: Credit) -> PeerKeys:
        return PEER_KEYS[self.like]

    def __call__(self, evidence: Evidence, earned: Credit) -> tuple[Credit, Metrics]:
        comparison = self.formula.compare(self.peer_keys(evidence, earned).groups(evidence, earned), earned)
        if not self.whiten:
            return comparison.credit, comparison.metrics
        whitening = WhitenBaseline(unit="sequence", guard="std", epsilon=self.whiten_epsilon)
        return whitening.whitened(comparison.credit, evidence, comparison.zeroed), comparison.metrics


class OpoBaseline(PeerBaselineConfig):
    """OPO, as in verl: minus the mean of the peers, weighted by their tokens, sum of L_j R_j / sum of L_j.

    L counts the completion tokens of the credited turns. Peers without any token have no baseline and get 0.
    """

    kind: str = "opo"
    like: SharedProperty = "start"
    """Property that peers share (see `group`)."""

    @property
    def formula(self) -> PeerFormula:
        return PeerFormula(length_weighted_mean)

    def peer_keys(self, evidence: Evidence, earned: Credit) -> PeerKeys:
        return PEER_KEYS[self.like]


class AgentTurnGroup(PeerBaselineConfig, StandardDeviation):
    """AT-GRPO (arXiv 2510.11062): GRPO among an agent's nth turns with the same prompt, token for token.

    The paper's key is (problem, agent, turn). With `experience: tree` the peers are the candidates of one turn. After
    episodes diverge, their nth turns do not share a state and are not compared: a mean per turn index would reward
    longer episodes. So without a tree hardly any turn but the first has peers, and later turns get 0.
    """

    kind: str = "agent_turn_group"
    like: Literal["start", "problem"] = "start"
    """Peers' episodes: from the same initial state (`start`), or on the same problem (`problem`)."""

    @property
    def formula(self) -> PeerFormula:
        return PeerFormula(group_mean, self.std, self.epsilon)

    def peer_keys(self, evidence: Evidence, earned: Credit) -> PeerKeys:
        def group(trajectory: Trajectory, turn: Turn) -> Hashable:
            return _agent_key(self.like, trajectory, turn), turn.nth, prompt_key(turn)

        return PeerKeys("prompt", group, lambda _, turn: turn.id)


class AgentGroup(PeerBaselineConfig, StandardDeviation):
    """Dr. MAS (arXiv 2602.08847): (r - mean) / (std + epsilon) over all turns of one agent in a group of episodes.

    Every turn counts, so an episode with more turns of the agent weighs more; in `group` an episode counts once.
    """

    kind: str = "agent_group"
    like: Literal["start", "problem"] = "start"
    """Peers' episodes: from the same initial state (`start`), or on the same problem (`problem`)."""

    @property
    def formula(self) -> PeerFormula:
        return PeerFormula(group_mean, self.std, self.epsilon)

    def peer_keys(self, evidence: Evidence, earned: Credit) -> PeerKeys:
        return PeerKeys(self.like, partial(_agent_key, self.like), lambda _, turn: turn.id)


def _agent_key(like: str, trajectory: Trajectory, turn: Turn) -> Hashable:
    return (trajectory.start if like == "start" else problem_of(turn)), turn.agent, turn.role


class TaskRole(PeerBaselineConfig, StandardDeviation):
    """TRR++ (Absolute Zero, arXiv 2505.03335): (r - mean) / (std + epsilon) per task and role, over the whole step.

    All turns of an agent on one problem in one episode form one unit. All episodes are of one game, so tasks differ
    only by the kinds of problems, which `task` distinguishes. Peers share neither start nor problem."""

    kind: str = "task_role"
    needs_groups: ClassVar[bool] = False
    task: str = Field(default="", examples=["^[a-z]+"])
    """Regular expression whose match in a problem's key is the task (keys of `code` begin with the name of a family,
    keys of `arithmetic` contain the operator); empty: all problems are one task. Turns without a problem are one
    task."""

    @field_validator("task")
    @classmethod
    def _compiles(cls, task: str) -> str:
        try:
            re.compile(task)
        except re.error as error:
            raise ValueError(f"{task!r} is no regular expression: {error}") from None
        return task

    @property
    def formula(self) -> PeerFormula:
        return PeerFormula(group_mean, self.std, self.epsilon)

    def peer_keys(self, evidence: Evidence, earned: Credit) -> PeerKeys:
        return PeerKeys(
            shared_property=None,
            group=lambda _, turn: (self._task(turn), turn.role),
            unit=lambda trajectory, turn: (trajectory.id, turn.agent, turn.problem),
        )

    def _task(self, turn: Turn) -> str:
        """Return the task of a turn.

        Raises:
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


class JointBaseline(PeerBaselineConfig):
    """MAGRPO (arXiv 2508.04652): all turns of a team's members get the advantage of the joint return, R^j - mean.

    The joint return R^j of an episode combines the mean credit of each credited member, as `common` says. This fits
    rules that give all turns of a member the same credit (`outcome`, `uniform`); credit of single tokens is lost. A
    turn that several forks share was part of several joint actions: its R is the mean of their joint returns.

    `per: round` with `assign: {kind: outcome, to_go: true}` gives the paper's R_t = r_t + mean of the continuations'
    R_t+1, with gamma 1. The joint action of a round is its members' nth turns, and its peers are joint actions with the
    same prompts of all members, token for token. This fits members who speak at once, and `experience: tree`; after
    episodes diverge, later rounds have no peers and get 0. CoMLRL's cross mode, which pairs each answer of one member
    with every answer of the others, needs rewards of pairs that were never played and is not offered.
    """

    kind: str = "joint"
    teams: tuple[tuple[str, ...], ...] = ()
    """Agents that act jointly; an agent in no team acts alone. Default: all agents are one team."""
    common: Literal["sum", "mean"] = "mean"
    """Combination of the members' credit: `mean`, where all members get the same reward or `assign` gives each the
    team's reward; `sum`, where each member gets its own share of the reward."""
    per: Literal["episode", "round"] = "episode"
    """Unit with a joint return: a whole episode, or each round of its members' turns."""
    against: Literal["mean", "leave_one_out", "max"] = "mean"
    """Number to subtract: the mean of the group; the mean of the others (MARLOO); the largest (CoMLRL's "MAReMax"; for
    ReMax see `greedy`)."""
    std: bool = False
    """Divide by max(std, epsilon), std with ddof 0: CoMLRL 1.4.3. Its older releases do not."""
    epsilon: float = Field(default=1e-6, ge=0)
    """Smallest standard deviation that `std` divides by."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        check_disjoint(self.teams)
        if self.std and self.against != "mean":
            raise ValueError(
                f"against: {self.against!r} makes no difference with std: true, which takes the mean off again (as in "
                "CoMLRL); use std: false, or against: mean"
            )
        return self

    @property
    def formula(self) -> PeerFormula:
        centre = {"mean": group_mean, "leave_one_out": leave_one_out_mean, "max": group_max}[self.against]
        return PeerFormula(centre, "population" if self.std else False, self.epsilon)

    def __call__(self, evidence: Evidence, earned: Credit) -> tuple[Credit, Metrics]:
        return super().__call__(evidence, self._joint_returns(evidence, earned))

    def peer_keys(self, evidence: Evidence, earned: Credit) -> PeerKeys:
        """Return keys whose units are joint actions: of a team's episode, or of a round."""
        groups: dict[tuple[str, TurnId], Hashable] = {}
        units: dict[tuple[str, TurnId], Hashable] = {}
        for episode, key, turns in self._joint_actions(evidence, earned):
            prompts = frozenset((turn.agent, turn.nth, prompt_key(turn)) for turn in turns.values())
            for turn in turns:
                groups[episode, turn] = key if self.per == "episode" else (key, prompts)
                units[episode, turn] = episode if self.per == "episode" else tuple(turns)
        return PeerKeys(
            "start" if self.per == "episode" else "prompt",
            group=lambda trajectory, turn: groups[trajectory.id, turn.id],
            unit=lambda trajectory, turn: units[trajectory.id, turn.id],
        )

    def peers(self, evidence: Evidence, earned: Credit) -> Peers:
        """Return groups of single agents: members who act jointly form one unit, but have different prompts."""
        joint = super().peers(evidence, earned)
        agents = {turn.id: turn.agent for trajectory in evidence.trajectories for turn in trajectory.turns}
        groups: dict[Hashable, list[TurnId]] = defaultdict(list)
        for number, group in enumerate(joint.groups):
            for turn in group:
                groups[number, agents[turn]].append(turn)
        return Peers(joint.shared_property, list(groups.values()))

    def joint_agents(self, trajectory: Trajectory, evidence: Evidence) -> Sequence[frozenset[str]]:
        players = [agent for agent, role in trajectory.deal.seats.items() if role not in evidence.rule_based_roles]
        return named_teams(self.teams, trajectory, players) if self.teams else [frozenset(players)]

    def _joint_returns(self, evidence: Evidence, earned: Credit) -> Credit:
        """Return for every turn the mean joint return of its joint actions."""
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
        team_of: dict[tuple[str, str], Hashable] = {}
        for trajectory in evidence.trajectories:
            for agents in self.joint_agents(trajectory, evidence):
                team = frozenset((agent, trajectory.deal.seats[agent]) for agent in agents)
                team_of.update(dict.fromkeys([(trajectory.id, agent) for agent in agents], team))
        actions: dict[tuple[str, Hashable, int], dict[TurnId, Turn]] = defaultdict(dict)
        for trajectory, turn in credited_turns(evidence, earned):
            key = trajectory.start, team_of[trajectory.id, turn.agent]
            actions[trajectory.id, key, turn.nth if self.per == "round" else 0][turn.id] = turn
        return [(episode, key, turns) for (episode, key, _), turns in actions.items()]
