"""Settings of models in Hugging Face's format, in folders and on hubs.

This module imports torch only when weights are loaded.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, Field, PositiveInt, field_validator

from marl.core.config import Config, choices_hint
from marl.core.plugins import find_plugin, known_kinds
from marl.models.hf_folder import check_gguf, check_model_folder, find_gguf, is_tiny_model_folder
from marl.models.template_defaults import RENDERER_VARIABLES
from marl.protocols import ModelConfig, ModelPreparation
from marl.protocols.memory_estimates import MemorySavingSetting

_GPU_DRIVER_FILES = ("/dev/nvidiactl", "/dev/nvmap", "/dev/dxg", "/dev/kfd")
"""Files of which one exists on a machine with a GPU: of NVIDIA's driver, of its Jetson boards, of WSL, and of AMD's."""
_DEVICE_TYPES = ("auto", "cpu", "cuda", "mps", "xpu")
"""Types of torch devices; `cuda:1` is the second of type `cuda`."""
Dtype = Literal["float32", "bfloat16", "float16"]
Attention = Literal["sdpa", "eager"]


@dataclass(frozen=True, slots=True)
class PretrainedSource:
    """Source of a causal language model and its tokenizer: a folder or a name on a hub, with settings for loading."""

    policy: str = field(compare=False)
    """Name of the policy that uses the model, for error messages."""
    path: str
    dtype: Dtype = "float32"
    device: str = "auto"
    trust_remote_code: bool = False
    attention: Attention = "sdpa"
    chat_template_kwargs: str = "{}"
    """Variables of the chat template, as JSON, so that sources can be compared and hashed."""
    gguf_file: str | None = None
    """Name of a GGUF file in the folder, which is read instead of other files, or None for a Hugging Face folder."""

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

    def error_naming_policy_and_model(self, problem: object) -> ValueError:
        """Return an error whose message names the policy and the model, followed by `problem`."""
        return ValueError(f"policy {self.policy!r}: model {self.path!r}: {problem}")


class TransformersModelConfig(ModelConfig):
    """Settings shared by all models that Transformers loads: dtype, device, attention, chat template."""

    dtype: Dtype = "float32"
    """Dtype of the weights and of the factors of matrix products. Everything else is float32: logits, norms, softmax,
    hidden states between layers, and the master copies of trained weights."""
    device: str = "auto"
    """Torch device of the model. `auto` is `cuda` if a GPU is available, else `cpu`."""
    attention: Attention = "sdpa"
    """Attention implementation, by its name in Transformers."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict, validate_default=True)
    """Variables of the chat template. `enable_thinking` defaults to false, because the default of
    `sampling.max_tokens` is too short for a reasoning model to think and to answer."""

    @field_validator("chat_template_kwargs")
    @classmethod
    def _add_default_template_variables(cls, variables: dict[str, Any]) -> dict[str, Any]:
        for name in variables:
            if not name.isidentifier() or name in RENDERER_VARIABLES:
                raise ValueError(f"{name!r} is no variable that can be given to a chat template")
        return {"enable_thinking": False, **variables}

    def unmet_requirements(self) -> Iterable[str]:
        # The GPU driver's files tell whether there is a GPU; importing torch would take seconds.
        if self.device.startswith("cuda") and not any(map(os.path.exists, _GPU_DRIVER_FILES)):
            yield f"device: {self.device!r}, but this machine has no GPU; choices: cpu, auto"
        elif self.device.partition(":")[0] not in _DEVICE_TYPES:
            yield f"device: no device {self.device!r}; {choices_hint(self.device, _DEVICE_TYPES)}"

    def memory_saving_settings(self) -> Iterable[MemorySavingSetting]:
        if self.dtype == "float32":
            yield MemorySavingSetting("dtype", "bfloat16", keeps_results=False)

    def source(self, policy: str, path: str | Path, *, trust_remote_code: bool = False) -> PretrainedSource:
        """Return the source of the model at `path` (a folder or a name on a hub), with these settings."""
        variables = json.dumps(self.chat_template_kwargs)
        return PretrainedSource(
            policy, str(path), self.dtype, self.device, trust_remote_code, self.attention, variables
        )

    def with_saved_weights(self, folder: Path) -> ModelConfig:
        names = TransformersModelConfig.model_fields.keys() - ModelConfig.model_fields.keys()
        return Pretrained(path=str(folder), **self.model_dump(include=names))


