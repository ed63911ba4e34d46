"""Short YAML of the settings that differ from their defaults, without this machine's paths."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

_LONG = 80
"""Length above which a text gets its own block [characters]."""


def non_default_settings(settings: BaseModel) -> dict[str, Any]:
    """Return the kind of `settings` and every setting that differs from its default, as plain data."""
    fields = type(settings).model_fields
    defaults = {name: field.get_default(call_default_factory=True) for name, field in fields.items()}
    # Iterating over a pydantic model would also yield the values of its cached properties.
    values = {name: getattr(settings, name) for name in fields}
    return {name: _plain(value) for name, value in values.items() if name == "kind" or value != defaults[name]}


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return non_default_settings(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(inner) for inner in value]
    if isinstance(value, str | Path):
        return _without_place(str(value))
    return value


def _without_place(text: str) -> str:
    """Return the file name of an absolute path: its folders describe the machine, not the settings. Other text is
    unchanged."""
    is_path = text.startswith(("/", "~")) and "\n" not in text and Path(text).expanduser().is_absolute()
    return f".../{Path(text).name}" if is_path else text


def as_yaml(settings: Mapping[str, Any]) -> str:
    """Return plain settings as YAML."""
    return yaml.safe_dump(dict(settings), sort_keys=False, allow_unicode=True, width=100, default_flow_style=False)


def split_long_texts(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the settings without their long texts, and the long texts by setting."""
    texts = {n: v for n, v in settings.items() if isinstance(v, str) and ("\n" in v or len(v) > _LONG)}
    return {name: value for name, value in settings.items() if name not in texts}, texts
