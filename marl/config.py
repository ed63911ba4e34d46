"""The base of every setting in a scenario."""

from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field


class Config(BaseModel):
    """Frozen, closed-world settings: a typo in a scenario is an error, never a silent default."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class Component(Config):
    """Settings that name a part by `kind`. Found by name, see `marl.parts`."""

    kind: str
    group: ClassVar[str]
    """Which family of parts this belongs to: the entry point group is `marl.<group>`."""


class Sampling(Config):
    """How a policy turns logits into tokens."""

    temperature: float = Field(1.0, ge=0, le=100)
    """0 takes the most likely token."""
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=0)
    """0 keeps every token."""
    max_tokens: int = Field(256, ge=1)
    stop: tuple[str, ...] = ()
    """Texts that end a completion, beside the model's own end tokens."""

    @property
    def truncated(self) -> bool:
        """Whether some tokens can never be sampled."""
        return self.top_p < 1 or self.top_k > 0
