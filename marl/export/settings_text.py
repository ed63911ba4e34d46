"""Settings that differ from their defaults, as plain data without this machine's paths."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel


def non_default_settings(settings: BaseModel) -> dict[str, Any]:
    """Return the kind of `settings` and every setting that differs from its default, as plain data."""
    changed = {}
    # Fields are listed by name, because iterating over a pydantic model also yields its cached properties.
    for name, field in type(settings).model_fields.items():
        setting = getattr(settings, name)
        if name == "kind" or setting != field.get_default(call_default_factory=True):
            changed[name] = _setting_as_plain_data(setting)
    return changed


def _setting_as_plain_data(setting: Any) -> Any:
    """Return `setting` as dictionaries, lists, texts and numbers, with absolute paths shortened to `.../NAME`.

    Folders are left out of a card, because they describe the user's machine.
    """
    if isinstance(setting, BaseModel):
        return non_default_settings(setting)
    if isinstance(setting, Mapping):
        return {str(name): _setting_as_plain_data(inner) for name, inner in setting.items()}
    if isinstance(setting, list | tuple | set | frozenset):
        return [*map(_setting_as_plain_data, setting)]
    if isinstance(setting, str | Path):
        text = str(setting)
        is_path = text.startswith(("/", "~")) and "\n" not in text and Path(text).expanduser().is_absolute()
        return f".../{Path(text).name}" if is_path else text
    return setting
