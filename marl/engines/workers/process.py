"""Worker process: runs verifiers and tools, so that it can be killed. Started as `python -m THIS_MODULE FD MEMORY`.

It speaks JSON over the socket FD. First it gets the parts, name -> [module, class, settings], loads and acknowledges
them; then it answers one question at a time by `{"value": ...}` or `{"error": ..., "detail": ..., "blame": ...}`. An
exception's own message is the detail, as it may quote what whoever hears the error must not know. It ends with its
parent.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import math
import resource
import signal
import socket
import sys
from collections.abc import Mapping
from functools import reduce
from types import TracebackType
from typing import Any, Literal

from pydantic import TypeAdapter

from marl.engines.workers.channel import Channel
from marl.errors import RunError
from marl.protocols import ToolConfig, UnjudgedError, VerifierConfig
from marl.text import well_formed
from marl.types import Case

CASE = TypeAdapter(Case)
PartSpec = tuple[str, str, dict[str, Any]]
"""(module, class, settings) from which another process can build a part again."""
Blame = Literal["answer", "machine", "setup"]
"""Cause of an error: the answer, which failed then; this machine, so that the job is worth another try; or the part,
which does not work here at all, such as a sandbox without the rights that it needs."""
MAX_RESULT = 1 << 20
"""Bytes of a result."""
_MAX_REASON, _MAX_DETAIL = 1000, 300
"""Characters. A library's message may be as long as its input."""
_PR_SET_PDEATHSIG = 1


class RecordedError:
    """Context that records an exception instead of passing it on: here it is a finding about the answer."""

    name = ""
    detail = ""
    blame: Blame = "answer"

    def __enter__(self) -> RecordedError:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> bool:
        if kind is None or not issubclass(kind, Exception):
            return False
        self.name, self.blame = kind.__name__, _blame(kind)
        self.detail = well_formed(str(error)[:_MAX_DETAIL])
        return True

    def result(self) -> dict[str, Any]:
        """Return the exception as a result."""
        return {"error": f"raised {self.name}", "detail": self.detail, "blame": self.blame}


def _blame(kind: type[Exception]) -> Blame:
    if issubclass(kind, UnjudgedError):
        return "machine"
    return "setup" if issubclass(kind, RunError) else "answer"


def load_parts(specs: Mapping[str, PartSpec]) -> dict[str, VerifierConfig | ToolConfig]:
    """Import and validate parts, and import the modules that they name as slow to import."""
    parts = {}
    for name, (module, qualname, settings) in specs.items():
        part = reduce(getattr, qualname.split("."), importlib.import_module(module))
        for slow in part.imports:
            importlib.import_module(slow)
        parts[name] = part.model_validate(settings)
    return parts


def answer(part: VerifierConfig | ToolConfig, question: str) -> dict[str, Any]:
    """Return the result of a part: (score, reason) of a verifier, the text of a tool, or an error.

    Raises:
        Exception: any that the part raises.
    """
    if isinstance(part, VerifierConfig):
        verdict = part(CASE.validate_json(question))
        score = float(verdict.score)
        if not (math.isfinite(score) and -1 <= score <= 1):
            return {"error": f"gave a score of {score}; scores lie between -1 and 1"}
        return {"value": (score, well_formed(str(verdict.why)[:_MAX_REASON]))}
    try:
        return {"value": well_formed(str(part(json.loads(question))))}
    except ValueError as error:
        return {"value": f"error: {well_formed(str(error))}"}


def reply(parts: Mapping[str, VerifierConfig | ToolConfig], message: bytes) -> bytes:
    """Return the answer to a message of the parent, as JSON of up to `MAX_RESULT` bytes."""
    with RecordedError() as error:
        name, question = json.loads(message)
        encoded = json.dumps(answer(parts[name], question)).encode()
        if len(encoded) <= MAX_RESULT:
            return encoded
        return json.dumps({"error": f"gave {len(encoded):,} bytes; at most {MAX_RESULT:,} are read"}).encode()
    return json.dumps(error.result()).encode()


def main() -> None:
    """Serve until the other end of the socket is closed."""
    channel, memory = Channel(socket.socket(fileno=int(sys.argv[1]))), int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        # Die with the parent, even in the middle of a C call.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    parts: dict[str, VerifierConfig | ToolConfig] = {}
    with RecordedError() as fault:
        parts = load_parts(json.loads(channel.receive()))
    channel.send(json.dumps({"error": f"{fault.name}: {fault.detail}" if fault.name else ""}).encode())
    while not fault.name:
        try:
            message = channel.receive()
        except EOFError:
            return
        channel.send(reply(parts, message))


if __name__ == "__main__":
    main()
