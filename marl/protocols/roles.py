"""Protocol of roles: ways of speaking, which turn observations into prompts and texts into moves."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pydantic import Field

from marl.config import Component, Config, Sampling
from marl.types import Info, Message, Observation, Turn


@dataclass(frozen=True, slots=True)
class View:
    """What a role may look at when it speaks."""

    agent: str
    observation: Observation
    info: Info
    mine: Sequence[Turn] = ()
    """The agent's earlier turns."""
    unread: Sequence[Turn] = ()
    """Turns it can hear since its last one."""
    read: Sequence[Turn] = ()
    """Turns it had read before that."""

    @classmethod
    def of(cls, agent: str, text: str) -> View:
        """That of an agent who has seen `text` and nothing else, and may answer with any text."""
        return cls(agent, {"text": text}, {"legal": None, "hears": (), "together": (), "state": text, "attempt": 0})


class Tool(Config):
    """Something that a speaker may call, as its chat template is told."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = Field(default_factory=lambda: {"type": "object", "properties": {}})
    """JSON schema of the arguments."""


class RoleConfig(Component):
    """A way of speaking. Without state, so a role is its own settings."""

    group: ClassVar[str] = "roles"
    policy: str
    trainable: bool = True
    sampling: Sampling = Sampling()
    history: Literal["fresh", "append"] = "fresh"
    """`fresh`: every prompt stands alone. `append`: it continues the agent's last turn, token for token."""
    tools: tuple[Tool, ...] = ()
    """What it may call; a game with a seat that answers calls plays them."""

    @abstractmethod
    def messages(self, view: View) -> tuple[Message, ...]:
        """The prompt."""

    def continues(self, view: View) -> tuple[int, ...]:
        """Token ids that the prompt continues."""
        return ()

    @abstractmethod
    def parse(self, text: str, legal: tuple[str, ...] | None) -> str | None:
        """The move said in `text`, or None."""

    @abstractmethod
    def phrase(self, move: str) -> str:
        """The canonical text that says `move`: `parse(phrase(move), legal) == move`."""
