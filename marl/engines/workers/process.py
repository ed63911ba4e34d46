"""Worker process: runs verifiers and tools, so that it can be killed. Started as `python -m THIS_MODULE FD MEMORY`.

It speaks JSON over the socket FD. First it gets the parts, name -> [module, class, settings], loads and acknowledges
them; then it answers one question at a time by `{"value": ...}` or `{"error": "..."}`, with `"fatal": true` if the
fault is not the answer's but this machine's, such as a sandbox that does not work here. It ends with its parent.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import math
import resource
import signal
import sys
from collections.abc import Mapping
from functools import reduce
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

from pydantic import TypeAdapter

from marl.errors import RunError
from marl.protocols import ToolConfig, VerifierConfig
from marl.types import Case

CASE = TypeAdapter(Case)
PartSpec = tuple[str, str, dict[str, Any]]
"""(module, class, settings) from which another process can build a part again."""
_PR_SET_PDEATHSIG = 1


class RecordedError:
    """Context that records an exception instead of passing it on: here it is a finding about the answer."""

    message = ""
    fatal = False

    def __enter__(self) -> RecordedError:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> bool:
        if kind is None or not issubclass(kind, Exception):
            return False
        # A library's message may be as long as its input.
        self.message, self.fatal = f"{kind.__name__}: {str(error)[:300]}", issubclass(kind, RunError)
        return True


def load_parts(specs: Mapping[str, PartSpec]) -> dict[str, VerifierConfig | ToolConfig]:
    """Import and validate parts, and import the modules that they name as slow to import."""
    parts = {}
    for name, (module, qualname, settings) in specs.items():
        part = reduce(getattr, qualname.split("."), importlib.import_module(module))
        for slow in part.imports:
            importlib.import_module(slow)
        parts[name] = part.model_validate(settings)
    return parts


def answer(part: VerifierConfig | ToolConfig, question: str) -> Any:
    """Return (score, reason) of a verifier, or the text of a tool.

    Raises:
        ValueError, TypeError: if a verifier's score is no number in [-1, 1].
        Exception: any that a verifier raises.
    """
    if isinstance(part, VerifierConfig):
        verdict = part(CASE.validate_json(question))
        score = float(verdict.score)
        if not (math.isfinite(score) and -1 <= score <= 1):
            raise ValueError(f"a score of {score}; scores lie between -1 and 1")
        return score, verdict.why
    try:
        return str(part(json.loads(question)))
    except ValueError as error:
        return f"error: {error}"


def main() -> None:
    """Serve until the other end of the socket is closed."""
    connection, memory = Connection(int(sys.argv[1])), int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        # Die with the parent, even in the middle of a C call.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    parts: dict[str, VerifierConfig | ToolConfig] = {}
    with RecordedError() as load_error:
        parts = load_parts(json.loads(connection.recv_bytes()))
    connection.send_bytes(json.dumps({"error": load_error.message}).encode())
    while not load_error.message:
        try:
            name, question = json.loads(connection.recv_bytes())
        except EOFError:
            return
        result: dict[str, Any] = {}
        with RecordedError() as error:
            result = {"value": answer(parts[name], question)}
        if error.message:
            result = {"error": f"raised {error.message}", "fatal": error.fatal}
        connection.send_bytes(json.dumps(result).encode())


if __name__ == "__main__":
    main()
