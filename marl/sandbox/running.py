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

from marl.errors import RunError
from marl.processes import descendants, states, tree_cpu_s
from marl.protocols import UnjudgedError
from marl.sandbox.isolation import OPEN_FILES, SandboxUnavailable, make_setup, start_command
from marl.sandbox.settings import SCRATCH, Sandbox

PLACES = os.cpu_count() or 1
"""Sandboxes that run at once on this machine, whatever number of processes starts them, ..."""
PATIENCE_S = 2.0
"""... unless all places stay taken for so long: then a program runs without one, as another run's may be hanging."""
WALL_PATIENCE = 10.0
"""Multiple of `wall_s` that a program may take while other programs keep it from a processor."""
EndReason = Literal["finished", "timeout", "memory", "output", "killed"]
_PLACE_RETRY_S = 0.005
_START_S = 30.0
_CHECK_S = 0.02
_LONGEST_LOOK_S = 0.1
"""Longest time that passes for a program from one look to the next."""
_WANTS_TO_RUN = "R"
"""State of processes that run or wait for a processor."""
_DRAIN_S = 2.0
_CHUNK = 1 << 16
_SIGNALLED = 128
_BUFFER = 212_992
"""Bytes that the kernel keeps for an open file at most: the default of a socket's buffer, more than that of a pipe."""


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """Output and end of a program."""

    stdout: str
    stderr: str
    status: int
    """As a shell gives it: 128 + n if signal n ended it."""
    reason: EndReason
    """`finished`, or the limit that ended it. Memory beyond its own limit is a MemoryError of the program."""

    @property
    def succeeded(self) -> bool:
        """True if it came to its end and reported no error."""
        return self.reason == "finished" and self.status == 0

    @property
    def last_error(self) -> str:
        """The last line of standard error, where Python names the exception; empty if there is none."""
        return next((line.strip() for line in reversed(self.stderr.splitlines()) if line.strip()), "")


def run(sandbox: Sandbox, program: str, stdin: str = "", files: Mapping[str, str] | None = None) -> ProgramResult:
    """Run a Python program in a scratch folder that holds `files` (name -> text) and is deleted afterwards.

    Raises:
        SandboxUnavailable: if the isolation that `sandbox` asks for does not work here. Nothing has run then.
        UnjudgedError: if it got too little processor time on a busy machine, or if the sandbox was ended from outside.
    """
    mechanism, contents = _mechanism(sandbox.how), {**(files or {}), "main.py": program}
    result = _run(mechanism, sandbox, stdin, contents)
    if result.status == _SIGNALLED + signal.SIGKILL and result.reason == "killed":
        # Perhaps for want of memory on this machine; a program that kills itself does it again.
        return _run(mechanism, sandbox, stdin, contents)
    return result


def unusable(sandbox: Sandbox) -> str:
    """Return the reason why nothing can run in `sandbox` on this machine; empty if it can."""
    try:
        _mechanism(sandbox.how)
    except SandboxUnavailable as error:
        return str(error)
    return ""


def _mechanism(how: str) -> str:
    """Return the first mechanism that `how` allows and that works here."""
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
    """Run an empty program and return why `mechanism` does not work on this machine; empty if it works."""
    try:
        result = _run(mechanism, Sandbox(), "", {"main.py": ""})
    except SandboxUnavailable as error:
        return str(error)
    return "" if result.succeeded else f"an empty program ended with status {result.status}: {result.last_error}"


def _run(mechanism: str, sandbox: Sandbox, stdin: str, files: Mapping[str, str]) -> ProgramResult:
    with ExitStack() as stack:
        scratch = SCRATCH if mechanism != "none" else stack.enter_context(tempfile.TemporaryDirectory())
        stack.enter_context(place())
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
    """Return a file in memory that holds `text` and that no process can change any more."""
    file = os.fdopen(os.memfd_create("marl", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC), "w+b")
    file.write(text.encode(errors="replace"))
    file.seek(0)
    seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals)
    return file


def _finish(process: subprocess.Popen[bytes], ready: int, sandbox: Sandbox, mechanism: str) -> ProgramResult:
    watched = SandboxProcess(process, sandbox)
    try:
        poller = select.poll()
        poller.register(ready, select.POLLIN)
        # The pipe gets a byte once isolation is complete, and is closed without one where it fails.
        started = bool(poller.poll(_START_S * 1000)) and os.read(ready, 1) != b""
        reason = watched.wait() if started else "killed"
    finally:
        watched.end()
    stdout, stderr = (bytes(output).decode(errors="replace") for output in watched.outputs)
    if reason == "finished" and process.returncode < 0 and mechanism != "none":
        # What is inside cannot reach the first process, which only passes on how the program ended.
        raise UnjudgedError(f"the sandbox was ended by signal {-process.returncode} from outside")
    status = process.returncode if process.returncode >= 0 else _SIGNALLED - process.returncode
    if reason == "finished" and status > _SIGNALLED:
        reason = "timeout" if status == _SIGNALLED + signal.SIGXCPU else "killed"
    result = ProgramResult(stdout, stderr, status, reason)
    if not started:
        raise SandboxUnavailable(f"the sandbox did not start: {result.last_error or f'status {status}'}")
    return result


