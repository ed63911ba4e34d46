"""Options of a command as one dataclass, for commands with many options."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Any

Command = Callable[..., None]


def with_options(options: type) -> Callable[[Command], Command]:
    """Return a decorator: it gives a command one option for each field of the dataclass `options`.

    The command receives their values as its argument `options`.
    """

    def decorate(command: Command) -> Command:
        arguments = {**signature(command, eval_str=True).parameters}
        del arguments["options"]
        fields = signature(options, eval_str=True).parameters

        @wraps(command)
        def collected(**values: Any) -> None:
            command(**{name: values.pop(name) for name in arguments}, options=options(**values))

        # Typer reads the signature: keyword-only parameters may follow in any order, with or without a default.
        parameters = [p.replace(kind=Parameter.KEYWORD_ONLY) for p in (*arguments.values(), *fields.values())]
        collected.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        return collected

    return decorate
