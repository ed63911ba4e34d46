"""Processes of programs. Each is the leader of a process group, which is killed with all its processes.

All functions are called in the thread of the gateway's event loop, except `ProgramProcess.kill`, `ProgramProcess.reap`
and `_report_exit_code`.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from io import FileIO
from itertools import count
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from marl.core.errors import EngineError
from marl.gateway import attach
from marl.host.untrusted_text import parse_json
from marl.protocols.programs import ProgramAttemptEnd

if TYPE_CHECKING:
    # Imported for type checkers only: `settings` imports this module, so a second import would be circular.
    from marl.engines.program.settings import Program

_MAX_ERROR_BYTES = 1 << 16
"""Number of last bytes of a program's standard error that are kept."""
_MAX_REPLY_BYTES = 1 << 24
"""Maximum size of a `call` process's reply, and number of last bytes of a `run` command's output that are kept."""
_START_S = 120.0
"""Maximum time in which a `call` process imports its module, in seconds."""
_EXIT_S = 1.0
"""Maximum time between the end of a process's output and its exit, in seconds, and the other way round."""
_REMOVED_VARIABLES = ("ANTHROPIC_AUTH_TOKEN", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID")
"""Environment variables that are removed, because they would change how API clients authenticate."""
Reply = dict[str, Any]
"""Reply of a program to a task: `{"result": ...}` or `{"failed": message}`."""


class ProgramAttemptError(Exception):
    """An attempt is lost: its process was killed, ended without an answer or was too late, or it was cancelled.

    Another attempt may succeed.
    """

    def __init__(self, message: str, end: ProgramAttemptEnd = "killed") -> None:
        """`end` is the kind of the loss, under which the attempt is counted."""
        super().__init__(message)
        self.end: ProgramAttemptEnd = end


class ProgramProcess:
    """Process of a program, for one task with `run`, and for many in `tasks_per_worker` threads with `call`."""

    def __init__(self, settings: Program, address: str, key: str) -> None:
        """Start the process with the gateway's `address` and API `key` in its environment. Then await `connect`."""
        self.key = key
        self._is_shared = settings.tasks_per_worker > 1
        """True if several tasks may run in the process at once. If it ends, nobody knows which task ended it."""
        self._numbers = count(1)
        """Numbers of the next tasks."""
        self._end: asyncio.Task[Reply] | None = None
        """`_wait_for_end` as an asyncio task, or None before `connect`."""
        self._replies: dict[int, asyncio.Future[Reply]] = {}
        """Number of an unanswered task -> its future reply. The report of the import has the number 0."""
        self._is_ready = self._future_reply(0) if settings.call else None
        """Future report of the import of a `call` process's module."""
        self._popen = _start(settings, address, key)
        self._exit_code: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """Exit code of the process, or the negative number of the signal that killed it."""
        # The thread starts with the process, so that no process stays as a zombie even if `connect` is cancelled.
        threading.Thread(target=_report_exit_code, args=(self._popen, self._exit_code), daemon=True).start()
        self._errors = _OutputTail(_MAX_ERROR_BYTES)
        self._output = _ReplyReader(self._set_reply) if settings.call else _OutputTail(_MAX_REPLY_BYTES)
        self._stdin: asyncio.WriteTransport | None = None
        self._is_killed = False

    async def connect(self) -> None:
        """Connect the pipes of the process to the running event loop, which must be uvloop's."""
        loop = asyncio.get_running_loop()
        self._stdin, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, _without_closing(self._popen.stdin))
        await loop.connect_read_pipe(lambda: self._output, _without_closing(self._popen.stdout))
        await loop.connect_read_pipe(lambda: self._errors, _without_closing(self._popen.stderr))
        self._end = loop.create_task(self._wait_for_end())
        self._end.add_done_callback(self._kill_descendants_and_end_unanswered_tasks)

    async def wait_until_ready(self) -> None:
        """Wait until a `call` process has imported its module.

        Raises:
            EngineError: if the function cannot be imported.
            ProgramAttemptError: if the process was killed, or has not imported its module within `_START_S`.
        """
        assert self._is_ready is not None
        try:
            async with asyncio.timeout(_START_S):
                reply = await self._is_ready
        except TimeoutError as error:
            raise ProgramAttemptError(f"it did not import its module within {_START_S:g} s", "late") from error
        if message := reply.get("setup") or reply.get("failed"):
            raise EngineError(f"engine.call: {message}")

    def send_task(self, task: Any) -> asyncio.Future[Reply]:
        """Write `task` as a line of JSON to the program's standard input, and return its future reply.

        The reply raises `ProgramAttemptError` if the process ends by a signal or without an answer.
        """
        assert self._stdin is not None
        number = next(self._numbers)
        reply = self._future_reply(number)
        is_only_task = isinstance(self._output, _OutputTail)
        line = json.dumps(task if is_only_task else {"id": number, "task": task})
        # If the process is about to end, the pipe may be closed. Then `_end_unanswered_tasks` sets the reply.
        if not self._stdin.is_closing():
            self._stdin.write(f"{line}\n".encode())
        if is_only_task:
            self._stdin.close()
        return reply

    def _future_reply(self, number: int) -> asyncio.Future[Reply]:
        reply = self._replies[number] = asyncio.get_running_loop().create_future()
        if self._end and self._end.done():
            self._end_unanswered_tasks(self._end)
        return reply

    def _set_reply(self, reply: Reply) -> None:
        """Set the future reply to the task with the number `reply["id"]`. Replies to cancelled tasks are ignored.

        Raises:
            KeyError: if no unanswered task has this number.
            TypeError: if `reply` is no JSON object.
        """
        future = self._replies.pop(reply["id"])
        if not future.done():
            future.set_result(reply)

    async def _wait_for_end(self) -> Reply:
        """Wait for the end of the process and return the reply to its unanswered tasks.

        Raises:
            ProgramAttemptError: if the process ended by a signal or, with `call`, without an answer.
        """
        if isinstance(self._output, _ReplyReader):
            # The output ends just before the process, or after it if a descendant keeps the output open.
            ends = [self._output.closed, self._exit_code]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if not self._output.fault:
                await asyncio.wait(ends, timeout=_EXIT_S)
            if self._output.fault or not self._exit_code.done():
                raise ProgramAttemptError(self._output.fault or "its process closed its output before its end")
        code = await self._exit_code
        if code < 0:
            # The real-time signals have numbers without a name.
            name = signal.Signals(-code).name if -code in list(signal.Signals) else f"signal {-code}"
            raise ProgramAttemptError(f"the process was killed by {name}; {await self._errors.text_at_end()}")
        if code > 0 and not self._is_shared:
            return {"failed": f"exit code {code}; {await self._errors.text_at_end()}"}
        if isinstance(self._output, _ReplyReader):
            raise ProgramAttemptError(f"the process ended without an answer; {await self._errors.text_at_end()}")
        # `str.splitlines` would also split at characters that are allowed in a JSON string, such as U+2028.
        answer: Any = re.split(r"[\r\n]", await self._output.text_at_end())[-1]
        with suppress(ValueError):
            parsed = parse_json(answer)
            answer = parsed if isinstance(parsed, dict) else answer
        return {"result": answer}

    def _kill_descendants_and_end_unanswered_tasks(self, end: asyncio.Task[Reply]) -> None:
        self.kill()
        self._end_unanswered_tasks(end)

    def _end_unanswered_tasks(self, end: asyncio.Task[Reply]) -> None:
        # `exception` is called even if no task is unanswered: asyncio logs errors that were never retrieved.
        error = None if end.cancelled() else end.exception()
        unanswered = [reply for reply in self._replies.values() if not reply.done()]
        self._replies.clear()
        for reply in unanswered:
            if end.cancelled():
                reply.cancel()
            elif error:
                reply.set_exception(error)
            else:
                reply.set_result(end.result())

    @property
    def has_ended(self) -> bool:
        """True if the process has ended."""
        return self._popen.poll() is not None

    def close(self) -> None:
        """Kill the process and its descendants, and close its pipes."""
        self.kill()
        # A descendant in another session may keep the pipes open. `WriteTransport.close` would wait until it has read
        # all data.
        if self._stdin:
            self._stdin.abort()
        self._output.close()
        self._errors.close()
        # These are still open if `connect` was cancelled.
        for pipe in (self._popen.stdin, self._popen.stdout, self._popen.stderr):
            if pipe:
                pipe.close()

    def kill(self) -> None:
        """Kill the process and its descendants, except those in other process groups. Any thread may call this."""
        # A later signal could reach a group of others: the number of a group without processes is assigned again.
        if self._is_killed:
            return
        self._is_killed = True
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._popen.pid, signal.SIGKILL)

    def reap(self) -> None:
        """Wait until the process, which was killed before, has ended. Any thread may call this."""
        self._popen.wait()


