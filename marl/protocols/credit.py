"""Protocols of credit rules: the evidence that they read, and the two halves of a rule, `assign` and `baseline`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Protocol

from marl.core.config import PluginConfig
from marl.core.graph import Trajectory
from marl.core.state import Stateful
from marl.core.types import Credit, Metrics, Reading, TurnId
from marl.protocols.play import RewardTransform, Simulator


@dataclass(frozen=True, slots=True)
class Evidence:
    """Trajectories of one step in deal order, with everything else that a credit rule may read."""

    trajectories: Sequence[Trajectory]
    game: str
    readings: Mapping[TurnId, Reading] = field(default_factory=dict)
    """Readings of turns whose policies learn, with the fields that the rules' `needs` name."""
    simulator: Simulator | None = None
    """Simulator for further play, or None for recorded trajectories."""
    rule_based_roles: frozenset[str] = frozenset()
    """Roles with rule-based answers, such as verifiers. Their turns earn nothing."""
    seed: int = 0
    """Root seed of random numbers in credit. `marl.core.seeds.seed_of` mixes it with the purpose of each draw."""
    earned_by_reward: Mapping[str, Credit] = field(default_factory=dict)
    """Earnings of the turns if only the reward of this name were paid. Filled for a baseline with `uses_reward_names`.
    """
    token_rewards: Mapping[TurnId, tuple[float, ...]] = field(default_factory=dict)
    """Rewards of single tokens, in addition to the episodes' rewards; penalties are negative. Filled for an assign rule
    with `uses_token_rewards`."""
    reward_transform: RewardTransform | None = None
    """Transformation that `trajectories` went through. Episodes played for credit go through it, too."""

    def transform_rewards(self, change: RewardTransform) -> Evidence:
        """Return this evidence with `change` applied to all trajectories, and to all episodes played for it later."""
        before = self.reward_transform
        both: RewardTransform = change if before is None else lambda trajectory: change(before(trajectory))
        return replace(self, trajectories=list(map(change, self.trajectories)), reward_transform=both)

    def require_simulator(self, problem: str) -> Simulator:
        """Return the simulator.

        Raises:
            ValueError: with the message `problem`, if the trajectories are recorded and there is no simulator.
        """
        if self.simulator is None:
            raise ValueError(problem)
        return self.simulator


SharedProperty = Literal["start", "prompt", "problem"]
"""Common property of peers: start state of their episodes, prompt tokens, or problem."""


@dataclass(frozen=True, slots=True)
class Peers:
    """Groups of turns that a baseline compares with one another."""

    shared_property: SharedProperty | None
    """Property that all turns of a group should have in common, or None if the baseline requires none."""
    groups: Sequence[Sequence[TurnId]]


class Assign(Stateful, Protocol):
    """First half of a credit rule: computes the earnings of each turn on the graph of its trajectory."""

    @property
    def needs(self) -> frozenset[str]: ...

    def __call__(self, evidence: Evidence) -> Credit: ...
    def metrics(self) -> Metrics:
        """Return the metrics of the last step, named `credit/...`."""
        ...


class Baseline(Stateful, Protocol):
    """Second half of a credit rule: turns earnings into advantages by comparing turns of one step."""

    @property
    def needs(self) -> frozenset[str]: ...

    def __call__(self, evidence: Evidence, earned: Credit) -> tuple[Credit, Metrics]: ...


class CreditRuleConfig(PluginConfig):
    """Settings of one half of a credit rule. The settings of a stateless rule are the rule itself."""

    @property
    def needs(self) -> frozenset[str]:
        """Return the fields of `Reading` that the rule reads."""
        return frozenset()

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore nothing, because the rule has no state."""


class AssignConfig(CreditRuleConfig):
    """Settings of an `assign` rule."""

    group: ClassVar[str] = "credit"
    uses_token_rewards: ClassVar[bool] = False
    """True if the rule reads `Evidence.token_rewards`. For other rules, the credit stage adds the sum of a turn's token
    rewards to the turn's earnings."""

    def metrics(self) -> Metrics:
        """Return the metrics of the last step, named `credit/...`."""
        return {}

    @property
    def by_turn(self) -> bool:
        """Return True if turns of one agent can earn different amounts when a reward is paid between them."""
        return False

    def reward_pools(self, trajectory: Trajectory, evidence: Evidence) -> Sequence[tuple[frozenset[str], float]]:
        """Return (agents, amount) for each group of agents that shares a reward, to check that credit adds up.

        By default each agent has its own return as pool; rule-based agents have none.
        """
        returns, seats = trajectory.returns, trajectory.deal.seats.items()
        return [
            (frozenset({agent}), returns.get(agent, 0.0))
            for agent, role in seats
            if role not in evidence.rule_based_roles
        ]

    def build(self) -> Assign:
        return self  # type: ignore[return-value]


class BaselineConfig(CreditRuleConfig):
    """Settings of a `baseline` rule."""

    group: ClassVar[str] = "baselines"
    needs_groups: ClassVar[bool] = False
    """True if turns are compared with peers of the same step, so that groups need at least two episodes."""
    uses_reward_names: ClassVar[bool] = False
    """True if the rule reads `Evidence.earned_by_reward`."""

    @property
    def by_episode(self) -> bool:
        """Return True if all turns of an agent in an episode count as one number in comparisons with other episodes."""
        return False

    def joint_agents(self, trajectory: Trajectory, evidence: Evidence) -> Sequence[frozenset[str]]:
        """Return the groups of agents of `trajectory` whose earnings are combined into one number for comparison.

        By default there are none: each agent is compared by its own earnings.
        """
        return ()

    def peers(self, evidence: Evidence, earned: Credit) -> Peers | None:
        """Return the groups of compared turns for the report on their similarity, or None if no turns are compared."""
        return None

    def build(self) -> Baseline:
        return self  # type: ignore[return-value]
