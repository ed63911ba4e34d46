"""Options of learners that compare entries, and of DPO, without the code that they set."""

from collections.abc import Iterator
from typing import ClassVar, Literal, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from marl.core.config import Config, Sampling
from marl.protocols import DataParallel
from marl.protocols.memory_estimates import MemoryUse, ModelSize, Workload
from marl.trainers.optim.memory_estimate import anchor_memory
from marl.trainers.optim.settings import GradientLearnerConfig

RankingMeasure = Literal["paid", "earned"]
"""`paid`: the agent's reward in the whole episode. `earned`: what credit assigned the turn, without baseline."""
UNUSED_BY_PAIRS = ("aggregation", "norm", "merge")
"""Settings without effect where a loss is a mean over pairs and no two rows can merge."""


def changed_settings(settings: Config, names: tuple[str, ...]) -> dict[str, object]:
    """Return the settings among `names` that differ from their defaults."""
    fields = type(settings).model_fields
    return {name: value for name in names if (value := getattr(settings, name)) != fields[name].default}


class PairwiseLearnerConfig(GradientLearnerConfig):
    """Learns from pairs of a step, one side of which went better. Both sides have the same start, so luck is equal."""

    needs_groups: ClassVar[bool] = True
    off_policy: ClassVar[bool] = True
    pairs: Literal["siblings", "best_worst", "episodes"] = "siblings"
    """`siblings`: turns with the same prompt, every better turn with every worse one. `best_worst`: of these turns, the
    best with the worst. `episodes`: all turns of an agent in a better episode with all its turns in a worse one."""
    by: RankingMeasure = "paid"
    """Measure by which an entry is better."""
    margin: PositiveFloat = 1e-6
    """Least difference of a pair."""
    most: PositiveInt | None = None
    """Maximum number of pairs of turns with the same prompt, or of episodes with the same start: the clearest first."""

    # DPO inherits this refusal, although the reason given is that of reward models alone.
    def parallel_obstacle(self, way: DataParallel) -> str | None:
        return "a reward model is saved by a process that has all of it; choose ddp" if way == "fsdp" else None

    @property
    def measure(self) -> RankingMeasure:
        """Measure by which a side is better, or an outcome good."""
        return self.by

    @property
    def uses_credit(self) -> bool:
        """True if entries are compared by credit; rewards are known without it."""
        return self.measure == "earned"

    def supports(self, sampling: Sampling) -> bool:
        """Return True: a comparison does not depend on how tokens were sampled."""
        return True

    @model_validator(mode="after")
    def _check_idle(self) -> Self:
        if changed := changed_settings(self, UNUSED_BY_PAIRS):
            raise ValueError(f"{changed} has no effect on pairs, whose loss is a mean over them; remove it")
        return self


class DpoOptions(PairwiseLearnerConfig):
    """Fields of `dpo`: the loss of a pair, and the reference policy."""

    loss: Literal["sigmoid", "ipo", "hinge", "robust"] = "sigmoid"
    """Loss of a pair. `sigmoid`: DPO (2305.18290), with `smoothing` cDPO. `robust`: 2403.00409. `ipo`: 2310.12036.
    `hinge`: SLiC."""
    beta: PositiveFloat = 0.1
    """Strength of the tie to the reference; IPO's tau."""
    smoothing: float = Field(default=0.0, ge=0, lt=0.5)
    """Share of pairs assumed to be in the wrong order; of `sigmoid` and `robust`."""
    over: Literal["sum", "mean"] = "sum"
    """Sum or mean of the log-probabilities of a side's tokens. With `mean`, `sigmoid` is TRL's `sigmoid_norm`, and
    `ipo` the loss of TRL 1.16 and of its authors."""
    nll: NonNegativeFloat = 0.0
    """Weight of imitating the better side: the mean -log p of its tokens (Iterative RPO, 2404.19733)."""
    refresh: PositiveInt | None = None
    """Updates between copies of the policy into the reference. None: the initial weights, for ever."""

    @model_validator(mode="after")
    def _check_smoothing(self) -> Self:
        if self.smoothing and self.loss not in ("sigmoid", "robust"):
            raise ValueError(f"smoothing={self.smoothing} has no effect with loss={self.loss!r}; use sigmoid or robust")
        return self

    def memory(self, size: ModelSize, work: Workload) -> Iterator[MemoryUse]:
        yield from super().memory(size, work)
        yield from anchor_memory(size, {"reference": self.refresh is None})
