"""Settings of the sandbox: isolation and limits of model-written code."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, GetJsonSchemaHandler, PositiveFloat, PositiveInt, field_validator, model_validator
from pydantic_core import CoreSchema

from marl.config import Config

SCRATCH = "/tmp"
"""Scratch folder of a program, as it sees it."""
How = Literal["auto", "bubblewrap", "unshare", "none"]


class Sandbox(Config):
    """Isolation and limits of model-written code. A bare text is `how`: `sandbox: none` runs it unprotected."""

    how: How = "auto"
    """Way of shutting the program in. `auto`: bubblewrap, else unshare, else nothing runs. `none`: limits alone, for
    trusted code."""
    wall_s: PositiveFloat = 5.0
    """Seconds from the program's first instruction to its last. What it waits for a processor does not count, up to
    ten times as much; a program that had not had its time by then says nothing about its author."""
    cpu_s: PositiveInt = 5
    """Processor seconds of one process."""
    memory_mb: int = Field(default=256, ge=64)
    """Memory (MiB) of one process, and of all together without their files; the latter is checked every 20 ms, and an
    open file counts as 208 KiB, which the kernel may keep for it. Processes cannot share memory."""
    processes: PositiveInt = 8
    """Processes and threads at once. Before Linux 5.14 all other processes of an ordinary user count too."""
    file_mb: PositiveInt = 8
    """Size (MiB) of the scratch folder, which is the only one that can be written and lies in memory."""
    output_kb: PositiveInt = 64
    """Length (KiB) of standard output and error together."""
    libraries: tuple[Path, ...] = ()
    """Folders of packages that the code may import, in addition to the standard library."""

    @model_validator(mode="before")
    @classmethod
    def _accept_bare_text(cls, data: Any) -> Any:
        return {"how": data} if isinstance(data, str) else data

    @field_validator("libraries")
    @classmethod
    def _are_absolute(cls, libraries: tuple[Path, ...]) -> tuple[Path, ...]:
        if wrong := [str(path) for path in libraries if not path.is_absolute()]:
            raise ValueError(f"libraries: {wrong} must be absolute paths")
        return libraries

    @model_validator(mode="after")
    def _show_libraries(self) -> Self:
        hidden = [str(path) for path in self.libraries if path.is_relative_to(SCRATCH)]
        if hidden and self.how != "none":
            raise ValueError(
                f"libraries: {hidden} lie in {SCRATCH}, where the program has its own scratch folder instead"
            )
        return self

    def check_timeout(self, timeout_s: float) -> None:
        """Check that `wall_s` ends a program before its caller's own `timeout_s` does.

        Raises:
            ValueError: if it does not.
        """
        if self.wall_s >= timeout_s:
            raise ValueError(f"sandbox.wall_s: {self.wall_s:g} must be less than timeout_s, which is {timeout_s:g}")

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [handler(schema), {"enum": list(How.__args__)}]}
