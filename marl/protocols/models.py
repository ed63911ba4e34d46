"""Protocols of models: sources of initial weights, and the forms in which trained weights are published."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias

from pydantic import PositiveFloat, PositiveInt

from marl.core.config import Config, PluginConfig
from marl.protocols.memory_estimates import MemorySavingSetting

if TYPE_CHECKING:
    from torch import Tensor


LANGUAGE_MODEL = "a language model"
"""Name of the default family of models, in words that continue "the model is" in error messages."""


class ImitationWarmUp(Config):
    """Settings of a model's warm-up, which trains the model to imitate random legal play."""

    episodes: PositiveInt = 512
    """Number of episodes of random play that the warm-up imitates."""
    steps: PositiveInt = 150
    """Number of gradient steps of the warm-up."""
    batch: PositiveInt = 64
    """Number of episodes per gradient step of the warm-up."""
    lr: PositiveFloat = 5e-3
    """Learning rate of the warm-up."""
    seed: int = 0
    """Seed of the warm-up's random play, and of the order of its episodes in training."""


def _raise_no_other_policy(policy: str) -> ModelSource:
    raise ValueError(f"there is no policy {policy!r} beside this one")


@dataclass(frozen=True)
class ModelPreparation:
    """Functions with which `ModelConfig.prepare` makes weights, so that models know neither scenarios nor play."""

    policy: str
    """Name of the policy, for error messages."""
    corpus: Callable[[int], Collection[str]]
    """Function that returns, for a seed, all texts read and written in random play, to build a vocabulary."""
    warm_up: Callable[[Path, ImitationWarmUp], Path]
    """Function that copies the model in a folder, trains the copy to imitate random play, and returns its folder."""
    source_of: Callable[[str], ModelSource] = _raise_no_other_policy
    """Function that returns the source of another policy's language model, or raises ValueError if there is none."""


class ModelConfig(PluginConfig):
    """Base class of the settings of a model: the source of its weights, and their form in memory."""

    group: ClassVar[str] = "models"
    family: ClassVar[str] = LANGUAGE_MODEL
    """Family of the model. Each engine and each learner supports one family."""

    @abstractmethod
    def prepare(self, context: ModelPreparation) -> ModelSource:
        """Make or download the weights if they are missing, and return their source.

        Raises:
            ValueError: naming the policy, if weights are missing or cannot be used.
        """

    def shared_base(self) -> ModelConfig | None:
        """Return the base model of an adapter, which all policies with this base share, or None for other models."""
        return None

    def memory_saving_settings(self) -> Iterable[MemorySavingSetting]:
        """Return alternative values of settings that reduce the model's memory use."""
        return ()

    @property
    def understands_instructions(self) -> bool:
        """Return True if the model understands instructions, unlike a tiny model that is trained on random play."""
        base = self.shared_base()
        return base.understands_instructions if base else True

    def with_saved_weights(self, folder: Path) -> ModelConfig:
        """Return settings of the same model with the weights that its learner saved in `folder`.

        Raises:
            ValueError: if the class does not implement this method.
        """
        raise ValueError(
            f"model {self.kind!r} does not say how saved weights are read; give it a method `with_saved_weights`"
        )


class ModelSource(Protocol):
    """Source of a policy's weights and tokenizer: it loads them on demand, or names them for an engine's own loader.

    `path` is a Hugging Face folder or a name on the hub, and `dtype` is the type of the weights in memory. For an
    adapter, `path` and `dtype` belong to the base model, and `adapter` has the adapter's settings (else None).
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


class NoModelSource:
    """Source of a policy without weights, for a learner that trains none."""

    path = dtype = ""
    adapter: ModelConfig | None = None

    def model(self) -> Any:
        raise ValueError("the policy has no model")

    def tokenizer(self) -> Any:
        raise ValueError("the policy has no model, and so no tokenizer")


@dataclass(frozen=True, slots=True)
class SharedWeights:
    """Handle to published weights for engines in other processes: a safetensors file, usually in shared memory.

    The names of the tensors are those of `Learner.publish`. The file must stay unchanged until every engine has read
    it.
    """

    file: Path
    version: int
    """Version of the weights in the file. `load_weights` raises an error if another version is expected."""


# The type is a string, because `Tensor` is imported for type checkers only: this module must not load torch.
Weights: TypeAlias = "Iterable[tuple[str, Tensor]] | Path | SharedWeights"
"""Published weights: (name, tensor) pairs, a folder (Hugging Face or PEFT), or a handle to a safetensors file."""