class SandboxProcess:
    """A running sandbox, watched from outside: its output, its time and its memory."""

    def __init__(self, process: subprocess.Popen[bytes], sandbox: Sandbox) -> None:
        assert process.stdout
        assert process.stderr
        self._process, self._sandbox = process, sandbox
        self._pipes = (process.stdout, process.stderr)
        self.outputs = (bytearray(), bytearray())
        """Standard output and error, up to the limit."""
        self._open = dict(zip((pipe.fileno() for pipe in self._pipes), self.outputs, strict=True))
        self._poller = select.poll()
        for descriptor in self._open:
            self._poller.register(descriptor, select.POLLIN)

    def wait(self) -> EndReason:
        """Wait until the program has ended or exceeded a limit; return which.

        Raises:
            UnjudgedError: if it was kept from a processor, however long it was waited for.
        """
        exited = os.pidfd_open(self._process.pid)
        self._poller.register(exited, select.POLLIN)
        try:
            clock, next_look = ProgramClock(self._process.pid, self._sandbox.wall_s), 0.0
            while not clock.is_over:
                if time.monotonic() >= next_look:
                    next_look = time.monotonic() + _CHECK_S
                    clock.look()
                    if _memory(self._process.pid) > self._sandbox.memory_mb << 20:
                        return "memory"
                if exited in self._read(_CHECK_S):
                    return "finished"
                if self._exceeds_output():
                    return "output"
            clock.check()
            return "timeout"
        finally:
            self._poller.unregister(exited)
            os.close(exited)

    def end(self) -> None:
        """Kill all processes of the sandbox (a namespace dies with its first one) and read the rest of the output."""
        # The process has not been reaped, so its number is still its own.
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        deadline = time.monotonic() + _DRAIN_S
        while self._open and not self._exceeds_output() and (left := deadline - time.monotonic()) > 0:
            self._read(left)
        for pipe in self._pipes:
            pipe.close()
        for output in self.outputs:
            del output[self._sandbox.output_kb << 10 :]

    def _read(self, wait_s: float) -> set[int]:
        """Read the output that is there; return the descriptors that were ready."""
        ready = {descriptor for descriptor, _ in self._poller.poll(wait_s * 1000)}
        for descriptor in ready & set(self._open):
            chunk = os.read(descriptor, _CHUNK)
            self._open[descriptor].extend(chunk)
            if not chunk:
                self._poller.unregister(descriptor)
                del self._open[descriptor]
        return ready

    def _exceeds_output(self) -> bool:
        return sum(map(len, self.outputs)) > self._sandbox.output_kb << 10


def _memory(process: int) -> int:
    """Return the bytes that the descendants of `process` have filled and do not share with a file, and may have in
    the buffers of open files."""
    return sum(_private_bytes(descendant) + _buffer_bytes(descendant) for descendant in descendants(process))


def _private_bytes(process: int) -> int:
    """Return the bytes of a process's own pages, in memory and swapped out; 0 if it has ended."""
    with suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{process}/status") as file:
        sizes = dict(line.split(":", 1) for line in file)
        return sum(int(sizes[name].split()[0]) << 10 for name in ("RssAnon", "VmSwap") if name in sizes)
    return 0


def _buffer_bytes(process: int) -> int:
    """Return the bytes that the kernel may keep for the open files of a process; 0 if it has ended."""
    try:
        return len(os.listdir(f"/proc/{process}/fd")) * _BUFFER
    except PermissionError:  # a process may hide them from all but root
        return OPEN_FILES * _BUFFER
    except (FileNotFoundError, ProcessLookupError):
        return 0


class ProgramClock:
    """Time of a program, which is over after `wall_s`, by looks every few milliseconds.

    Processor time counts while the program computes or wants to, so that others who hold the processors cost it
    nothing; time on the clock counts while it sleeps. In any case it is over after `WALL_PATIENCE` times as much on the
    clock. While this process itself does not run, no time passes.
    """

    def __init__(self, process: int, wall_s: float) -> None:
        self._process, self._wall_s = process, wall_s
        self._looked, self._used_before_s = time.monotonic(), tree_cpu_s(process)
        self._used_s = self._spent_s = self._waited_s = 0.0

    @property
    def is_over(self) -> bool:
        """Return True if the program has had its time, or has been waited for long enough."""
        return self._has_had_its_time or self._waited_s >= WALL_PATIENCE * self._wall_s

    @property
    def _has_had_its_time(self) -> bool:
        return max(self._spent_s, self._used_s) >= self._wall_s

    def look(self) -> None:
        """Count the time since the last look."""
        now, used_s = time.monotonic(), tree_cpu_s(self._process) - self._used_before_s
        passed_s = min(now - self._looked, _LONGEST_LOOK_S)
        computed_s = max(used_s - self._used_s, 0.0)
        self._spent_s += min(computed_s, passed_s) if _WANTS_TO_RUN in states(self._process) else passed_s
        self._waited_s += passed_s
        self._looked, self._used_s = now, used_s

    def check(self) -> None:
        """Check that a program whose time is over has had it.

        Raises:
            UnjudgedError: if it was kept from a processor.
        """
        if not self._has_had_its_time:
            raise UnjudgedError(
                f"the program got {self._used_s:.2g} s of processor time in {self._waited_s:.3g} s on this machine"
            )


@contextmanager
def place() -> Iterator[None]:
    """Wait up to `PATIENCE_S` for one of the `PLACES` and hold it. The kernel frees it if the holder dies.

    Raises:
        RunError: if the folder of the places belongs to another user.
    """
    folder = Path(tempfile.gettempdir()) / f"marl-sandboxes-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise RunError(f"sandbox: {folder} belongs to somebody else; remove it, or set TMPDIR to a folder of your own")
    deadline = time.monotonic() + PATIENCE_S
    while (lock := _free_place(folder)) is None and time.monotonic() < deadline:
        time.sleep(_PLACE_RETRY_S)
    try:
        yield
    finally:
        if lock is not None:
            os.close(lock)


def _free_place(folder: Path) -> int | None:
    """Return a locked file, which is a place; None if all are taken."""
    for number in range(PLACES):
        descriptor = os.open(folder / str(number), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
        else:
            return descriptor
    return None
