"""Start of a program in a sandbox, and supervision of its time, memory and output from outside."""

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
from marl.host.processes import descendant_pids, process_tree_cpu_s, process_tree_states
from marl.protocols import InfrastructureError
from marl.sandbox.isolation import OPEN_FILES, SandboxUnavailable, bootstrap_command, make_sandbox_setup
from marl.sandbox.settings import SCRATCH, Sandbox

MAX_SANDBOXES = os.cpu_count() or 1
"""Maximum number of sandboxes that run at the same time on this machine."""
SLOT_TIMEOUT_S = 2.0
"""Maximum wait (s) for a free slot, after which a program runs without one, as other programs may hang."""
MAX_WALL_FACTOR = 10.0
"""Maximum wall time of a program that waits for a CPU, as a multiple of its limit `wall_s`."""
EndReason = Literal["finished", "timeout", "memory", "output", "killed"]
_SLOT_RETRY_S = 0.005
_START_S = 30.0
"""Longest wait (s) until the isolation of a started sandbox is complete."""
_CHECK_S = 0.02
"""Time (s) between two checks of a program's time and memory."""
_MAX_INTERVAL_S = 0.1
"""Maximum time (s) that counts for a program between two samples of its clock."""
_RUNNABLE = "R"
"""State, in /proc/PID/stat, of a process that runs or waits for a CPU."""
_DRAIN_S = 2.0
"""Longest time (s) for reading the remaining output of a sandbox that has ended."""
_CHUNK = 1 << 16
_SIGNALLED = 128
"""Offset of exit statuses: a shell reports 128 + n after signal n."""
_BUFFER_BYTES = 212_992
"""Maximum number of bytes that the kernel buffers for an open file: the default for sockets, more than for pipes."""


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """Output and exit status of a sandboxed program."""

    stdout: str
    stderr: str
    status: int
    """Exit status as in a shell: 128 + n after signal n."""
    reason: EndReason
    """`finished`, or the limit that ended the program. A process above its own memory limit gets a MemoryError."""

    @property
    def succeeded(self) -> bool:
        """True if the program ended by itself with status 0."""
        return self.reason == "finished" and self.status == 0

    @property
    def last_error(self) -> str:
        """Last non-empty line of standard error, in which Python names the exception, or "" if there is none."""
        lines = [line.strip() for line in self.stderr.splitlines() if line.strip()]
        return lines[-1] if lines else ""


def run_program(
    sandbox: Sandbox, program: str, stdin: str = "", files: Mapping[str, str] | None = None
) -> ProgramResult:
    """Run the Python program text `program` in a scratch folder with `files` (name -> text), and return its result.

    Raises:
        SandboxUnavailable: if the isolation of `sandbox` does not work on this machine. No code has run in this case.
        InfrastructureError: if the program got too little CPU time on a busy machine, or was killed from outside.
    """
    mechanism, contents = _first_working_mechanism(sandbox.how), {**(files or {}), "main.py": program}
    result = _run_once(mechanism, sandbox, stdin, contents)
    if result.status == _SIGNALLED + signal.SIGKILL and result.reason == "killed":
        # A second run follows SIGKILL, because the kernel may have killed the program for lack of memory.
        return _run_once(mechanism, sandbox, stdin, contents)
    return result


def reason_sandbox_is_unusable(sandbox: Sandbox) -> str:
    """Return the reason why this machine cannot run programs in `sandbox`, or "" if it can."""
    try:
        _first_working_mechanism(sandbox.how)
    except SandboxUnavailable as error:
        return str(error)
    return ""


def _first_working_mechanism(isolation_mode: str) -> str:
    """Return the first isolation mechanism of `isolation_mode` that works on this machine.

    Raises:
        SandboxUnavailable: if none works.
    """
    if isolation_mode == "none":
        return isolation_mode
    if sys.platform != "linux":
        raise SandboxUnavailable(
            f"sandbox: needs Linux, this is {sys.platform}; `sandbox: none` runs the code unprotected"
        )
    candidates = ("bubblewrap", "unshare") if isolation_mode == "auto" else (isolation_mode,)
    for mechanism in candidates:
        if not _find_mechanism_fault(mechanism):
            return mechanism
    faults = "; ".join(f"{mechanism}: {_find_mechanism_fault(mechanism)}" for mechanism in candidates)
    raise SandboxUnavailable(
        f"sandbox: neither way to shut model-written code in works here ({faults}); install bubblewrap where user "
        "namespaces are allowed, or say `sandbox: none` to run the code unprotected"
        if isolation_mode == "auto"
        else f"sandbox.how: {faults}; choices: auto, bubblewrap, unshare, none (unprotected)"
    )


@cache
def _find_mechanism_fault(mechanism: str) -> str:
    """Return the reason why isolation by `mechanism` fails on this machine for an empty program, or ""."""
    try:
        result = _run_once(mechanism, Sandbox(), "", {"main.py": ""})
    except SandboxUnavailable as error:
        return str(error)
    return "" if result.succeeded else f"an empty program ended with status {result.status}: {result.last_error}"


