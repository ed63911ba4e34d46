"""Settings of adapters: small trainable matrices on a frozen base model, which several adapters share in memory.

PEFT builds LoRA (arXiv 2106.09685) and DoRA (arXiv 2402.09353) adapters and saves them as PEFT folders. This module
imports torch only when weights are loaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, PositiveFloat, PositiveInt, ValidationError, field_validator

from marl.core.config import FIELD_PREFIX, refuse_repeated_values
from marl.core.plugins import PluginField
from marl.host.data_files import one_line_error_message
from marl.models.adapter_targets import adapted_layers, layer_names_of_weights
from marl.models.hf_folder import check_adapter_folder, read_adapter_config, saved_weight_shapes
from marl.models.pretrained import Pretrained, PretrainedSource, TransformersModelConfig
from marl.models.tiny import Tiny, tiny_model_weight_shapes
from marl.protocols import ModelConfig, ModelPreparation
from marl.protocols.memory_estimates import MemorySavingSetting
from marl.text.linear_patterns import check_linear_pattern

_NO_BASE = "is an adapter itself: make one model of it, marl export RUN POLICY --merge --out FOLDER, or go on with it"


class Adapter(ModelConfig):
    """A LoRA or DoRA adapter. Policies with equal bases share one frozen base model in memory."""

    kind: str = "adapter"
    example = "base: {kind: tiny}, rank: 8"
    base: Annotated[TransformersModelConfig, PluginField("models", TransformersModelConfig, path="pretrained")]
    """Base model: a folder, a name on the hub, or `kind: tiny`."""
    rank: PositiveInt = 8
    """Rank of the adapter's low-rank matrices."""
    alpha: PositiveFloat = 16.0
    """Scale of the adapter's output, which is multiplied by alpha / rank."""
    use_rslora: bool = False
    """Scale the adapter's output by alpha / sqrt(rank) instead of alpha / rank (arXiv 2312.03732)."""
    use_dora: bool = False
    """Use DoRA, which also trains the norm of each row of the layer's weight."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Probability of dropping an input of the adapter during training."""
    targets: str | tuple[str, ...] = "all-linear"
    """Adapted layers, in PEFT's notation: a list of last names or paths of layers (`q_proj`, `layers.0.mlp.up_proj`),
    or a pattern in RE2's syntax that matches full paths. Linear layers, the output layer (`lm_head`) and embeddings can
    be adapted. `all-linear`: all linear layers but the output layer."""
    path: Path | None = None
    """PEFT folder with the initial adapter. Default: a new adapter, which leaves the base's output unchanged."""
    seed: int = 0
    """Seed of the adapter's initial weights."""

    @field_validator("targets")
    @classmethod
    def _check_names_or_pattern(cls, targets: str | tuple[str, ...]) -> str | tuple[str, ...]:
        if not isinstance(targets, str):
            return refuse_repeated_values(targets)
        # The pattern may come from a stranger's file, so only patterns that match in linear time are accepted.
        try:
            check_linear_pattern(targets)
        except ValueError as error:
            raise ValueError(f"neither all-linear, a list of names, nor a pattern: {error}") from error
        return targets

    @property
    def folder(self) -> Path | None:
        """PEFT folder with the initial adapter, with `~` expanded, or None for a new adapter."""
        return self.path and self.path.expanduser()

    def unmet_requirements(self) -> Iterable[str]:
        base_problems = list(self.base.unmet_requirements())
        for problem in base_problems:
            # A problem of the base as a whole names none of its settings.
            yield f"base{'.' if FIELD_PREFIX.match(problem) else ': '}{problem}"
        if not base_problems and self.base.shared_base():
            yield f"base: {_NO_BASE}"
        for problem in self._initial_adapter_errors():
            yield f"path: {str(self.path)!r}: {problem}"
        if not base_problems and (problem := self._target_error()):
            yield problem

    def prepare(self, context: ModelPreparation) -> AdapterSource:
        for problem in self._initial_adapter_errors():
            raise ValueError(f"policy {context.policy!r}: adapter {str(self.path)!r}: {problem}")
        base = self.base.prepare(context)
        if not isinstance(base, PretrainedSource):
            raise ValueError(f"policy {context.policy!r}: base: {_NO_BASE}")
        folder = Path(base.path).expanduser()
        if folder.is_dir():
            # The base's path is saved with the adapter, so it is made absolute.
            base = replace(base, path=str(folder.absolute()))
        return AdapterSource(context.policy, self, base)

    def shared_base(self) -> ModelConfig:
        return self.base

    def memory_saving_settings(self) -> Iterable[MemorySavingSetting]:
        for saver in self.base.memory_saving_settings():
            yield replace(saver, field=f"base.{saver.field}")

    def with_saved_weights(self, folder: Path) -> Self:
        return self.model_copy(update={"path": folder})

    @classmethod
    def from_folder(cls, folder: Path, **base_settings: Any) -> Self:
        """Return the settings of the adapter in a PEFT folder, on the base that the folder names.

        `base_settings` are fields of `TransformersModelConfig` for the base.

        Raises:
            ValueError: if the folder holds no adapter that can be used.
        """
        config = read_adapter_config(folder)
        targets = config.get("target_modules")
        settings = {
            "base": Pretrained(path=str(config.get("base_model_name_or_path")), **base_settings),
            "rank": config.get("r"),
            "alpha": config.get("lora_alpha"),
            "dropout": config.get("lora_dropout", 0.0),
            "targets": sorted(targets) if isinstance(targets, list) else targets,
            "use_dora": config.get("use_dora", False),
            "use_rslora": config.get("use_rslora", False),
        }
        try:
            return cls(**settings, path=folder)
        except ValidationError as error:
            raise ValueError(
                f"holds settings of an adapter that cannot be used: {one_line_error_message(error)}"
            ) from error

    def _initial_adapter_errors(self) -> Iterator[str]:
        """Yield an error message if the folder `path` is unusable, or holds an adapter with other settings."""
        if self.folder is None:
            return
        expected = {"r": self.rank, "lora_alpha": self.alpha, "use_dora": self.use_dora, "use_rslora": self.use_rslora}
        try:
            check_adapter_folder(self.folder, expected)
        except ValueError as error:
            yield str(error)

    def _target_error(self) -> str:
        """Return an error message if `targets` name no layer of a tiny base or of a base in a folder, or ""."""
        if self.targets == "all-linear":
            return ""
        if isinstance(self.base, Tiny):
            return target_layer_error(self.targets, dict(tiny_model_weight_shapes(self.base, vocabulary_size=1)))
        folder = Path(self.base.path).expanduser() if isinstance(self.base, Pretrained) else None
        # GGUF files and the hub's cache, which take long to read, are checked by random play (`marl check`).
        if folder is None or not (shapes := saved_weight_shapes(folder)):
            return ""
        return target_layer_error(self.targets, shapes, folder / "config.json")


