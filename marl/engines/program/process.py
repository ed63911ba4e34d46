"""Processes of programs, each in a session of its own, so that a program is killed with its descendants."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from contextlib import suppress
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

_MAX_TAIL_BYTES = 1 << 16
"""Number of last bytes that are kept of a program's output and of its errors."""
_MAX_LINE_BYTES = 1 << 24
"""Maximum size of a `call` process's answer, in bytes."""
_START_S = 120.0
"""Maximum time in which a `call` process imports its module, in seconds."""
_EXIT_S = 1.0
"""Maximum time between the end of a process's output and its exit, in seconds."""
_REMOVED_VARIABLES = ("ANTHROPIC_AUTH_TOKEN", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID")
"""Environment variables that are removed, because they would change how API clients authenticate."""


class ProgramAttemptError(Exception):
    """A program's process ended by a signal, without an answer or too late. Another attempt may succeed."""

    def __init__(self, message: str, end: ProgramAttemptEnd = "killed") -> None:
        super().__init__(message)
        self.end: ProgramAttemptEnd = end


class ProgramProcess:
    """Process of a program, for one task with `run`, and for many in `tasks_per_worker` threads with `call`."""

    def __init__(self, settings: Program, address: str, key: str) -> None:
        """Start the process with the gateway's `address` and API `key` in its environment."""
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
        self.key = key
        self._popen = subprocess.Popen(
            [interpreter, "-c", starter, mode, str(os.getpid()), *command],
            cwd=settings.folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._errors = _StreamTail(self._popen.stderr)
        self._is_shared = settings.tasks_per_worker > 1
        """True if several tasks share the process: the one that ended the process is not known."""
        self._numbers = count(1)
        self._writing = threading.Lock()
        self._replies: dict[int, queue.SimpleQueue[dict[str, Any] | None]] = {0: queue.SimpleQueue()}
        """Number of a task -> its reply, or None at the end of the process's output. Number 0: report of the import."""
        self._has_closed_output = False
        self._output: _StreamTail | None = None
        if settings.call:
            threading.Thread(target=self._read_replies, daemon=True).start()
        else:
            self._output = _StreamTail(self._popen.stdout)

    def wait_until_ready(self) -> None:
        """Wait until a `call` process has imported its module.

        Raises:
            EngineError: if the function cannot be imported.
            ProgramAttemptError: if the process was killed, or has not imported its module within `_START_S`.
        """
        reply = self.receive_reply(0, _START_S)
        if reply is None:
            raise ProgramAttemptError(f"it did not import its module within {_START_S:g} s", "late")
        if message := reply.get("setup") or reply.get("failed"):
            raise EngineError(f"engine.call: {message}")

    def send_task(self, task: Any) -> int:
        """Write `task` as a line of JSON to the program's standard input, and return the number of the task.

        Raises:
            ProgramAttemptError: if the process has ended.
        """
        stream, number = self._popen.stdin, next(self._numbers)
        assert stream is not None
        self._replies[number] = queue.SimpleQueue()
        if self._has_closed_output:
            self._replies[number].put(None)
        line = json.dumps(task if self._output is not None else {"id": number, "task": task})
        try:
            with self._writing:
                stream.write(f"{line}\n".encode())
                stream.flush()
            if self._output is not None:
                stream.close()
        except OSError as error:
            # A command may end without reading its task. A Python function's process (`_output` is None) may not.
            if self._output is None:
                raise ProgramAttemptError(f"the process ended before its task: {error}") from error
        return number

    def abandon_task(self, number: int) -> None:
        """Let `receive_reply` return None at once for task `number`. The process goes on working on it."""
        if replies := self._replies.get(number):
            replies.put(None)

    def receive_reply(self, number: int, wait_s: float) -> dict[str, Any] | None:
        """Return the reply to task `number`: `{"result": ...}` or `{"failed": message}`.

        Returns None if no reply arrives within `wait_s`, or the task is abandoned.

        Raises:
            ProgramAttemptError: if the process ended by a signal or without an answer.
        """
        if self._output is None:
            try:
                reply = self._replies[number].get(timeout=wait_s)
            except queue.Empty:
                return None
            if reply is not None:
                del self._replies[number]
                return reply
            if not self._has_closed_output:
                return None
            # The end of the output, or of a killed process's last line, comes just before the end of the process.
            wait_s = _EXIT_S
        try:
            code = self._popen.wait(wait_s)
        except subprocess.TimeoutExpired as error:
            if self._output is None:
                raise ProgramAttemptError("its process sent an answer that is no JSON object") from error
            return None
        if code < 0:
            raise ProgramAttemptError(
                f"the process was killed by {signal.Signals(-code).name}; {self._errors.wait_for_end_and_decode_tail()}"
            )
        if code > 0 and not self._is_shared:
            return {"failed": f"exit code {code}; {self._errors.wait_for_end_and_decode_tail()}"}
        if self._output is None:
            raise ProgramAttemptError(
                f"the process ended without an answer; {self._errors.wait_for_end_and_decode_tail()}"
            )
        lines = self._output.wait_for_end_and_decode_tail().strip().splitlines()
        answer: Any = lines[-1] if lines else ""
        with suppress(ValueError):
            parsed = parse_json(answer)
            answer = parsed if isinstance(parsed, dict) else answer
        return {"result": answer}

    def _read_replies(self) -> None:
        """Put each line of the output into the queue of its task. A line that is no reply ends the reading."""
        stream = self._popen.stdout
        assert stream is not None
        with stream, suppress(ValueError, TypeError, KeyError):
            while line := stream.readline(_MAX_LINE_BYTES):
                reply: Any = parse_json(line.decode(errors="replace"))
                self._replies[reply["id"]].put(reply)
        self._has_closed_output = True
        for replies in list(self._replies.values()):
            replies.put(None)

    @property
    def has_ended(self) -> bool:
        """True if the process has ended."""
        return self._popen.poll() is not None

    def kill(self) -> None:
        """Kill the process and its descendants."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._popen.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill the process and its descendants, and wait for its end."""
        self.kill()
        self._popen.wait()
        for stream in (self._popen.stdin, self._popen.stdout, self._popen.stderr):
            # Only stdin is closed, because a descendant in another session may keep the other pipes open.
            if stream is self._popen.stdin and stream is not None:
                with suppress(OSError):
                    stream.close()


class _StreamTail:
    """Last `_MAX_TAIL_BYTES` bytes of a stream that a thread reads to its end."""

    def __init__(self, stream: IO[bytes] | None) -> None:
        assert stream is not None
        self._bytes = bytearray()
        self._thread = threading.Thread(target=self._read_stream, args=(stream,), daemon=True)
        self._thread.start()

    def _read_stream(self, stream: IO[bytes]) -> None:
        with stream:
            while chunk := stream.read1(65536):  # type: ignore[attr-defined]
                self._bytes += chunk
                del self._bytes[:-_MAX_TAIL_BYTES]

    def wait_for_end_and_decode_tail(self) -> str:
        """Wait at most one second for the end of the stream, and return its last bytes as text."""
        self._thread.join(1.0)
        return bytes(self._bytes).decode(errors="replace")[-_MAX_TAIL_BYTES:].strip()
