"""Baselines that compare turns with peers of the same step: GRPO, RLOO, OPO, AT-GRPO, Dr. MAS, TRR++, MAGRPO."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Sequence
from functools import partial
from typing import ClassVar, Literal, NamedTuple, Self

from pydantic import Field, field_validator, model_validator

from marl.core.config import Config
from marl.core.graph import Trajectory
from marl.core.types import Advantage, Credit, Metrics, Turn, TurnId, hashable_prompt
from marl.credit.assign.teams import add_single_agent_teams, check_teams_disjoint
from marl.credit.baselines.peer_baseline import (
    PEER_GROUPINGS,
    PeerBaselineConfig,
    PeerFormula,
    PeerGrouping,
    credited_turns_with_episodes,
    group_max,
    group_mean,
    leave_one_out_mean,
    length_weighted_mean,
    mean_exact_if_equal,
    problem_key_of,
)
from marl.credit.baselines.whiten import WhitenBaseline
from marl.protocols import Evidence, PeerGroups, SharedProperty


class JointAction(NamedTuple):
    """Turns of a team's members that count as one action: in an episode, or in one of its rounds."""

    episode: str
    group: Hashable
    """Key of the joint actions that are compared with one another: start of the episode, and team."""
    turns: dict[TurnId, Turn]


class StandardDeviationSettings(Config):
    """Settings of a division by the standard deviation with ddof 1 (verl, TRL)."""

    std: bool | Literal["batch"] = True
    """True: divide by the standard deviation of the peers; `batch`: by the standard deviation of all compared numbers
    of the step (TRL's and ms-swift's `scale_rewards=batch`); false: do not divide (Dr. GRPO, arXiv 2503.20783)."""
    epsilon: float = Field(default=1e-6, ge=0)
    """Number added to the standard deviation: verl 1e-6, TRL and ms-swift 1e-4, OpenRLHF 1e-9."""


class StandardizingBaseline(PeerBaselineConfig, StandardDeviationSettings):
    """Base of baselines that subtract the mean of the peers and divide by a standard deviation, as in GRPO."""

    @property
    def peer_formula(self) -> PeerFormula:
        return PeerFormula(group_mean, self.std, self.epsilon)


class SharedPropertyBaseline(PeerBaselineConfig):
    """Base of baselines whose peers share the property `like`."""

    like: SharedProperty = "start"
    """Property that peers share, as in `group`."""

    def peer_group_keys_and_units(self, evidence: Evidence, earned: Credit) -> PeerGrouping:
        return PEER_GROUPINGS[self.like]


class GrpoBaseline(SharedPropertyBaseline, StandardizingBaseline):
    """GRPO (arXiv 2402.03300): credit minus the mean of the peers in this step; with `std`, in standard deviations."""

    kind: str = "group"
    like: SharedProperty = "start"
    """Property that peers share. `start`: start of the episode; an agent's episodes are compared, with one number for
    each. `prompt`: prompt, token for token; turns are compared. `problem`: problem; agents that work on it are
    compared, in one episode or in several, with one number for each agent and episode."""

    @property
    def compares_agent_episodes_instead_of_turns(self) -> bool:
        """Return True unless `like` is `prompt`: then turns are compared, not episodes."""
        return self.like != "prompt"


class RlooBaseline(SharedPropertyBaseline):
    """RLOO (arXiv 2402.14740): credit minus the mean of the other peers, R_i - sum over j != i of R_j / (G - 1).

    A turn's baseline does not depend on the turn's own episode, so the policy gradient stays unbiased, even if an
    agent's turns earn different amounts. Therefore a turn that several forks share is compared with the episodes
    without this turn; a turn in all episodes has no peers.
    """

    kind: str = "rloo"
    whiten: bool = False
    """True: whiten afterwards, (A - mean) / (std + whiten_epsilon) over all turns of the step (TRL's
    `normalize_advantages`)."""
    whiten_epsilon: float = Field(default=1e-4, ge=0)
    """Number added to the standard deviation that `whiten` divides by."""

    @property
    def peer_formula(self) -> PeerFormula:
        # Turns of one episode may earn different amounts: a group's advantages are 0 only if all turns earned the same.
        return PeerFormula(leave_one_out_mean, equal="turns")

    def __call__(self, evidence: Evidence, earned: Credit) -> tuple[Credit, Metrics]:
        comparison = self.peer_formula.compare_with_peers(
            self.peer_group_keys_and_units(evidence, earned).groups(evidence, earned), earned
        )
        if not self.whiten:
            return comparison.credit, comparison.metrics
        whitening = WhitenBaseline(unit="sequence", guard="std", epsilon=self.whiten_epsilon)
        return whitening.whitened_credit(comparison.credit, evidence, comparison.zeroed), comparison.metrics


