"""Sessions of the gateway, one for each attempt of a program. All methods run in the thread of the event loop."""

from __future__ import annotations

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import count
from typing import NamedTuple

from marl.core.types import Completion, CompletionFailure, Ticket
from marl.gateway.bodies import RequestBodyCache
from marl.gateway.calls import ApiError, Conversation, ModelCall
from marl.protocols import ProgramModelCall

Answer = Completion | CompletionFailure
IsConnectedFunction = Callable[[], bool]
"""Function that returns True while the client of a call is connected."""
MAX_OPEN_CALLS = 1024
"""Maximum number of open calls of one session."""
_MAX_REWARDS = 10_000
"""Maximum number of rewards reported in one session."""


class AnsweringAgent(NamedTuple):
    """Agent that answers a program's model calls (a "caller"), and the patterns that recognise these calls."""

    agent: str
    match: Mapping[str, str]
    """Field of a call (`system` or `model`) -> wildcard pattern that the field of this agent's calls matches."""


@dataclass(slots=True, eq=False)
class ModelCallFuture:
    """Model call of a program, with its future answer and the client that waits for it."""

    id: int
    answer: asyncio.Future[Answer]
    is_connected: IsConnectedFunction
    delivered: bool = False
    """True after the full answer was sent to the client."""
    may_be_unread: bool = False
    """True if the client then reset the connection, which may have lost the answer."""


@dataclass(slots=True, eq=False)
class ProgramSession:
    """Model calls, rewards and conversations of one attempt of a program."""

    parent: Ticket
    callers: Mapping[str, AnsweringAgent]
    """Model name in the program's calls -> agent that answers these calls."""
    emit: Callable[[ProgramModelCall], None]
    """Function that passes a new call to the engine."""
    ids: count[int]
    """Counter of call ids, shared by all sessions of a gateway."""
    end: ApiError | None = None
    """Error that later calls get after the end of the attempt, or None before its end."""
    calls: dict[int, ModelCallFuture] = field(default_factory=dict[int, ModelCallFuture])
    responses: dict[str, Conversation] = field(default_factory=dict[str, Conversation])
    """Id of a response -> conversation up to this response, for `previous_response_id`."""
    bodies: RequestBodyCache = field(default_factory=RequestBodyCache)
    agents_of_calls: dict[str, str] = field(default_factory=dict[str, str])
    """Hexadecimal id of a call, as at the end of response ids -> agent that answered the call."""
    rewards: dict[str, tuple[str, str, float]] = field(default_factory=dict[str, tuple[str, str, float]])
    """Key of a reward report -> (agent, name of the reward, value)."""
    _equal_calls: dict[Hashable, list[ModelCallFuture]] = field(
        default_factory=lambda: defaultdict(list[ModelCallFuture])
    )
    _open: int = 0
    """Number of calls without an answer."""
    _waiting_since: float = math.inf
    """Monotonic time since which calls have been open without a break; infinity without open calls."""
    _waited_s: float = 0.0

    def recognise_agent_and_criterion(self, call: ModelCall) -> tuple[AnsweringAgent, str]:
        """Return the agent that `call` fits, and by what it was recognised: `model`, `match` or `only agent`.

        Raises:
            ApiError: if no agent fits.
        """
        model = call.model.rpartition("/")[2]
        if model in self.callers:
            return self.callers[model], "model"
        for caller in self.callers.values():
            if caller.match and _fits(call, caller.match):
                return caller, "match"
        if len(self.callers) == 1:
            return next(iter(self.callers.values())), "only agent"
        raise self._unknown_agent_error(call.model)

    def agent_of_model_name(self, model_name: str) -> AnsweringAgent:
        """Return the agent that answers calls under `model_name`.

        Raises:
            ApiError: if there is no such agent; lists the known names.
        """
        if model_name in self.callers:
            return self.callers[model_name]
        raise self._unknown_agent_error(model_name)

    def _unknown_agent_error(self, model_name: str) -> ApiError:
        names = ", ".join(self.callers) or "none"
        return ApiError(
            404, f"no agent {model_name[:80]!r} here; agents: {names}", field="model", code="model_not_found"
        )

    def open_or_resume_call(
        self, answering_agent: AnsweringAgent, call: ModelCall, is_connected: IsConnectedFunction, recognised_by: str
    ) -> ModelCallFuture:
        """Return a new open call, or the equal earlier call of a client that may not have read the answer."""
        if self.end is not None:
            raise self.end
        equal = self._equal_calls[answering_agent.agent, call.equality_key]
        for earlier in equal:
            if (not earlier.delivered or earlier.may_be_unread) and not earlier.is_connected():
                earlier.is_connected, earlier.may_be_unread = is_connected, False
                return earlier
        if self._open >= MAX_OPEN_CALLS:
            raise ApiError(429, f"more than {MAX_OPEN_CALLS} open calls of one program")
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        opened = ModelCallFuture(next(self.ids), future, is_connected)
        equal.append(opened)
        self.calls[opened.id] = opened
        self.agents_of_calls[f"{opened.id:x}"] = answering_agent.agent
        self._open += 1
        self._waiting_since = min(self._waiting_since, time.monotonic())
        self.emit(
            ProgramModelCall(
                id=opened.id,
                parent=self.parent,
                agent=answering_agent.agent,
                messages=call.messages,
                sampling=call.sampling,
                tools=call.tools,
                answer_schema=call.answer_schema,
                tool_sources=call.tool_sources,
                recognised_by=recognised_by,
            )
        )
        return opened

    def answer_call(self, call_id: int, answer: Answer) -> None:
        """Set the answer to call `call_id`. Answers to unknown or ended calls are ignored."""
        call = self.calls.get(call_id)
        if call and not call.answer.done():
            call.answer.set_result(answer)
            self._open -= 1
            if not self._open:
                self._waited_s = self.total_open_call_s
                self._waiting_since = math.inf

    @property
    def total_open_call_s(self) -> float:
        """Total time during which calls were open, in seconds."""
        return self._waited_s + max(0.0, time.monotonic() - self._waiting_since)

    def record_reward_once(self, report_key: str, agent: str, reward_name: str, value: float) -> bool:
        """Record a reward of `agent`. Return False, and record nothing, if `report_key` was reported before."""
        if report_key in self.rewards:
            return False
        if len(self.rewards) >= _MAX_REWARDS:
            raise ApiError(429, f"more than {_MAX_REWARDS} rewards of one program")
        self.rewards[report_key] = (agent, reward_name, value)
        return True

    def end_with_error_and_list_undelivered_calls(self, error: ApiError) -> list[int]:
        """End the session: open and later calls get `error`. Return the ids of calls without a delivered answer."""
        self.end = error
        for call in self.calls.values():
            if not call.answer.done():
                call.answer.set_exception(error)
                # `exception()` marks the error as retrieved: asyncio would complain if the client is gone.
                call.answer.exception()
        return [call.id for call in self.calls.values() if not call.delivered]


def _fits(call: ModelCall, match: Mapping[str, str]) -> bool:
    """Return True if the system message and the model of `call` fit the patterns in `match`."""
    system = next((message.content for message in call.messages if message.role == "system"), "")
    texts = {"system": system, "model": call.model}
    return all(fnmatchcase(texts[key], pattern) for key, pattern in match.items())