def _start(settings: Program, address: str, key: str) -> subprocess.Popen[bytes]:
    interpreter = str(settings.python or sys.executable)
    starter = Path(attach.__file__).read_text(encoding="utf-8")
    mode, command = ("run", list(settings.run))
    if settings.call:
        mode, command = "call", [settings.call, str(settings.tasks_per_worker)]
    environment = {name: value for name, value in os.environ.items() if name not in _REMOVED_VARIABLES}
    loopback = "127.0.0.1,localhost"
    for name in ("NO_PROXY", "no_proxy"):
        environment[name] = ",".join(filter(None, [environment.get(name, ""), loopback]))
    environment |= {
        "OPENAI_BASE_URL": f"{address}/v1",
        "OPENAI_API_BASE": f"{address}/v1",
        "OPENAI_API_KEY": key,
        "ANTHROPIC_BASE_URL": address,
        "ANTHROPIC_API_KEY": key,
        # OpenAI's Agents SDK would send traces of every run to OpenAI.
        "OPENAI_AGENTS_DISABLE_TRACING": "1",
        "PYTHONHASHSEED": "0",
        "PYTHONUNBUFFERED": "1",
    }
    return subprocess.Popen(
        [interpreter, "-c", starter, mode, str(os.getpid()), *command],
        cwd=settings.folder,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        start_new_session=True,
    )


