"""HTTP server on the loopback interface that answers the model calls of programs written elsewhere.

The server runs in a thread of its own. Each attempt of a program authenticates by a key of 128 random bits. Sizes,
nesting and numbers of connections are bounded, because programs may come from anybody.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any

import uvloop
from aiohttp import HttpVersion11, web
from aiohttp.http_exceptions import HttpProcessingError
from pydantic import BaseModel, Field, FiniteFloat

from marl.core.types import Completion, CompletionFailure, Ticket
from marl.gateway.anthropic import AnthropicRequest
from marl.gateway.bodies import (
    MIN_KNOWN_LENGTH,
    CachedRequestBody,
    decode_request_body,
    json_list_bounds,
    parse_request_body,
)
from marl.gateway.calls import AnswerShownToProgram, ApiError, Conversation, parse_request_fields
from marl.gateway.chat import ChatCompletionRequest, TextCompletionRequest
from marl.gateway.responses import ResponsesRequest
from marl.gateway.sending import ApiRequest, error_response, send_error, send_response, start_event_stream
from marl.gateway.sessions import Answer, AnsweringAgent, ModelCallFuture, ProgramSession
from marl.protocols import ProgramModelCall

MAX_BODY_BYTES = 16 << 20
"""Maximum size of a request's body, in bytes."""
MAX_CONNECTIONS = 4096
"""Maximum number of open connections. Further connections are closed at once."""
_HEADER_S = 20.0
"""Maximum time from the opening of a connection to its first complete request header, in seconds."""
_BODY_S = 30.0
"""Maximum time of receiving a request's body, in seconds."""
_COMMENT_S = 3.0
"""Time between two keep-alive comments while a client waits for a streamed answer, in seconds."""
_READ_BYTES = 1 << 20
"""Number of unread bytes of a connection beyond which reading pauses. Histories of long dialogues are below it."""
_MAX_ENDED_KEYS = 10_000
"""Number of ended attempts whose keys are remembered, so that late calls get another error than unknown keys."""
_KEYS_AT_ONCE = 256
"""Number of keys that are generated together."""


class _RewardReport(BaseModel):
    """JSON body of `PUT /v1/marl/rewards`, by which a program reports a reward of an agent."""

    agent: str = ""
    turn: str = ""
    """Id of a response that identifies the agent, as an alternative to `agent`."""
    name: str = Field(min_length=1, max_length=100)
    value: FiniteFloat = Field(ge=-1e6, le=1e6)
    key: str = Field(min_length=1, max_length=200)


def _is_not_about_malformed_http(record: logging.LogRecord) -> bool:
    """Return False for a log record about a request that is no HTTP, whose lines could hold a program's key."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError | web.RequestPayloadError)


_LOGGER = logging.getLogger("marl.gateway")
_LOGGER.addFilter(_is_not_about_malformed_http)


class _RefusedConnection(asyncio.Protocol):
    """Connection above `MAX_CONNECTIONS`, which is closed at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


