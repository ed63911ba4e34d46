"""Commands of installed packages: entry points of the group `marl.commands`, imported when they are needed."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

import typer
from typer.core import TyperGroup

_GROUP = "marl.commands"


class WithPlugIns(TyperGroup):
    """Commands declared by the application, then those of installed packages.

    An entry point names a function, which becomes a command, or a `typer.Typer`, which becomes a group of commands.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        added = {point.name for point in entry_points(group=_GROUP)}
        return [*super().list_commands(ctx), *sorted(added - set(self.commands))]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; import the module of a plug-in's. None if there is no such command."""
        if (command := super().get_command(ctx, cmd_name)) or not entry_points(group=_GROUP, name=cmd_name):
            return command
        loaded = _load(cmd_name)
        app = loaded if isinstance(loaded, typer.Typer) else typer.Typer(add_completion=False)
        if app is not loaded:
            app.command(name=cmd_name)(loaded)
        return typer.main.get_command(app)


def _load(name: str) -> Any:
    """Return the object of an entry point; if it cannot be had, a command that says why."""
    points = {point.value: point for point in entry_points(group=_GROUP, name=name)}
    if len(points) > 1:
        return _unusable(name, f"two installed packages claim this name; choices: {', '.join(sorted(points))}")
    [point] = points.values()
    try:
        return point.load()
    except (ModuleNotFoundError, AttributeError) as error:
        return _unusable(name, str(error))


def _unusable(name: str, problem: str) -> Callable[[], None]:
    def command() -> None:
        raise ValueError(f"command {name!r} is unusable: {problem}")

    command.__doc__ = f"Unusable: {problem}."
    return command
