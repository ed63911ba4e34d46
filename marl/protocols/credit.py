"""Protocols of credit rules: their evidence, and the two halves of a rule, `assign` and `baseline`."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import ClassVar, Literal, Protocol

from marl.core.config import PluginConfig
from marl.core.graph import Trajectory
from marl.core.state import Stateful, StatelessPlugin
from marl.core.types import Credit, Metrics, Reading, Turn, TurnId
from marl.protocols.play import RewardTransform, Simulator

ComparedGroups = tuple[Credit, Sequence[Sequence[TurnId]]]
"""Credit that a baseline compared, and the turns of each group."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Trajectories of one step in deal order, with everything else that a credit rule may read."""

    trajectories: Sequence[Trajectory]
    game: str
    readings: Mapping[TurnId, Reading] = field(default_factory=dict[TurnId, Reading])
    """Reading of each turn whose policy learns, with the fields in the rules' `needed_reading_fields`."""
    simulator: Simulator | None = None
    """Simulator for further play, or None if the trajectories are recorded."""
    rule_based_roles: frozenset[str] = frozenset()
    """Roles with rule-based answers, such as verifiers. Their turns earn nothing."""
    seed: int = 0
    """Root seed of random numbers in credit. `marl.core.seeds.hash_to_seed` hashes it with the purpose of each draw."""
    earned_by_reward: Mapping[str, Credit] = field(default_factory=dict[str, Credit])
    """Name of a reward -> earnings of the turns if only rewards with this name were paid. Filled for a baseline with
    `uses_reward_names`."""
    token_rewards: Mapping[TurnId, tuple[float, ...]] = field(default_factory=dict[TurnId, tuple[float, ...]])
    """Rewards of a turn's tokens, in addition to the episode's rewards; penalties are negative. Filled for an assign
    rule with `uses_token_rewards`."""
    reward_transform: RewardTransform | None = None
    """Function that was applied to the rewards of `trajectories`, and is applied to episodes played for credit; None if
    rewards are unchanged."""
    compared_groups: dict[Hashable, ComparedGroups] = field(
        default_factory=dict[Hashable, ComparedGroups], init=False, compare=False, repr=False
    )
    """Groups of turns that a baseline compared, by the baseline's definition of groups, so that reports of the groups
    need not form them again."""

    def turns(self) -> dict[TurnId, Turn]:
        """Return the turns of all trajectories by id, in playing order."""
        return {turn.id: turn for trajectory in self.trajectories for turn in trajectory.turns}

    def non_rule_based_agents(self, trajectory: Trajectory) -> list[str]:
        """Return the agents of `trajectory` whose roles are not rule-based, in the order of the seats."""
        return [agent for agent, role in trajectory.deal.seats.items() if role not in self.rule_based_roles]

    def transform_rewards(self, transform: RewardTransform) -> Evidence:
        """Return this evidence with `transform` applied to its trajectories, and to episodes played for it later."""
        before = self.reward_transform
        both: RewardTransform = transform if before is None else lambda trajectory: transform(before(trajectory))
        return replace(self, trajectories=list(map(transform, self.trajectories)), reward_transform=both)

    def require_simulator(self, problem: str) -> Simulator:
        """Return the simulator of this evidence.

        Raises:
            ValueError: with the message `problem`, if the trajectories are recorded and there is no simulator.
        """
        if self.simulator is None:
            raise ValueError(problem)
        return self.simulator


@cache
def _only(agent: str) -> frozenset[str]:
    """Return the set of one agent, always the same object, as every episode needs one for each of its agents."""
    return frozenset({agent})


SharedProperty = Literal["start", "prompt", "problem"]
"""Property that compared turns have in common: the start state of their episodes, the prompt tokens, or the problem."""


@dataclass(frozen=True, slots=True)
class PeerGroups:
    """Groups of peers: turns that a baseline compares with one another."""

    shared_property: SharedProperty | None
    """Property that all turns of a group should have in common, or None if the baseline requires none."""
    groups: Sequence[Sequence[TurnId]]
    """Ids of the turns of each group."""


class AssignRule(Stateful, Protocol):
    """First half of a credit rule, which computes the earnings of each turn on the graph of its trajectory."""

    @property
    def needed_reading_fields(self) -> frozenset[str]: ...

    def __call__(self, evidence: Evidence) -> Credit: ...
    def metrics(self) -> Metrics:
        """Return the metrics of the last step, named `credit/...`."""
        ...


class BaselineRule(Stateful, Protocol):
    """Second half of a credit rule, which computes advantages by comparing the earnings of a step's turns."""

    @property
    def needed_reading_fields(self) -> frozenset[str]: ...

    def __call__(self, evidence: Evidence, earned: Credit) -> tuple[Credit, Metrics]: ...


class CreditRuleConfig(StatelessPlugin, PluginConfig):
    """Base class of the settings of `assign` and `baseline`. The settings of a stateless rule are the rule itself."""

    plays: ClassVar[bool] = False
    """True if the credit rule plays, samples or scores with the policies, which needs their weights."""

    @property
    def needed_reading_fields(self) -> frozenset[str]:
        """Return the fields of `Reading` that the credit rule uses (default: none)."""
        return frozenset()


class AssignConfig(CreditRuleConfig):
    """Base class of the settings of an `assign` rule, the first half of a credit rule."""

    group: ClassVar[str] = "credit"
    uses_token_rewards: ClassVar[bool] = False
    """True if the assign rule uses `Evidence.token_rewards`. For other rules, the credit stage adds the sum of a turn's
    token rewards to the turn's earnings."""

    @property
    def needs_segments(self) -> bool:
        """Return True if the rule credits segments of answers, which roles must then mark (`segments`)."""
        return False

    @property
    def credit_depends_on_reward_time(self) -> bool:
        """Return True if an agent's turns before and after a reward can earn different amounts."""
        return False

    def agent_groups_with_shared_reward(
        self, trajectory: Trajectory, evidence: Evidence
    ) -> Sequence[tuple[frozenset[str], float]]:
        """Return (agents, reward) for each group of agents that shares a reward, to check that credit adds up.

        By default, the pool of each agent is its own return. Rule-based agents have no pool.
        """
        returns, rule_based_roles = trajectory.returns, evidence.rule_based_roles
        seats = trajectory.deal.seats.items()
        return [(_only(agent), returns.get(agent, 0.0)) for agent, role in seats if role not in rule_based_roles]

    def build(self) -> AssignRule:
        return self  # type: ignore[return-value]


class BaselineConfig(CreditRuleConfig):
    """Base class of the settings of a `baseline`, the second half of a credit rule."""

    group: ClassVar[str] = "baselines"
    needs_groups: ClassVar[bool] = False
    """True if the baseline compares turns of different episodes in a group, which then needs at least two episodes."""
    uses_reward_names: ClassVar[bool] = False
    """True if the baseline uses `Evidence.earned_by_reward`."""

    @property
    def compares_agent_episodes_instead_of_turns(self) -> bool:
        """Return True if the baseline compares one number per agent and episode instead of one per turn."""
        return False

    def agent_groups_with_combined_earnings(
        self, trajectory: Trajectory, evidence: Evidence
    ) -> Sequence[frozenset[str]]:
        """Return the groups of agents of `trajectory` whose earnings are combined into one number for comparison.

        By default there are none, because each agent is compared by its own earnings.
        """
        return ()

    def compared_turn_groups(self, evidence: Evidence, earned: Credit) -> PeerGroups | None:
        """Return the groups of turns that the baseline compares, for reports, or None if it compares no turns."""
        return None

    def build(self) -> BaselineRule:
        return self  # type: ignore[return-value]
