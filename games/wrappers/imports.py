"""Imports of what a scenario names, and of packages that are installed by an extra of ours."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Annotated, Any

from pydantic import AfterValidator

from marl.config import nearest
from marl.parts import import_gate

MAKERS = ("env", "raw_env", "parallel_env", "make_env", "load_environment")
"""Usual names of functions that make environments."""


def package(name: str, extra: str) -> ModuleType:
    """Return a module of an optional package; raise ValueError that names the extra to install if it is missing."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ValueError(f"needs the package `{error.name or name}`: pip install 'marl-llm[{extra}]'") from error


def import_path(place: str) -> str:
    """Return an import path, unchanged; raise ValueError if it is none, or leads into Python's standard library."""
    module, _, name = place.partition(":")
    if not all(word.isidentifier() for word in (*module.split("."), name)):
        raise ValueError(f"{place!r} is no import path 'package.module:name'")
    if module.partition(".")[0] in sys.stdlib_module_names:
        raise ValueError(f"{module} is in Python's standard library, which has no environments")
    return place


ImportPath = Annotated[str, AfterValidator(import_path)]
"""An import path, whether there is anything or not: that is seen when it is looked for."""


def lacking(look: Callable[[], object]) -> Iterator[str]:
    """Yield the message of the error with which looking for something ends."""
    try:
        look()
    except ValueError as error:
        yield str(error)


def named(place: str, field: str) -> Any:
    """Return what an import path `package.module:name` names, if the user agrees to import it.

    Raises:
        ValueError: if there is none; the message begins with `field`.
    """
    module, _, name = import_path(place).partition(":")
    if check := import_gate.get():
        check(place)
    try:
        content = vars(importlib.import_module(module))
    except ImportError as error:
        raise ValueError(f"{field}: {place!r} cannot be imported: {error}") from error
    if name not in content:
        public = [each for each in content if not each.startswith("_")]
        raise ValueError(f"{field}: {module} has no {name!r}; {nearest(name, public)}")
    return content[name]


def maker(place: str, field: str, is_environment: Callable[[type], bool]) -> Callable[..., Any]:
    """Return what makes an environment: a class for which `is_environment` holds, or a function in `MAKERS`.

    A scenario chooses the arguments, too, so that anything else that is installed could be called for its effects.

    Raises:
        ValueError: as `named`, and if it is anything else.
    """
    value = named(place, field)
    if isinstance(value, type) and is_environment(value):
        return value
    if isinstance(value, FunctionType) and value.__name__ in MAKERS:
        return value
    raise ValueError(f"{field}: {place!r} is no class of environments, and no function named {', '.join(MAKERS)}")
