"""Import of objects that a scenario names, and of optional packages that belong to an extra of `marl-llm`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Annotated, Any

from pydantic import AfterValidator

from marl.core.config import choices_hint
from marl.core.plugins import import_check

MAKERS = ("env", "raw_env", "parallel_env", "make_env", "load_environment")
"""Usual names of functions that make environments."""


def import_optional(name: str, extra: str) -> ModuleType:
    """Return a module of an optional package.

    Raises:
        ValueError: if the package is missing; the message names the extra to install.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ValueError(f"needs the package `{error.name or name}`: pip install 'marl-llm[{extra}]'") from error


def import_path(path: str) -> str:
    """Return an import path unchanged.

    Raises:
        ValueError: if `path` has the wrong form, or leads into Python's standard library.
    """
    module, _, name = path.partition(":")
    if not all(word.isidentifier() for word in (*module.split("."), name)):
        raise ValueError(f"{path!r} is no import path 'package.module:name'")
    # A scenario must not call functions such as `os:system`.
    if module.partition(".")[0] in sys.stdlib_module_names:
        raise ValueError(f"{module} is in Python's standard library, which has no environments")
    return path


ImportPath = Annotated[str, AfterValidator(import_path)]
"""An import path in the right form; the object itself is imported and checked later."""


def import_errors(import_something: Callable[[], object]) -> Iterator[str]:
    """Yield the message of the ValueError that `import_something` raises, if any."""
    try:
        import_something()
    except ValueError as error:
        yield str(error)


def import_object(path: str, field: str) -> Any:
    """Return the object at an import path `package.module:name`, if the user agrees to the import.

    Raises:
        ValueError: if the object does not exist; the message begins with `field`.
    """
    module, _, name = import_path(path).partition(":")
    if check := import_check.get():
        check(path)
    try:
        content = vars(importlib.import_module(module))
    except ImportError as error:
        raise ValueError(f"{field}: {path!r} cannot be imported: {error}") from error
    if name not in content:
        public = [key for key in content if not key.startswith("_")]
        raise ValueError(f"{field}: {module} has no {name!r}; {choices_hint(name, public)}")
    return content[name]


def import_env_factory(path: str, field: str, is_environment: Callable[[type], bool]) -> Callable[..., Any]:
    """Return a class of environments (`is_environment`), or a function with a name in `MAKERS`.

    Other objects are refused: a scenario also chooses the arguments, so it could call any installed function.

    Raises:
        ValueError: if `path` names no such object; the message begins with `field`.
    """
    value = import_object(path, field)
    if isinstance(value, type) and is_environment(value):
        return value
    if isinstance(value, FunctionType) and value.__name__ in MAKERS:
        return value
    raise ValueError(f"{field}: {path!r} is no class of environments, and no function named {', '.join(MAKERS)}")
