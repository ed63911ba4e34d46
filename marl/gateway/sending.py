"""Responses of the gateway: answers and errors, sent at once or as a stream of events."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from aiohttp import web

from marl.gateway.anthropic import AnthropicRequest
from marl.gateway.calls import AnswerShownToProgram, ApiError
from marl.gateway.chat import ChatCompletionRequest, TextCompletionRequest
from marl.gateway.responses import ResponsesRequest

ApiRequest = ChatCompletionRequest | TextCompletionRequest | ResponsesRequest | AnthropicRequest
"""Request to one of the supported APIs."""


async def send_response(
    request: web.BaseRequest,
    stream: web.StreamResponse | None,
    api_request: ApiRequest,
    answers: Sequence[AnswerShownToProgram],
) -> web.StreamResponse:
    """Send `answers`. `stream`: event stream that has begun, or None."""
    if api_request.call.stream:
        stream = stream or await start_event_stream(request)
        await stream.write(b"".join(_encode_event(name, data) for name, data in api_request.stream_events(answers)))
        await stream.write_eof()
        return stream
    return await _send_at_once(request, web.json_response(api_request.response_body(answers)))


async def send_error(
    request: web.BaseRequest, stream: web.StreamResponse | None, error: ApiError
) -> web.StreamResponse:
    """Send `error`, as the last event of `stream` if this event stream has begun."""
    if stream is None:
        return await _send_at_once(request, error_response(request, error))
    await stream.write(_encode_event("error", {"error": _error_fields(error)}))
    await stream.write_eof()
    return stream


async def _send_at_once(request: web.BaseRequest, response: web.Response) -> web.Response:
    await response.prepare(request)
    await response.write_eof()
    return response


async def start_event_stream(request: web.BaseRequest) -> web.StreamResponse:
    """Send the head of a response that is a stream of events, and return the response."""
    stream = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await stream.prepare(request)
    return stream


def _encode_event(event_name: str, data: Any) -> bytes:
    line = data if isinstance(data, str) else json.dumps(data)
    return f"event: {event_name}\ndata: {line}\n\n".encode() if event_name else f"data: {line}\n\n".encode()


def _error_fields(error: ApiError) -> dict[str, Any]:
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    return {"message": error.message, "type": kind, "param": error.field or None, "code": error.code or None}


def error_response(request: web.BaseRequest, error: ApiError) -> web.Response:
    """Return the response that reports `error`, which is not sent yet."""
    headers = {} if error.may_retry else {"x-should-retry": "false"}
    body = {"type": "error", "error": _error_fields(error)}
    response = web.json_response(body, status=error.status, headers=headers)
    if not request.content.is_eof():
        # The rest of the body is left unread, so the connection cannot be used for another request.
        response.force_close()
    return response
