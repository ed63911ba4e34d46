"""Models in folders and on hubs, in Hugging Face's format. Light: torch is imported when weights are."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import PositiveInt

from marl.config import Config
from marl.models.hf_folder import check_folder
from marl.parts import find
from marl.protocols import ModelConfig, ModelContext

Dtype = Literal["float32", "bfloat16", "float16"]
Attention = Literal["sdpa", "eager"]


@dataclass(frozen=True, slots=True)
class PretrainedSource:
    """A causal language model and its tokenizer, in a folder or on a hub."""

    policy: str = field(compare=False)
    """The policy that uses it, for error messages."""
    path: str
    dtype: Dtype = "float32"
    device: str = "auto"
    trust_remote_code: bool = False
    attention: Attention = "sdpa"

    @property
    def adapter(self) -> None:
        """Return None: all weights are the policy's own."""

    def model(self) -> Any:
        """Load a fresh copy of the weights, in eval mode."""
        from marl.models.weights import load_model

        return load_model(self)

    def tokenizer(self) -> Any:
        """Load the tokenizer."""
        from marl.models.weights import load_tokenizer

        return load_tokenizer(self)

    def fault(self, problem: object) -> ValueError:
        """Return an error that names the policy and the model."""
        return ValueError(f"policy {self.policy!r}: model {self.path!r}: {problem}")


class HeldModel(ModelConfig):
    """Settings of how weights are held in memory."""

    dtype: Dtype = "float32"
    device: str = "auto"
    """A torch device; `auto` is `cuda` where there is one, else `cpu`."""
    attention: Attention = "sdpa"

    def source(self, policy: str, path: str | Path, *, trust_remote_code: bool = False) -> PretrainedSource:
        """Return the source of the weights at `path`, held by these settings."""
        return PretrainedSource(policy, str(path), self.dtype, self.device, trust_remote_code, self.attention)

    @abstractmethod
    def prepare(self, context: ModelContext) -> PretrainedSource: ...

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
        if problem := self._problem():
            yield f"path: {self.path!r}: {problem}"

    def saved(self, folder: Path) -> Pretrained:
        return self.model_copy(update={"path": str(folder)})

    def prepare(self, context: ModelContext) -> PretrainedSource:
        path = self._folder() or self.path
        source = self.source(context.policy, path, trust_remote_code=self.trust_remote_code)
        if problem := self._problem():
            raise source.fault(problem)
        return source

    def _problem(self) -> str | None:
        folder = self._folder()
        try:
            if folder is not None:
                check_folder(folder)
        except ValueError as error:
            return str(error)
        return None

    def _folder(self) -> Path | None:
        """Return the model's folder, or None for what could be `name` or `owner/name` on a hub."""
        folder = Path(self.path).expanduser()
        on_hub = self.path.count("/") <= 1 and not self.path.startswith((".", "/", "~")) and not self.path.endswith("/")
        return folder if folder.exists() or not on_hub else None


class TrainedPolicy(Config):
    """Place of the weights that a policy has learnt in another run."""

    run: str
    """The run's folder."""
    policy: str
    step: PositiveInt | Literal["latest", "best"] = "latest"
    """A checkpoint: the newest whole one, the best by the run's `evaluate.keep_best`, or that of a step."""

    def folder(self, *, publishes: bool) -> Path:
        """Return the Hugging Face folder of a language model (`publishes`), or else of a reward model.

        Run folders are read by the model `trained`, which is found by its name.

        Raises:
            ValueError: if it is not there, or is the other kind of model.
        """
        trained = cast("type[TrainedPolicy]", find("models", "trained"))
        return trained(**self.model_dump()).folder(publishes=publishes)
