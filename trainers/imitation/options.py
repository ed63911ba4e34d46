"""Settings of imitation; the code that uses them is not imported here."""

from collections.abc import Iterator
from typing import ClassVar, Self

from pydantic import PositiveInt, model_validator

from marl.core.config import Config, Sampling
from marl.protocols import LearnerSurroundings
from marl.protocols.memory_estimates import MemorySavingSetting, MemoryUse, ModelSize, Workload
from marl.trainers.distillation.options import TaughtLearnerConfig
from marl.trainers.policy_gradient.critic_settings import CriticConfig
from marl.trainers.preferences.options import RankingMeasure


class SampleSelection(Config):
    """Selection of the turns that are imitated (rejection sampling)."""

    at_least: float | None = None
    """Minimum measure of a selected turn. None: no minimum."""
    best: PositiveInt | None = None
    """Number of best episodes whose turns are selected, for each agent and start. With `by: earned`: number of best
    turns with the same prompt. None: all."""
    by: RankingMeasure = "paid"
    """Measure by which turns or episodes are compared: the agent's reward (`paid`) or the turn's credit (`earned`)."""

    @model_validator(mode="after")
    def _check_has_criterion(self) -> Self:
        if self.at_least is None and self.best is None:
            raise ValueError("at_least and best are both missing, so all would be kept; give one, or no `keep`")
        return self


class ImitationOptions(TaughtLearnerConfig):
    """Settings of `sft`: the samples that are imitated, and an optional critic."""

    off_policy: ClassVar[bool] = True
    keep: SampleSelection | None = None
    """Selection of the samples to imitate. None: all samples."""
    duplicates: bool = True
    """True: a completion that was sampled n times counts n times. False: each distinct completion counts once."""
    critic: CriticConfig | None = None
    """Critic that learns the returns of turns, so that a search can evaluate positions. A critic needs
    `credit: {baseline: {kind: value}}`. None: no critic."""

    @property
    def computable_reading_fields(self) -> frozenset[str]:
        return self.readable_fields | self.required_credit_fields

    @property
    def required_credit_fields(self) -> frozenset[str]:
        return frozenset({"values"} if self.critic else ())

    @property
    def learns_from_zero_advantages_by(self) -> tuple[str, ...]:
        """The learner itself: turns are imitated, or selected by what they earned, whatever their advantage."""
        return (self.kind,)

    @property
    def trains_on_advantages(self) -> bool:
        """True if samples are selected by credit, or a critic learns from credit."""
        return self.critic is not None or (self.keep is not None and self.keep.by == "earned")

    def scenario_conflicts(self, surroundings: LearnerSurroundings) -> Iterator[str]:
        keep, group_size = self.keep, surroundings.group_size
        # With `by: earned`, turns of one episode may have the same prompt, so that there can be more of them.
        if keep and keep.best and keep.by == "paid" and group_size is not None and keep.best >= group_size:
            choices = f"1 to {group_size - 1}" if group_size > 1 else "none; raise schedule.group_size, or use at_least"
            yield (
                f"keep.best: {keep.best} leaves out none of the schedule.group_size: {group_size} episodes of a start; "
                f"choices: {choices}"
            )

    def unmet_requirements(self) -> Iterator[str]:
        yield from super().unmet_requirements()
        yield from self.critic.unmet_requirements() if self.critic else ()

    def memory_uses(self, size: ModelSize, work: Workload) -> Iterator[MemoryUse]:
        yield from super().memory_uses(size, work)
        yield from self.critic.memory_uses(self, size, work) if self.critic else ()

    def memory_saving_settings(self) -> Iterator[MemorySavingSetting]:
        yield from super().memory_saving_settings()
        yield from self.critic.memory_saving_settings() if self.critic else ()

    def supports(self, sampling: Sampling) -> bool:
        """Return True: imitation does not depend on how tokens were sampled."""
        return True