class Gateway:
    """HTTP server for the model calls of programs. Each call is passed to `emit`, in the server's thread."""

    def __init__(self, emit: Callable[[ProgramModelCall], None]) -> None:
        self._emit = emit
        self._sessions: dict[str, ProgramSession] = {}
        """Key -> session of the attempt in progress."""
        self._ended: dict[str, ApiError] = {}
        """Key of an ended attempt -> error that later calls with this key get."""
        self.late_keys: set[str] = set()
        """Keys of ended attempts with which a call arrived after the end."""
        self.shared_keys: set[str] = set()
        """Keys of processes that work on several tasks: a call with such a key does not tell its task."""
        self._functions: deque[Callable[[], object]] = deque()
        """Functions of `call_soon` that the event loop does not have yet."""
        self._adding = threading.Lock()
        """Lock of adding to `_functions`: of two threads that add at once, none may see one function alone."""
        self._ids = count(1)
        self._silent: dict[Any, asyncio.TimerHandle] = {}
        """Connection without a complete request header so far -> timer that closes it."""
        self._last_calls: dict[Any, list[ModelCallFuture]] = {}
        """Connection -> calls of its last request, whose answers are sent."""
        # The event loop of asyncio itself takes more CPU time, which the run's own thread lacks.
        self._loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        started: Future[int] = Future()
        threading.Thread(target=self._run_event_loop, args=(started,), name="marl gateway", daemon=True).start()
        self.port = started.result(timeout=30)
        self.address = f"http://127.0.0.1:{self.port}"
        """URL of the server, without a path."""

    # --- methods called in any thread ----------------------------------------------------------------------------

    def answer_call(self, session: ProgramSession, call_id: int, answer: Completion | CompletionFailure) -> None:
        """Send `answer` to the client of call number `call_id` of `session`."""
        self.call_soon(partial(session.answer_call, call_id, answer))

    def call_soon(self, function: Callable[[], object]) -> None:
        """Call `function` in the server's thread, in the order of the calls to this method."""
        with self._adding:
            self._functions.append(function)
            is_first = len(self._functions) == 1
        # Waking the server costs more than passing a function, so functions that arrive together share it.
        if is_first:
            with suppress(RuntimeError):  # raised if the event loop is already closed, when Python exits
                self._loop.call_soon_threadsafe(self._pass_functions_to_event_loop)

    def close(self) -> None:
        """Stop the server, after the functions of `call_soon`."""
        self.call_soon(self._loop.stop)

    # --- methods called in the server's thread -------------------------------------------------------------------

    def begin_session(
        self, session_key: str, program_ticket: Ticket, callers: Mapping[str, AnsweringAgent]
    ) -> ProgramSession:
        """Accept calls with `session_key`, for an attempt to answer request `program_ticket`; return its session."""
        session = ProgramSession(program_ticket, callers, self._emit, self._ids)
        self._ended.pop(session_key, None)
        self._sessions[session_key] = session
        return session

    def end_session_and_list_undelivered_calls(self, session_key: str, *, is_timed_out: bool = False) -> list[int]:
        """End the attempt of `session_key` and return the ids of its undelivered calls.

        Later calls with the key are refused: with status 504 if `is_timed_out`, as the attempt exceeded its time, and
        with 409 otherwise.
        """
        session = self._sessions.pop(session_key, None)
        if session is None:
            return []
        if is_timed_out:
            error = ApiError(504, "the time of this program is over", may_retry=False)
        else:
            error = ApiError(409, "this program has ended", may_retry=False)
        self._ended[session_key] = error
        while len(self._ended) > _MAX_ENDED_KEYS:
            oldest_key = next(iter(self._ended))
            del self._ended[oldest_key]
            self.late_keys.discard(oldest_key)
        return session.end_with_error_and_list_undelivered_calls(error)

    def _pass_functions_to_event_loop(self) -> None:
        while self._functions:
            self._loop.call_soon(self._functions[0])
            # The last function stays in the queue until the loop has it, so that a new one does not wake the loop.
            self._functions.popleft()

    def _run_event_loop(self, port_future: Future[int]) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            try:
                port = runner.run(self._start_server_and_return_port())
            except OSError as error:
                port_future.set_exception(error)
                return
            port_future.set_result(port)
            self._loop.run_forever()

    async def _start_server_and_return_port(self) -> int:
        # The low-level server has no routes by patterns, middlewares and signals, which took a tenth of a call's time.
        # If a client disconnects, its call goes on: a repeated request with equal content takes over the answer.
        protocol_factory = web.Server(
            self._answer_request,
            handler_cancellation=False,
            access_log=None,
            keepalive_timeout=600,
            read_bufsize=_READ_BYTES,
            logger=_LOGGER,
        )

        def accept_connection() -> asyncio.Protocol:
            if len(protocol_factory.connections) >= MAX_CONNECTIONS:
                return _RefusedConnection()
            protocol = protocol_factory()
            self._silent[protocol] = self._loop.call_later(_HEADER_S, self._close_silent_connection, protocol)
            return protocol

        remove_connection = protocol_factory.connection_lost

        def close_connection(connection: Any, cause: BaseException | None = None) -> None:
            calls = self._last_calls.pop(connection, [])
            # A client resets a connection that it closes before it has read all data. An equal call may then ask again.
            for call in calls:
                call.may_be_unread = isinstance(cause, ConnectionResetError)
            remove_connection(connection, cause)

        protocol_factory.connection_lost = close_connection  # type: ignore[method-assign]
        server = await self._loop.create_server(accept_connection, "127.0.0.1", 0, backlog=1024, family=socket.AF_INET)
        self._server = server
        return int(server.sockets[0].getsockname()[1])

    def _close_silent_connection(self, connection: Any) -> None:
        del self._silent[connection]
        if connection.transport is not None:
            connection.transport.close()

    async def _answer_request(self, request: web.BaseRequest) -> web.StreamResponse:
        """Handle a request with the host and the key of this server. Errors become HTTP responses."""
        if timer := self._silent.pop(request.protocol, None):
            timer.cancel()
        self._last_calls.pop(request.protocol, None)
        try:
            if request.host not in (f"127.0.0.1:{self.port}", f"localhost:{self.port}"):
                raise ApiError(403, "this server answers programs on its own machine alone", may_retry=False)
            session = self._authenticated_session(request)
            path, agent = request.path, ""
            # The name of the agent may contain an encoded slash.
            if path.startswith("/agents/") and len(parts := request.rel_url.parts) > 3 and parts[2]:
                agent, path = parts[2], "/" + "/".join(parts[3:])
            method = "POST" if path in _APIS else _METHODS.get(path)
            if method is None:
                raise ApiError(404, f"no API at {request.path[:80]!r}", may_retry=False)
            if request.method != method and (request.method, method) != ("HEAD", "GET"):
                raise ApiError(405, f"{path} takes the method {method} alone", may_retry=False)
            if path in _APIS:
                return await self._answer_model_calls(request, session, _APIS[path], agent)
            return await (_record_reward(request, session, agent) if method == "PUT" else _list_models(session))
        except ApiError as error:
            return error_response(request, error)

    def _authenticated_session(self, request: web.BaseRequest) -> ProgramSession:
        """Return the session of the attempt whose key `request` bears.

        Raises:
            ApiError: if the key is unknown, belongs to an ended attempt, or to a process that works on several tasks.
        """
        key = request.headers.get("Authorization", "").removeprefix("Bearer ").strip()
        key = key or request.headers.get("x-api-key", "")
        if session := self._sessions.get(key):
            return session
        if key in self.shared_keys:
            message = "several tasks share this process: use task['api_key'] instead of the environment's key"
            raise ApiError(401, message, code="invalid_api_key", may_retry=False)
        if key in self._ended:
            self.late_keys.add(key)
        raise self._ended.get(key) or ApiError(401, "unknown key", code="invalid_api_key", may_retry=False)

    async def _answer_model_calls(
        self, request: web.BaseRequest, session: ProgramSession, request_class: type[ApiRequest], path_agent: str
    ) -> web.StreamResponse:
        """Answer the model calls of one request. `path_agent` is the agent in the request's path, or ""."""
        api = _parse_api_request(request_class, await _read_body(request), session)
        if path_agent:
            caller, recognised_by = session.agent_of_model_name(path_agent), "path"
        elif name := request.headers.get("X-Marl-Agent", ""):
            caller, recognised_by = session.agent_of_model_name(name), "header"
        else:
            caller, recognised_by = session.recognise_agent_and_criterion(api.call)

        # Not the request but its connection is kept, as the session would keep all its requests to its end.
        is_connected = partial(_is_open, request.protocol)
        calls: list[ModelCallFuture] = []
        for _ in range(api.call.choices):
            calls.append(session.open_or_resume_call(caller, api.call, is_connected, recognised_by))
        response = await _send_answers(request, session, api, calls)
        # Clients close streams before their end, which resets the connection, after the last event.
        if not api.call.stream:
            self._last_calls[request.protocol] = calls
        return response


