"""Protocol of learners."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol

from marl.config import Component, Sampling
from marl.protocols.models import ModelSource
from marl.protocols.state import Stateful
from marl.types import Metrics, Reading, Sample, Turn

if TYPE_CHECKING:
    from torch import Tensor

    from marl.protocols.models import Weights


class Learner(Stateful, Protocol):
    """Turns judged samples into new weights. Does not know what a game is."""

    @property
    def needs(self) -> frozenset[str]:
        """Fields of `Reading` that it wants read of turns before its next update."""
        ...

    def read(self, turns: Sequence[Turn], wanted: frozenset[str]) -> list[Reading]:
        """What its model says of each turn: `wanted` names fields of `Reading` among its settings' `readable`."""
        ...

    def update(self, samples: Sequence[Sample]) -> Metrics: ...
    def publish(self) -> Weights: ...
    def save(self, folder: Path) -> None:
        """Write the weights as a Hugging Face folder, tokenizer included."""


@dataclass(frozen=True, slots=True)
class LearnerContext:
    """What a learner is told when it is built."""

    policy: str
    source: ModelSource
    steps: int
    """Updates in the whole run, for schedules."""
    seed: int


class LearnerConfig(Component):
    """Settings of a learner."""

    group: ClassVar[str] = "trainers"
    compares: ClassVar[bool] = False
    """Whether it compares what was said from one start, which takes groups of two or more."""
    reads: ClassVar[frozenset[str]] = frozenset({"logprobs"})
    """What of a turn it can always read, for credit that needs it: fields of `Reading`."""
    credit_needs: ClassVar[frozenset[str]] = frozenset()
    """What of its readings credit must be worked out from, as it learns from what comes of that: a critic's values."""
    publishes: ClassVar[bool] = True
    """Whether what it learns speaks for its policy. A reward model's does not: the policy stays as it is."""

    @property
    def readable(self) -> frozenset[str]:
        """`reads`, and what these settings add to it, such as a reference model's log-probabilities."""
        return self.reads

    @property
    def judged(self) -> bool:
        """Whether it learns from credit; imitation does not."""
        return True

    def supports(self, sampling: Sampling) -> bool:
        """Whether it can learn from tokens sampled like this (truncated sampling needs care)."""
        return not sampling.truncated

    @abstractmethod
    def build(self, context: LearnerContext) -> Learner: ...


class LossConfig(Component):
    """Settings of a policy's loss, token by token; a function of tensors itself."""

    group: ClassVar[str] = "losses"
    linear: ClassVar[bool] = False
    """Whether the loss is linear in the advantage for one sign of it. Samples with equal tokens and signs are then
    computed once, with the sum of their advantages."""
    by_row: ClassVar[bool] = False
    """Whether it looks at the mean of a row's advantages, whose sign must then be equal, too."""
    has_ratio: ClassVar[bool] = True
    """Whether it holds the ratio π / π_old, so that weights against a mismatch of the sampler would count it twice."""

    @abstractmethod
    def __call__(
        self, logprobs_BT: Tensor, old_logprobs_BT: Tensor, advantages_BT: Tensor, mask_BT: Tensor
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Return [B, T], the loss of each token, alone or with [B, T], True where a bound changed it (`clip_fraction`).

        The learner masks and aggregates the result, adds penalties and takes the gradient. A loss of whole rows holds
        the row's value at each of its tokens. B = rows (completions), T = completion tokens.

        Args:
            logprobs_BT: log-probabilities (nats) under the policy that learns, with gradient.
            old_logprobs_BT: those under the policy that sampled; with the learner's `old: read`, under its own before
                the update.
            advantages_BT: credit's advantages, 0 where there is no token.
            mask_BT: True where a token counts. The result is ignored elsewhere.
        """
