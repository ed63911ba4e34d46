"""Protocol of learners."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

from marl.config import Component, Sampling
from marl.protocols.collective import Alone, Collective, DataParallel
from marl.protocols.memory import MemorySaver, MemoryUse, ModelSize, Workload, adamw_uses
from marl.protocols.models import LANGUAGE_MODEL, ModelSource
from marl.state import Stateful
from marl.types import Metrics, Reading, Sample, TokenFigures, Turn, TurnId

if TYPE_CHECKING:
    from torch import Tensor

    from marl.protocols.models import Weights


class Learner(Stateful, Protocol):
    """Turns samples with advantages into new weights. It knows nothing of games."""

    @property
    def needs(self) -> frozenset[str]:
        """Return the fields of `Reading` that it wants read of turns before its next update."""
        ...

    def read(self, turns: Sequence[Turn], wanted: frozenset[str]) -> list[Reading]:
        """Return its model's reading of each turn; `wanted` names fields among its settings' `readable`."""
        ...

    def update(self, samples: Sequence[Sample]) -> Metrics:
        """Update the weights; return figures of the update."""
        ...

    def publish(self) -> Weights:
        """Return the weights for the engine that samples with them."""
        ...

    def save(self, folder: Path) -> None:
        """Write the weights as a Hugging Face folder, tokenizer included."""


@runtime_checkable
class CountsChanges(Protocol):
    """Learner that tells whether an update that was broken off has changed something.

    If it has not, the run leaves a checkpoint of the steps done.
    """

    changes: int
    """Number of changes of what `state_dict` returns, raised before each: equal numbers, equal states."""


@runtime_checkable
class ReportsTokens(Protocol):
    """Learner that can report figures of single tokens which its update computes in any case."""

    token_figures: dict[TurnId, TokenFigures] | None
    """Filled by an update, turn by turn; None: not wanted."""


@dataclass(frozen=True, slots=True)
class LearnerContext:
    """Everything that a learner gets when it is built."""

    policy: str
    source: ModelSource
    steps: int
    """Updates in the whole run, for schedules."""
    seed: int
    collective: Collective = field(default_factory=Alone)
    """Processes that learn these weights together."""


class LearnerConfig(Component):
    """Settings of a learner."""

    group: ClassVar[str] = "trainers"
    family: ClassVar[str] = LANGUAGE_MODEL
    """Sort of weights that it teaches."""
    compares: ClassVar[bool] = False
    """True if it compares answers to one start, which takes groups of two or more."""
    reads: ClassVar[frozenset[str]] = frozenset({"logprobs"})
    """Fields of `Reading` that it can read of a turn, for credit that needs them."""
    off_policy: ClassVar[bool] = False
    """True if it learns from what anybody said. Others take it that their policy did, or correct by its probability."""
    publishes: ClassVar[bool] = True
    """True if its policy samples with what it learns. A reward model's does not: the policy stays as it is."""

    @property
    def readable(self) -> frozenset[str]:
        """Return `reads` and the fields that these settings add, such as a reference model's log-probabilities."""
        return self.reads

    @property
    def credit_needs(self) -> frozenset[str]:
        """Return fields of `Reading` that credit must use, because the learner learns from the result: a critic's
        values."""
        return frozenset()

    @property
    def uses_credit(self) -> bool:
        """Return True if it learns from credit; imitation does not."""
        return True

    @property
    def explores(self) -> float:
        """Return the least share of moves that are drawn at random while it learns, whatever its policy prefers."""
        return 0.0

    def supports(self, sampling: Sampling) -> bool:
        """Return True if it can learn from tokens sampled like this; truncated sampling needs a correction."""
        return not sampling.truncated

    def parallel_obstacle(self, way: DataParallel) -> str | None:
        """Return why data-parallel processes cannot teach it together in that way; None if they can."""
        return f"the learner {self.kind!r} works in one process"

    def memory(self, size: ModelSize, work: Workload) -> Iterable[MemoryUse]:
        """Return what its learning takes of memory; `work`: all that it learns from at once.

        By default that is AdamW on all weights that learn, without activations.
        """
        return adamw_uses(size)

    def thrift(self) -> Iterable[MemorySaver]:
        """Return other values of its settings with which less memory is taken."""
        return ()

    @abstractmethod
    def build(self, context: LearnerContext) -> Learner: ...


class LossConfig(Component):
    """Settings of a policy's loss, token by token; a function of tensors itself."""

    group: ClassVar[str] = "losses"
    linear: ClassVar[bool] = False
    """True if the loss is linear in the advantage for one sign of it. Samples with equal tokens and signs are then
    computed once, with the sum of their advantages."""
    by_row: ClassVar[bool] = False
    """True if it uses the mean of a row's advantages, whose sign must then be equal, too."""
    has_ratio: ClassVar[bool] = True
    """True if it holds the ratio π / π_old, so that weights against a mismatch of the sampler would count it twice."""

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
