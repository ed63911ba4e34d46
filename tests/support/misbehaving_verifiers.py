"""Small verifiers and tools that sleep, crash or misbehave on purpose."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
import time
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import model_validator

from marl.core.errors import RunError
from marl.core.types import Verdict, VerifierCase
from marl.protocols import InfrastructureError, ToolConfig, VerifierConfig


class ObedientVerifier(VerifierConfig):
    """Verifier that obeys the answer."""

    kind: str = "says"
    file: str = ""

    def __call__(self, case: VerifierCase) -> Verdict:
        word, _, rest = (case.answer or "").partition(" ")
        if word == "why":
            return Verdict(0.5, rest * 1000)
        return Verdict(float(getattr(self, f"_{word}")(rest)), f"after {word}")

    def _score(self, rest: str) -> float:
        return float(rest)

    def _count(self, rest: str) -> float:
        with Path(self.file).open("a") as file:
            file.write("x")
        return 1.0

    def _sleep(self, rest: str) -> float:
        time.sleep(float(rest))
        return 1.0

    def _sleep_in_c(self, rest: str) -> float:
        ctypes.PyDLL(None).sleep(60)  # PyDLL keeps the interpreter lock: no Python signal handler ever runs
        return 1.0

    def _backtrack(self, rest: str) -> bool:
        return bool(re.fullmatch("(a+)+b", "a" * 64))

    def _tower(self, rest: str) -> int:
        return 9 ** (9**9**9)

    def _memory(self, rest: str) -> float:
        return len(bytearray(2**40))

    def _refuse(self, rest: str) -> float:
        raise RunError("no sandbox here")

    def _exit(self, rest: str) -> float:
        os._exit(3)

    def _quit(self, rest: str) -> float:
        sys.exit(0)

    def _fault(self, rest: str) -> float:
        return ctypes.string_at(0)[0]

    def _raise(self, rest: str) -> float:
        raise KeyError(rest)

    def _print(self, rest: str) -> float:
        sys.stdout.write('{"value": [1.0, ""]}\n')
        sys.stdout.flush()
        return 0.0

    def _flood(self, rest: str) -> float:
        for stream in (1, 2):
            for _ in range(1000):
                os.write(stream, b"x" * 2**16)
        return 1.0

    def _write(self, rest: str) -> float:
        """Write a reply of its own, as hexadecimal digits, where the process writes its replies."""
        os.write(int(sys.argv[1]), bytes.fromhex(rest))
        time.sleep(60)
        return 1.0

    def _child(self, rest: str) -> float:
        child = subprocess.Popen(["sleep", "300"])
        Path(self.file).write_text(f"{os.getpid()} {child.pid}")
        time.sleep(300)
        return 1.0

    def _pid(self, rest: str) -> float:
        Path(self.file).write_text(str(os.getpid()))
        return 1.0

    def _first_waits(self, rest: str) -> float:
        """Write its process's number and wait, the first time that it is asked; then return the score."""
        if not Path(self.file).exists():
            Path(self.file).write_text(str(os.getpid()))
            time.sleep(300)
        return float(rest)

    def _always_waits(self, rest: str) -> float:
        with Path(self.file).open("a") as file:
            file.write(f"{os.getpid()}\n")
        time.sleep(300)
        return 1.0

    def _compute(self, rest: str) -> float:
        until = time.process_time() + float(rest)
        while time.process_time() < until:
            pass
        return 1.0

    def _fill_and_wait(self, rest: str) -> float:
        held = b"x" * (int(rest) << 20)
        return self._always_waits(rest) + len(held)

    def _computing_child(self, rest: str) -> float:
        subprocess.run([sys.executable, "-S", "-c", "while True: pass"])
        return 1.0

    def _cannot_tell(self, rest: str) -> float:
        with Path(self.file).open("a") as file:
            file.write("x")
        raise InfrastructureError("the service is down")

    def _secret(self, rest: str) -> float:
        return float("A_SECRET_KEY" in os.environ)


class SlowToLoad(VerifierConfig):
    """Verifier of which the first few processes write their numbers while they load, and wait."""

    kind: str = "slow_to_load"
    file: str = ""
    waiting: int = 0

    @model_validator(mode="after")
    def _wait(self) -> SlowToLoad:
        if Path(sys.argv[0]).name == "process.py":
            with Path(self.file).open("a+") as file:
                file.write(f"{os.getpid()}\n")
            if len(Path(self.file).read_text().split()) <= self.waiting:
                time.sleep(300)
        return self

    def __call__(self, case: VerifierCase) -> Verdict:
        return Verdict(1.0)


class Broken(VerifierConfig):
    """Verifier that needs a module which is not installed."""

    kind: str = "broken"
    imports = ("a_module_that_is_not_there",)

    def __call__(self, case: VerifierCase) -> Verdict:
        return Verdict(1.0)


class UppercaseTool(ToolConfig):
    """Tool that returns its text in upper case."""

    kind: str = "shout"

    def __call__(self, arguments: Mapping[str, Any]) -> str:
        if not isinstance(arguments.get("text"), str):
            raise ValueError("text: must be a string")
        if arguments["text"] == "hang":
            time.sleep(60)
        if arguments["text"] == "crash":
            os._exit(1)
        if arguments["text"] == "raise":
            raise KeyError("key")
        if arguments["text"] == "much":
            return "x" * 2**21
        return arguments["text"].upper()


class Waits(ToolConfig):
    """Tool that writes its process's number and waits."""

    kind: str = "waits"
    file: str = ""

    def __call__(self, arguments: Mapping[str, Any]) -> str:
        with Path(self.file).open("a") as file:
            file.write(f"{os.getpid()}\n")
        time.sleep(300)
        return ""


class UndecidedVerifier(VerifierConfig):
    """Verifier that cannot tell about some problems, or about any as soon as a file is there."""

    kind: str = "unsure"
    percent: int = 0
    file: str = ""

    def __call__(self, case: VerifierCase) -> Verdict:
        if zlib.crc32(case.problem.key.encode()) % 100 < self.percent or (self.file and Path(self.file).exists()):
            raise InfrastructureError("the service is down")
        return Verdict(float(case.answer == "yes"))


class FailingVerifier(VerifierConfig):
    """Verifier whose code fails on some problems."""

    kind: str = "fails"
    percent: int = 0
    fault: Literal["raise", "exit", "segfault", "nan"] = "raise"

    def __call__(self, case: VerifierCase) -> Verdict:
        if zlib.crc32(case.problem.key.encode()) % 100 < self.percent:
            if self.fault == "raise":
                raise ZeroDivisionError("of nothing")
            if self.fault == "exit":
                sys.exit(0)
            if self.fault == "segfault":
                ctypes.string_at(0)
            return Verdict(float("nan"))
        return Verdict(float(case.answer == "yes"))
