"""Settings of Q-learning, VDN and QMIX; the code that uses them is not imported here."""

from collections.abc import Iterable
from typing import ClassVar, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from marl.core.config import Config, Sampling
from marl.models.q_network import Q_NETWORK
from marl.protocols import LearnerSurroundings
from marl.protocols.memory_estimates import MemoryUse, ModelSize, Workload, adamw_memory_uses
from marl.trainers.optim.settings import ScheduledLearnerConfig


class ExplorationSchedule(Config):
    """Exploration rate (epsilon): the share of random moves in training. The rate is 1 before the first update."""

    start: float = Field(default=1.0, ge=0, le=1)
    """Exploration rate after the first update."""
    end: float = Field(default=0.05, ge=0, le=1)
    """Exploration rate after `steps` more updates, and later."""
    steps: NonNegativeInt = 500
    """Number of updates over which the exploration rate changes linearly from `start` to `end`."""

    def exploration_rate_after(self, updates: int) -> float:
        """Return the exploration rate after `updates` updates."""
        remaining = max(1 - updates / self.steps, 0.0) if self.steps else 0.0
        return self.end + (self.start - self.end) * remaining


class QLearningOptions(ScheduledLearnerConfig):
    """Fields of `q_learning`: the mixer, the targets, the replay buffer and exploration."""

    family: ClassVar[str] = Q_NETWORK
    readable_fields: ClassVar[frozenset[str]] = frozenset()
    lr: PositiveFloat = 1e-3
    """Learning rate of Adam at the end of `warm_up`, from which `schedule` starts."""
    mixer: Literal["none", "vdn", "qmix"] = "none"
    """`none`: each agent's value is learned by itself. `vdn`: the value of a round is the sum of its agents' values.
    `qmix`: the value of a round is a monotonic function of its agents' values, with weights that hypernetworks compute
    from all observations and from the graph of which agent hears which."""
    common: Literal["mean", "sum"] = "mean"
    """Reward of a round, with a mixer: the mean of the agents' rewards (for games with a common reward), or their
    sum."""
    gamma: float = Field(default=0.99, ge=0, le=1)
    """Discount factor per turn, or per round with a mixer."""
    terminal: bool = True
    """Train on an episode's last turns. False leaves them out with their rewards, for comparisons with the released
    code of Agent Q-Mix (2604.00344)."""
    double: bool = True
    """Double Q-learning (1509.06461): the online network chooses the next move, the target network gives its value."""
    loss: Literal["mse", "huber"] = "mse"
    """Loss of a temporal difference d. `mse`: d²/2, as in VDN and QMIX. `huber`: d²/2 up to |d| = 1, then |d| - 1/2."""
    overestimate_weight: float = Field(default=1.0, gt=0, le=1)
    """Weight in the loss of a transition whose value is above its target. Below 1, a joint move that sometimes turns
    out badly keeps a high value, so agents find moves that are good only together: the optimistic weighting (alpha) of
    Weighted QMIX (2006.10800), here without its second network, as in hysteretic Q-learning. Where rewards are random,
    values become too high."""
    max_norm: PositiveFloat = 10.0
    """Maximum gradient norm; larger gradients are scaled down to it."""
    updates: PositiveInt = 1
    """Number of gradient steps in each update."""
    batch: PositiveInt = 32
    """Number of episodes in a gradient step. Learning starts when the replay buffer holds as many episodes."""
    replay: PositiveInt = 5000
    """Capacity of the replay buffer in episodes; the oldest are dropped."""
    target_every: PositiveInt = 200
    """Number of gradient steps from one update of the target network to the next."""
    tau: float = Field(default=1.0, gt=0, le=1)
    """Weight of the online network in an update of the target network; 1 copies it."""
    exploration: ExplorationSchedule = ExplorationSchedule()
    """Schedule of the exploration rate, the share of random moves."""
    embed: PositiveInt = 32
    """Width of QMIX's mixing network."""
    hypernet: PositiveInt = 64
    """Width of the hypernetworks of the mixing network."""

    @property
    def trains_on_advantages(self) -> bool:
        """False: Q-learning learns from rewards."""
        return False

    @property
    def exploration_rate(self) -> float:
        return min(self.exploration.start, self.exploration.end)

    def supports(self, sampling: Sampling) -> bool:
        """Return True for all sampling settings: Q-learning is off-policy, so any way of drawing moves will do."""
        return True

    def scenario_conflicts(self, surroundings: LearnerSurroundings) -> Iterable[str]:
        yield from super().scenario_conflicts(surroundings)
        is_greedy = all(role.sampling.temperature == 0 for role in surroundings.roles.values())
        if surroundings.roles and is_greedy and max(self.exploration.start, self.exploration.end) > 0:
            yield (
                f"exploration: has no effect, because {', '.join(surroundings.roles)} plays with temperature: 0, "
                "always the best move; set another temperature, or exploration: {start: 0, end: 0}"
            )

    def memory_uses(self, size: ModelSize, work: Workload) -> Iterable[MemoryUse]:
        return (*adamw_memory_uses(size), MemoryUse("target network", size.weight_bytes * size.parameters))

    @model_validator(mode="after")
    def _check_mixer_and_replay_buffer_sizes(self) -> Self:
        if self.batch > self.replay:
            raise ValueError(f"batch: {self.batch} episodes, but replay holds {self.replay}; choose a smaller batch")
        # Fields are compared with their defaults, because a resolved scenario sets every field.
        fields = type(self).model_fields
        sizes = [name for name in ("embed", "hypernet") if dict(self)[name] != fields[name].default]
        if self.mixer != "qmix" and sizes:
            raise ValueError(f"{sizes[0]}: has no effect with mixer: {self.mixer}; remove it, or choose qmix")
        if self.mixer == "none" and self.common != "mean":
            raise ValueError(f"common: {self.common} has no effect with mixer: none; remove it, or choose vdn or qmix")
        return self
