"""The reference of commands: a page made from the command line itself, with every argument and option."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import typer.main
from site_settings import escaped, table
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from marl.commands.cli import app
from marl.commands.command_group import COMMANDS


def command_page() -> str:
    """Return the page of all commands, with a section for each in the order of `marl --help`."""
    return "".join(_page())


def _page() -> Iterator[str]:
    yield "# Commands\n\nEvery command, argument and option, as `marl COMMAND --help` prints them.\n\n"
    group = typer.main.get_command(app)
    context = group.context_class(group, info_name="marl")
    commands = {name: group.get_command(context, name) for name in COMMANDS}
    rows = [(f"[`marl {name}`](#marl-{name})", escaped(line)) for name, (_, line) in COMMANDS.items()]
    yield from table(("command", "what it does"), rows)
    for name, command in commands.items():
        yield from _section(command, command.context_class(command, info_name=name, parent=context), 2)


def _section(command: TyperCommand | TyperGroup, context: Any, level: int) -> Iterator[str]:
    """Yield the section of a command, then those of its subcommands."""
    yield f"\n{'#' * level} {context.command_path}\n\n{_one_line(command.help or '')}\n\n"
    yield f"```text\n{' '.join([context.command_path, *command.collect_usage_pieces(context)])}\n```\n\n"
    rows = []
    for parameter in command.params:
        if isinstance(parameter, TyperArgument | TyperOption) and parameter.help and not parameter.hidden:
            rows.append((_name(parameter), escaped(_one_line(parameter.help)), _default(parameter)))
    yield from table(("argument or option", "meaning", "default"), rows)
    if isinstance(command, TyperGroup):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            if child is not None:
                yield from _section(child, child.context_class(child, info_name=name, parent=context), level + 1)


def _name(parameter: TyperArgument | TyperOption) -> str:
    """Return an argument's name, or an option's names with its choices."""
    if isinstance(parameter, TyperArgument):
        return f"`{parameter.name}`"
    names = ", ".join(f"`{option}`" for option in (*parameter.opts, *parameter.secondary_opts))
    choices = ", ".join(f"`{choice}`" for choice in _choices(parameter.type_descriptor.annotation))
    return f"{names}: {choices}" if choices else names


def _choices(annotation: Any) -> Iterator[str]:
    """Yield the values of all `Literal` types in a type."""
    if get_origin(annotation) is Literal:
        yield from map(str, get_args(annotation))
    else:
        for inner in get_args(annotation):
            yield from _choices(inner)


def _default(parameter: TyperArgument | TyperOption) -> str:
    default = parameter.default
    if default is None or default == () or callable(default) or isinstance(default, bool):
        return ""
    return f"`{default}`"


def _one_line(text: str) -> str:
    return " ".join(text.replace("\b", "").split())
