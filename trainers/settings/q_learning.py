"""Settings of learning by the values of actions: independent Q-learning, VDN and QMIX."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from marl.config import Config, Sampling
from marl.models.q_network import Q_NETWORK
from marl.protocols import Learner, LearnerConfig, LearnerContext
from marl.protocols.memory import MemoryUse, ModelSize, Workload, adamw_uses


class Exploration(Config):
    """Share of moves that are drawn at random while it learns; before the first update all are."""

    start: float = Field(default=1.0, ge=0, le=1)
    """Share after the first update."""
    end: float = Field(default=0.05, ge=0, le=1)
    """Share after `steps` updates, which then stays."""
    steps: NonNegativeInt = 500
    """Updates over which it goes from one to the other, by equal amounts."""

    def after(self, updates: int) -> float:
        """Return the share after so many updates."""
        left = max(1 - updates / self.steps, 0.0) if self.steps else 0.0
        return self.end + (self.start - self.end) * left


class QLearning(LearnerConfig):
    """Values of actions by temporal differences: independent (IQL), or mixed into those of a team (VDN, QMIX).

    It learns from rewards alone, so credit changes nothing. Every step's episodes enter a replay buffer, from which
    whole episodes are drawn, all as likely. After an episode's last turn nothing is added to the reward, unless the
    episode was cut off: then that turn is left out, as what would have followed is not known. With a mixer, the turns
    of the same number of all agents that this policy speaks for are one round; their values learn together, on all
    that is known, and each agent acts by its own (arXiv 1706.05296, 1803.11485). The replay buffer is a part of
    checkpoints.
    """

    kind: str = "q_learning"
    family: ClassVar[str] = Q_NETWORK
    reads: ClassVar[frozenset[str]] = frozenset()
    mixer: Literal["none", "vdn", "qmix"] = "none"
    """`none`: each agent by itself. `vdn`: a round is worth the sum of its agents' values. `qmix`: a monotone function
    of them, by hypernetworks over what all agents observe and whom they hear."""
    common: Literal["mean", "sum"] = "mean"
    """Reward of a round, with a mixer: the mean of what its agents are paid, for games that pay all the same, or the
    sum."""
    gamma: float = Field(default=0.99, ge=0, le=1)
    """Factor by which what comes a round later counts less."""
    terminal: bool = True
    """Learn from an episode's last turns. With false they are left out, so that what is paid there is never seen: for
    comparisons. The released code of Agent Q-Mix (2604.00344) does so, and never changes its target network either."""
    double: bool = True
    """Let the learning network choose the move by which the target network values what follows (1509.06461)."""
    loss: Literal["mse", "huber"] = "mse"
    """Loss of a temporal difference: half its square, or beyond 1 its size less a half. VDN and QMIX use the square."""
    lr: PositiveFloat = 1e-3
    """Learning rate of Adam."""
    max_norm: PositiveFloat = 10.0
    """Norm to which a larger gradient is scaled down."""
    updates: PositiveInt = 1
    """Gradient steps in each update."""
    batch: PositiveInt = 32
    """Episodes that are drawn for a gradient step. Nothing is learnt before there are so many."""
    replay: PositiveInt = 5000
    """Episodes that the replay buffer holds; the oldest give way."""
    target_every: PositiveInt = 200
    """Gradient steps between changes of the target network."""
    tau: float = Field(default=1.0, gt=0, le=1)
    """Share of the way to the learning network that the target network then goes; 1 copies it."""
    exploration: Exploration = Exploration()
    """Share of moves that are drawn at random."""
    embed: PositiveInt = 32
    """Width of QMIX's mixing network."""
    hypernet: PositiveInt = 64
    """Width of the hypernetworks that make its weights."""

    @property
    def uses_credit(self) -> bool:
        """Return False: it learns from rewards."""
        return False

    @property
    def explores(self) -> float:
        return min(self.exploration.start, self.exploration.end)

    def supports(self, sampling: Sampling) -> bool:
        """Return True: what it learns does not depend on how moves were drawn."""
        return True

    def memory(self, size: ModelSize, work: Workload) -> Iterable[MemoryUse]:
        return (*adamw_uses(size), MemoryUse("target network", size.weight_bytes * size.weights))

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

    def build(self, context: LearnerContext) -> Learner:
        from trainers.q_learning.learner import QLearner

        return QLearner(self, context)
