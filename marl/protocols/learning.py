"""Protocol of learners, which train policies on credited samples, and of token losses."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

from marl.core.config import PluginConfig, Sampling
from marl.core.state import Stateful
from marl.core.types import Metrics, Reading, Sample, TokenFigures, Turn, TurnId
from marl.protocols.data_parallel import DataParallel, DataParallelGroup, SingleProcess
from marl.protocols.memory_estimates import MemorySaver, MemoryUse, ModelSize, Workload, adamw_uses
from marl.protocols.models import LANGUAGE_MODEL, ModelSource, Weights

if TYPE_CHECKING:
    from torch import Tensor


LossFunction = Callable[["Tensor", "Tensor", "Tensor", "Tensor"], "Tensor | tuple[Tensor, Tensor]"]
"""Function of log-probabilities, old log-probabilities, advantages and mask, as `LossConfig.__call__`."""


class Learner(Stateful, Protocol):
    """Trains the weights of one policy on samples with advantages, without knowledge of games."""

    @property
    def needs(self) -> frozenset[str]:
        """Return the fields of `Reading` that must be computed for its turns before the next update."""
        ...

    def read(self, turns: Sequence[Turn], wanted: frozenset[str]) -> list[Reading]:
        """Return the model's reading of each turn. `wanted` names the fields to compute, a subset of `readable`."""
        ...

    def update(self, samples: Sequence[Sample]) -> Metrics:
        """Train the weights on `samples` and return the metrics of the update."""
        ...

    def publish(self) -> Weights:
        """Return the trained weights in a form that engines can load."""
        ...

    def save(self, folder: Path) -> None:
        """Write weights and tokenizer as a Hugging Face folder."""


@runtime_checkable
class CountsChanges(Protocol):
    """Learner that counts changes of its state, so that an interrupted update can be recognised as without effect.

    If an interrupted update changed nothing, the run still writes a checkpoint of the completed steps.
    """

    changes: int
    """Counter that increases before each change of the learner's state: two equal counts mean equal states."""


@runtime_checkable
class ReportsTokens(Protocol):
    """Learner that can report log-probability and entropy of single tokens, a by-product of its update."""

    token_figures: dict[TurnId, TokenFigures] | None
    """Figures of each turn's tokens, filled in by updates; None to switch the report off."""


@dataclass(frozen=True, slots=True)
class LearnerContext:
    """Arguments with which `LearnerConfig.build` makes a learner."""

    policy: str
    source: ModelSource
    steps: int
    """Number of updates in the run, for learning rate schedules."""
    seed: int
    data_parallel: DataParallelGroup = field(default_factory=SingleProcess)
    """Group of the processes that train these weights."""


class LearnerConfig(PluginConfig):
    """Settings of a learner."""

    group: ClassVar[str] = "trainers"
    family: ClassVar[str] = LANGUAGE_MODEL
    """Family of models that the learner trains."""
    needs_groups: ClassVar[bool] = False
    """True if the learner compares answers to the same prompt, so that groups need at least two episodes."""
    readable_fields: ClassVar[frozenset[str]] = frozenset({"logprobs"})
    """Fields of `Reading` that every learner of this class can compute."""
    off_policy: ClassVar[bool] = False
    """True if the learner can train on texts of any author. Other learners assume that their policy sampled the tokens,
    or correct by the probabilities with which they were sampled."""
    publishes: ClassVar[bool] = True
    """True if the policy samples with the trained weights. False for a reward model: its policy never changes."""

    @property
    def readable(self) -> frozenset[str]:
        """Return all fields of `Reading` that the learner can compute: `readable_fields`, and those that its settings
        add, such as log-probabilities of a reference model."""
        return self.readable_fields

    @property
    def credit_needs(self) -> frozenset[str]:
        """Return the fields of `Reading` that the credit rules must use, such as `values` for a learner whose critic
        trains on the rules' value targets."""
        return frozenset()

    @property
    def uses_credit(self) -> bool:
        """Return True if the learner trains on advantages; False for imitation."""
        return True

    @property
    def exploration_rate(self) -> float:
        """Return the minimum probability of a random move during training, such as the final ε of an ε-greedy
        policy."""
        return 0.0

    def supports(self, sampling: Sampling) -> bool:
        """Return True if the learner can train on tokens sampled with these settings.

        By default truncated sampling (top-p, top-k) is refused, because it needs a correction.
        """
        return not sampling.truncated

    def parallel_obstacle(self, way: DataParallel) -> str | None:
        """Return the learner's obstacle to data parallelism by `way`, or None if it supports it."""
        return f"the learner {self.kind!r} works in one process"

    def memory(self, size: ModelSize, work: Workload) -> Iterable[MemoryUse]:
        """Return the memory uses of training a model of this `size` on `work`, the texts of one update.

        By default these are the weights and AdamW's state, without activations.
        """
        return adamw_uses(size)

    def memory_savers(self) -> Iterable[MemorySaver]:
        """Return alternative values of settings that reduce the learner's memory use."""
        return ()

    @abstractmethod
    def build(self, context: LearnerContext) -> Learner: ...


class LossConfig(PluginConfig):
    """Settings of a policy loss by token. The settings object is the loss function."""

    group: ClassVar[str] = "losses"
    linear: ClassVar[bool] = False
    """True if the loss is linear in the advantage as long as its sign stays the same. Samples with equal tokens and
    equal signs are then merged into one row with the sum of their advantages."""
    by_row: ClassVar[bool] = False
    """True if the loss uses the mean advantage of a row. Merged samples must then agree in the sign of that mean,
    too."""
    has_ratio: ClassVar[bool] = True
    """True if the loss contains the ratio π / π_old. Importance weights for a sampler mismatch would apply it twice."""

    @abstractmethod
    def __call__(
        self, logprobs_BT: Tensor, old_logprobs_BT: Tensor, advantages_BT: Tensor, mask_BT: Tensor
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Return the loss of each token [B, T], alone or with a mask [B, T] of clipped tokens (`clip_fraction`).

        B = rows (completions), T = completion tokens. A loss by row repeats the row's value at each of its tokens. The
        learner masks and aggregates the result, adds penalties and computes the gradient.

        Args:
            logprobs_BT: log-probabilities (nats) under the trained policy, with gradient.
            old_logprobs_BT: log-probabilities (nats) under the sampling policy; with the learner's setting `old: read`,
                under the trained policy before the update.
            advantages_BT: advantages by the credit rules, 0 at padding.
            mask_BT: True at tokens that count. The learner ignores the loss of other tokens.
        """

    def build(self) -> LossFunction:
        """Return the function of the loss; a learner calls this once. A loss that imports heavy code does so here."""
        return self
