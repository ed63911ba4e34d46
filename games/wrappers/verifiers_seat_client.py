"""Client through which an environment of `verifiers` gets the answers of a game's seat instead of a model's."""

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
    """Request of the environment for a completion, with the future for its answer."""

    messages: Sequence[Any]
    tools: Sequence[Any]
    answer: asyncio.Future[str]


class SeatClient(Client[None, Any, Any, Any]):
    """Client without an endpoint that queues requests until the game answers them."""

    def __init__(self) -> None:
        super().__init__(None)
        self._requests: deque[CompletionRequest] = deque()
        self._news = asyncio.Event()

    @property
    def pending_request(self) -> CompletionRequest | None:
        """Oldest request without an answer, or None."""
        return self._requests[0] if self._requests else None

    async def wait(self) -> None:
        """Wait until there is a request."""
        await self._news.wait()

    def answer(self, text: str) -> None:
        """Answer the oldest request with `text`."""
        self._requests.popleft().answer.set_result(text)
        if not self._requests:
            self._news.clear()

    def drop_requests(self) -> None:
        """Discard all requests without an answer."""
        self._requests.clear()
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
        request = CompletionRequest(prompt, tools or (), asyncio.get_running_loop().create_future())
        self._requests.append(request)
        self._news.set()
        return await request.answer, [tool.name for tool in request.tools]

    async def raise_from_native_response(self, response: Any) -> None:
        """Do nothing: any text is an answer."""

    async def from_native_response(self, response: Any) -> Response:
        text, tools = response
        call = parse_tool_call(text, tools)
        calls = [ToolCall(id="call", name=call[0], arguments=json.dumps(call[1]))] if call else None
        finish = "tool_calls" if calls else "stop"
        message = ResponseMessage(content=text, tool_calls=calls, finish_reason=finish, is_truncated=False)
        return Response(id="", created=0, model="policy", message=message)

    async def close(self) -> None:
        self.drop_requests()
