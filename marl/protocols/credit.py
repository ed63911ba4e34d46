"""Protocols of credit: what rules may look at, and the two halves of a rule, `assign` and `baseline`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from marl.config import Component
from marl.protocols.play import Rewards, Simulator
from marl.state import Stateful
from marl.types import Credit, Metrics, Reading, TurnId

if TYPE_CHECKING:
    from marl.graph import Trajectory


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that credit may look at: the trajectories of one step in deal order, and more play if it asks."""

    trajectories: Sequence[Trajectory]
    game: str
    readings: Mapping[TurnId, Reading] = field(default_factory=dict)
    """Of turns whose policies learn; holds what the parts' `needs` name."""
    simulator: Simulator | None = None
    rules: frozenset[str] = frozenset()
    """Roles whose answers follow from the question alone, such as verifiers: they earn nothing."""
    seed: int = 0
    """Root of the random numbers that credit draws; mixed with their purpose by `marl.seeds.seed_of`."""
    named: Mapping[str, Credit] = field(default_factory=dict)
    """Reward name -> what turns earn if only that reward is paid. Filled for a baseline that is `by_name`."""
    token_rewards: Mapping[TurnId, tuple[float, ...]] = field(default_factory=dict)
    """Rewards of single tokens beside the episodes' (penalties are negative). Filled for an assign that is `by_token`.
    """
    rewards: Rewards | None = None
    """Mapping that `trajectories` went through; applied to everything that credit has played, too."""

    def map_rewards(self, change: Rewards) -> Evidence:
        """Return the same evidence with every trajectory changed by `change`, those still to be played included."""
        before = self.rewards
        both: Rewards = change if before is None else lambda trajectory: change(before(trajectory))
        return replace(self, trajectories=[change(t) for t in self.trajectories], rewards=both)

    def player(self, problem: str) -> Simulator:
        """Return the simulator.

        Raises:
            ValueError: with `problem` as its message, if there is none, as with recorded trajectories.
        """
        if self.simulator is None:
            raise ValueError(problem)
        return self.simulator


Likeness = Literal["start", "prompt", "problem"]
"""Property that peers share: the state in which their episodes began, the prompt's tokens, or the problem."""


@dataclass(frozen=True, slots=True)
class Peers:
    """Groups of turns that are compared with one another."""

    like: Likeness | None
    """Property that the turns of a group are declared to share; None: none."""
    groups: Sequence[Sequence[TurnId]]


class Assign(Stateful, Protocol):
    """Assigns what each turn earned, on its own trajectory graph."""

    @property
    def needs(self) -> frozenset[str]: ...

    def __call__(self, evidence: Evidence) -> Credit: ...
    def metrics(self) -> Metrics:
        """Return figures of the last step, named `credit/...`."""
        ...


class Baseline(Stateful, Protocol):
    """Turns what was earned into advantages, by comparison across the step."""

    @property
    def needs(self) -> frozenset[str]: ...

    def __call__(self, evidence: Evidence, earned: Credit) -> tuple[Credit, Metrics]: ...


class CreditPart(Component):
    """Settings of half a credit rule. A part without state is its own working part."""

    @property
    def needs(self) -> frozenset[str]:
        """Return the fields of `Reading` that it wants read of turns."""
        return frozenset()

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore nothing: there is no state."""


class AssignConfig(CreditPart):
    """Settings of an `assign`."""

    group: ClassVar[str] = "credit"
    by_token: ClassVar[bool] = False
    """True if it reads `Evidence.token_rewards`. For other rules, their sum over a turn's tokens is added to what the
    turn earned."""

    def metrics(self) -> Metrics:
        """Return figures of the last step, named `credit/...`."""
        return {}

    @property
    def by_turn(self) -> bool:
        """Return True if rewards paid between two turns of an agent make them earn different amounts."""
        return False

    def reward_pools(self, trajectory: Trajectory, evidence: Evidence) -> Sequence[tuple[frozenset[str], float]]:
        """Return the groups of agents that share a reward in an episode, with its amount, to check that credit adds up.

        By default each agent has a pool of its own; agents that answer by rule have none.
        """
        returns, seats = trajectory.returns, trajectory.deal.seats.items()
        return [(frozenset({agent}), returns.get(agent, 0.0)) for agent, role in seats if role not in evidence.rules]

    def build(self) -> Assign:
        return self  # type: ignore[return-value]


class BaselineConfig(CreditPart):
    """Settings of a `baseline`."""

    group: ClassVar[str] = "baselines"
    compares: ClassVar[bool] = False
    """True if a turn is compared with peers of the same step, which takes groups of two or more."""
    by_name: ClassVar[bool] = False
    """True if it compares what each named reward earned (`Evidence.named`)."""

    @property
    def by_episode(self) -> bool:
        """Return True if all turns of an agent in an episode are compared as one number with other episodes'."""
        return False

    def joint_agents(self, trajectory: Trajectory, evidence: Evidence) -> Sequence[frozenset[str]]:
        """Return the groups of agents of an episode that are compared by one number, made of what all of them earned.

        By default there are none: each agent is compared by its earnings alone.
        """
        return ()

    def peers(self, evidence: Evidence, earned: Credit) -> Peers | None:
        """Return the groups that are compared, for the report of how alike their turns are; None if there are none."""
        return None

    def build(self) -> Baseline:
        return self  # type: ignore[return-value]
