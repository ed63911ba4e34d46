"""Options of imitation, without the code that they set."""

from collections.abc import Iterator
from typing import ClassVar, Self

from pydantic import PositiveInt, model_validator

from marl.core.config import Config, Sampling
from marl.protocols.memory_estimates import MemorySaver, MemoryUse, ModelSize, Workload
from marl.trainers.optim.settings import GradientLearnerConfig
from marl.trainers.policy_gradient.critic_settings import CriticConfig
from marl.trainers.preferences.options import RankingMeasure


class SampleSelection(Config):
    """Turns that are imitated (rejection sampling)."""

    at_least: float | None = None
    """Least measure of a selected turn."""
    best: PositiveInt | None = None
    """Number of episodes with the best outcome whose turns are selected, for each agent and start; by `earned`, number
    of best turns with the same prompt."""
    by: RankingMeasure = "paid"
    """Measure of a turn."""

    @model_validator(mode="after")
    def _check_selects(self) -> Self:
        if self.at_least is None and self.best is None:
            raise ValueError("at_least and best are both missing, so all would be kept; give one, or no `keep`")
        return self


class ImitationOptions(GradientLearnerConfig):
    """Fields of `sft`: the samples that are imitated, and the critic beside them."""

    off_policy: ClassVar[bool] = True
    keep: SampleSelection | None = None
    """Samples to imitate. None: all."""
    duplicates: bool = True
    """Count a completion that was sampled twice, twice."""
    critic: CriticConfig | None = None
    """A model that learns what turns earned, for searches that value positions by it; with
    `credit: {baseline: {kind: value}}`. None: there is none."""

    @property
    def readable(self) -> frozenset[str]:
        return self.readable_fields | self.credit_needs

    @property
    def credit_needs(self) -> frozenset[str]:
        return frozenset({"values"} if self.critic else ())

    @property
    def uses_credit(self) -> bool:
        """True if samples are selected by credit, or a critic learns from it."""
        return self.critic is not None or (self.keep is not None and self.keep.by == "earned")

    def unmet_requirements(self) -> Iterator[str]:
        yield from super().unmet_requirements()
        yield from self.critic.unmet_requirements() if self.critic else ()

    def memory(self, size: ModelSize, work: Workload) -> Iterator[MemoryUse]:
        yield from super().memory(size, work)
        yield from self.critic.memory(self, size, work) if self.critic else ()

    def memory_savers(self) -> Iterator[MemorySaver]:
        yield from super().memory_savers()
        yield from self.critic.memory_savers() if self.critic else ()

    def supports(self, sampling: Sampling) -> bool:
        """Return True: imitation does not depend on how tokens were sampled."""
        return True
