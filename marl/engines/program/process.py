"""Processes of programs, each in a session of its own, so that a program is killed with its descendants."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from contextlib import suppress
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
    """Process that runs a program: one task and exit with `run`, one task after the other with `call`."""

    def __init__(self, settings: Program, address: str, key: str) -> None:
        """Start the process with the gateway's `address` and API `key` in its environment."""
        interpreter = str(settings.python or sys.executable)
        starter = Path(attach.__file__).read_text(encoding="utf-8")
        mode, command = ("call", [settings.call]) if settings.call else ("run", list(settings.run))
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
        self._lines: queue.Queue[bytes] = queue.Queue()
        self._output: _StreamTail | None = None
        if settings.call:
            threading.Thread(target=_put_lines_in_queue, args=(self._popen.stdout, self._lines), daemon=True).start()
        else:
            self._output = _StreamTail(self._popen.stdout)

    def wait_until_ready(self) -> None:
        """Wait until a `call` process has imported its module.

        Raises:
            EngineError: if the function cannot be imported.
            ProgramAttemptError: if the process was killed, or has not imported its module within `_START_S`.
        """
        reply = self.receive_reply(_START_S)
        if reply is None:
            raise ProgramAttemptError(f"it did not import its module within {_START_S:g} s", "late")
        if message := reply.get("setup") or reply.get("failed"):
            raise EngineError(f"engine.call: {message}")

    def send_task(self, task_json: str) -> None:
        """Write `task_json`, one line of JSON, to the program's standard input.

        Raises:
            ProgramAttemptError: if the process has ended.
        """
        stream = self._popen.stdin
        assert stream is not None
        try:
            stream.write(f"{task_json}\n".encode())
            stream.flush()
            if self._output is not None:
                stream.close()
        except OSError as error:
            # A command may end without reading its task. A Python function's process (`_output` is None) may not.
            if self._output is None:
                raise ProgramAttemptError(f"the process ended before its task: {error}") from error

    def receive_reply(self, wait_s: float) -> dict[str, Any] | None:
        """Return the reply `{"result": ...}` or `{"failed": message}`, or None if none arrives within `wait_s`.

        Raises:
            ProgramAttemptError: if the process ended by a signal or without an answer.
        """
        if self._output is None:
            try:
                line = self._lines.get(timeout=wait_s)
            except queue.Empty:
                return None
            with suppress(ValueError):
                reply = parse_json(line.decode(errors="replace"))
                if isinstance(reply, dict):
                    return reply
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
        if code > 0:
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


def _put_lines_in_queue(stream: IO[bytes], line_queue: queue.Queue[bytes]) -> None:
    """Put each line of `stream` into the queue `line_queue`, and b"" at the end of the stream."""
    with stream:
        while line := stream.readline(_MAX_LINE_BYTES):
            line_queue.put(line)
    line_queue.put(b"")
