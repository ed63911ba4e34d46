"""Settings that differ from their defaults, as plain data without this machine's paths."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel


def non_default_settings(settings: BaseModel) -> dict[str, Any]:
    """Return the kind of `settings` and every setting that differs from its default, as plain data."""
    values = {}
    # Iterating over a pydantic model would also yield the values of its cached properties.
    for name, field in type(settings).model_fields.items():
        value = getattr(settings, name)
        if name == "kind" or value != field.get_default(call_default_factory=True):
            values[name] = _plain(value)
    return values


def _plain(value: Any) -> Any:
    """Return `value` as plain data, with the file name in place of an absolute path: folders describe the machine."""
    if isinstance(value, BaseModel):
        return non_default_settings(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(inner) for inner in value]
    if isinstance(value, str | Path):
        text = str(value)
        is_path = text.startswith(("/", "~")) and "\n" not in text and Path(text).expanduser().is_absolute()
        return f".../{Path(text).name}" if is_path else text
    return value
