"""The model that an environment of `verifiers` asks: a seat at a game."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from verifiers.legacy.clients import Client
from verifiers.legacy.types import Response, ResponseMessage, ToolCall

from games.wrappers.calls import read_call


@dataclass(frozen=True, slots=True)
class Question:
    """A request for a completion."""

    messages: Sequence[Any]
    tools: Sequence[Any]
    answer: asyncio.Future[str]


class SeatClient(Client[None, Any, Any, Any]):
    """A client without an endpoint: it keeps questions until somebody answers them."""

    def __init__(self) -> None:
        super().__init__(None)
        self._questions: deque[Question] = deque()
        self._news = asyncio.Event()

    @property
    def question(self) -> Question | None:
        """The oldest question without an answer."""
        return self._questions[0] if self._questions else None

    async def wait(self) -> None:
        """Return as soon as there is a question."""
        await self._news.wait()

    def answer(self, text: str) -> None:
        """Answer the oldest question."""
        self._questions.popleft().answer.set_result(text)
        if not self._questions:
            self._news.clear()

    def forget(self) -> None:
        """Leave all questions unanswered."""
        self._questions.clear()
        self._news.clear()

    def setup_client(self, config: Any) -> None:
        """Do nothing: there is nothing to connect to."""

    async def to_native_tool(self, tool: Any) -> Any:
        return tool

    async def to_native_prompt(self, messages: Any) -> tuple[Any, dict[str, Any]]:
        return messages, {}

    async def get_native_response(
        self, prompt: Any, model: str, sampling_args: Any, tools: list[Any] | None = None, **kwargs: Any
    ) -> Any:
        question = Question(prompt, tools or (), asyncio.get_running_loop().create_future())
        self._questions.append(question)
        self._news.set()
        return await question.answer, [tool.name for tool in question.tools]

    async def raise_from_native_response(self, response: Any) -> None:
        """Do nothing: any text is an answer."""

    async def from_native_response(self, response: Any) -> Response:
        text, tools = response
        call = read_call(text, tools)
        calls = [ToolCall(id="call", name=call[0], arguments=json.dumps(call[1]))] if call else None
        finish = "tool_calls" if calls else "stop"
        message = ResponseMessage(content=text, tool_calls=calls, finish_reason=finish, is_truncated=False)
        return Response(id="", created=0, model="policy", message=message)

    async def close(self) -> None:
        self.forget()