def _run_once(mechanism: str, sandbox: Sandbox, stdin: str, files: Mapping[str, str]) -> ProgramResult:
    """Run the program `main.py` in `files` (name -> text) once in a sandbox, and return its result."""
    with ExitStack() as stack:
        scratch = SCRATCH if mechanism != "none" else stack.enter_context(tempfile.TemporaryDirectory())
        stack.enter_context(hold_sandbox_slot())
        setup = make_sandbox_setup(mechanism, sandbox, files, scratch)
        setup_file = stack.enter_context(_create_sealed_file(json.dumps(setup)))
        stdin_file = stack.enter_context(_create_sealed_file(stdin))
        ready, ready_end = os.pipe()
        stack.callback(os.close, ready)
        try:
            process = subprocess.Popen(
                bootstrap_command(mechanism, sandbox, setup_file.fileno(), ready_end),
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
        return _watch_until_exit(process, ready, sandbox, mechanism)


def _create_sealed_file(text: str) -> BinaryIO:
    """Create an immutable file in memory with the content `text`, for a descriptor that the sandbox inherits."""
    file = os.fdopen(os.memfd_create("marl", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC), "w+b")
    file.write(text.encode(errors="replace"))
    file.seek(0)
    seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals)
    return file


def _watch_until_exit(
    process: subprocess.Popen[bytes], ready_fd: int, sandbox: Sandbox, mechanism: str
) -> ProgramResult:
    """Watch a started sandbox until it ends or exceeds a limit, and return the program's result.

    `ready_fd` is the pipe on which the sandbox reports that isolation is complete.
    """
    watched = SandboxProcess(process, sandbox)
    try:
        poller = select.poll()
        poller.register(ready_fd, select.POLLIN)
        # The sandbox writes a byte when its isolation is complete, or closes the pipe without one if isolation fails.
        started = bool(poller.poll(_START_S * 1000)) and os.read(ready_fd, 1) != b""
        reason = watched.wait() if started else "killed"
    finally:
        watched.kill()
    stdout, stderr = (bytes(output).decode(errors="replace") for output in watched.outputs)
    if reason == "finished" and process.returncode < 0 and mechanism != "none":
        # Code inside cannot signal the sandbox's first process, so a signal killed it from outside.
        raise InfrastructureError(f"the sandbox was ended by signal {-process.returncode} from outside")
    status = process.returncode if process.returncode >= 0 else _SIGNALLED - process.returncode
    if reason == "finished" and status > _SIGNALLED:
        reason = "timeout" if status == _SIGNALLED + signal.SIGXCPU else "killed"
    result = ProgramResult(stdout, stderr, status, reason)
    if not started:
        raise SandboxUnavailable(f"the sandbox did not start: {result.last_error or f'status {status}'}")
    return result


class SandboxProcess:
    """Running sandbox, with methods to watch its output, time and memory from outside."""

    def __init__(self, process: subprocess.Popen[bytes], sandbox: Sandbox) -> None:
        assert process.stdout
        assert process.stderr
        self._process, self._sandbox = process, sandbox
        self._pipes = (process.stdout, process.stderr)
        self.outputs = (bytearray(), bytearray())
        """Standard output and standard error of the program, truncated at the limit `output_kb`."""
        self._open_outputs: dict[int, bytearray] = {}
        """File descriptor of each pipe that the program has not closed -> the output that was read from it."""
        self._poller = select.poll()
        for pipe, buffer in zip(self._pipes, self.outputs, strict=True):
            self._open_outputs[pipe.fileno()] = buffer
            self._poller.register(pipe.fileno(), select.POLLIN)

    def wait(self) -> EndReason:
        """Wait until the program ends or exceeds a limit, and return the reason for its end.

        Raises:
            InfrastructureError: if the program got too little CPU time on a busy machine.
        """
        exited = os.pidfd_open(self._process.pid)
        self._poller.register(exited, select.POLLIN)
        try:
            clock, next_check = ProgramTimeLimit(self._process.pid, self._sandbox.wall_s), 0.0
            while not clock.has_expired:
                # Each output wakes the loop, but time and memory are checked less often, because reading /proc is slow.
                if time.monotonic() >= next_check:
                    next_check = time.monotonic() + _CHECK_S
                    clock.charge_elapsed_time()
                    memory_bytes = sum(map(_process_memory_bytes, descendant_pids(self._process.pid)))
                    if memory_bytes > self._sandbox.memory_mb << 20:
                        return "memory"
                if exited in self._read_outputs(_CHECK_S):
                    return "finished"
                if self._exceeds_output_limit():
                    return "output"
            clock.check_cpu_was_available()
            return "timeout"
        finally:
            self._poller.unregister(exited)
            os.close(exited)

    def kill(self) -> None:
        """Kill all processes of the sandbox, and read the remaining output."""
        # The process has not been reaped yet, so its id still belongs to it.
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        deadline = time.monotonic() + _DRAIN_S
        while (
            self._open_outputs and not self._exceeds_output_limit() and (timeout_s := deadline - time.monotonic()) > 0
        ):
            self._read_outputs(timeout_s)
        for pipe in self._pipes:
            pipe.close()
        for output in self.outputs:
            del output[self._sandbox.output_kb << 10 :]

    def _read_outputs(self, wait_s: float) -> set[int]:
        """Read available output. Wait at most `wait_s` seconds for it, and return the ready file descriptors."""
        ready = {descriptor for descriptor, _ in self._poller.poll(wait_s * 1000)}
        for descriptor in ready & set(self._open_outputs):
            chunk = os.read(descriptor, _CHUNK)
            self._open_outputs[descriptor].extend(chunk)
            if not chunk:
                self._poller.unregister(descriptor)
                del self._open_outputs[descriptor]
        return ready

    def _exceeds_output_limit(self) -> bool:
        return sum(map(len, self.outputs)) > self._sandbox.output_kb << 10


