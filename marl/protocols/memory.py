"""Vocabulary of memory estimates: sizes of a model, amounts of work, and what is held in memory when."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

Stage = Literal["always", "awake", "play", "learn", "save"]
"""Time at which memory is taken: `always` from the first update on, or only while a stage lasts. `awake`: by engines
that free it while learners work; in the stage `play` all of them hold theirs."""
FLOAT32 = 4
"""Bytes of a number in float32."""


@dataclass(frozen=True, slots=True)
class AdapterSize:
    """Sizes of an adapter, whose numbers are float32 whatever its base is."""

    weights: int
    rank: int
    layers: int
    """Layers that it adapts."""


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Sizes of a transformer on which the memory of its use depends."""

    weights: int
    """Numbers in all, an adapter's left out."""
    weight_bytes: int
    """Bytes of each."""
    layers: int
    hidden: int
    inner: int
    """Width of the hidden layer of an MLP."""
    heads: int
    queries: int
    """Numbers in a token's queries, of all heads of a layer."""
    keys: int
    """Numbers in a token's keys, and in its values."""
    vocabulary: int
    head_norms: bool = False
    """True if queries and keys are normalised, as in Qwen3."""
    adapter: AdapterSize | None = None
    """The adapter that learns in place of the weights."""

    @property
    def trained(self) -> int:
        """Number of weights that learn."""
        return self.adapter.weights if self.adapter else self.weights

    @property
    def trained_bytes(self) -> int:
        """Bytes of each of them."""
        return FLOAT32 if self.adapter else self.weight_bytes

    @property
    def cache_bytes(self) -> int:
        """Bytes of keys and values of one token, in all layers."""
        return 2 * self.layers * self.keys * self.weight_bytes


@dataclass(frozen=True, slots=True)
class Workload:
    """Texts of a step: all that one engine samples, or that one learner learns from."""

    rows: float
    """Completions."""
    prompts: float
    """Distinct prompts."""
    prompt: int
    """Tokens of the longest prompt."""
    answer: int
    """Most tokens of a completion."""
    common: int = 0
    """Tokens with which all prompts begin, about."""

    @property
    def width(self) -> int:
        """Tokens of the longest prompt and completion together."""
        return self.prompt + self.answer

    @classmethod
    def together(cls, loads: Iterable[Workload]) -> Workload:
        """Return all of them as one."""
        every = [*loads, cls(0, 0, 0, 0)]
        return cls(
            sum(each.rows for each in every),
            sum(each.prompts for each in every),
            max(each.prompt for each in every),
            max(each.answer for each in every),
            min((each.common for each in every if each.rows), default=0),
        )


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Something that is held in memory."""

    content: str
    bytes: float
    stage: Stage = "always"
    of_base: bool = False
    """True of a base of adapters that all engines and learners in a process hold together."""


@dataclass(frozen=True, slots=True)
class MemorySaver:
    """Another value of a setting, with which less memory is taken."""

    field: str
    """Path of the setting below those that propose it: `gradient_checkpointing`, `critic.where`."""
    value: Any
    same_results: bool = True
    """True if it changes speed alone."""


def base_uses(size: ModelSize) -> tuple[MemoryUse, ...]:
    """Return the base of an adapter; nothing for weights that learn themselves."""
    return (MemoryUse("base", size.weights * size.weight_bytes, of_base=True),) if size.adapter else ()


def adamw_uses(size: ModelSize) -> tuple[MemoryUse, ...]:
    """Return what AdamW takes for weights that learn: themselves, gradients, moments, and masters of those in halves.

    Where there are masters, gradients are float32, too.
    """
    number, halves = size.trained, size.trained_bytes < FLOAT32
    copies = (MemoryUse("float32 masters", FLOAT32 * number),) if halves else ()
    return (
        *base_uses(size),
        MemoryUse("weights that learn", size.trained_bytes * number),
        *copies,
        MemoryUse("optimizer", 2 * FLOAT32 * number),
        MemoryUse("gradients", FLOAT32 * number, "learn"),
    )
