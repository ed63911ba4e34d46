"""Options of a command as one dataclass, for commands with many options."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Any

Command = Callable[..., None]


def with_options(options_class: type) -> Callable[[Command], Command]:
    """Return a decorator that gives a command one option for each field of the dataclass `options_class`.

    The command receives the values as its argument `options_class`, an instance of the dataclass.
    """

    def decorate(command: Command) -> Command:
        arguments = {**signature(command, eval_str=True).parameters}
        del arguments["options"]
        fields = signature(options_class, eval_str=True).parameters

        @wraps(command)
        def run_with_options(**values: Any) -> None:
            command(**{name: values.pop(name) for name in arguments}, options=options_class(**values))

        # Typer reads this signature. All parameters are keyword-only, because then defaults may come in any order.
        parameters = [p.replace(kind=Parameter.KEYWORD_ONLY) for p in (*arguments.values(), *fields.values())]
        run_with_options.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        return run_with_options

    return decorate
