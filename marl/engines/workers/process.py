"""Main module of a worker process, which runs verifiers and tools. Started as `python -m THIS_MODULE FD MEMORY`.

The process reads and writes JSON over the socket with file descriptor FD; MEMORY is its address space in bytes. The
first message holds the plug-ins, name -> [module, class, settings], which the process loads and acknowledges. Each
further message is a question, answered by `{"value": ...}` or `{"error": ..., "detail": ..., "blame": ...}`. The
process ends with its parent.
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
from collections.abc import Mapping, Sequence
from functools import reduce
from types import TracebackType
from typing import Any, Literal

from pydantic import TypeAdapter

from marl.core.errors import RunError
from marl.core.types import VerifierCase
from marl.engines.workers.channel import ProcessMessageChannel
from marl.host.untrusted_text import replace_surrogates
from marl.protocols import InfrastructureError, ToolConfig, VerifierConfig

VERIFIER_CASE_ADAPTER = TypeAdapter(VerifierCase)
PluginSpec = tuple[str, str, dict[str, Any]]
"""(module, class, settings) from which another process can build a plug-in."""
ErrorCause = Literal["answer", "machine", "setup"]
"""Cause of an error. `answer`: the answer fails; `machine`: another attempt may succeed; `setup`: the plug-in cannot
work on this machine, such as a sandbox without the necessary rights."""
MAX_RESULT_BYTES = 1 << 20
"""Maximum size of a result in bytes."""
_MAX_REASON, _MAX_DETAIL = 1000, 300
"""Maximum lengths of a verifier's reason and of an exception's message in characters, as both may quote long inputs."""
_PR_SET_PDEATHSIG = 1


class ErrorRecorder:
    """Context manager that catches and records an exception of a plug-in in the body."""

    name = ""
    """Class name of the recorded exception, or "" without an exception."""
    detail = ""
    """Message of the recorded exception."""
    blame: ErrorCause = "answer"

    def __enter__(self) -> ErrorRecorder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> bool:
        if kind is None or not issubclass(kind, Exception):
            return False
        self.name = kind.__name__
        if issubclass(kind, InfrastructureError):
            self.blame = "machine"
        elif issubclass(kind, RunError):
            self.blame = "setup"
        # The error's text goes to a separate field: it may quote secrets that the author of the answer must not see.
        self.detail = replace_surrogates(str(error)[:_MAX_DETAIL])
        return True


def run_plugin(plugin: VerifierConfig | ToolConfig, question_json: str) -> dict[str, Any]:
    """Return the reply of `plugin` to `question_json`: (score, reason) of a verifier, the text of a tool, or an error.

    Raises:
        Exception: any error of the plug-in.
    """
    if isinstance(plugin, VerifierConfig):
        case = VERIFIER_CASE_ADAPTER.validate_json(question_json)
        verdict = plugin(case)
        score = verdict.score
        is_list = isinstance(score, Sequence)
        numbers = list(map(float, score)) if is_list else [float(score)]
        if is_list and case.segments and len(numbers) != len(case.segments):
            return {"error": f"gave {len(numbers)} scores for {len(case.segments)} segments"}
        for number in numbers:
            if not (math.isfinite(number) and -1 <= number <= 1):
                return {"error": f"gave a score of {number}; scores lie between -1 and 1"}
        return {"value": (numbers if is_list else numbers[0], replace_surrogates(str(verdict.why)[:_MAX_REASON]))}
    question = json.loads(question_json)
    try:
        result = plugin.call_after(**question) if plugin.episode_state else plugin(question)
        return {"value": replace_surrogates(str(result))}
    except ValueError as error:
        # The tool was called with wrong arguments, so its error message is the answer to the model.
        return {"value": f"error: {replace_surrogates(str(error))}"}


def reply_to_message(plugins: Mapping[str, VerifierConfig | ToolConfig], message: bytes) -> bytes:
    """Return the reply to a message of the parent process, as JSON of at most `MAX_RESULT_BYTES` bytes."""
    with ErrorRecorder() as recorder:
        name, question = json.loads(message)
        encoded = json.dumps(run_plugin(plugins[name], question)).encode()
        if len(encoded) <= MAX_RESULT_BYTES:
            return encoded
        return json.dumps({"error": f"gave {len(encoded):,} bytes; at most {MAX_RESULT_BYTES:,} are read"}).encode()
    error = {"error": f"raised {recorder.name}", "detail": recorder.detail, "blame": recorder.blame}
    return json.dumps(error).encode()


def main() -> None:
    """Load plug-ins and answer questions until the parent process closes the socket."""
    channel, memory = ProcessMessageChannel(socket.socket(fileno=int(sys.argv[1]))), int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        # The kernel kills this process when its parent ends, even in the middle of a C call.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    plugins: dict[str, VerifierConfig | ToolConfig] = {}
    with ErrorRecorder() as recorder:
        for name, (module, qualname, settings) in json.loads(channel.receive()).items():
            # A class nested in another one has a qualified name with dots, hence the `reduce`.
            plugin = reduce(getattr, qualname.split("."), importlib.import_module(module))
            # Slow imports count for the start of the process and not for the first job.
            for slow_module in plugin.imports:
                importlib.import_module(slow_module)
            config = plugins[name] = plugin.model_validate(settings)
            if isinstance(config, ToolConfig):
                config.prepare()
    channel.send(json.dumps({"error": f"{recorder.name}: {recorder.detail}" if recorder.name else ""}).encode())
    while not recorder.name:
        try:
            message = channel.receive()
        except EOFError:
            return
        channel.send(reply_to_message(plugins, message))


if __name__ == "__main__":
    main()
