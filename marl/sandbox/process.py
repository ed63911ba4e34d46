"""Running a program in its sandbox: start it, watch it from outside, and end it."""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import BinaryIO, Literal

from marl.core.errors import RunError
from marl.host.processes import descendants, process_states, tree_cpu_s
from marl.protocols import InconclusiveError
from marl.sandbox.isolation import OPEN_FILES, SandboxUnavailable, make_setup, start_command
from marl.sandbox.settings import SCRATCH, Sandbox

MAX_SANDBOXES = os.cpu_count() or 1
"""Maximum number of sandboxes at the same time on this machine, over all processes that start them."""
SLOT_TIMEOUT_S = 2.0
"""Longest wait (s) for a free slot. A program then runs without one, because the programs of another run may hang."""
MAX_WALL_FACTOR = 10.0
"""Limit of the wall time of a program that waits for a CPU, as a multiple of `wall_s`."""
EndReason = Literal["finished", "timeout", "memory", "output", "killed"]
_SLOT_RETRY_S = 0.005
_START_S = 30.0
_CHECK_S = 0.02
_MAX_INTERVAL_S = 0.1
"""Maximum time charged to a program between two samples of its clock."""
_RUNNABLE = "R"
"""State of processes that run or wait for a CPU, in /proc/PID/stat."""
_DRAIN_S = 2.0
_CHUNK = 1 << 16
_SIGNALLED = 128
_BUFFER = 212_992
"""Maximum number of bytes that the kernel buffers for an open file: the default for sockets, more than for pipes."""


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """Output and exit status of a program."""

    stdout: str
    stderr: str
    status: int
    """Exit status as in a shell: 128 + n after signal n."""
    reason: EndReason
    """`finished`, or the limit that ended the program. One process beyond its memory limit gets a MemoryError
    instead."""

    @property
    def succeeded(self) -> bool:
        """True if the program ended by itself with status 0."""
        return self.reason == "finished" and self.status == 0

    @property
    def last_error(self) -> str:
        """Last non-empty line of standard error, where Python names the exception; empty if there is none."""
        lines = [line.strip() for line in self.stderr.splitlines()]
        return next((line for line in reversed(lines) if line), "")


def run_program(
    sandbox: Sandbox, program: str, stdin: str = "", files: Mapping[str, str] | None = None
) -> ProgramResult:
    """Run a Python program in a temporary scratch folder with `files` (name -> text).

    Raises:
        SandboxUnavailable: if the isolation of `sandbox` does not work on this machine. No code has run then.
        InconclusiveError: if the program got too little CPU time on a busy machine, or was killed from outside.
    """
    mechanism, contents = _mechanism(sandbox.how), {**(files or {}), "main.py": program}
    result = _run(mechanism, sandbox, stdin, contents)
    if result.status == _SIGNALLED + signal.SIGKILL and result.reason == "killed":
        # The kernel may have killed the program for lack of memory on the machine. One that kills itself does so again.
        return _run(mechanism, sandbox, stdin, contents)
    return result


def unusable_reason(sandbox: Sandbox) -> str:
    """Return the reason why `sandbox` cannot run programs on this machine; empty if it can."""
    try:
        _mechanism(sandbox.how)
    except SandboxUnavailable as error:
        return str(error)
    return ""


def _mechanism(how: str) -> str:
    """Return the first isolation mechanism that `how` allows and that works on this machine."""
    if how == "none":
        return how
    if sys.platform != "linux":
        raise SandboxUnavailable(
            f"sandbox: needs Linux, this is {sys.platform}; `sandbox: none` runs the code unprotected"
        )
    candidates = ("bubblewrap", "unshare") if how == "auto" else (how,)
    for mechanism in candidates:
        if not _fault(mechanism):
            return mechanism
    faults = "; ".join(f"{mechanism}: {_fault(mechanism)}" for mechanism in candidates)
    raise SandboxUnavailable(
        f"sandbox: neither way to shut model-written code in works here ({faults}); install bubblewrap where user "
        "namespaces are allowed, or say `sandbox: none` to run the code unprotected"
        if how == "auto"
        else f"sandbox.how: {faults}; choices: auto, bubblewrap, unshare, none (unprotected)"
    )


@cache
def _fault(mechanism: str) -> str:
    """Return the reason why an empty program fails under `mechanism` on this machine; empty if it runs."""
    try:
        result = _run(mechanism, Sandbox(), "", {"main.py": ""})
    except SandboxUnavailable as error:
        return str(error)
    return "" if result.succeeded else f"an empty program ended with status {result.status}: {result.last_error}"


