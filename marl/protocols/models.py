"""Protocol of models: where weights come from, and in which forms published weights travel."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from pydantic import PositiveFloat, PositiveInt

from marl.config import Component, Config
from marl.protocols.memory import MemorySaver

if TYPE_CHECKING:
    from torch import Tensor


LANGUAGE_MODEL = "a language model"
"""Usual family of weights, in words that follow `is` and `with`."""


class WarmUp(Config):
    """Settings of the imitation of random legal play."""

    episodes: PositiveInt = 512
    """Episodes of random play that are recorded."""
    steps: PositiveInt = 150
    """Gradient steps."""
    batch: PositiveInt = 64
    """Episodes a step."""
    lr: PositiveFloat = 5e-3
    """Learning rate."""
    seed: int = 0
    """Seed of the episodes and of their order."""


def _nobody(policy: str) -> ModelSource:
    raise ValueError(f"there is no policy {policy!r} beside this one")


@dataclass(frozen=True)
class ModelContext:
    """Everything that training hands to a model that it prepares. A model knows nothing of scenarios and of play."""

    policy: str
    """The policy that is prepared, for error messages."""
    corpus: Callable[[int], Collection[str]]
    """Return all texts that the policies of these weights read and write in random play with this seed."""
    warm_up: Callable[[Path, WarmUp], Path]
    """Return the folder of the model in a folder, after it has learnt to imitate random play of these policies."""
    start_of: Callable[[str], ModelSource] = _nobody
    """Return where the language model of another policy has its weights from; raise ValueError if there is none."""


class ModelConfig(Component):
    """Settings of a model: where its weights come from, and how they are held in memory."""

    group: ClassVar[str] = "models"
    family: ClassVar[str] = LANGUAGE_MODEL
    """Sort of its weights; engines and learners work with one sort."""

    @abstractmethod
    def prepare(self, context: ModelContext) -> ModelSource:
        """Make sure that the weights exist; return where they are.

        Raises:
            ValueError: naming the policy, if they are not there or cannot be used.
        """

    def shared(self) -> ModelConfig | None:
        """Return the base that policies with equal bases share in memory; None if all weights are the policy's own."""
        return None

    def thrift(self) -> Iterable[MemorySaver]:
        """Return other values of its settings with which less memory is taken."""
        return ()

    @property
    def knows_language(self) -> bool:
        """True if instructions in words mean something to it; a tiny model knows the answers that it was taught."""
        base = self.shared()
        return base.knows_language if base else True

    def saved(self, folder: Path) -> ModelConfig:
        """Return the same model with the weights that its learner saved in `folder`.

        Raises:
            ValueError: if it does not say how they are read.
        """
        raise ValueError(f"model {self.kind!r} does not say how saved weights are read; give it a method `saved`")


class ModelSource(Protocol):
    """Weights and tokenizer of a policy: in memory on demand, or by name for engines that load them themselves.

    `path` is a Hugging Face folder or a name on the hub, and `dtype` the type in which the weights are held; with an
    adapter, both are the base's. `adapter` holds its settings (rank, alpha, targets, folder, ...); None without one.
    """

    @property
    def path(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def adapter(self) -> ModelConfig | None: ...
    def model(self) -> Any:
        """Load the model, in eval mode; each call returns modules of their own."""

    def tokenizer(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class SharedWeights:
    """Handle to published weights for engines in other processes: a safetensors file, usually in shared memory.

    The tensors have the names that the learner publishes. The file must stay as it is until every engine has read it.
    """

    file: Path
    version: int
    """The version that the file holds; `load_weights` refuses another one."""


if TYPE_CHECKING:
    Weights = Iterable[tuple[str, Tensor]] | Path | SharedWeights
    """Published weights: tensors by name, a folder (of Hugging Face or PEFT) that holds them, or a shared handle."""
