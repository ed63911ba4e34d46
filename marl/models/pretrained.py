"""Where weights come from: folders and hubs in Hugging Face's format. Light: torch is imported when weights are."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from marl.models.hf_folder import check_folder, parameters
from marl.protocols import ModelConfig

if TYPE_CHECKING:
    from marl.scenario.schema import Scenario

Dtype = Literal["float32", "bfloat16", "float16"]
Attention = Literal["sdpa", "eager"]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A causal language model and its tokenizer, in a folder or on a hub."""

    policy: str = field(compare=False)
    """Who asks, for error messages."""
    path: str
    dtype: Dtype = "float32"
    device: str = "auto"
    trust_remote_code: bool = False
    attention: Attention = "sdpa"

    def model(self) -> Any:
        """A fresh copy of the weights, in eval mode."""
        from marl.models.loading import load_model

        return load_model(self)

    def tokenizer(self) -> Any:
        from marl.models.loading import load_tokenizer

        return load_tokenizer(self)

    def parameters(self) -> int:
        """How many; of a folder only."""
        return parameters(Path(self.path))

    def fault(self, what: object) -> ValueError:
        """What is wrong with it, named."""
        return ValueError(f"policy {self.policy!r}: model {self.path!r}: {what}")


class HeldModel(ModelConfig):
    """How weights are held in memory."""

    dtype: Dtype = "float32"
    device: str = "auto"
    """A torch device; `auto` is `cuda` where there is one, else `cpu`."""
    attention: Attention = "sdpa"

    def checkpoint(self, policy: str, path: str | Path, *, trust_remote_code: bool = False) -> Checkpoint:
        """Weights at `path`, held like this."""
        return Checkpoint(policy, str(path), self.dtype, self.device, trust_remote_code, self.attention)

    @abstractmethod
    def prepare(self, scenario: Scenario, policies: Sequence[str]) -> Checkpoint: ...

    def saved(self, folder: Path) -> Pretrained:
        return Pretrained(path=str(folder), dtype=self.dtype, device=self.device, attention=self.attention)


class Pretrained(HeldModel):
    """A model that exists already."""

    kind: str = "pretrained"
    path: str
    """A folder, or a name on the Hugging Face hub."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model."""

    def missing(self) -> Iterable[str]:
        folder = self._folder()
        if folder is not None:
            try:
                check_folder(folder)
            except ValueError as error:
                yield f"path: {self.path!r}: {error}"

    def saved(self, folder: Path) -> Pretrained:
        return self.model_copy(update={"path": str(folder)})

    def prepare(self, scenario: Scenario, policies: Sequence[str]) -> Checkpoint:
        folder = self._folder()
        checkpoint = self.checkpoint(policies[0], folder or self.path, trust_remote_code=self.trust_remote_code)
        if folder is not None:
            try:
                check_folder(folder)
            except ValueError as error:
                raise checkpoint.fault(error) from error
        return checkpoint

    def _folder(self) -> Path | None:
        """Where it is, or None if only a hub can know."""
        folder = Path(self.path).expanduser()
        return folder if folder.exists() or not _hub_name(self.path) else None


def _hub_name(path: str) -> bool:
    """Whether `path` could be `name` or `owner/name` on a hub."""
    return path.count("/") <= 1 and not path.startswith((".", "/", "~")) and not path.endswith("/")
