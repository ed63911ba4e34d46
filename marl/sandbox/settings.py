"""How much model-written code may take, and behind which walls it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, GetJsonSchemaHandler, PositiveFloat, PositiveInt, field_validator, model_validator
from pydantic_core import CoreSchema

from marl.config import Config

How = Literal["auto", "bubblewrap", "unshare", "none"]


class Sandbox(Config):
    """Walls and limits for model-written code. A bare text is `how`: `sandbox: none` runs it unprotected."""

    how: How = "auto"
    """`auto`: bubblewrap, else unshare, else nothing runs. `none`: limits alone, for code that you trust."""
    wall_s: PositiveFloat = 5.0
    """From the program's first instruction to its last."""
    cpu_s: PositiveInt = 5
    """Of one process."""
    memory_mb: int = Field(default=256, ge=64)
    """Of one process, and of all together beside their files; the latter is looked up every 20 ms."""
    processes: PositiveInt = 8
    """And threads, at once. Before Linux 5.14 what else an ordinary user runs counts too, so that none may be left."""
    file_mb: PositiveInt = 8
    """Of the scratch folder, which is the only one that can be written and lies in memory."""
    output_kb: PositiveInt = 64
    """Of standard output and error together."""
    libraries: tuple[Path, ...] = ()
    """Folders of packages that the code may import, beside the standard library."""

    @model_validator(mode="before")
    @classmethod
    def _bare(cls, data: Any) -> Any:
        return {"how": data} if isinstance(data, str) else data

    @field_validator("libraries")
    @classmethod
    def _whole(cls, libraries: tuple[Path, ...]) -> tuple[Path, ...]:
        if wrong := [str(path) for path in libraries if not path.is_absolute()]:
            raise ValueError(f"libraries: {wrong} must be absolute paths")
        return libraries

    def must_fit(self, timeout_s: float) -> None:
        """Check that a program meets its own limit before whoever runs it loses patience.

        Raises:
            ValueError: if it does not.
        """
        if self.wall_s >= timeout_s:
            raise ValueError(f"sandbox.wall_s: {self.wall_s:g} must be less than timeout_s, which is {timeout_s:g}")

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [handler(schema), {"enum": list(How.__args__)}]}
