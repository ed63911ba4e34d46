"""Protocols of learners, which train policies on credited samples, and of token losses."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

from marl.core.config import PluginConfig, Sampling
from marl.core.spending import SpendingLimit
from marl.core.state import Stateful
from marl.core.types import Completion, CompletionFailure, Metrics, Reading, Request, Sample, Turn, TurnId
from marl.protocols.data_parallel import DataParallel, DataParallelGroup, SingleProcessGroup
from marl.protocols.engines import EngineConfig
from marl.protocols.memory_estimates import MemorySavingSetting, MemoryUse, ModelSize, Workload, adamw_memory_uses
from marl.protocols.models import LANGUAGE_MODEL, ModelSource, Weights
from marl.protocols.roles import RoleConfig

if TYPE_CHECKING:
    from torch import Tensor


LossFunction = Callable[["Tensor", "Tensor", "Tensor", "Tensor"], "Tensor | tuple[Tensor, Tensor]"]
"""Function (log-probabilities, old log-probabilities, advantages, mask) -> token losses, as `LossConfig.__call__`."""


@dataclass(frozen=True, slots=True)
class TokenLogprobsAndEntropies:
    """Log-probability and entropy of a turn's tokens, from the first forward pass of an update."""

    logprobs: tuple[float, ...]
    """Log-probability (nats) of each token under the sampling distribution of the learner's weights."""
    entropy: tuple[float, ...]
    """Entropy (nats) over the full vocabulary at the sampling temperature, for each token."""


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


class InstructionTrials(Protocol):
    """Play by which a learner of instructions compares candidates, on the same training starts for all of them."""

    @property
    def players(self) -> str:
        """Text that changes whenever a policy's weights or another policy's instructions change. Scores from before
        the change say nothing about play after it."""
        ...

    def play(self, instructions: Mapping[str, str], starts: Sequence[int], limit: SpendingLimit) -> list[float | None]:
        """Play one episode from each of `starts`, and return the mean return of the policy's agents in each.

        A start without an outcome, for example because `limit` was reached, has None.

        Args:
            instructions: role -> instructions to play with; other roles keep theirs.
            starts: indices of start states; equal indices are equal starts with equal seeds of sampling.
            limit: limit of tokens and cost, to which the play is charged.

        Raises:
            ValueError: if a role's template cannot be filled in with its `instructions`.
        """
        ...

    def ask(self, requests: Sequence[Request], limit: SpendingLimit) -> list[Completion | CompletionFailure]:
        """Sample one completion for each request, charged to `limit`."""
        ...


VERSIONS_FILE = "prompts.json"
"""File of a policy's versions of instructions, in its folder of a checkpoint."""


@runtime_checkable
class LearnsByTrials(Protocol):
    """Learner of instructions, which plays candidates itself before it adopts one."""

    trials: InstructionTrials | None
    """Play for the next updates, set by the run."""

    @property
    def instructions(self) -> Mapping[str, str]:
        """Role -> instructions with which the policy plays from now on."""
        ...


@dataclass(frozen=True, slots=True)
class LearnerSurroundings:
    """Parts of a scenario with which a learner's settings must fit."""

    policy: str
    """Name of the learner's policy."""
    roles: Mapping[str, RoleConfig]
    """Trained roles of the policy."""
    engines: Mapping[str, EngineConfig]
    """Policy -> its engine, for all policies."""
    learners: Mapping[str, LearnerConfig]
    """Policy -> its learner, for all policies with one."""
    has_cluster: bool = False
    """True if several simulators may share the run's play."""
    exact_measures: tuple[str, ...] = ()
    """Fields of the scenario that ask for figures on full game trees."""
    group_size: int | None = None
    """Number of episodes from each start in a step, or None if the experience decides it, not the schedule."""


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
    roles: Mapping[str, RoleConfig] = field(default_factory=dict[str, RoleConfig])
    """Trained roles of the policy."""
    agents: tuple[str, ...] = ()
    """Agents of these roles in all games, in alphabetical order."""


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
    trains_weights: ClassVar[bool] = True
    """False for a learner that reads judged texts and changes no weights. Its policy needs no model, its samples hold
    texts (`Sample.judged`), and no setting of sampling is in its way."""

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
    def learns_from_zero_advantages_by(self) -> tuple[str, ...]:
        """Return the names of the settings by which turns of advantage 0 are trained on, too, such as a KL anchor.

        Empty (the default) if such turns do not change the weights.
        """
        return ()

    @property
    def has_several_optimizer_steps(self) -> bool:
        """True if an update takes several optimizer steps and measures how far they move the policy (`kl_update`)."""
        return False

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

    def update_count_warnings(self, updates: int) -> Iterable[str]:
        """Return a warning, with its field first, for each setting without its intended effect in a run of `updates`
        updates."""
        return ()

    def vocabulary_conflicts(self, size: int) -> Iterable[str]:
        """Return an error message, with its field first, for each setting that does not fit a vocabulary of `size`
        tokens."""
        return ()

    def supports(self, sampling: Sampling) -> bool:
        """Return True if the learner can train on tokens sampled with these settings.

        By default truncated sampling (top-p, top-k) is refused, because it needs a correction.
        """
        return not sampling.truncates_distribution

    def policies_without_role(self) -> Iterable[str]:
        """Return the policies without a role that the learner asks, such as a proposer of instructions."""
        return ()

    def saved_instructions(self, folder: Path) -> Mapping[str, str]:
        """Return role -> instructions that a learner of these settings saved in `folder` (default: none)."""
        return {}

    def scenario_conflicts(self, surroundings: LearnerSurroundings) -> Iterable[str]:
        """Yield an error message for each setting that contradicts the rest of the scenario."""
        return ()

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
        """Return the settings of which another value would reduce the learner's memory use, with that value."""
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
