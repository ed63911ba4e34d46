"""Protocol of roles, which turn observations into prompts and completions into moves."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

from pydantic import Field

from marl.core.config import Config, PluginConfig, Sampling
from marl.core.types import Info, Message, Observation, Turn
from marl.host.outside import replace_surrogates
from marl.text.origins import Span, spans_of, without_origins


@dataclass(frozen=True, slots=True)
class PromptContext:
    """Observation, facts and turns from which a role builds a prompt.

    During play, texts and moves of turns are marked (`marl.text.origins.MarkedText`). Templates, `+` and
    `marl.text.origins.join_texts` keep the marks, so the prompt knows its source turns. If a role uses a marked text in
    another way, such as a comparison or an f-string, its entire prompt counts as made from that text.
    """

    agent: str
    observation: Observation
    info: Info
    own_turns: Sequence[Turn] = ()
    """Earlier turns of the agent."""
    new_turns: Sequence[Turn] = ()
    """Readable turns of other agents since the agent's last turn."""
    read_turns: Sequence[Turn] = ()
    """Readable turns of other agents before the agent's last turn."""
    turns: Sequence[Turn] = ()
    """All turns of the episode, to which a marked observation refers by index."""

    @classmethod
    def of(cls, agent: str, text: str) -> PromptContext:
        """Return the context of an agent that has observed only `text` and may answer with any text."""
        return cls(agent, {"text": text}, {"legal": None, "hears": (), "together": (), "state": text, "attempt": 0})


class MarkedPrompt(tuple[Message, ...]):
    """Messages of a prompt, with plain texts and marks computed once, so that a role can return the prompt many
    times."""

    texts: tuple[Message, ...]
    """Messages without marks, and without lone surrogates, which can neither be written to files nor tokenised."""
    spans: tuple[tuple[Span, ...], ...]
    """Spans of each message that were made from earlier turns."""

    @classmethod
    def of(cls, messages: Iterable[Message]) -> MarkedPrompt:
        """Return a prompt of `messages`."""
        prompt = cls(messages)
        prompt.texts = tuple(
            [Message(message.role, replace_surrogates(without_origins(message.content))) for message in prompt]
        )
        prompt.spans = tuple([spans_of(message.content) for message in prompt])
        return prompt


class Tool(Config):
    """Tool that a role may call, as a chat template describes it to the model."""

    name: str
    """Name of the tool in calls."""
    description: str = ""
    """Purpose of the tool, for the model."""
    parameters: dict[str, Any] = Field(default_factory=lambda: {"type": "object", "properties": {}})
    """JSON schema of the arguments."""


class RoleConfig(PluginConfig):
    """Settings of a role: prompts, sampling and parsing of moves. Roles have no state, so the settings are the role."""

    example = "policy: actor"
    group: ClassVar[str] = "roles"
    answers_calls: ClassVar[bool] = False
    """True if the role's turns are results of tool calls."""
    hears_thoughts: ClassVar[bool] = False
    """True if the role reads other agents' completions with their hidden thoughts, as a verifier must."""
    policy: str
    """Name of the policy that generates the role's completions."""
    trainable: bool = True
    """Train on the role's turns, if its policy has a learner."""
    sampling: Sampling = Sampling()
    """Sampling settings of the role's completions."""
    thinking: Literal["hide", "show"] = "hide"
    """Visibility of thoughts (`<think>`) in completions. `hide` removes them from other agents' prompts and from the
    agent's own later prompts; `show` leaves them in. Thoughts are trained on in both cases."""
    history: Literal["fresh", "append"] = "fresh"
    """`fresh`: every prompt is built anew. `append`: a prompt continues the tokens of the agent's last turn."""
    tools: tuple[Tool, ...] = ()
    """Tools that the role may call, in a game with a seat that answers calls."""

    @property
    def answer_schema(self) -> str:
        """Return the JSON schema of a valid answer as text; empty if any object is valid, or answers are no JSON."""
        return ""

    def with_default_prompts(self, knows_language: bool) -> Self:
        """Return the role with default prompts filled in. `knows_language` is False for a tiny model."""
        return self

    @abstractmethod
    def messages(self, view: PromptContext) -> tuple[Message, ...]:
        """Return the messages of the prompt."""

    def continues(self, view: PromptContext) -> tuple[int, ...]:
        """Return the token ids (prompt and completion of an earlier turn) that the prompt continues; () if none."""
        return ()

    @abstractmethod
    def parse(self, text: str, legal: tuple[str, ...] | None) -> str | None:
        """Return the move in `text`, or None if `text` names no move in `legal`. If `legal` is None, any text is a
        move."""

    @abstractmethod
    def phrase(self, move: str) -> str:
        """Return the canonical text for `move`, with `parse(phrase(move), legal) == move`."""