def _run(mechanism: str, sandbox: Sandbox, stdin: str, files: Mapping[str, str]) -> ProgramResult:
    """Start a program in a sandbox, watch it, and return its result."""
    with ExitStack() as stack:
        scratch = SCRATCH if mechanism != "none" else stack.enter_context(tempfile.TemporaryDirectory())
        stack.enter_context(sandbox_slot())
        setup = make_setup(mechanism, sandbox, files, scratch)
        setup_file = stack.enter_context(_sealed(json.dumps(setup)))
        stdin_file = stack.enter_context(_sealed(stdin))
        ready, ready_end = os.pipe()
        stack.callback(os.close, ready)
        try:
            process = subprocess.Popen(
                start_command(mechanism, sandbox, setup_file.fileno(), ready_end),
                stdin=stdin_file,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(setup_file.fileno(), ready_end),
                env={"PATH": os.defpath},
                start_new_session=True,
            )
        except OSError as error:
            raise SandboxUnavailable(f"{mechanism} cannot be started: {error}") from error
        finally:
            os.close(ready_end)
        return _finish(process, ready, sandbox, mechanism)


def _sealed(text: str) -> BinaryIO:
    """Return an immutable file in memory that contains `text`; the sandbox inherits its descriptor."""
    file = os.fdopen(os.memfd_create("marl", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC), "w+b")
    file.write(text.encode(errors="replace"))
    file.seek(0)
    seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals)
    return file


def _finish(process: subprocess.Popen[bytes], ready: int, sandbox: Sandbox, mechanism: str) -> ProgramResult:
    """Watch a started sandbox until it ends or exceeds a limit, and return the program's result."""
    watched = SandboxProcess(process, sandbox)
    try:
        poller = select.poll()
        poller.register(ready, select.POLLIN)
        # The sandbox writes one byte once isolation is complete, and closes the pipe without a byte if isolation fails.
        started = bool(poller.poll(_START_S * 1000)) and os.read(ready, 1) != b""
        reason = watched.wait() if started else "killed"
    finally:
        watched.end()
    stdout, stderr = (bytes(output).decode(errors="replace") for output in watched.outputs)
    if reason == "finished" and process.returncode < 0 and mechanism != "none":
        # Code inside cannot signal the sandbox's first process, which only passes on the program's status.
        raise InconclusiveError(f"the sandbox was ended by signal {-process.returncode} from outside")
    status = process.returncode if process.returncode >= 0 else _SIGNALLED - process.returncode
    if reason == "finished" and status > _SIGNALLED:
        reason = "timeout" if status == _SIGNALLED + signal.SIGXCPU else "killed"
    result = ProgramResult(stdout, stderr, status, reason)
    if not started:
        raise SandboxUnavailable(f"the sandbox did not start: {result.last_error or f'status {status}'}")
    return result


class SandboxProcess:
    """Running sandbox whose output, time and memory are watched from outside."""

    def __init__(self, process: subprocess.Popen[bytes], sandbox: Sandbox) -> None:
        assert process.stdout
        assert process.stderr
        self._process, self._sandbox = process, sandbox
        self._pipes = (process.stdout, process.stderr)
        self.outputs = (bytearray(), bytearray())
        """Standard output and standard error, truncated at the limit."""
        self._open_outputs: dict[int, bytearray] = {}
        self._poller = select.poll()
        for pipe, buffer in zip(self._pipes, self.outputs, strict=True):
            self._open_outputs[pipe.fileno()] = buffer
            self._poller.register(pipe.fileno(), select.POLLIN)

    def wait(self) -> EndReason:
        """Wait until the program ends or exceeds a limit, and return the reason.

        Raises:
            InconclusiveError: if the program got too little CPU time on a busy machine.
        """
        exited = os.pidfd_open(self._process.pid)
        self._poller.register(exited, select.POLLIN)
        try:
            clock, next_check = ProgramClock(self._process.pid, self._sandbox.wall_s), 0.0
            while not clock.has_expired:
                # Each output wakes the loop up, but clock and memory are read from /proc, which takes time.
                if time.monotonic() >= next_check:
                    next_check = time.monotonic() + _CHECK_S
                    clock.sample()
                    if _memory(self._process.pid) > self._sandbox.memory_mb << 20:
                        return "memory"
                if exited in self._read(_CHECK_S):
                    return "finished"
                if self._exceeds_output():
                    return "output"
            clock.check_got_cpu_time()
            return "timeout"
        finally:
            self._poller.unregister(exited)
            os.close(exited)

    def end(self) -> None:
        """Kill all processes of the sandbox (a namespace ends with its first process), and read the remaining
        output."""
        # The process has not been reaped, so no other process can have its number.
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        deadline = time.monotonic() + _DRAIN_S
        while self._open_outputs and not self._exceeds_output() and (timeout_s := deadline - time.monotonic()) > 0:
            self._read(timeout_s)
        for pipe in self._pipes:
            pipe.close()
        for output in self.outputs:
            del output[self._sandbox.output_kb << 10 :]

    def _read(self, wait_s: float) -> set[int]:
        """Read available output after waiting at most `wait_s`, and return the ready file descriptors."""
        ready = {descriptor for descriptor, _ in self._poller.poll(wait_s * 1000)}
        for descriptor in ready & set(self._open_outputs):
            chunk = os.read(descriptor, _CHUNK)
            self._open_outputs[descriptor].extend(chunk)
            if not chunk:
                self._poller.unregister(descriptor)
                del self._open_outputs[descriptor]
        return ready

    def _exceeds_output(self) -> bool:
        return sum(map(len, self.outputs)) > self._sandbox.output_kb << 10


