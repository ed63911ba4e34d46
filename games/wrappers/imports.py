"""Imports of what a scenario names, and of packages that are installed by an extra of ours."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from marl.config import nearest
from marl.parts import import_gate


def package(name: str, extra: str) -> ModuleType:
    """Return a module of an optional package; raise ValueError that names the extra to install if it is missing."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        raise ValueError(f"needs the package `{missing}`: pip install 'marl-llm[{extra}]'") from error


def named(place: str, field: str) -> Any:
    """Return what an import path `package.module:name` names, if the user agrees to import it.

    Raises:
        ValueError: if there is none; the message begins with `field`.
    """
    module, _, name = place.partition(":")
    if not all(word.isidentifier() for word in (*module.split("."), *name.split("."))):
        raise ValueError(f"{field}: {place!r} is no import path 'package.module:name'")
    if check := import_gate.get():
        check(place)
    try:
        value: Any = importlib.import_module(module)
    except ImportError as error:
        raise ValueError(f"{field}: {place!r} cannot be imported: {error}") from error
    for word in name.split("."):
        known = vars(value)
        if word not in known:
            public = [each for each in known if not each.startswith("_")]
            raise ValueError(f"{field}: {place!r}: {module} has no {name!r}; {nearest(word, public)}")
        value = known[word]
    return value
