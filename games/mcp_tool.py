"""Tool of a server that speaks the Model Context Protocol, by the official SDK (`mcp>=2.3`)."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from ipaddress import ip_address
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, PrivateAttr, field_validator, model_validator

from marl.core.config import choices_hint
from marl.protocols import Tool, ToolConfig

_DIE_WITH_PARENT = (
    "import ctypes, os, signal, sys; ctypes.CDLL(None).prctl(1, signal.SIGKILL); os.execvp(sys.argv[1], sys.argv[1:])"
)
"""Program that runs its arguments as a command, which the kernel kills if the worker process dies. The SDK starts
servers in a session of their own, so that they would outlive a worker process that is killed."""
_MAX_RUNNING_SERVERS = 16
"""Maximum number of servers of episodes that a worker process keeps running. An ended episode is not reported to it."""
_REQUESTS_OF_CALL = 4
"""Number of requests in the first call of a server, whose time limits together make up the limit of the call."""


class McpTool(ToolConfig):
    """Tool of a server that speaks the Model Context Protocol.

    A server that hangs, breaks the protocol or dies costs one call, whose result begins with `error: `. It is started
    anew for the next call. In this kind of tool, time limits are of wall time.
    """

    kind: str = "mcp"
    example = "command: [mcp-server-time], tool: get_current_time"
    command: tuple[str, ...] = Field(default=())
    """Command that starts the server, which reads from its standard input and writes to its standard output."""
    url: str | None = None
    """URL of a running server on this machine (streamable HTTP), instead of `command`."""
    tool: str | None = None
    """Name of the tool on the server (default: the server's only tool)."""
    lifetime: Literal["worker", "episode"] = "worker"
    """Server of a call. `worker`: each worker process has one for each tool, and keeps it. `episode`: a server has got
    the calls of one episode alone, also those of other tools with the same `command`. If none is running, a fresh one
    repeats them; so forks have servers of their own. Calls with an error as result are not repeated."""

    _server: list[_McpServer] = PrivateAttr(default_factory=list)
    """The running server, or empty before the first call and after a failure."""

    @field_validator("url")
    @classmethod
    def _check_url_is_on_loopback(cls, url: str | None) -> str | None:
        host = urlsplit(url).hostname if url else "localhost"
        if host != "localhost" and not (host and host.replace(".", "").isdigit() and ip_address(host).is_loopback):
            raise ValueError(f"{url!r} is not on this machine; choices: http://127.0.0.1:PORT/PATH, or `command`")
        return url

    @model_validator(mode="after")
    def _check_one_way_to_server(self) -> Self:
        if bool(self.command) == bool(self.url):
            raise ValueError("command: give either the command of a server or its `url`")
        if self.url and self.lifetime == "episode":
            raise ValueError(
                "lifetime: 'episode' starts servers, and `url` joins a running one; choices: lifetime: worker, or "
                "`command`"
            )
        return self

    def unmet_requirements(self) -> Iterable[str]:
        try:
            found = version("mcp")
        except PackageNotFoundError:
            found = ""
        if not found or tuple(map(int, found.split(".")[:2])) < (2, 3):
            yield (
                f"kind: 'mcp' needs the package mcp>=2.3, and there is {found or 'none'}; pip install 'marl-llm[mcp]' "
                "in an environment without `verifiers`, which needs an older one"
            )
        if self.command and shutil.which(self.command[0]) is None:
            yield f"command: no program {self.command[0]!r}"

    def describe(self, name: str) -> Tool:
        # What is missing is reported by `unmet_requirements`, with all else that a scenario lacks.
        if any(self.unmet_requirements()):
            return super().describe(name)
        server = self._start_server()
        try:
            return server.describe(self.tool).model_copy(update={"name": name})
        finally:
            server.close()

    @property
    def episode_state(self) -> str:
        return " ".join(self.command) if self.lifetime == "episode" else ""

    def call_record(self, arguments: Mapping[str, Any]) -> Any:
        return [self.tool, arguments]

    def call_after(self, earlier: Sequence[Any], arguments: Mapping[str, Any]) -> str:
        running = _running_servers.pop(self._server_key(earlier), None)
        server = running or self._start_server()
        with ExitStack() as after_error:
            # After an error the state of the server is unknown.
            after_error.callback(server.close)
            for tool, earlier_arguments in () if running else earlier:
                server.call(tool, earlier_arguments)
            text = server.call(self.tool, arguments)
            after_error.pop_all()
        key = self._server_key([*earlier, self.call_record(arguments)])
        # Another episode with the same calls may have left a server.
        replaced = _running_servers.pop(key, None)
        if replaced:
            replaced.close()
        _running_servers[key] = server
        while len(_running_servers) > _MAX_RUNNING_SERVERS:
            _running_servers.pop(next(iter(_running_servers))).close()
        return text

    def _server_key(self, calls: Sequence[Any]) -> tuple[tuple[str, ...], str]:
        return self.command, json.dumps(calls, sort_keys=True)

    def _start_server(self) -> _McpServer:
        return _McpServer(self.command, self.url, self.timeout_s / _REQUESTS_OF_CALL)

    def __call__(self, arguments: Mapping[str, Any]) -> str:
        works = False
        try:
            if not self._server:
                self._server.append(self._start_server())
            text = self._server[0].call(self.tool, arguments)
            works = True
        except _ToolError:
            works = True
            raise
        finally:
            # After any other error the state of the server is unknown.
            if not works and self._server:
                self._server.pop().close()
        return text


_running_servers: dict[tuple[tuple[str, ...], str], _McpServer] = {}
"""(command, JSON of the calls that the server has got) -> server of an episode in this process, the oldest first."""


class _ToolError(ValueError):
    """A call that the server, or the schema of its tool, has refused. The server still works."""


class _McpServer:
    """Connection to a server, which a background thread keeps open."""

    def __init__(self, command: tuple[str, ...], url: str | None, request_limit_s: float) -> None:
        """Start or join the server. Each request gets at most `request_limit_s` seconds."""
        from anyio.from_thread import start_blocking_portal  # a requirement of the SDK, an optional package

        # Type checkers see version 1 of the SDK, the one that `verifiers` needs.
        sdk: Any = importlib.import_module("mcp")
        arguments = ["-c", _DIE_WITH_PARENT, *command]
        server = url or sdk.StdioServerParameters(command=sys.executable, args=arguments)
        self._noise: list[str] = []
        """Messages about lines of the server's standard output that are no messages of the protocol."""
        with ExitStack() as stack:
            self._portal = stack.enter_context(start_blocking_portal())
            client = sdk.Client(server, read_timeout_seconds=request_limit_s, message_handler=self._record_noise)
            self._client = stack.enter_context(self._portal.wrap_async_context_manager(client))
            listed = self._portal.call(self._client.list_tools)
            self._tools = {tool.name: tool for tool in listed.tools}
            self._stack = stack.pop_all()

    async def _record_noise(self, message: Any) -> None:
        if isinstance(message, Exception):
            self._noise.append(str(message))

    def describe(self, tool: str | None) -> Tool:
        """Return name, description and schema of the server's tool `tool`, or of its only tool if `tool` is None.

        Raises:
            RuntimeError: if the server has no such tool.
        """
        name = tool or (next(iter(self._tools)) if len(self._tools) == 1 else "")
        if name not in self._tools:
            raise RuntimeError(f"the server has no tool {name!r}; {choices_hint(name, self._tools)}")
        found = self._tools[name]
        return Tool(name=name, description=found.description or "", parameters=found.input_schema)

    def call(self, tool: str | None, arguments: Mapping[str, Any]) -> str:
        """Return the text of a call's result.

        Raises:
            _ToolError: if the call is refused.
            Exception: any error of the SDK, if the server fails.
        """
        from jsonschema import Draft202012Validator, SchemaError  # a slow import

        described = self.describe(tool)
        name, schema = described.name, described.parameters
        try:
            Draft202012Validator.check_schema(schema)
        except SchemaError as error:
            raise RuntimeError(f"the schema of tool {name!r} is no JSON schema: {error.message}") from error
        fault = next(Draft202012Validator(schema).iter_errors(dict(arguments)), None)
        if fault is not None:
            raise _ToolError(fault.message)
        result = self._portal.call(partial(self._client.call_tool, name, dict(arguments)))
        if self._noise:
            raise RuntimeError("the server wrote a line to its standard output that is no message of the protocol")
        blocks = [block.text if block.type == "text" else f"({block.type})" for block in result.content]
        text = "\n".join(blocks)
        if result.is_error:
            raise _ToolError(text)
        return text

    def close(self) -> None:
        """End the connection, and the server that was started for it."""
        self._stack.close()