def _without_closing(pipe: IO[bytes] | None) -> FileIO:
    """Close `pipe`, and return a copy whose `close` leaves the descriptor to uvloop.

    Otherwise uvloop closes the descriptor twice (https://github.com/MagicStack/uvloop/issues/763). If another thread
    opens a file between the two, the file gets the same number and is closed.
    """
    assert pipe is not None
    copy = FileIO(os.dup(pipe.fileno()), pipe.mode, closefd=False)
    pipe.close()
    return copy


def _report_exit_code(popen: subprocess.Popen[bytes], exited: asyncio.Future[int]) -> None:
    """Wait for the end of a process and set `exited` to its exit code. Runs in a thread of its own."""
    code = popen.wait()

    def set_code() -> None:
        if not exited.done():
            exited.set_result(code)

    with suppress(RuntimeError):  # raised if the event loop is already closed
        exited.get_loop().call_soon_threadsafe(set_code)


class _Pipe(asyncio.Protocol):
    """Output pipe of a process. The future `closed` is done after the end of the pipe."""

    def __init__(self) -> None:
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.ReadTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)

    def close(self) -> None:
        """Close this end of the pipe."""
        if self._transport:
            self._transport.close()


class _OutputTail(_Pipe):
    """Output pipe of which the last `max_bytes` bytes are kept."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__()
        self._max_bytes = max_bytes
        self._bytes = bytearray()

    def data_received(self, data: bytes) -> None:
        self._bytes += data
        del self._bytes[: -self._max_bytes]

    async def text_at_end(self) -> str:
        """Wait at most `_EXIT_S` for the end of the pipe, and return its last bytes as text."""
        await asyncio.wait([self.closed], timeout=_EXIT_S)
        return bytes(self._bytes).decode(errors="replace").strip()


class _ReplyReader(_Pipe):
    """Output pipe with one reply per line, as JSON. Each reply is passed to `set_reply`.

    A line that is no reply closes the pipe and sets `fault`.
    """

    def __init__(self, set_reply: Callable[[Reply], None]) -> None:
        super().__init__()
        self._set_reply = set_reply
        self._begun: list[bytes] = []
        """Pieces of the last line, whose end has not arrived."""
        self._begun_bytes = 0
        """Total size of these pieces, in bytes."""
        self.fault = ""
        """Error message about a line that is no reply, or ""."""

    def data_received(self, data: bytes) -> None:
        *ends, rest = data.split(b"\n")
        try:
            for end in ends:
                reply: Any = parse_json(b"".join([*self._begun, end]).decode(errors="replace"))
                self._begun, self._begun_bytes = [], 0
                self._set_reply(reply)
        except (ValueError, TypeError, KeyError):
            self._close_at_fault("its process sent a reply that is no JSON object, or to no task")
            return
        if rest:
            self._begun.append(rest)
            self._begun_bytes += len(rest)
            if self._begun_bytes > _MAX_REPLY_BYTES:
                self._close_at_fault(f"its process sent a reply of more than {_MAX_REPLY_BYTES:,} bytes")

    def _close_at_fault(self, message: str) -> None:
        self.fault = message
        self.close()
