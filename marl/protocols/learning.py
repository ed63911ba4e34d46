"""Protocols of learners, which train policies on credited samples, and of token losses."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

from marl.core.config import PluginConfig, Sampling
from marl.core.state import Stateful
from marl.core.types import Metrics, Reading, Sample, TokenLogprobsAndEntropies, Turn, TurnId
from marl.protocols.data_parallel import DataParallel, DataParallelGroup, SingleProcessGroup
from marl.protocols.memory_estimates import MemorySavingSetting, MemoryUse, ModelSize, Workload, adamw_memory_uses
from marl.protocols.models import LANGUAGE_MODEL, ModelSource, Weights

if TYPE_CHECKING:
    from torch import Tensor


LossFunction = Callable[["Tensor", "Tensor", "Tensor", "Tensor"], "Tensor | tuple[Tensor, Tensor]"]
"""Function (log-probabilities, old log-probabilities, advantages, mask) -> token losses, as `LossConfig.__call__`."""


class Learner(Stateful, Protocol):
    """Learner of one policy's weights, which trains on samples with advantages and knows no games."""

    @property
    def needed_reading_fields(self) -> frozenset[str]:
        """Return the fields of `Reading` that the next update of the learner requires for each turn."""
        ...

    def read(self, turns: Sequence[Turn], reading_fields: frozenset[str]) -> list[Reading]:
        """Return the model's reading of each turn. `reading_fields` names the fields of `Reading` to compute."""
        ...

    def update(self, samples: Sequence[Sample]) -> Metrics:
        """Train the weights on `samples` and return the metrics of the update."""
        ...

    def publish(self) -> Weights:
        """Return the trained weights in a form that engines can load."""
        ...

    def save(self, folder: Path) -> None:
        """Write weights and tokenizer to `folder` as a Hugging Face folder."""


@runtime_checkable
class CountsStateChanges(Protocol):
    """Learner that counts changes of its state, so that the run knows whether an interrupted update changed anything.

    After an interrupted update without changes, the run still writes a checkpoint of the completed steps.
    """

    changes: int
    """Counter that increases before each change of the learner's state, so that equal counts mean equal states."""


@runtime_checkable
class ReportsTokenStatistics(Protocol):
    """Learner that can report log-probability and entropy of single tokens, a by-product of its updates."""

    token_figures: dict[TurnId, TokenLogprobsAndEntropies] | None
    """Log-probabilities and entropies of each turn's tokens, added by updates; None to report nothing."""


@dataclass(frozen=True, slots=True)
class LearnerBuildArguments:
    """Arguments with which `LearnerConfig.build` makes the learner of a policy."""

    policy: str
    source: ModelSource
    """Source of the initial weights."""
    steps: int
    """Number of the learner's updates in the run, for learning rate schedules."""
    seed: int
    """Seed of the learner's random numbers."""
    teachers: Mapping[str, ModelSource] = field(default_factory=dict[str, ModelSource])
    """Policy -> source of its weights, for the policies in `LearnerConfig.taught_by`."""
    data_parallel: DataParallelGroup = field(default_factory=SingleProcessGroup)
    """Group of the processes that train the weights together (default: this process alone)."""


class LearnerConfig(PluginConfig):
    """Base class of the settings of a learner."""

    group: ClassVar[str] = "trainers"
    family: ClassVar[str] = LANGUAGE_MODEL
    """Family of models that the learner can train."""
    needs_groups: ClassVar[bool] = False
    """True if the learner compares episodes with the same start, so that groups need at least two episodes."""
    readable_fields: ClassVar[frozenset[str]] = frozenset({"logprobs"})
    """Fields of `Reading` that every learner of this class can compute."""
    off_policy: ClassVar[bool] = False
    """True if the learner can train on texts of any author. Other learners assume that their policy sampled the tokens,
    or correct their loss by the sampling probabilities."""
    publishes: ClassVar[bool] = True
    """True if the policy samples with the trained weights. False for a reward model, which samples no text."""

    @property
    def computable_reading_fields(self) -> frozenset[str]:
        """Return all fields of `Reading` that the learner can compute.

        The fields are `readable_fields` and fields that depend on settings, such as log-probabilities of a reference
        model.
        """
        return self.readable_fields

    @property
    def required_credit_fields(self) -> frozenset[str]:
        """Return the fields of `Reading` that the credit rules of this learner must use.

        A learner whose critic trains on value targets of the credit rules returns `values`.
        """
        return frozenset()

    @property
    def needs_segments(self) -> bool:
        """Return True if the learner trains on segments of answers, which its roles must then mark."""
        return False

    @property
    def trains_on_advantages(self) -> bool:
        """Return True if the learner trains on advantages; False for imitation."""
        return True

    @property
    def exploration_rate(self) -> float:
        """Return the minimum probability of a random move in training, such as the final ε of ε-greedy sampling."""
        return 0.0

    @property
    def taught_by(self) -> Mapping[str, str]:
        """Return field -> policy whose frozen weights the learner loads, such as the teacher of distillation."""
        return {}

    def role_conflicts(self, roles: Collection[str]) -> Iterable[str]:
        """Return an error message, with its field first, for each setting that does not fit the `roles` whose turns
        the learner trains on."""
        return ()

    def supports(self, sampling: Sampling) -> bool:
        """Return True if the learner can train on tokens sampled with these settings.

        By default truncated sampling (top-p, top-k) is refused, because it needs a correction.
        """
        return not sampling.truncates_distribution

    def data_parallel_error(self, strategy: DataParallel) -> str | None:
        """Return an error message if the learner does not support data parallelism by strategy `strategy`, else
        None."""
        return f"the learner {self.kind!r} works in one process"

    def memory_uses(self, size: ModelSize, work: Workload) -> Iterable[MemoryUse]:
        """Return the memory uses of training a model of this `size` on `work`, the texts of one update.

        By default they are the weights and AdamW's state, without activations.
        """
        return adamw_memory_uses(size)

    def memory_saving_settings(self) -> Iterable[MemorySavingSetting]:
        """Return alternative values of settings that reduce the learner's memory use."""
        return ()

    @abstractmethod
    def build(self, context: LearnerBuildArguments) -> Learner: ...


class LossConfig(PluginConfig):
    """Base class of the settings of a token loss for policy gradients. The settings object is the loss function."""

    group: ClassVar[str] = "losses"
    linear: ClassVar[bool] = False
    """True if the loss is linear in advantages of the same sign. Samples with equal tokens and equal signs are then
    merged into one row with the sum of their advantages."""
    by_row: ClassVar[bool] = False
    """True if the loss uses the mean advantage of a row. Samples are then merged only if these means have the same
    sign."""
    has_ratio: ClassVar[bool] = True
    """True if the loss contains the ratio π / π_old: importance weights could then count a sampler mismatch twice."""

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
        """Return the loss function. Learners call this once, and heavy libraries are imported here."""
        return self