def _memory(process: int) -> int:
    """Return the memory of all descendants of `process` in bytes: private pages, and possible buffers of open files."""
    return sum(_private_bytes(descendant) + _buffer_bytes(descendant) for descendant in descendants(process))


def _private_bytes(process: int) -> int:
    """Return the size of a process's private pages in bytes, in memory and swapped out; 0 if it has ended."""
    with suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{process}/status") as file:
        sizes = dict(line.split(":", 1) for line in file)
        return sum(int(sizes[name].split()[0]) << 10 for name in ("RssAnon", "VmSwap") if name in sizes)
    return 0


def _buffer_bytes(process: int) -> int:
    """Return the maximum size of the kernel's buffers for a process's open files in bytes; 0 if it has ended."""
    try:
        return len(os.listdir(f"/proc/{process}/fd")) * _BUFFER
    except PermissionError:
        # A process can hide its open files from everyone but root, so it is charged for the maximum.
        return OPEN_FILES * _BUFFER
    except (FileNotFoundError, ProcessLookupError):
        return 0


class ProgramClock:
    """Time used by a program, in samples every few milliseconds. The limit is `wall_s`.

    While a process of the program is runnable, CPU time counts, so that waiting for a CPU costs the program nothing.
    While all of them sleep, wall time counts. After `MAX_WALL_FACTOR` times `wall_s` of wall time the clock expires in
    any case. While this process itself is stopped, no time counts.
    """

    def __init__(self, process: int, wall_s: float) -> None:
        self._process, self._wall_s = process, wall_s
        self._sampled_at, self._initial_cpu_s = time.monotonic(), tree_cpu_s(process)
        self._cpu_s = self._charged_s = self._elapsed_s = 0.0

    @property
    def has_expired(self) -> bool:
        """Return True if the program has used up `wall_s`, or the wall time has reached its limit."""
        return self._is_used_up or self._elapsed_s >= MAX_WALL_FACTOR * self._wall_s

    @property
    def _is_used_up(self) -> bool:
        return max(self._charged_s, self._cpu_s) >= self._wall_s

    def sample(self) -> None:
        """Charge the program for the time since the last sample."""
        now, cpu_s = time.monotonic(), tree_cpu_s(self._process) - self._initial_cpu_s
        # Bounded, because this process may have been stopped since the last sample.
        interval_s = min(now - self._sampled_at, _MAX_INTERVAL_S)
        computed_s = max(cpu_s - self._cpu_s, 0.0)
        self._charged_s += min(computed_s, interval_s) if _RUNNABLE in process_states(self._process) else interval_s
        self._elapsed_s += interval_s
        self._sampled_at, self._cpu_s = now, cpu_s

    def check_got_cpu_time(self) -> None:
        """Check that a program with an expired clock could use its time.

        Raises:
            InconclusiveError: if the program waited for a CPU most of the time.
        """
        if not self._is_used_up:
            raise InconclusiveError(
                f"the program got {self._cpu_s:.2g} s of processor time in {self._elapsed_s:.3g} s on this machine"
            )


@contextmanager
def sandbox_slot() -> Iterator[None]:
    """Wait up to `SLOT_TIMEOUT_S` for one of `MAX_SANDBOXES` slots and lock it. The kernel unlocks it if this process
    dies.

    Raises:
        RunError: if the folder of the lock files belongs to another user.
    """
    folder = Path(tempfile.gettempdir()) / f"marl-sandboxes-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise RunError(f"sandbox: {folder} belongs to somebody else; remove it, or set TMPDIR to a folder of your own")
    deadline = time.monotonic() + SLOT_TIMEOUT_S
    while (lock := _lock_slot(folder)) is None and time.monotonic() < deadline:
        time.sleep(_SLOT_RETRY_S)
    try:
        yield
    finally:
        if lock is not None:
            os.close(lock)


def _lock_slot(folder: Path) -> int | None:
    """Return the file descriptor of a lock file that was free and is now locked; None if all are locked."""
    for number in range(MAX_SANDBOXES):
        descriptor = os.open(folder / str(number), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
        else:
            return descriptor
    return None
