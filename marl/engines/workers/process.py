"""Worker process: runs verifiers and tools, so that it can be killed. Started as `python -m THIS_MODULE FD MEMORY`.

The process reads and writes JSON over the socket FD. The first message holds the plug-ins, name -> [module, class,
settings], which the process loads and acknowledges. Each further message is a question, answered by `{"value": ...}`
or `{"error": ..., "detail": ..., "blame": ...}`. The process ends with its parent.
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

from marl.core.errors import RunError
from marl.core.types import VerifierCase
from marl.engines.workers.channel import Channel
from marl.host.outside import replace_surrogates
from marl.protocols import InconclusiveError, ToolConfig, VerifierConfig

CASE = TypeAdapter(VerifierCase)
PluginSpec = tuple[str, str, dict[str, Any]]
"""(module, class, settings) from which another process can build a plug-in."""
Blame = Literal["answer", "machine", "setup"]
"""Cause of an error: the answer, which fails; this machine, so that another attempt may succeed; or the plug-in, which
cannot work on this machine at all, such as a sandbox without the necessary rights."""
MAX_RESULT_BYTES = 1 << 20
"""Maximum size of a result in bytes."""
_MAX_REASON, _MAX_DETAIL = 1000, 300
"""Maximum lengths in characters: a library's message may be as long as its input."""
_PR_SET_PDEATHSIG = 1


class RecordedError:
    """Context that records an exception instead of raising it: an exception of a plug-in is a result."""

    name = ""
    detail = ""
    blame: Blame = "answer"

    def __enter__(self) -> RecordedError:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> bool:
        if kind is None or not issubclass(kind, Exception):
            return False
        self.name = kind.__name__
        if issubclass(kind, InconclusiveError):
            self.blame = "machine"
        elif issubclass(kind, RunError):
            self.blame = "setup"
        # Not part of the error: the message may quote what the reader of the error must not know.
        self.detail = replace_surrogates(str(error)[:_MAX_DETAIL])
        return True

    def result(self) -> dict[str, Any]:
        """Return the result of a job that raised the exception."""
        return {"error": f"raised {self.name}", "detail": self.detail, "blame": self.blame}


def load_plugins(specs: Mapping[str, PluginSpec]) -> dict[str, VerifierConfig | ToolConfig]:
    """Import and validate plug-ins."""
    plugins = {}
    for name, (module, qualname, settings) in specs.items():
        # A qualified name may lead through outer classes.
        plugin = reduce(getattr, qualname.split("."), importlib.import_module(module))
        # Slow imports count for the start of the process and not for the first job.
        for slow_module in plugin.imports:
            importlib.import_module(slow_module)
        plugins[name] = plugin.model_validate(settings)
    return plugins


def run_plugin(plugin: VerifierConfig | ToolConfig, question: str) -> dict[str, Any]:
    """Return the result of a plug-in: (score, reason) of a verifier, the text of a tool, or an error.

    Raises:
        Exception: any error of the plug-in.
    """
    if isinstance(plugin, VerifierConfig):
        verdict = plugin(CASE.validate_json(question))
        score = float(verdict.score)
        if not (math.isfinite(score) and -1 <= score <= 1):
            return {"error": f"gave a score of {score}; scores lie between -1 and 1"}
        return {"value": (score, replace_surrogates(str(verdict.why)[:_MAX_REASON]))}
    try:
        return {"value": replace_surrogates(str(plugin(json.loads(question))))}
    except ValueError as error:
        # A mistake of the caller: its message is the tool's answer.
        return {"value": f"error: {replace_surrogates(str(error))}"}


def reply(plugins: Mapping[str, VerifierConfig | ToolConfig], message: bytes) -> bytes:
    """Return the answer to a question of the parent, as JSON of at most `MAX_RESULT_BYTES` bytes."""
    with RecordedError() as error:
        name, question = json.loads(message)
        encoded = json.dumps(run_plugin(plugins[name], question)).encode()
        if len(encoded) <= MAX_RESULT_BYTES:
            return encoded
        return json.dumps({"error": f"gave {len(encoded):,} bytes; at most {MAX_RESULT_BYTES:,} are read"}).encode()
    return json.dumps(error.result()).encode()


def main() -> None:
    """Answer questions until the other end of the socket is closed."""
    channel, memory = Channel(socket.socket(fileno=int(sys.argv[1]))), int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        # Die with the parent, even in the middle of a C call.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    plugins: dict[str, VerifierConfig | ToolConfig] = {}
    with RecordedError() as fault:
        plugins = load_plugins(json.loads(channel.receive()))
    channel.send(json.dumps({"error": f"{fault.name}: {fault.detail}" if fault.name else ""}).encode())
    while not fault.name:
        try:
            message = channel.receive()
        except EOFError:
            return
        channel.send(reply(plugins, message))


if __name__ == "__main__":
    main()