async def _list_models(session: ProgramSession) -> web.Response:
    entries = [{"id": name, "object": "model", "created": 0, "owned_by": "marl"} for name in session.callers]
    return web.json_response({"object": "list", "data": entries, "has_more": False})


async def _record_reward(request: web.BaseRequest, session: ProgramSession, path_agent: str) -> web.Response:
    """Record the reward in the request's body, of `path_agent`, the agent in its path, if the body names none."""
    report: _RewardReport = parse_request_fields(
        _RewardReport, parse_request_body(decode_request_body(await _read_body(request)))
    )
    if report.turn:
        number = report.turn.rpartition("-")[2]
        agent = session.agents_of_calls.get(number)
        if agent is None:
            raise ApiError(404, f"no turn {report.turn[:80]!r} here", field="turn")
    else:
        agent = session.agent_of_model_name(report.agent or path_agent).agent
    is_new = session.record_reward_once(report.key, agent, report.name, report.value)
    return web.json_response({"object": "marl.reward", "agent": agent, "new": is_new})


async def _send_answers(
    request: web.BaseRequest, session: ProgramSession, api_request: ApiRequest, calls: list[ModelCallFuture]
) -> web.StreamResponse:
    """Wait for the answers to all `calls`, send the response with them, and mark the calls as delivered."""
    stream: web.StreamResponse | None = None
    try:
        while api_request.call.stream:
            _, waiting = await asyncio.wait([call.answer for call in calls], timeout=_COMMENT_S)
            if not waiting:
                break
            # The event stream starts here: the HTTP status is sent, so later errors are sent as events.
            stream = stream or await start_event_stream(request)
            await stream.write(b": waiting\n\n")
        for call in calls:
            # `result` below raises the error.
            with suppress(ApiError):
                await call.answer
        try:
            has_tools = bool(api_request.call.tools)
            answers = [_to_shown_answer(call.id, call.answer.result(), has_tools=has_tools) for call in calls]
        except ApiError as error:
            # The error of a failed call is an answer, too: its turn is recorded, as an overflow for example.
            response = await send_error(request, stream, error)
        else:
            if isinstance(api_request, ResponsesRequest):
                session.responses[api_request.response_id(answers)] = api_request.extended_conversation(answers)
            response = await send_response(request, stream, api_request, answers)
        if _is_open(request.protocol):
            for call in calls:
                call.delivered = True
        return response
    except ConnectionError:
        # The client has disconnected. A repeated request with equal content takes over the answers.
        return stream or web.Response(status=499)


