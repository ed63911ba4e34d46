"""Settings of the sandbox: isolation and limits of model-written code."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, GetJsonSchemaHandler, PositiveFloat, PositiveInt, field_validator, model_validator
from pydantic_core import CoreSchema

from marl.core.config import Config

SCRATCH = "/tmp"
"""Path of the scratch folder inside of the sandbox."""
IsolationMode = Literal["auto", "bubblewrap", "unshare", "none"]


class Sandbox(Config):
    """Isolation and limits of model-written code. A bare text sets `how`: `sandbox: none` runs code unprotected."""

    how: IsolationMode = "auto"
    """Isolation mechanism. `auto`: bubblewrap, else unshare, else an error. `none`: resource limits without isolation,
    for trusted code."""
    wall_s: PositiveFloat = 5.0
    """Time limit (s) of the program, without waiting for a CPU. A program that waits until ten times the limit is
    inconclusive instead of wrong."""
    cpu_s: PositiveInt = 5
    """Maximum CPU seconds of one process."""
    memory_mb: int = Field(default=256, ge=64)
    """Maximum memory (MiB) of one process, and of all processes together. The sum is checked every 20 ms and counts 208
    KiB, the kernel's largest buffer, for each open file. Processes cannot share memory."""
    processes: PositiveInt = 8
    """Maximum number of processes and threads. Before Linux 5.14 other processes of an ordinary user count, too."""
    file_mb: PositiveInt = 8
    """Size (MiB) of the scratch folder, the only writable folder. It is held in memory."""
    output_kb: PositiveInt = 64
    """Maximum length (KiB) of standard output and standard error together."""
    libraries: tuple[Path, ...] = ()
    """Folders of packages that the code may import in addition to the standard library."""

    @model_validator(mode="before")
    @classmethod
    def _parse_isolation_mode(cls, data: Any) -> Any:
        return {"how": data} if isinstance(data, str) else data

    @field_validator("libraries")
    @classmethod
    def _check_absolute_paths(cls, libraries: tuple[Path, ...]) -> tuple[Path, ...]:
        if wrong := [str(path) for path in libraries if not path.is_absolute()]:
            raise ValueError(f"libraries: {wrong} must be absolute paths")
        return libraries

    @model_validator(mode="after")
    def _check_no_library_in_scratch_folder(self) -> Self:
        hidden = [str(path) for path in self.libraries if path.is_relative_to(SCRATCH)]
        if hidden and self.how != "none":
            raise ValueError(
                f"libraries: {hidden} lie in {SCRATCH}, where the program has its own scratch folder instead"
            )
        return self

    def check_timeout(self, timeout_s: float) -> None:
        """Check that `wall_s` is less than `timeout_s`, the time limit of the job that runs the program.

        Raises:
            ValueError: if `wall_s` is not less than `timeout_s`.
        """
        if self.wall_s >= timeout_s:
            raise ValueError(f"sandbox.wall_s: {self.wall_s:g} must be less than timeout_s, which is {timeout_s:g}")

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [handler(schema), {"enum": list(IsolationMode.__args__)}]}
