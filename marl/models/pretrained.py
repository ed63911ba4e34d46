"""Models in folders and on hubs, in Hugging Face's format. Light: torch is imported when weights are."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import Field, PositiveInt, field_validator

from marl.config import Config
from marl.models.hf_folder import check_folder, check_gguf, gguf_of, is_tiny
from marl.models.hub import absence
from marl.models.template_defaults import GIVEN
from marl.parts import find
from marl.protocols import ModelConfig, ModelContext
from marl.protocols.memory import MemorySaver

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
    chat_template_kwargs: str = "{}"
    """Variables of the chat template, in JSON."""
    gguf_file: str | None = None
    """Name of a GGUF file in the folder, which is read in place of all else there."""

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
    """Precision of the weights, and of the factors of matrix products. All else is float32: logits, norms, softmax,
    the states between layers, and the masters of weights that learn."""
    device: str = "auto"
    """A torch device; `auto` is `cuda` where there is one, else `cpu`."""
    attention: Attention = "sdpa"
    """Implementation of attention, as transformers names it."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict, validate_default=True)
    """Variables of its chat template. `enable_thinking` is false unless it is given: a model that may think first
    answers at once, since the default of `sampling.max_tokens` is too short for thoughts."""

    @field_validator("chat_template_kwargs")
    @classmethod
    def _answers_at_once(cls, variables: dict[str, Any]) -> dict[str, Any]:
        for name in variables:
            if not name.isidentifier() or name in GIVEN:
                raise ValueError(f"{name!r} is no variable that can be given to a chat template")
        return {"enable_thinking": False, **variables}

    def thrift(self) -> Iterable[MemorySaver]:
        if self.dtype == "float32":
            yield MemorySaver("dtype", "bfloat16", same_results=False)

    def source(self, policy: str, path: str | Path, *, trust_remote_code: bool = False) -> PretrainedSource:
        """Return the source of the weights at `path`, held by these settings."""
        variables = json.dumps(self.chat_template_kwargs)
        return PretrainedSource(
            policy, str(path), self.dtype, self.device, trust_remote_code, self.attention, variables
        )

    def saved(self, folder: Path) -> ModelConfig:
        held = self.model_dump(include=HeldModel.model_fields.keys() - ModelConfig.model_fields.keys())
        return Pretrained(path=str(folder), **held)


class Pretrained(HeldModel):
    """A model that exists already."""

    kind: str = "pretrained"
    example = "path: models/base, dtype: bfloat16"
    path: str
    """A folder, or a name on the Hugging Face hub."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model."""
    gguf_file: str | None = Field(None, pattern=r"^[^/\\]+$")
    """Name of a GGUF file in the folder: weights, settings and tokenizer are read from it, and nothing else. Quantised
    weights are unpacked to `dtype`; what has learnt is saved as an ordinary Hugging Face folder. Default: the folder's
    only GGUF file, if it has no config.json."""

    @property
    def knows_language(self) -> bool:
        folder = self._folder()
        try:
            return folder is None or not is_tiny(folder)
        except ValueError:
            return True  # it is broken, which `missing` says with its path

    def missing(self) -> Iterable[str]:
        if problem := self._problem():
            yield f"path: {self.path!r}: {problem}"

    def saved(self, folder: Path) -> Pretrained:
        return self.model_copy(update={"path": str(folder), "gguf_file": None})

    def source(self, policy: str, path: str | Path, *, trust_remote_code: bool = False) -> PretrainedSource:
        source = super().source(policy, path, trust_remote_code=trust_remote_code)
        return replace(source, gguf_file=self.gguf_file or gguf_of(Path(path)))

    def prepare(self, context: ModelContext) -> PretrainedSource:
        folder = self._folder()
        if problem := self._problem() if folder else absence(self.path):
            raise ValueError(f"policy {context.policy!r}: model {str(folder or self.path)!r}: {problem}")
        return self.source(context.policy, folder or self.path, trust_remote_code=self.trust_remote_code)

    def _problem(self) -> str | None:
        folder = self._folder()
        try:
            if folder is not None and folder.is_dir() and (name := self.gguf_file or gguf_of(folder)):
                check_gguf(folder, name)
            elif folder is not None:
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

    example = "run: runs/nim, policy: actor"
    run: str
    """The run's folder."""
    policy: str
    """Name of a policy of that run."""
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
