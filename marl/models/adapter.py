"""Adapters: small matrices that learn beside the weights of a base, which never change and are in memory once.

LoRA (arXiv 2106.09685) and DoRA (2402.09353), made by PEFT and saved as a PEFT folder. Light: torch is imported when
weights are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, PositiveFloat, PositiveInt, ValidationError, field_validator

from marl.models.hf_folder import adapter_settings, check_adapter
from marl.models.pretrained import HeldModel, Pretrained, PretrainedSource
from marl.parts import Part
from marl.protocols import ModelConfig, ModelContext
from marl.protocols.memory import MemorySaver

_NO_BASE = "is an adapter itself: make one model of it, marl export RUN POLICY --merge --out FOLDER, or go on with it"


class Adapter(ModelConfig):
    """A LoRA or DoRA adapter. Policies with equal bases share one, in memory once and never changed."""

    kind: str = "adapter"
    example = "base: {kind: tiny}, rank: 8"
    base: Annotated[HeldModel, Part("models", HeldModel, path="pretrained")]
    """Model that is adapted: a folder, a name on the hub, or `kind: tiny`."""
    rank: PositiveInt = 8
    """Rank of the low-rank matrices."""
    alpha: PositiveFloat = 16.0
    """The adapter's output is multiplied by alpha / rank."""
    use_rslora: bool = False
    """Multiply by alpha / sqrt(rank) instead (2312.03732)."""
    use_dora: bool = False
    """DoRA: learn the length of each row of the layer's weight on its own, too."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Probability with which inputs of the adapter are dropped while it learns."""
    targets: str | tuple[str, ...] = "all-linear"
    """Layers that it adapts, as PEFT takes them: a list of last names or paths of layers (`q_proj`,
    `layers.0.mlp.up_proj`), or a pattern that matches whole paths. Linear layers, the output's (`lm_head`) and
    embeddings can be adapted. `all-linear`: all linear ones but the output's."""
    path: Path | None = None
    """A PEFT folder to start from. Default: an adapter that changes nothing yet."""
    seed: int = 0
    """Seed of the adapter's first weights."""

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
        """PEFT folder to start from."""
        return self.path and self.path.expanduser()

    def missing(self) -> Iterable[str]:
        if problems := [f"base.{problem}" for problem in self.base.missing()]:
            yield from problems
        elif self.base.shared():
            yield f"base: {_NO_BASE}"
        yield from (f"path: {str(self.path)!r}: {problem}" for problem in self._problems())

    def prepare(self, context: ModelContext) -> AdapterSource:
        for problem in self._problems():
            raise ValueError(f"policy {context.policy!r}: adapter {str(self.path)!r}: {problem}")
        base = self.base.prepare(context)
        if not isinstance(base, PretrainedSource):
            raise ValueError(f"policy {context.policy!r}: base: {_NO_BASE}")
        return AdapterSource(context.policy, self, _from_anywhere(base))

    def shared(self) -> ModelConfig:
        return self.base

    def thrift(self) -> Iterable[MemorySaver]:
        return (replace(saver, field=f"base.{saver.field}") for saver in self.base.thrift())

    def saved(self, folder: Path) -> Self:
        return self.model_copy(update={"path": folder})

    @classmethod
    def from_folder(cls, folder: Path, **held: Any) -> Self:
        """Return the adapter that a PEFT folder holds, on the base that it names; `held`: settings of `HeldModel`.

        Raises:
            ValueError: if it holds none.
        """
        made = adapter_settings(folder)
        targets = made.get("target_modules")
        settings = {
            "base": Pretrained(path=str(made.get("base_model_name_or_path")), **held),
            "rank": made.get("r"),
            "alpha": made.get("lora_alpha"),
            "dropout": made.get("lora_dropout", 0.0),
            "targets": sorted(targets) if isinstance(targets, list) else targets,
            **{name: made.get(name, False) for name in ("use_dora", "use_rslora")},
        }
        try:
            return cls(**settings, path=folder)
        except ValidationError as error:
            raise ValueError(f"holds settings of an adapter that cannot be used: {error}") from error

    def _problems(self) -> Iterator[str]:
        wanted = {"r": self.rank, "lora_alpha": self.alpha, "use_dora": self.use_dora, "use_rslora": self.use_rslora}
        if self.folder is not None:
            try:
                check_adapter(self.folder, wanted)
            except ValueError as error:
                yield str(error)


@dataclass
class AdapterSource:
    """An adapter's own weights, and the base that it shares with all other adapters on it in this process."""

    policy: str
    adapter: Adapter
    base_source: PretrainedSource

    @property
    def path(self) -> str:
        """The base's folder, or name on the hub."""
        return self.base_source.path

    @property
    def dtype(self) -> str:
        """The base's type."""
        return self.base_source.dtype

    @cached_property
    def base(self) -> Any:
        """The base in memory; its weights must never be changed."""
        from marl.models.lora import shared_base

        return shared_base(self.base_source)

    def model(self) -> Any:
        """Return modules of their own, in eval mode: the base's tensors, frozen, and a fresh copy of the adapter's."""
        from marl.models.lora import with_adapter

        return with_adapter(self)

    def tokenizer(self) -> Any:
        """Load the base's tokenizer."""
        return self.base_source.tokenizer()

    def fault(self, problem: object) -> ValueError:
        """Return an error that names the policy and the base."""
        return ValueError(f"policy {self.policy!r}: adapter on {self.path!r}: {problem}")


def _from_anywhere(base: PretrainedSource) -> PretrainedSource:
    """Return the base by its absolute path, if it is a folder: that is the name that the adapter is saved with."""
    folder = Path(base.path).expanduser()
    return replace(base, path=str(folder.absolute())) if folder.is_dir() else base