def _is_open(connection: web.RequestHandler) -> bool:
    return connection.transport is not None and not connection.transport.is_closing()


def _to_shown_answer(call_id: int, answer: Answer, *, has_tools: bool) -> AnswerShownToProgram:
    """Return `answer` to call `call_id`, which declared tools or not (`has_tools`), as the program reads it.

    Raises:
        ApiError: if the call failed.
    """
    if isinstance(answer, Completion) and answer.finish not in ("overflow", "aborted"):
        return AnswerShownToProgram.from_completion(call_id, answer, has_tools=has_tools)
    if answer.finish == "overflow":
        raise ApiError(400, answer.reason, field="messages", code="context_length_exceeded", may_retry=False)
    raise ApiError(400, answer.reason or "no answer", may_retry=False)


async def _read_body(request: web.BaseRequest) -> bytes:
    """Return the body of a request.

    Raises:
        ApiError: if the body is too large or too slow or cut off, or not encoded as the headers say.
    """
    chunks: list[bytes] = []
    size = 0
    try:
        if request.content.is_eof():
            return request.content.read_nowait()
        if request.headers.get("Expect", "").lower() == "100-continue" and request.version >= HttpVersion11:
            # Clients such as curl wait for this line before they send a long body.
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            request.writer.output_size = 0
        async with asyncio.timeout(_BODY_S):
            # `request.read` would copy the history of a long dialogue three times.
            while chunk := await request.content.readany():
                chunks.append(chunk)
                size += len(chunk)
                if size > MAX_BODY_BYTES:
                    raise ApiError(413, f"the body is larger than {MAX_BODY_BYTES:,} bytes", may_retry=False)
    except TimeoutError as error:
        raise ApiError(408, f"the body did not arrive within {_BODY_S:g} s", may_retry=False) from error
    except web.RequestPayloadError as error:
        raise ApiError(400, "the body is not encoded as its headers say", may_retry=False) from error
    except ConnectionError as error:
        raise ApiError(499, "the client has disconnected", may_retry=False) from error
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _parse_api_request(request_class: type[ApiRequest], body: bytes, session: ProgramSession) -> ApiRequest:
    """Return the call in a request's body. Messages that an earlier body began with are not parsed again.

    Raises:
        ApiError: naming a wrong field.
    """
    api_name = request_class.__name__
    found = session.bodies.find_cached_body_continued_by(api_name, body)
    if found and not _continues_response(found[1]):
        known, remainder = found
        # On an error the full body is parsed below: in the remainder, error messages would have wrong indices.
        with suppress(ApiError):
            text, conversation = decode_request_body(remainder), known.conversation.copy()
            api = _build_api_request(request_class, parse_request_body(text), conversation, session)
            if bounds := json_list_bounds(text, api.list_field):
                end = len(body) - len(text[bounds[1] :].encode())
                session.bodies.store(CachedRequestBody(api_name, body[:end], known.begin, conversation), known)
            return api
    text, conversation = decode_request_body(body), Conversation()
    api = _build_api_request(request_class, parse_request_body(text), conversation, session)
    is_kept = len(body) >= MIN_KNOWN_LENGTH and not _continues_response(body)
    if is_kept and (bounds := json_list_bounds(text, api.list_field)):
        begin, end = len(text[: bounds[0]].encode()), len(text[: bounds[1]].encode())
        session.bodies.store(CachedRequestBody(api_name, body[:end], begin, conversation), None)
    return api


def _continues_response(body: bytes) -> bool:
    """Return True if `body` may name an earlier response, whose messages then begin its conversation."""
    return b"previous_response_id" in body


def _build_api_request(
    request_class: type[ApiRequest], body_fields: dict[str, Any], conversation: Conversation, session: ProgramSession
) -> ApiRequest:
    if issubclass(request_class, ResponsesRequest):
        return request_class(body_fields, conversation, session.responses)
    return request_class(body_fields, conversation)


def generate_session_keys() -> Iterator[str]:
    """Yield new keys of 128 random bits, which are never written to disk."""
    while True:
        # Random bits for many keys at once: each call lets go of the interpreter's lock and then waits for it.
        digits = secrets.token_hex(16 * _KEYS_AT_ONCE)
        for begin in range(0, len(digits), 32):
            yield f"marl-{digits[begin : begin + 32]}"


_METHODS = {"/v1/models": "GET", "/v1/marl/rewards": "PUT"}
"""Path -> the HTTP method that it takes; the paths of `_APIS` take POST."""
_APIS: dict[str, type[ApiRequest]] = {
    "/v1/chat/completions": ChatCompletionRequest,
    "/v1/completions": TextCompletionRequest,
    "/v1/responses": ResponsesRequest,
    "/v1/messages": AnthropicRequest,
}
