"""Settings of learners from pairs, and of DPO; the code that uses them is not imported here."""

from collections.abc import Iterator
from typing import ClassVar, Literal, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from marl.core.config import Config, Sampling
from marl.protocols import DataParallel
from marl.protocols.memory_estimates import MemoryUse, ModelSize, Workload
from marl.trainers.optim.memory_estimate import anchor_memory
from marl.trainers.optim.settings import GradientLearnerConfig

RankingMeasure = Literal["paid", "earned"]
"""`paid`: the agent's reward in the whole episode. `earned`: the credit assigned to the turn, without baseline."""
UNUSED_BY_PAIRS = ("aggregation", "norm", "merge")
"""Settings without effect if the loss is a mean over pairs, whose rows never merge."""


def settings_unlike_their_defaults(settings: Config, names: tuple[str, ...]) -> dict[str, object]:
    """Return name -> value of the settings among `names` that differ from their defaults."""
    fields = type(settings).model_fields
    return {name: value for name in names if (value := getattr(settings, name)) != fields[name].default}


class PairwiseLearnerConfig(GradientLearnerConfig):
    """Base settings of learners from pairs of turns or episodes of a step, with the same start and different
    success."""

    needs_groups: ClassVar[bool] = True
    off_policy: ClassVar[bool] = True
    pairs: Literal["siblings", "best_worst", "episodes"] = "siblings"
    """`siblings`: of turns with the same prompt, each better turn with each worse one. `best_worst`: of these turns,
    the best with the worst. `episodes`: an agent's turns in a better episode with its turns in a worse one."""
    by: RankingMeasure = "paid"
    """Measure by which the better side of a pair is chosen: the agent's reward (`paid`) or credit (`earned`)."""
    margin: PositiveFloat = 1e-6
    """Minimum difference between the measures of a pair's sides."""
    most: PositiveInt | None = None
    """Maximum number of pairs per prompt, or per start for `episodes`; largest differences first. None: no maximum."""

    # Reward models need ddp, because one process saves the full model. DPO inherits this although it need not.
    def data_parallel_error(self, strategy: DataParallel) -> str | None:
        return "a reward model is saved by a process that has all of it; choose ddp" if strategy == "fsdp" else None

    @property
    def ranking_measure(self) -> RankingMeasure:
        """Measure that orders the two sides of a pair, or decides whether an outcome is good."""
        return self.by

    @property
    def learns_from_zero_advantages_by(self) -> tuple[str, ...]:
        """The learner itself: turns are compared by rewards, or by what they earned, without a baseline."""
        return (self.kind,)

    @property
    def trains_on_advantages(self) -> bool:
        """True if entries are compared by credit; rewards are known without it."""
        return self.ranking_measure == "earned"

    def supports(self, sampling: Sampling) -> bool:
        """Return True, because preference losses compare answers and accept every sampling setting."""
        return True

    @model_validator(mode="after")
    def _check_unused_settings(self) -> Self:
        if changed := settings_unlike_their_defaults(self, UNUSED_BY_PAIRS):
            raise ValueError(f"{changed} has no effect on pairs, whose loss is a mean over them; remove it")
        return self


class DpoOptions(PairwiseLearnerConfig):
    """Settings of `dpo`: the loss of a pair, and the reference policy."""

    loss: Literal["sigmoid", "ipo", "hinge", "robust"] = "sigmoid"
    """Loss of a pair. `sigmoid`: DPO (2305.18290), with `smoothing` cDPO. `robust`: 2403.00409. `ipo`: 2310.12036.
    `hinge`: SLiC."""
    beta: PositiveFloat = 0.1
    """Strength of the implied KL penalty to the reference policy; IPO's tau."""
    smoothing: float = Field(default=0.0, ge=0, lt=0.5)
    """Assumed share of pairs in the wrong order, for the losses `sigmoid` and `robust`."""
    over: Literal["sum", "mean"] = "sum"
    """Reduction of log-ratios over a side's tokens. With `mean`, `sigmoid` is TRL's `sigmoid_norm`, and `ipo` the loss
    of TRL 1.16 and of its authors."""
    nll: NonNegativeFloat = 0.0
    """Weight of a term that imitates the better side: the mean -log p of its tokens (Iterative RPO, 2404.19733)."""
    refresh: PositiveInt | None = None
    """Number of updates after which the policy is copied into the reference. None: the reference never changes."""

    @model_validator(mode="after")
    def _check_label_smoothing(self) -> Self:
        if self.smoothing and self.loss not in ("sigmoid", "robust"):
            raise ValueError(f"smoothing={self.smoothing} has no effect with loss={self.loss!r}; use sigmoid or robust")
        return self

    def memory_uses(self, size: ModelSize, work: Workload) -> Iterator[MemoryUse]:
        yield from super().memory_uses(size, work)
        yield from anchor_memory(size, {"reference": self.refresh is None})