def target_layer_error(
    targets: str | tuple[str, ...], shapes: Mapping[str, tuple[int, ...]], config_file: Path | None = None
) -> str:
    """Return an error message if `targets` name no layer of a model with weights of these `shapes`, or "".

    Saved weights may have other names than the model's layers, so an error is confirmed by the model's configuration.
    """
    try:
        adapted_layers(targets, layer_names_of_weights(shapes))
    except ValueError as error:
        if config_file is None:
            return str(error)
    else:
        return ""
    from marl.models.config_shapes import parameter_shapes  # imported late, because it loads torch

    try:
        shapes = parameter_shapes(config_file)
    except ValueError:
        return ""  # loading the model reports its faults
    return target_layer_error(targets, shapes)


@dataclass
class AdapterSource:
    """Source of an adapter's weights, and of its base model, which adapters in this process share."""

    policy: str
    adapter: Adapter
    base_source: PretrainedSource

    @property
    def path(self) -> str:
        """Folder of the base model, or its name on the hub."""
        return self.base_source.path

    @property
    def dtype(self) -> str:
        """Dtype of the base model's weights."""
        return self.base_source.dtype

    @cached_property
    def base(self) -> Any:
        """Shared base model in memory, whose weights must not be changed."""
        from marl.models.lora import load_shared_base

        return load_shared_base(self.base_source)

    def model(self) -> Any:
        """Return a new adapted model in eval mode, with the base's frozen tensors and a new copy of the adapter's."""
        from marl.models.lora import load_adapted_model

        return load_adapted_model(self)

    def tokenizer(self) -> Any:
        """Load the tokenizer of the base model."""
        return self.base_source.tokenizer()

    def error_naming_policy_and_model(self, problem: object) -> ValueError:
        """Return an error whose message names the policy and the base, followed by `problem`."""
        return ValueError(f"policy {self.policy!r}: adapter on {self.path!r}: {problem}")
