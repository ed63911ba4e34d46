"""Protocol of roles: ways of speaking, which turn observations into prompts and texts into moves."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

from pydantic import Field

from marl.config import Component, Config, Sampling
from marl.provenance import Span, plain, spans_of
from marl.text import well_formed
from marl.types import Info, Message, Observation, Turn


@dataclass(frozen=True, slots=True)
class View:
    """Everything that a role may use for a prompt.

    In play, the texts and moves of turns are marked (`marl.provenance.Marked`): a prompt that is made of them by
    templates, `+` or `marl.provenance.joined` tells which turns are in it. If a role looks at such a text in another
    way (compares it, or formats it into an f-string), all of its prompt counts as made from it.
    """

    agent: str
    observation: Observation
    info: Info
    mine: Sequence[Turn] = ()
    """The agent's earlier turns."""
    unread: Sequence[Turn] = ()
    """Turns of others that it can hear, since its last one."""
    read: Sequence[Turn] = ()
    """Turns of others that it had read before that."""
    turns: Sequence[Turn] = ()
    """All turns of the episode: a marked observation names them by their number."""

    @classmethod
    def of(cls, agent: str, text: str) -> View:
        """Return the view of an agent that has observed only `text` and may answer with any text."""
        return cls(agent, {"text": text}, {"legal": None, "hears": (), "together": (), "state": text, "attempt": 0})


class MarkedPrompt(tuple[Message, ...]):
    """Messages, taken apart into texts and marks; a role that returns it again and again has that done once."""

    texts: tuple[Message, ...]
    """The messages without marks, and without lone surrogates, which no file and no tokenizer takes."""
    spans: tuple[tuple[Span, ...], ...]
    """The parts of each message that were made from earlier turns."""

    @classmethod
    def of(cls, messages: Iterable[Message]) -> MarkedPrompt:
        """Return messages as a prompt."""
        self = cls(messages)
        self.texts = tuple([Message(message.role, well_formed(plain(message.content))) for message in self])
        self.spans = tuple([spans_of(message.content) for message in self])
        return self


class Tool(Config):
    """A tool that a role may call, as its chat template describes it."""

    name: str
    """Name by which it is called."""
    description: str = ""
    """Purpose, in words that the model reads."""
    parameters: dict[str, Any] = Field(default_factory=lambda: {"type": "object", "properties": {}})
    """JSON schema of the arguments."""


class RoleConfig(Component):
    """Settings of a role: how it builds prompts and reads moves. It has no state, so it is its own working part."""

    example = "policy: actor"
    group: ClassVar[str] = "roles"
    answers_calls: ClassVar[bool] = False
    """True if its turns are answers to tool calls."""
    hears_thoughts: ClassVar[bool] = False
    """True if it hears all that others said, thoughts that they hide included, as a verifier must."""
    policy: str
    """Name of the policy that speaks for the role."""
    trainable: bool = True
    """Learn from the role's turns, if its policy has a learner."""
    sampling: Sampling = Sampling()
    """Settings by which its answers are sampled."""
    thinking: Literal["hide", "show"] = "hide"
    """Thoughts (`<think>`) in what it says: `hide` cuts them out of what others hear, and of what its own prompts
    repeat; `show` leaves them in. They are part of the answer and learned from either way."""
    history: Literal["fresh", "append"] = "fresh"
    """`fresh`: every prompt stands alone. `append`: it continues the agent's last turn, token for token."""
    tools: tuple[Tool, ...] = ()
    """Tools that it may call; a game with a seat that answers calls plays them."""

    @property
    def answer_schema(self) -> str:
        """Return the JSON schema that a whole answer must fit, as text; empty if it is any object, or no JSON."""
        return ""

    def for_reader(self, knows_language: bool) -> Self:
        """Return the role with the prompts that it has where a scenario gives none; a tiny model knows no language."""
        return self

    @abstractmethod
    def messages(self, view: View) -> tuple[Message, ...]:
        """Return the prompt."""

    def continues(self, view: View) -> tuple[int, ...]:
        """Return the token ids that the prompt continues; () if it stands alone."""
        return ()

    @abstractmethod
    def parse(self, text: str, legal: tuple[str, ...] | None) -> str | None:
        """Return the move in `text`; None if it names none of `legal` (None: any text is a move)."""

    @abstractmethod
    def phrase(self, move: str) -> str:
        """Return the canonical text for `move`: `parse(phrase(move), legal) == move`."""
