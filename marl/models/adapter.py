"""Settings of adapters: small trainable matrices on a frozen base model that all its adapters share in memory.

PEFT builds LoRA (arXiv 2106.09685) and DoRA (2402.09353) adapters and saves them as PEFT folders. This module is
light: torch is imported when weights are loaded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, PositiveFloat, PositiveInt, ValidationError, field_validator

from marl.core.plugins import PluginField
from marl.models.hf_folder import check_adapter, read_adapter_config
from marl.models.pretrained import Pretrained, PretrainedSource, TransformersModelConfig
from marl.protocols import ModelConfig, ModelContext
from marl.protocols.memory_estimates import MemorySaver

_NO_BASE = "is an adapter itself: make one model of it, marl export RUN POLICY --merge --out FOLDER, or go on with it"


class Adapter(ModelConfig):
    """A LoRA or DoRA adapter. Policies with equal bases share one frozen base model in memory."""

    kind: str = "adapter"
    example = "base: {kind: tiny}, rank: 8"
    base: Annotated[TransformersModelConfig, PluginField("models", TransformersModelConfig, path="pretrained")]
    """Base model: a folder, a name on the hub, or `kind: tiny`."""
    rank: PositiveInt = 8
    """Rank of the low-rank matrices."""
    alpha: PositiveFloat = 16.0
    """The adapter's output is multiplied by alpha / rank."""
    use_rslora: bool = False
    """Scale the adapter's output by alpha / sqrt(rank) instead (arXiv 2312.03732)."""
    use_dora: bool = False
    """DoRA: also train the norm of each row of the layer's weight."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Probability of dropping an input of the adapter during training."""
    targets: str | tuple[str, ...] = "all-linear"
    """Adapted layers, in PEFT's notation: a list of last names or paths of layers (`q_proj`, `layers.0.mlp.up_proj`),
    or a pattern that matches full paths. Linear layers, the output layer (`lm_head`) and embeddings can be adapted.
    `all-linear`: all linear layers but the output layer."""
    path: Path | None = None
    """PEFT folder with the initial adapter. Default: a new adapter, which leaves the base's output unchanged."""
    seed: int = 0
    """Seed of the adapter's initial weights."""

    @field_validator("targets")
    @classmethod
    def _check_pattern(cls, targets: str | tuple[str, ...]) -> str | tuple[str, ...]:
        if isinstance(targets, str):
            try:
                re.compile(targets)
            except re.error as error:
                raise ValueError(
                    f"{targets!r} is neither all-linear, a list of names, nor a pattern: {error}"
                ) from error
        return targets

    @property
    def folder(self) -> Path | None:
        """PEFT folder with the initial adapter, with `~` expanded; None for a new adapter."""
        return self.path and self.path.expanduser()

    def unmet_requirements(self) -> Iterable[str]:
        base_problems = list(self.base.unmet_requirements())
        for problem in base_problems:
            yield f"base.{problem}"
        if not base_problems and self.base.shared_base():
            yield f"base: {_NO_BASE}"
        for problem in self._problems():
            yield f"path: {str(self.path)!r}: {problem}"

    def prepare(self, context: ModelContext) -> AdapterSource:
        for problem in self._problems():
            raise ValueError(f"policy {context.policy!r}: adapter {str(self.path)!r}: {problem}")
        base = self.base.prepare(context)
        if not isinstance(base, PretrainedSource):
            raise ValueError(f"policy {context.policy!r}: base: {_NO_BASE}")
        folder = Path(base.path).expanduser()
        if folder.is_dir():
            # The adapter is saved with this name of its base, which must be valid from any working directory.
            base = replace(base, path=str(folder.absolute()))
        return AdapterSource(context.policy, self, base)

    def shared_base(self) -> ModelConfig:
        return self.base

    def memory_savers(self) -> Iterable[MemorySaver]:
        for saver in self.base.memory_savers():
            yield replace(saver, field=f"base.{saver.field}")

    def with_saved_weights(self, folder: Path) -> Self:
        return self.model_copy(update={"path": folder})

    @classmethod
    def from_folder(cls, folder: Path, **base_settings: Any) -> Self:
        """Return the settings of the adapter in a PEFT folder, on the base named there.

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
            raise ValueError(f"holds settings of an adapter that cannot be used: {error}") from error

    def _problems(self) -> Iterator[str]:
        if self.folder is None:
            return
        expected = {"r": self.rank, "lora_alpha": self.alpha, "use_dora": self.use_dora, "use_rslora": self.use_rslora}
        try:
            check_adapter(self.folder, expected)
        except ValueError as error:
            yield str(error)


@dataclass
class AdapterSource:
    """Source of an adapter's weights and of the base model that this process shares between adapters."""

    policy: str
    adapter: Adapter
    base_source: PretrainedSource

    @property
    def path(self) -> str:
        """Folder of the base, or its name on the hub."""
        return self.base_source.path

    @property
    def dtype(self) -> str:
        """Dtype of the base's weights."""
        return self.base_source.dtype

    @cached_property
    def base(self) -> Any:
        """The shared base model in memory. Its weights must never be changed."""
        from marl.models.lora import shared_base

        return shared_base(self.base_source)

    def model(self) -> Any:
        """Return a new model in eval mode: new modules on the base's frozen tensors, and a new copy of the adapter."""
        from marl.models.lora import with_adapter

        return with_adapter(self)

    def tokenizer(self) -> Any:
        """Load the tokenizer of the base."""
        return self.base_source.tokenizer()

    def error(self, problem: object) -> ValueError:
        """Return an error about `problem` with the names of the policy and the base."""
        return ValueError(f"policy {self.policy!r}: adapter on {self.path!r}: {problem}")
