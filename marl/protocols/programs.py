"""Protocol of engines that run programs. A program calls models while the request to the program itself is open."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from marl.core.config import Sampling
from marl.core.fast_records import fast_record
from marl.core.types import Completion, CompletionFailure, Message, Ticket
from marl.protocols.engines import WeightlessEngine


@fast_record
@dataclass(frozen=True, slots=True)
class ProgramModelCall:
    """Model call of a program, which an engine raises while the program's own request is open."""

    id: int
    """Identifier of the call, unique in its engine."""
    parent: Ticket
    """Ticket of the open request whose program made the call."""
    agent: str
    """Agent of the game that the program asks."""
    messages: Sequence[Message]
    """Full conversation as the program sent it."""
    sampling: Sampling = field(default_factory=Sampling)
    """Sampling settings that the program asked for."""
    tools: tuple[str, ...] = ()
    """JSON schemas (as in OpenAI's `tools`) of the tools that the program declared."""
    answer_schema: str | None = None
    """JSON schema of the answer that the program asked for; "" for any JSON object, None for a text."""
    tool_sources: tuple[tuple[int, int], ...] = ()
    """(index of a message, id of an earlier call), for each message with the result of a tool call in that call's
    answer."""
    recognised_by: str = ""
    """Field of the request by which the agent was recognised: `path`, `header`, `model`, `match`, or `only agent`."""


@dataclass(frozen=True, slots=True)
class IneffectiveCallsNotice:
    """Notice that answers to earlier calls had no effect, because their program starts again or did not take them."""

    parent: Ticket
    """Ticket of the open request whose program made the calls."""
    calls: tuple[int, ...] | None = None
    """Identifiers of the calls, or None for all earlier calls of the program."""


ProgramAttemptEnd = Literal["ended", "failed", "killed", "late", "cancelled"]
"""End of an attempt: an answer, an error of the program, the death of its process, the time limit, or the end of its
episode."""


class ProgramAttemptCounts(NamedTuple):
    """Number of an engine's attempts to run programs so far, and the attempts in progress."""

    attempts: int
    """Number of attempts that have begun."""
    repeated: int
    """Number of attempts that have begun after an earlier attempt of the same request was lost."""
    running: int
    """Number of attempts in progress."""
    since: float
    """Time at which the oldest attempt in progress began, or the present time if there is none, in s since 1970."""
    ends: Mapping[ProgramAttemptEnd, int] = MappingProxyType({})
    """End -> number of attempts that ended so."""

    def describe(self, diverged: int) -> str:
        """Return the counts in words. `diverged` is the number of forks whose program made other calls than before."""
        counts: dict[str, int] = {"attempts started": self.attempts, **self.ends, "diverged": diverged}
        return ", ".join([f"{count} {end}" for end, count in counts.items() if count or end == "attempts started"])


class ModelCallingEngine(WeightlessEngine):
    """Base class of engines whose programs call models. An open request may therefore wait for other requests."""

    @abstractmethod
    def take_model_calls_and_notices(self) -> list[ProgramModelCall | IneffectiveCallsNotice]:
        """Return calls and notices since the last call of this method, in order, each before its parent's answer."""

    @abstractmethod
    def is_computing(self) -> bool:
        """Return True while a running program has no open call, so that its next call or its answer is to come."""

    @abstractmethod
    def program_attempt_counts(self) -> ProgramAttemptCounts:
        """Return the attempts so far. Any thread may call this method."""

    @abstractmethod
    def deliver_model_call_answer(self, call_id: int, answer: Completion | CompletionFailure) -> None:
        """Give the program the answer to its call with the id `call_id`. Answers to void calls are ignored."""


class ProgramCallerResult(BaseModel):
    """Result of one caller in a program's answer."""

    model_config = ConfigDict(frozen=True)

    text: str = ""
    """Text of the caller's last answer."""
    move: str = ""
    """Move parsed from `text`; "" if the text has none."""
    calls: int = 0
    """Number of the caller's turns."""
    reported: dict[str, FiniteFloat] = Field(default_factory=dict)
    """Rewards that the program reported for the caller, by name."""


class ProgramAnswer(BaseModel):
    """Answer of a program. As JSON text, the answer is the move of the agent that runs the program."""

    model_config = ConfigDict(frozen=True)

    answer: str
    failed: bool = False
    """True if the program raised an exception or exited with an error."""
    why: str = ""
    """Error message of a failed program."""
    callers: dict[str, ProgramCallerResult] = Field(default_factory=dict)
    """Agent -> result of this caller."""

    def to_canonical_json(self) -> str:
        """Return the answer as canonical JSON, without fields that have their default."""
        return json.dumps(self.model_dump(mode="json", exclude_defaults=True), sort_keys=True)


def parse_program_answer(text: str) -> ProgramAnswer | None:
    """Return the program's answer in the JSON `text`, or None if `text` is no such JSON."""
    try:
        return ProgramAnswer.model_validate_json(text)
    except ValidationError:
        return None


def encode_program_state(task: Mapping[str, Any], callers: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the information state of a program's agent as JSON.

    Args:
        task: facts that the program gets.
        callers: name that the program uses -> `{"agent": ..., "match": {...}}`.
    """
    return json.dumps({"task": task, "callers": callers}, sort_keys=True)
