"""Client for environments of the package `verifiers` that returns a game seat's answers instead of a model's."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from verifiers.legacy.clients import Client
from verifiers.legacy.types import Response, ResponseMessage, ToolCall

from marl.games.wrappers.chat_text import parse_tool_call


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """Request of an environment for a completion, with the future that receives the answer."""

    messages: Sequence[Any]
    tools: Sequence[Any]
    answer: asyncio.Future[str]


class QueueingSeatClient(Client[None, Any, Any, Any]):
    """Client without an endpoint that queues requests until the game answers them."""

    def __init__(self) -> None:
        super().__init__(None)
        # Requests without an answer, oldest first, and an event that is set while there is at least one.
        self.requests: deque[CompletionRequest] = deque()
        self.has_request = asyncio.Event()

    def answer_request(self, answer_text: str) -> None:
        """Answer the oldest request with `answer_text`."""
        self.requests.popleft().answer.set_result(answer_text)
        if not self.requests:
            self.has_request.clear()

    def drop_unanswered_requests(self) -> None:
        """Discard all requests without an answer."""
        self.requests.clear()
        self.has_request.clear()

    def setup_client(self, config: Any) -> None:
        """Do nothing, because there is no endpoint to connect to."""

    async def to_native_tool(self, tool: Any) -> Any:
        return tool

    async def to_native_prompt(self, messages: Any) -> tuple[Any, dict[str, Any]]:
        return messages, {}

    async def get_native_response(
        self, prompt: Any, model: str, sampling_args: Any, tools: list[Any] | None = None, **kwargs: Any
    ) -> Any:
        request = CompletionRequest(prompt, tools or (), asyncio.get_running_loop().create_future())
        self.requests.append(request)
        self.has_request.set()
        return await request.answer, [tool.name for tool in request.tools]

    async def raise_from_native_response(self, response: Any) -> None:
        """Do nothing, because any text of the seat is a valid response."""

    async def from_native_response(self, response: Any) -> Response:
        text, tools = response
        call = parse_tool_call(text, tools)
        calls = [ToolCall(id="call", name=call[0], arguments=json.dumps(call[1]))] if call else None
        finish = "tool_calls" if calls else "stop"
        message = ResponseMessage(content=text, tool_calls=calls, finish_reason=finish, is_truncated=False)
        return Response(id="", created=0, model="policy", message=message)

    async def close(self) -> None:
        self.drop_unanswered_requests()
