"""Adapters: small matrices that learn beside the weights of a base, which never change and are in memory once.

LoRA (arXiv 2106.09685) and DoRA (2402.09353), made by PEFT and saved as a PEFT folder. Light: torch is imported when
weights are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, PositiveFloat, PositiveInt, field_validator

from marl.models.hf_folder import check_adapter
from marl.models.pretrained import HeldModel, PretrainedSource
from marl.parts import Part
from marl.protocols import ModelConfig, ModelContext


class Adapter(ModelConfig):
    """A LoRA or DoRA adapter. Policies with equal bases share one, in memory once and never changed."""

    kind: str = "adapter"
    base: Annotated[HeldModel, Part("models", HeldModel, path="pretrained")]
    """A folder, a name on the hub, or `kind: tiny`."""
    rank: PositiveInt = 8
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
    path: str | None = None
    """A PEFT folder to start from. Default: an adapter that changes nothing yet."""
    seed: int = 0

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
        return None if self.path is None else Path(self.path).expanduser()

    def missing(self) -> Iterable[str]:
        yield from (f"base.{problem}" for problem in self.base.missing())
        yield from (f"path: {self.path!r}: {problem}" for problem in self._problems())

    def prepare(self, context: ModelContext) -> AdapterSource:
        for problem in self._problems():
            raise ValueError(f"policy {context.policy!r}: adapter {self.path!r}: {problem}")
        return AdapterSource(context.policy, self, self.base.prepare(context))

    def shared(self) -> ModelConfig:
        return self.base

    def saved(self, folder: Path) -> Self:
        return self.model_copy(update={"path": str(folder)})

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
