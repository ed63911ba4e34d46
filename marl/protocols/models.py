"""Protocol of models: sources of initial weights, and the forms in which trained weights are published."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias

from pydantic import PositiveFloat, PositiveInt

from marl.core.config import Config, PluginConfig
from marl.protocols.memory_estimates import MemorySaver

if TYPE_CHECKING:
    from torch import Tensor


LANGUAGE_MODEL = "a language model"
"""Default family of models. Error messages use it after the words `is` and `with`."""


class WarmUp(Config):
    """Settings of a warm-up that imitates random legal play."""

    episodes: PositiveInt = 512
    """Number of recorded episodes of random play."""
    steps: PositiveInt = 150
    """Number of gradient steps."""
    batch: PositiveInt = 64
    """Number of episodes per gradient step."""
    lr: PositiveFloat = 5e-3
    """Learning rate."""
    seed: int = 0
    """Seed of the episodes and of their order in training."""


def _no_other_policy(policy: str) -> ModelSource:
    raise ValueError(f"there is no policy {policy!r} beside this one")


@dataclass(frozen=True)
class ModelContext:
    """Callbacks with which `ModelConfig.prepare` makes weights. They keep models independent of scenarios and play."""

    policy: str
    """Name of the policy, for error messages."""
    corpus: Callable[[int], Collection[str]]
    """Maps a seed to all texts that the model's policies read and write in random play, to build a vocabulary."""
    warm_up: Callable[[Path, WarmUp], Path]
    """Maps the folder of a model to the folder of a copy that was trained to imitate random play."""
    source_of: Callable[[str], ModelSource] = _no_other_policy
    """Maps another policy to the source of its language model. Raises ValueError if there is no such policy."""


class ModelConfig(PluginConfig):
    """Settings of a model: the source of its weights, and their form in memory."""

    group: ClassVar[str] = "models"
    family: ClassVar[str] = LANGUAGE_MODEL
    """Family of the model. Each engine and each learner supports one family."""

    @abstractmethod
    def prepare(self, context: ModelContext) -> ModelSource:
        """Make or download the weights if they are missing, and return their source.

        Raises:
            ValueError: naming the policy, if weights are missing or cannot be used.
        """

    def shared_base(self) -> ModelConfig | None:
        """Return the base model that policies with equal bases share in memory, or None if nothing is shared."""
        return None

    def memory_savers(self) -> Iterable[MemorySaver]:
        """Return alternative values of settings that reduce the model's memory use."""
        return ()

    @property
    def knows_language(self) -> bool:
        """True if the model understands instructions; False for a tiny model, which knows only its warm-up's
        answers."""
        base = self.shared_base()
        return base.knows_language if base else True

    def with_saved_weights(self, folder: Path) -> ModelConfig:
        """Return settings of the same model with the weights that its learner saved in `folder`.

        Raises:
            ValueError: if the class does not implement this method.
        """
        raise ValueError(
            f"model {self.kind!r} does not say how saved weights are read; give it a method `with_saved_weights`"
        )


class ModelSource(Protocol):
    """Weights and tokenizer of a policy, loaded on demand, or named by `path` for engines with their own loader.

    `path` is a Hugging Face folder or a name on the hub, and `dtype` the type of the weights in memory; with an
    adapter, both are the base's. `adapter` has the adapter's settings (rank, alpha, targets, ...), or is None.
    """

    @property
    def path(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def adapter(self) -> ModelConfig | None: ...
    def model(self) -> Any:
        """Return the model in eval mode. Each call loads a new one."""

    def tokenizer(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class SharedWeights:
    """Handle to published weights for engines in other processes: a safetensors file, usually in shared memory.

    The file's tensors have the names that the learner publishes. The file must not change until every engine has read
    it.
    """

    file: Path
    version: int
    """Version of the weights in the file. `load_weights` raises an error if another version is expected."""


# A string, because torch is not imported when this module runs.
Weights: TypeAlias = "Iterable[tuple[str, Tensor]] | Path | SharedWeights"
"""Published weights: tensors by name, a folder (Hugging Face or PEFT), or a shared handle."""
