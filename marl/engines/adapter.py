"""Adapters: small matrices that learn beside the weights of a base, which stays as it is and is held once.

LoRA (arXiv 2106.09685), made by PEFT and saved as a PEFT folder. Light: torch is imported when weights are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt

from marl.engines.folder import check_adapter
from marl.engines.models import Checkpoint, HeldModel
from marl.parts import Part
from marl.protocols import ModelConfig

if TYPE_CHECKING:
    from marl.scenario import Scenario


class Adapter(ModelConfig):
    """A LoRA adapter. Policies with equal bases share one, in memory once and never changed."""

    kind: str = "adapter"
    base: Annotated[HeldModel, Part("models", HeldModel, path="pretrained")]
    """A folder, a name on the hub, or `kind: tiny`."""
    rank: PositiveInt = 8
    alpha: PositiveFloat = 16.0
    """What the adapter adds is multiplied by alpha / rank."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Of what the adapter reads, while it learns."""
    targets: Literal["all-linear"] | tuple[str, ...] = "all-linear"
    """Last names of the layers that it adapts, such as `q_proj`; `all-linear`: all linear ones but the output's."""
    path: str | None = None
    """A PEFT folder to start from. Default: an adapter that changes nothing yet."""
    seed: int = 0

    def missing(self) -> Iterable[str]:
        yield from (f"base.{problem}" for problem in self.base.missing())
        yield from (f"path: {self.path!r}: {problem}" for problem in self._problems())

    def prepare(self, scenario: Scenario, policies: Sequence[str]) -> Adapted:
        """An adapter on a base that is prepared for all policies of `scenario` that share it."""
        policy = policies[0]
        for problem in self._problems():
            raise ValueError(f"policy {policy!r}: adapter {self.path!r}: {problem}")
        speakers = [
            name
            for name, other in scenario.policies.items()
            if name in policies or (other.model is not None and other.model.shared() == self.base)
        ]
        return Adapted(policy, self, self.base.prepare(scenario, speakers))

    def shared(self) -> ModelConfig:
        return self.base

    def saved(self, folder: Path) -> Self:
        return self.model_copy(update={"path": str(folder)})

    def _problems(self) -> Iterator[str]:
        if self.path is not None:
            try:
                check_adapter(Path(self.path).expanduser(), {"r": self.rank, "lora_alpha": self.alpha})
            except ValueError as error:
                yield str(error)


@dataclass
class Adapted:
    """An adapter's own weights, and the base that it shares with all other adapters on it in this process."""

    policy: str
    settings: Adapter
    checkpoint: Checkpoint

    @cached_property
    def base(self) -> Any:
        """The base in memory. Nobody may change its weights."""
        from marl.engines.lora import shared_base

        return shared_base(self.checkpoint)

    def model(self) -> Any:
        """Modules of its own, in eval mode: the base's tensors, frozen, and a fresh copy of the adapter's."""
        from marl.engines.lora import with_adapter

        return with_adapter(self)

    def tokenizer(self) -> Any:
        """The base's."""
        return self.checkpoint.tokenizer()

    def fault(self, what: object) -> ValueError:
        """What is wrong with it, named."""
        return ValueError(f"policy {self.policy!r}: adapter on {self.checkpoint.path!r}: {what}")