class OpoBaseline(SharedPropertyBaseline):
    """OPO, as in verl: credit minus the mean of the peers, weighted by their tokens, sum of L_j R_j / sum of L_j.

    L counts the completion tokens of the credited turns. A group without tokens has no baseline, and its turns get 0.
    """

    kind: str = "opo"

    @property
    def peer_formula(self) -> PeerFormula:
        return PeerFormula(length_weighted_mean)


class AgentTurnGroup(StandardizingBaseline):
    """AT-GRPO (arXiv 2510.11062): GRPO among an agent's nth turns with the same prompt, token for token.

    The paper's key is (problem, agent, turn). With `experience: tree` the peers are the candidates of one turn. After
    episodes diverge, their nth turns do not share a state and are not compared: a mean per turn index would reward
    longer episodes. So without a tree, most turns after the first have no peers and get 0.
    """

    kind: str = "agent_turn_group"
    like: Literal["start", "problem"] = "start"
    """Peers' episodes: from the same initial state (`start`), or on the same problem (`problem`)."""

    def peer_group_keys_and_units(self, evidence: Evidence, earned: Credit) -> PeerGrouping:
        def group_key(trajectory: Trajectory, turn: Turn) -> Hashable:
            return _agent_group_key(self.like, trajectory, turn), turn.nth, hashable_prompt(turn)

        return PeerGrouping("prompt", group_key, lambda _, turn: turn.id)


class AgentGroup(StandardizingBaseline):
    """Dr. MAS (arXiv 2602.08847): (r - mean) / (std + epsilon) over all turns of one agent in a group of episodes.

    Every turn counts, so an episode with more turns of the agent weighs more; in `group` an episode counts once.
    """

    kind: str = "agent_group"
    like: Literal["start", "problem"] = "start"
    """Peers' episodes: from the same initial state (`start`), or on the same problem (`problem`)."""

    def peer_group_keys_and_units(self, evidence: Evidence, earned: Credit) -> PeerGrouping:
        return PeerGrouping(self.like, partial(_agent_group_key, self.like), lambda _, turn: turn.id)


def _agent_group_key(shared_property: str, trajectory: Trajectory, turn: Turn) -> Hashable:
    return (trajectory.start if shared_property == "start" else problem_key_of(turn)), turn.agent, turn.role