def _process_memory_bytes(pid: int) -> int:
    """Return the bytes of private pages (swapped ones included) and file buffers of process `pid`; 0 after its end.

    The kernel's buffer of each open file counts at its maximum size.
    """
    size = 0
    with suppress(FileNotFoundError, ProcessLookupError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(("RssAnon:", "VmSwap:")):
                size += int(line.split()[1]) << 10
        try:
            open_files = len(os.listdir(f"/proc/{pid}/fd"))
        except PermissionError:
            # A process can hide its open files from all users but root; it is then charged for the maximum.
            open_files = OPEN_FILES
        size += open_files * _BUFFER_BYTES
    return size


class ProgramTimeLimit:
    """Clock of the time that a program uses, which expires after `wall_s` seconds.

    CPU time counts while a process of the program is runnable, so that waiting for a CPU costs nothing; wall time
    counts while all its processes sleep. After a wall time of `MAX_WALL_FACTOR` times `wall_s`, the clock expires in
    any case. No time counts while the watching process itself is stopped.
    """

    def __init__(self, pid: int, wall_s: float) -> None:
        self._pid, self._wall_s = pid, wall_s
        self._sampled_at, self._initial_cpu_s = time.monotonic(), process_tree_cpu_s(pid)
        self._cpu_s = self._charged_s = self._elapsed_s = 0.0

    @property
    def has_expired(self) -> bool:
        """True if the program has used `wall_s` seconds, or the wall time has reached its limit."""
        used_s = max(self._charged_s, self._cpu_s)
        return used_s >= self._wall_s or self._elapsed_s >= MAX_WALL_FACTOR * self._wall_s

    def charge_elapsed_time(self) -> None:
        """Add the time since the last sample to the time that the program has used."""
        now, cpu_s = time.monotonic(), process_tree_cpu_s(self._pid) - self._initial_cpu_s
        # The interval is bounded, since this process may have been stopped since the last sample.
        interval_s = min(now - self._sampled_at, _MAX_INTERVAL_S)
        computed_s = max(cpu_s - self._cpu_s, 0.0)
        self._charged_s += min(computed_s, interval_s) if _RUNNABLE in process_tree_states(self._pid) else interval_s
        self._elapsed_s += interval_s
        self._sampled_at, self._cpu_s = now, cpu_s

    def check_cpu_was_available(self) -> None:
        """Check, after the clock has expired, that the program did not mainly wait for a CPU.

        Raises:
            InfrastructureError: if the clock expired by the limit of wall time, because the machine was busy.
        """
        if max(self._charged_s, self._cpu_s) < self._wall_s:
            raise InfrastructureError(
                f"the program got {self._cpu_s:.2g} s of processor time in {self._elapsed_s:.3g} s on this machine"
            )


@contextmanager
def hold_sandbox_slot() -> Iterator[None]:
    """Hold one of this machine's `MAX_SANDBOXES` slots during the body. The kernel frees the slot if this process dies.

    Wait at most `SLOT_TIMEOUT_S` seconds for a free slot; after the timeout, the body runs without a slot.

    Raises:
        RunError: if the folder of the lock files belongs to another user.
    """
    folder = Path(tempfile.gettempdir()) / f"marl-sandboxes-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise RunError(f"sandbox: {folder} belongs to somebody else; remove it, or set TMPDIR to a folder of your own")
    deadline = time.monotonic() + SLOT_TIMEOUT_S
    while (lock := _lock_first_free_slot(folder)) is None and time.monotonic() < deadline:
        time.sleep(_SLOT_RETRY_S)
    try:
        yield
    finally:
        if lock is not None:
            os.close(lock)


def _lock_first_free_slot(lock_folder: Path) -> int | None:
    """Lock the first free lock file in `lock_folder` and return its file descriptor, or None if all are locked."""
    for number in range(MAX_SANDBOXES):
        descriptor = os.open(lock_folder / str(number), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
        else:
            return descriptor
    return None
