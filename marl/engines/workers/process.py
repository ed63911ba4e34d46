"""A process that runs verifiers and tools, so that it can be killed.

Started as `python -m marl.engines.workers.process FD MEMORY`.

JSON over the socket FD. First come the parts, name -> [module, class, settings], which are loaded and acknowledged;
then one question at a time, each answered by `{"value": ...}` or `{"error": "..."}`, with `"fatal": true` if the fault
is not the answer's but this machine's, such as a sandbox that cannot be had. The process ends with its parent.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import math
import resource
import signal
import sys
from functools import reduce
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

from pydantic import TypeAdapter

from marl.errors import RunError
from marl.protocols import ToolConfig, VerifierConfig
from marl.types import Case, Verdict

CASE = TypeAdapter(Case)
_PR_SET_PDEATHSIG = 1


class Caught:
    """Notes whatever is raised inside, instead of passing it on: here that is a finding about the answer."""

    error = ""
    fatal = False

    def __enter__(self) -> Caught:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> bool:
        if kind is None or not issubclass(kind, Exception):
            return False
        # The message of an unhappy library may be as long as its input.
        self.error, self.fatal = f"{kind.__name__}: {str(error)[:300]}", issubclass(kind, RunError)
        return True


def load(parts: dict[str, tuple[str, str, dict[str, Any]]]) -> dict[str, VerifierConfig | ToolConfig]:
    """Import and validate parts, and what they say takes long to import."""
    loaded = {}
    for name, (module, qualname, settings) in parts.items():
        part = reduce(getattr, qualname.split("."), importlib.import_module(module))
        for heavy in part.imports:
            importlib.import_module(heavy)
        loaded[name] = part.model_validate(settings)
    return loaded


def answer(part: VerifierConfig | ToolConfig, question: str) -> Any:
    """[score, why] of a verifier, the text of a tool.

    Raises:
        ValueError, TypeError: if the part gave what is neither.
        Exception: whatever a verifier raises.
    """
    if isinstance(part, VerifierConfig):
        return _verdict(part(CASE.validate_json(question)))
    try:
        return str(part(json.loads(question)))
    except ValueError as error:
        return f"error: {error}"


def _verdict(verdict: Verdict) -> tuple[float, str]:
    score = float(verdict.score)
    if not (math.isfinite(score) and -1 <= score <= 1):
        raise ValueError(f"a score of {score}; scores lie between -1 and 1")
    return score, verdict.why


def main() -> None:
    """Serve until the other end of the socket is closed."""
    connection, memory = Connection(int(sys.argv[1])), int(sys.argv[2])
    _bind(memory)
    parts: dict[str, VerifierConfig | ToolConfig] = {}
    with Caught() as trouble:
        parts = load(json.loads(connection.recv_bytes()))
    connection.send_bytes(json.dumps({"error": trouble.error}).encode())
    while not trouble.error:
        try:
            name, question = json.loads(connection.recv_bytes())
        except EOFError:
            return
        value = None
        with Caught() as caught:
            value = answer(parts[name], question)
        failed = {"error": f"raised {caught.error}", "fatal": caught.fatal}
        connection.send_bytes(json.dumps(failed if caught.error else {"value": value}).encode())


def _bind(memory: int) -> None:
    """Bound the memory; die with the parent, even in the middle of a computation that never looks up."""
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main()
