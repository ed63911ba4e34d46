"""Options of Q-learning, VDN and QMIX, without the code that they set."""

from collections.abc import Iterable
from typing import ClassVar, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from marl.core.config import Config, Sampling
from marl.models.q_network import Q_NETWORK
from marl.protocols import LearnerConfig
from marl.protocols.memory_estimates import MemoryUse, ModelSize, Workload, adamw_uses


class Exploration(Config):
    """Share of moves drawn at random during training; before the first update, all moves are."""

    start: float = Field(default=1.0, ge=0, le=1)
    """Share after the first update."""
    end: float = Field(default=0.05, ge=0, le=1)
    """Share from `steps` updates on."""
    steps: NonNegativeInt = 500
    """Updates over which the share changes linearly from `start` to `end`."""

    def after(self, updates: int) -> float:
        """Return the share after `updates` updates."""
        remaining = max(1 - updates / self.steps, 0.0) if self.steps else 0.0
        return self.end + (self.start - self.end) * remaining


class QLearningOptions(LearnerConfig):
    """Fields of `q_learning`: the mixer, the targets, the replay buffer and exploration."""

    family: ClassVar[str] = Q_NETWORK
    readable_fields: ClassVar[frozenset[str]] = frozenset()
    mixer: Literal["none", "vdn", "qmix"] = "none"
    """`none`: each agent by itself. `vdn`: a round is worth the sum of its agents' values. `qmix`: a monotone function
    of the values, by hypernetworks over what all agents observe and whom they hear."""
    common: Literal["mean", "sum"] = "mean"
    """Reward of a round, with a mixer: the mean of the agents' rewards, for games that pay all agents the same, or the
    sum."""
    gamma: float = Field(default=0.99, ge=0, le=1)
    """Discount factor of a turn, or with a mixer of a round."""
    terminal: bool = True
    """Learn from an episode's last turns. With false they are left out, so rewards there are never seen: to compare
    with the released code of Agent Q-Mix (2604.00344), which also never changes its target network."""
    double: bool = True
    """Let the online network choose the next move, which the target network values (double Q-learning, 1509.06461)."""
    loss: Literal["mse", "huber"] = "mse"
    """Loss of a temporal difference d: `mse` d²/2; `huber` the same up to |d| = 1, then |d| - 1/2. VDN, QMIX: `mse`."""
    lr: PositiveFloat = 1e-3
    """Learning rate of Adam."""
    max_norm: PositiveFloat = 10.0
    """Maximum norm of the gradient, which is clipped."""
    updates: PositiveInt = 1
    """Gradient steps in each update."""
    batch: PositiveInt = 32
    """Episodes of a gradient step. Learning starts when the replay buffer holds that number."""
    replay: PositiveInt = 5000
    """Capacity of the replay buffer in episodes; the oldest are dropped."""
    target_every: PositiveInt = 200
    """Gradient steps between updates of the target network."""
    tau: float = Field(default=1.0, gt=0, le=1)
    """Weight of the online network in an update of the target network; 1 copies it."""
    exploration: Exploration = Exploration()
    """Share of moves drawn at random."""
    embed: PositiveInt = 32
    """Width of QMIX's mixing network."""
    hypernet: PositiveInt = 64
    """Width of the hypernetworks of the mixing network."""

    @property
    def uses_credit(self) -> bool:
        """False: Q-learning learns from rewards."""
        return False

    @property
    def exploration_rate(self) -> float:
        return min(self.exploration.start, self.exploration.end)

    def supports(self, sampling: Sampling) -> bool:
        """Return True: Q-learning is off-policy, so any sampling will do."""
        return True

    def memory(self, size: ModelSize, work: Workload) -> Iterable[MemoryUse]:
        return (*adamw_uses(size), MemoryUse("target network", size.weight_bytes * size.parameters))

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.batch > self.replay:
            raise ValueError(f"batch: {self.batch} episodes, but replay holds {self.replay}; choose a smaller batch")
        # Compared by value, since a resolved scenario that is read again sets every field.
        fields = type(self).model_fields
        sizes = [name for name in ("embed", "hypernet") if dict(self)[name] != fields[name].default]
        if self.mixer != "qmix" and sizes:
            raise ValueError(f"{sizes[0]}: has no effect with mixer: {self.mixer}; remove it, or choose qmix")
        if self.mixer == "none" and self.common != "mean":
            raise ValueError(f"common: {self.common} has no effect with mixer: none; remove it, or choose vdn or qmix")
        return self