class TaskRoleBaseline(StandardizingBaseline):
    """TRR++ (Absolute Zero, arXiv 2505.03335): (r - mean) / (std + epsilon) per task and role, over the whole step.

    All turns of an agent on one problem in one episode form one unit. All episodes are of one game, so tasks are kinds
    of problems, distinguished by `task`. Peers need not share a start or a problem.
    """

    kind: str = "task_role"
    needs_groups: ClassVar[bool] = False
    task: str = Field(default="", examples=["^[a-z]+"])
    """Regular expression whose match in a problem's key is the task (default: all problems are one task). Keys of
    `code` begin with the name of a family, keys of `arithmetic` contain the operator. Turns without a problem are one
    task."""

    @field_validator("task")
    @classmethod
    def _check_task_name_pattern(cls, pattern: str) -> str:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"{pattern!r} is no regular expression: {error}") from None
        return pattern

    def peer_group_keys_and_units(self, evidence: Evidence, earned: Credit) -> PeerGrouping:
        return PeerGrouping(
            shared_property=None,
            group=lambda _, turn: (self._task_of_turn(turn), turn.role),
            unit=lambda trajectory, turn: (trajectory.id, turn.agent, turn.problem),
        )

    def _task_of_turn(self, turn: Turn) -> str:
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
    same prompts of all members, token for token. This fits members who speak at once, and `experience: tree`. After
    episodes diverge, later rounds have no peers and get 0. CoMLRL's cross mode is not offered: it pairs each answer of
    one member with every answer of the others, and needs rewards of pairs that were never played.
    """

    kind: str = "joint"
    teams: tuple[tuple[str, ...], ...] = ()
    """Agents that act jointly; an agent in no team acts alone. Default: all agents are one team."""
    common: Literal["sum", "mean"] = "mean"
    """Combination of the members' credit. `mean`: for games that pay all members the same, or if `assign` gives each
    member the team's reward; `sum`: if each member gets its own share of the reward."""
    per: Literal["episode", "round"] = "episode"
    """Unit with a joint return: a whole episode, or each round of its members' turns."""
    against: Literal["mean", "leave_one_out", "max"] = "mean"
    """Number to subtract. `mean`: mean of the group; `leave_one_out`: mean of the other joint actions (MARLOO); `max`:
    largest joint return (CoMLRL's "MAReMax"; for ReMax see `greedy`)."""
    std: bool = False
    """True: divide by max(std, epsilon), std with ddof 0, as in CoMLRL 1.4.3 (older releases do not divide)."""
    epsilon: float = Field(default=1e-6, ge=0)
    """Smallest standard deviation that `std` divides by."""

    @model_validator(mode="after")
    def _check_teams_and_against(self) -> Self:
        check_teams_disjoint(self.teams)
        if self.std and self.against != "mean":
            raise ValueError(
                f"against: {self.against!r} makes no difference with std: true, which takes the mean off again (as in "
                "CoMLRL); use std: false, or against: mean"
            )
        return self

    @property
    def peer_formula(self) -> PeerFormula:
        centre = {"mean": group_mean, "leave_one_out": leave_one_out_mean, "max": group_max}[self.against]
        return PeerFormula(centre, "population" if self.std else False, self.epsilon)

    def __call__(self, evidence: Evidence, earned: Credit) -> tuple[Credit, Metrics]:
        # For each turn, the returns of all joint actions that contain it (several if forks share the turn).
        returns: dict[TurnId, list[float]] = defaultdict(list)
        for action in self._joint_actions(evidence, earned):
            by_member: dict[str, list[float]] = defaultdict(list)
            for turn in action.turns.values():
                by_member[turn.agent].append(earned[turn.id].value)
            means = list(map(mean_exact_if_equal, by_member.values()))
            joint_return = sum(means) if self.common == "sum" else mean_exact_if_equal(means)
            for turn in action.turns:
                returns[turn].append(joint_return)
        joint: Credit = {}
        for turn, joint_returns in returns.items():
            joint[turn] = Advantage(mean_exact_if_equal(joint_returns), (), earned[turn].returns)
        return super().__call__(evidence, joint)

    def peer_group_keys_and_units(self, evidence: Evidence, earned: Credit) -> PeerGrouping:
        """Return the keys of units that are joint actions, of a team in an episode or in a round."""
        groups: dict[tuple[str, TurnId], Hashable] = {}
        units: dict[tuple[str, TurnId], Hashable] = {}
        for episode, key, turns in self._joint_actions(evidence, earned):
            prompts = frozenset((turn.agent, turn.nth, hashable_prompt(turn)) for turn in turns.values())
            for turn in turns:
                groups[episode, turn] = key if self.per == "episode" else (key, prompts)
                units[episode, turn] = episode if self.per == "episode" else tuple(turns)
        return PeerGrouping(
            "start" if self.per == "episode" else "prompt",
            group=lambda trajectory, turn: groups[trajectory.id, turn.id],
            unit=lambda trajectory, turn: units[trajectory.id, turn.id],
        )

    def compared_turn_groups(self, evidence: Evidence, earned: Credit) -> PeerGroups:
        """Return groups of single agents, because members who act jointly form one unit but have different prompts."""
        joint = super().compared_turn_groups(evidence, earned)
        turns = evidence.turns()
        groups: dict[Hashable, list[TurnId]] = defaultdict(list)
        for number, group in enumerate(joint.groups):
            for turn in group:
                groups[number, turns[turn].agent].append(turn)
        return PeerGroups(joint.shared_property, list(groups.values()))

    def agent_groups_with_combined_earnings(
        self, trajectory: Trajectory, evidence: Evidence
    ) -> Sequence[frozenset[str]]:
        players = evidence.non_rule_based_agents(trajectory)
        return add_single_agent_teams(self.teams, trajectory, players) if self.teams else [frozenset(players)]

    def _joint_actions(self, evidence: Evidence, earned: Credit) -> list[JointAction]:
        """Return every joint action, in playing order.

        Raises:
            ValueError: if `teams` names an agent that the game does not have.
        """
        team_of: dict[tuple[str, str], Hashable] = {}
        for trajectory in evidence.trajectories:
            for agents in self.agent_groups_with_combined_earnings(trajectory, evidence):
                # Teams in different episodes are the same team if they have the same agents with the same roles.
                team = frozenset((agent, trajectory.deal.seats[agent]) for agent in agents)
                for agent in agents:
                    team_of[trajectory.id, agent] = team
        actions: dict[tuple[str, Hashable, int], JointAction] = {}
        for trajectory, turn in credited_turns_with_episodes(evidence, earned):
            key = trajectory.start, team_of[trajectory.id, turn.agent]
            action_key = trajectory.id, key, turn.nth if self.per == "round" else 0
            action = actions.setdefault(action_key, JointAction(trajectory.id, key, {}))
            action.turns[turn.id] = turn
        return list(actions.values())
