"""Settings of models in Hugging Face's format, in folders and on hubs.

This module is light: torch is imported when weights are loaded.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import Field, PositiveInt, field_validator

from marl.core.config import Config
from marl.core.plugins import find_plugin
from marl.models.hf_folder import check_folder, check_gguf, gguf_of, is_tiny
from marl.models.template_defaults import RENDERER_VARIABLES
from marl.protocols import ModelConfig, ModelContext
from marl.protocols.memory_estimates import MemorySaver

Dtype = Literal["float32", "bfloat16", "float16"]
Attention = Literal["sdpa", "eager"]


@dataclass(frozen=True, slots=True)
class PretrainedSource:
    """A causal language model and its tokenizer, in a folder or on a hub."""

    policy: str = field(compare=False)
    """Policy that uses the model, for error messages."""
    path: str
    dtype: Dtype = "float32"
    device: str = "auto"
    trust_remote_code: bool = False
    attention: Attention = "sdpa"
    chat_template_kwargs: str = "{}"
    """Variables of the chat template, as JSON, so that sources can be compared and hashed."""
    gguf_file: str | None = None
    """Name of a GGUF file in the folder, read instead of the other files; None for a Hugging Face folder."""

    @property
    def adapter(self) -> None:
        """None, because a pretrained model has no adapter."""

    def model(self) -> Any:
        """Load a new copy of the model, in eval mode."""
        from marl.models.weights import load_model

        return load_model(self)

    def tokenizer(self) -> Any:
        """Load the model's tokenizer."""
        from marl.models.weights import load_tokenizer

        return load_tokenizer(self)

    def error(self, problem: object) -> ValueError:
        """Return an error about `problem` with the names of the policy and the model."""
        return ValueError(f"policy {self.policy!r}: model {self.path!r}: {problem}")


class TransformersModelConfig(ModelConfig):
    """Settings shared by all models that Transformers loads: dtype, device, attention, chat template."""

    dtype: Dtype = "float32"
    """Dtype of the weights and of the factors of matrix products. Everything else is float32: logits, norms, softmax,
    hidden states between layers, and the master copies of trained weights."""
    device: str = "auto"
    """Torch device; `auto` is `cuda` if a GPU is available, else `cpu`."""
    attention: Attention = "sdpa"
    """Attention implementation, by its name in Transformers."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict, validate_default=True)
    """Variables of the chat template. `enable_thinking` defaults to false, because the default of
    `sampling.max_tokens` is too short for a reasoning model to think and to answer."""

    @field_validator("chat_template_kwargs")
    @classmethod
    def _add_defaults(cls, variables: dict[str, Any]) -> dict[str, Any]:
        for name in variables:
            if not name.isidentifier() or name in RENDERER_VARIABLES:
                raise ValueError(f"{name!r} is no variable that can be given to a chat template")
        return {"enable_thinking": False, **variables}

    def memory_savers(self) -> Iterable[MemorySaver]:
        if self.dtype == "float32":
            yield MemorySaver("dtype", "bfloat16", keeps_results=False)

    def source(self, policy: str, path: str | Path, *, trust_remote_code: bool = False) -> PretrainedSource:
        """Return the source of the model at `path`, with these settings."""
        variables = json.dumps(self.chat_template_kwargs)
        return PretrainedSource(
            policy, str(path), self.dtype, self.device, trust_remote_code, self.attention, variables
        )

    def with_saved_weights(self, folder: Path) -> ModelConfig:
        names = TransformersModelConfig.model_fields.keys() - ModelConfig.model_fields.keys()
        return Pretrained(path=str(folder), **self.model_dump(include=names))


class Pretrained(TransformersModelConfig):
    """An existing model in a folder or on a hub."""

    kind: str = "pretrained"
    example = "path: models/base, dtype: bfloat16"
    path: str
    """Folder of the model, or its name on the Hugging Face hub."""
    trust_remote_code: bool = False
    """Allow Python code from the model's folder to run."""
    gguf_file: str | None = Field(None, pattern=r"^[^/\\]+$")
    """Name of a GGUF file in the folder, the only source of weights, configuration and tokenizer. Quantised weights are
    converted to `dtype`, and trained weights are saved as an ordinary Hugging Face folder. Default: the folder's only
    GGUF file, if the folder has no config.json."""

    @property
    def knows_language(self) -> bool:
        folder = self._folder()
        try:
            return folder is None or not is_tiny(folder)
        except ValueError:
            return True  # a broken folder, which `unmet_requirements` reports with its path

    def unmet_requirements(self) -> Iterable[str]:
        if problem := self._problem():
            yield f"path: {self.path!r}: {problem}"

    def with_saved_weights(self, folder: Path) -> Pretrained:
        return self.model_copy(update={"path": str(folder), "gguf_file": None})

    def source(self, policy: str, path: str | Path, *, trust_remote_code: bool = False) -> PretrainedSource:
        source = super().source(policy, path, trust_remote_code=trust_remote_code)
        return replace(source, gguf_file=self.gguf_file or gguf_of(Path(path)))

    def prepare(self, context: ModelContext) -> PretrainedSource:
        folder, problem = self._folder(), self._problem()
        if folder is None:
            from marl.models.hub import hub_obstacle  # takes long to import

            problem = hub_obstacle(self.path)
        if problem:
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
        """Return the model's folder, or None if `path` is a name on a hub: `name` or `owner/name`."""
        folder = Path(self.path).expanduser()
        on_hub = self.path.count("/") <= 1 and not self.path.startswith((".", "/", "~")) and not self.path.endswith("/")
        return folder if folder.exists() or not on_hub else None


class TrainedPolicyRef(Config):
    """Reference to the weights of a policy that another run has trained."""

    example = "run: runs/nim, policy: actor"
    run: str
    """Folder of the run."""
    policy: str
    """Name of a policy in the run."""
    step: PositiveInt | Literal["latest", "best"] = "latest"
    """Checkpoint: the newest complete one, the best by the run's `evaluate.keep_best`, or the one of a step."""

    def folder(self, *, publishes: bool) -> Path:
        """Return the Hugging Face folder of the policy.

        `publishes` is True for a policy with published weights (a language model), False for a reward model.

        Raises:
            ValueError: if the folder is not there, or holds the other kind of model.
        """
        # The model `trained` reads run folders. Its room is higher than this one, so it is looked up by its name.
        trained = cast("type[TrainedPolicyRef]", find_plugin("models", "trained"))
        return trained(**self.model_dump()).folder(publishes=publishes)
