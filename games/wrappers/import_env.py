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

FACTORY_NAMES = ("env", "raw_env", "parallel_env", "make_env", "load_environment")
"""Names of functions that a scenario may call to create an environment."""


def import_optional_package(module_name: str, extra: str) -> ModuleType:
    """Return the module `module_name` of an optional package that `extra` of `marl-llm` installs.

    Raises:
        ValueError: if the package is missing; the message names the extra to install.
    """
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ValueError(f"needs the package `{error.name or module_name}`: pip install 'marl-llm[{extra}]'") from error


def check_import_path(path: str) -> str:
    """Return the import path unchanged.

    Raises:
        ValueError: if `path` has the wrong form, or leads into Python's standard library.
    """
    module, _, name = path.partition(":")
    if not all(word.isidentifier() for word in (*module.split("."), name)):
        raise ValueError(f"{path!r} is no import path 'package.module:name'")
    # A scenario must not be able to call functions such as `os:system`.
    if module.partition(".")[0] in sys.stdlib_module_names:
        raise ValueError(f"{module} is in Python's standard library, which has no environments")
    if "__main__" in module.split("."):
        raise ValueError(f"{path!r}: importing a module __main__ runs a program, and none of them has environments")
    return path


ImportPath = Annotated[str, AfterValidator(check_import_path)]
"""Import path `package.module:name`. Only its form is checked; the object itself is imported later."""


def messages_of_import_errors(import_function: Callable[[], object]) -> Iterator[str]:
    """Yield the message of the ValueError that `import_function` raises, if it raises one."""
    try:
        import_function()
    except ValueError as error:
        yield str(error)


def import_object(path: str, field: str) -> Any:
    """Return the object at the import path `package.module:name`, if the user consents to the import.

    Raises:
        ValueError: if the object does not exist; the message begins with `field`.
    """
    module, _, name = check_import_path(path).partition(":")
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
    """Return the environment class or the factory function at `path`. `is_environment` tests a class.

    A function must have a name in `FACTORY_NAMES`. Otherwise a scenario, which also sets the arguments, could call any
    function.

    Raises:
        ValueError: if `path` names no such object; the message begins with `field`.
    """
    factory = import_object(path, field)
    if isinstance(factory, type) and is_environment(factory):
        return factory
    if isinstance(factory, FunctionType) and factory.__name__ in FACTORY_NAMES:
        return factory
    raise ValueError(f"{field}: {path!r} is no class of environments, and no function named {', '.join(FACTORY_NAMES)}")
