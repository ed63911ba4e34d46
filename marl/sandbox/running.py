"""Starts a program in its sandbox, watches it, and ends it."""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from typing import BinaryIO

from marl.sandbox import isolation as ways
from marl.sandbox.settings import Sandbox
from marl.sandbox.slots import slot
from marl.sandbox.watch import Watch, Why

_START_S = 30.0
_SIGNALLED = 128


@dataclass(frozen=True, slots=True)
class Ran:
    """What became of a program."""

    stdout: str
    stderr: str
    status: int
    """As a shell gives it: 128 + n if signal n ended it."""
    why: Why
    """Why it ended: by itself, or which limit it met. Memory beyond its own limit is a MemoryError of the program."""

    @property
    def well(self) -> bool:
        """Whether it came to its end and reported no error."""
        return self.why == "finished" and self.status == 0

    @property
    def last_error(self) -> str:
        """The last line of standard error, where Python names the exception; empty if there is none."""
        return next((line.strip() for line in reversed(self.stderr.splitlines()) if line.strip()), "")


def run(sandbox: Sandbox, program: str, stdin: str = "", files: Mapping[str, str] | None = None) -> Ran:
    """Run a Python program in a scratch folder that holds `files` (name -> text) and is gone afterwards.

    Raises:
        ways.Refused: if the walls that `sandbox` asks for do not work here. Nothing has run then.
    """
    how = _way(sandbox.how)
    return _run(how, sandbox, stdin, {**(files or {}), "main.py": program})


def unusable(sandbox: Sandbox) -> str:
    """Why nothing can run in `sandbox` on this machine; empty if it can."""
    try:
        _way(sandbox.how)
    except ways.Refused as refusal:
        return str(refusal)
    return ""


def _way(how: str) -> str:
    if how == "none":
        return how
    if sys.platform != "linux":
        raise ways.Refused(f"sandbox: needs Linux, this is {sys.platform}; `sandbox: none` runs the code unprotected")
    tried = ("bubblewrap", "unshare") if how == "auto" else (how,)
    for way in tried:
        if not _fault(way):
            return way
    faults = "; ".join(f"{way}: {_fault(way)}" for way in tried)
    raise ways.Refused(
        f"sandbox: neither way to shut model-written code in works here ({faults}); install bubblewrap where user "
        "namespaces are allowed, or say `sandbox: none` to run the code unprotected"
        if how == "auto"
        else f"sandbox.how: {faults}; choices: auto, bubblewrap, unshare, none (unprotected)"
    )


@cache
def _fault(way: str) -> str:
    """Why `way` does not work on this machine, found out by running an empty program; empty if it works."""
    try:
        done = _run(way, Sandbox(), "", {"main.py": ""})
    except ways.Refused as refusal:
        return str(refusal)
    return "" if done.well else f"an empty program ended with status {done.status}: {done.last_error}"


def _run(how: str, sandbox: Sandbox, stdin: str, files: Mapping[str, str]) -> Ran:
    with ExitStack() as stack:
        scratch = ways.SCRATCH if how != "none" else stack.enter_context(tempfile.TemporaryDirectory())
        number = stack.enter_context(slot())
        orders = ways.orders(how, sandbox, number, files, scratch)
        told = stack.enter_context(_sealed(json.dumps(orders)))
        given = stack.enter_context(_sealed(stdin))
        heard, ready = os.pipe()
        stack.callback(os.close, heard)
        try:
            process = subprocess.Popen(
                ways.command(how, sandbox, told.fileno(), ready),
                stdin=given,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(told.fileno(), ready),
                env={"PATH": os.defpath},
                start_new_session=True,
            )
        except OSError as error:
            raise ways.Refused(f"{how} cannot be started: {error}") from error
        finally:
            os.close(ready)
        return _finish(process, heard, sandbox)


def _sealed(text: str) -> BinaryIO:
    """A file in memory that holds `text` and that nobody can change any more."""
    file = os.fdopen(os.memfd_create("marl", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC), "w+b")
    file.write(text.encode(errors="replace"))
    file.seek(0)
    seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals)
    return file


def _finish(process: subprocess.Popen[bytes], heard: int, sandbox: Sandbox) -> Ran:
    watcher = Watch(process, sandbox)
    try:
        began = _begins(heard)
        why = watcher.wait() if began else "killed"
    finally:
        watcher.end()
    stdout, stderr = (bytes(said).decode(errors="replace") for said in watcher.said)
    status = process.returncode if process.returncode >= 0 else _SIGNALLED - process.returncode
    if why == "finished" and status > _SIGNALLED:
        why = "timeout" if status == _SIGNALLED + signal.SIGXCPU else "killed"
    ran = Ran(stdout, stderr, status, why)
    if not began:
        raise ways.Refused(f"the sandbox did not start: {ran.last_error or f'status {status}'}")
    return ran


def _begins(heard: int) -> bool:
    """Whether every door is shut and the program begins."""
    poller = select.poll()
    poller.register(heard, select.POLLIN)
    return bool(poller.poll(_START_S * 1000)) and os.read(heard, 1) != b""