def _require_plain_file_name(name: str) -> str:
    """Return `name`, the name of a file in the model's folder. Raise ValueError if it leads to another folder."""
    if name in ("", ".", "..") or "/" in name or "\\" in name:
        raise ValueError("must be the name of a file in the folder `path`, without / or \\")
    return name


class Pretrained(TransformersModelConfig):
    """An existing model in a folder or on a hub."""

    kind: str = "pretrained"
    example = "path: models/base, dtype: bfloat16"
    path: str
    """Folder of the model, or its name on the Hugging Face hub."""
    trust_remote_code: bool = False
    """Allow Python code from the model's folder to run."""
    gguf_file: Annotated[str, AfterValidator(_require_plain_file_name)] | None = None
    """Name of a GGUF file in the folder, the only source of weights, configuration and tokenizer. Quantised weights are
    converted to `dtype`, and trained weights are saved as an ordinary Hugging Face folder. Default: the folder's only
    GGUF file, if the folder has no config.json."""

    @property
    def understands_instructions(self) -> bool:
        folder = self._path_as_folder()
        try:
            return folder is None or not is_tiny_model_folder(folder)
        except ValueError:
            # A broken folder is reported by `unmet_requirements`, with its path.
            return True

    def unmet_requirements(self) -> Iterable[str]:
        yield from super().unmet_requirements()
        if self.path in known_kinds("models") and not Path(self.path).is_dir():
            yield f"{self.path!r} is a kind of model, not a folder; write model: {{kind: {self.path}}}"
        elif self.path.startswith("policies.") and not Path(self.path).is_dir():
            yield (
                f"path: {self.path!r} names a policy, whose weights no other policy can take; choices: a folder, a "
                "name on the hub, {kind: tiny}, or a policy of another run by {kind: trained, run: RUN, policy: POLICY}"
            )
        elif problem := self._folder_error():
            yield f"path: {self.path!r}: {problem}"

    def with_saved_weights(self, folder: Path) -> Pretrained:
        return self.model_copy(update={"path": str(folder), "gguf_file": None})

    def source(self, policy: str, path: str | Path, *, trust_remote_code: bool = False) -> PretrainedSource:
        source = super().source(policy, path, trust_remote_code=trust_remote_code)
        return replace(source, gguf_file=self.gguf_file or find_gguf(Path(path)))

    def prepare(self, context: ModelPreparation) -> PretrainedSource:
        folder, problem = self._path_as_folder(), self._folder_error()
        if folder is None:
            # imported late, because the import is slow and only models of the hub need it
            from marl.models.hub import hub_model_error

            problem = hub_model_error(self.path)
        if problem:
            raise ValueError(f"policy {context.policy!r}: model {str(folder or self.path)!r}: {problem}")
        return self.source(context.policy, folder or self.path, trust_remote_code=self.trust_remote_code)

    def _folder_error(self) -> str | None:
        """Return an error message if `path` is a folder without a loadable model, else None. The hub is not queried."""
        folder = self._path_as_folder()
        try:
            if folder is not None and folder.is_dir() and (name := self.gguf_file or find_gguf(folder)):
                check_gguf(folder, name)
            elif folder is not None:
                check_model_folder(folder)
        except ValueError as error:
            return str(error)
        return None

    def _path_as_folder(self) -> Path | None:
        """Return `path` as a folder, or None if `path` can only be a name on a hub, such as `owner/name`."""
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
    """Checkpoint of the run: the latest complete one, the best by `evaluate.keep_best`, or that of a step."""

    def folder(self, *, is_language_model: bool) -> Path:
        """Return the Hugging Face folder of the policy.

        `is_language_model` is True for a policy with published weights, False for a reward model.

        Raises:
            ValueError: if the folder does not exist, or holds the other kind of model.
        """
        # Lower rooms must not import higher ones, so the model kind `trained`, which reads runs, is looked up by name.
        trained = cast("type[TrainedPolicyRef]", find_plugin("models", "trained"))
        return trained(**self.model_dump()).folder(is_language_model=is_language_model)
