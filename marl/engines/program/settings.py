"""Settings of the engine that runs programs written elsewhere. This module does not import aiohttp."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field, PositiveFloat, model_validator

from marl.host.paths import current_resolver
from marl.protocols import Engine, EngineConfig, ModelSource

_FUNCTION_PATH = re.compile(r"[^\W\d][\w.]*:[^\W\d][\w.]*")

_MAX_TASKS = 1024
"""Maximum number of programs that run at the same time. Each has a thread of its process and its connections."""


def _check_function_path(path: str) -> str:
    """Return `path`, the import path of a function or "". Raise ValueError for any other text."""
    if path and not _FUNCTION_PATH.fullmatch(path):
        raise ValueError("must be module:function, such as my_agents:main")
    return path


class Program(EngineConfig):
    """Runs a program that calls models through an OpenAI-compatible or Anthropic-compatible address.

    With `run`, a new process reads the task as JSON from its standard input and prints the answer as its last line.
    With `call`, long-lived processes call a function with one task after the other. The answer is a text, or
    `{"answer": ..., "rewards": {caller: {name: number}}}`.
    """

    kind: str = "program"
    example = 'call: "my_agents:main"'
    is_rule_based: ClassVar[bool] = True
    runs_programs: ClassVar[bool] = True
    token_level: ClassVar[bool] = False
    run: tuple[str, ...] = ()
    """Command that is started for each attempt, such as `[python, agent.py]`."""
    call: Annotated[str, AfterValidator(_check_function_path)] = ""
    """Function that is called with the task, as `module:function`. The module is imported once per process."""
    python: Path | None = None
    """Python interpreter for `call`, such as `venv/bin/python` (default: the interpreter of marl)."""
    folder: Path | None = None
    """Working folder of the program, from which `call` imports (default: the folder of the scenario)."""
    workers: int = Field(4, ge=1, le=1024)
    """Maximum number of processes that run programs at the same time."""
    tasks_per_worker: int = Field(default=1, ge=1, le=128)
    """Maximum number of tasks in a process of `call` at the same time, each in a thread. With more than 1, the program
    must authenticate each task's calls by its own key, `task["api_key"]`: the environment's key is refused."""
    attempts: int = Field(default=2, ge=1, le=10)
    """Maximum number of attempts if a program dies or exceeds `timeout_s`. Then the episode is dropped."""
    timeout_s: PositiveFloat = 120.0
    """Maximum time of an attempt in seconds. Waiting for answers to the program's model calls does not count."""

    @model_validator(mode="before")
    @classmethod
    def _default_folder_to_scenario_folder(cls, data: Any) -> Any:
        resolver = current_resolver.get()
        if isinstance(data, Mapping) and resolver and data.get("folder") is None:
            return {**data, "folder": resolver.absolute_setting_path("folder", ".")}
        return data

    @model_validator(mode="after")
    def _check_either_run_or_call_is_set(self) -> Program:
        if bool(self.run) == bool(self.call):
            raise ValueError(f"run: {list(self.run)} and call: {self.call!r}: set exactly one of them")
        if self.run and self.python:
            raise ValueError("python: has no effect with run; begin the command with the interpreter")
        if self.run and self.tasks_per_worker > 1:
            raise ValueError(f"tasks_per_worker: {self.tasks_per_worker} needs call; run starts a process per task")
        if self.workers * self.tasks_per_worker > _MAX_TASKS:
            product = f"workers: {self.workers} x tasks_per_worker: {self.tasks_per_worker}"
            raise ValueError(f"{product} are more than {_MAX_TASKS} programs at the same time")
        return self

    @property
    def request_time_limit_s(self) -> float:
        return self.attempts * self.timeout_s

    def unmet_requirements(self) -> Iterable[str]:
        for package in ("aiohttp", "uvloop"):
            if find_spec(package) is None:
                yield f"kind: 'program' needs {package}; install marl-llm[attach]"
        if self.folder and not self.folder.is_dir():
            yield f"folder: {self.folder} is no folder"
        if self.python and not self.python.is_file():
            yield f"python: {self.python} does not exist"
        if self.run and shutil.which(self.run[0], path=None) is None:
            inside = (self.folder or Path()) / self.run[0]
            if not inside.is_file():
                yield f"run: no command {self.run[0]!r}"

    def build(self, source: ModelSource | None) -> Engine:
        from marl.engines.program.engine import ProgramEngine

        return ProgramEngine(self)
