"""The command line `marl COMMAND`. The commands are in the modules beside this one."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from marl.commands.command_group import CommandGroup
from marl.commands.consent import require_consent_to_external_accesses
from marl.core.errors import RunError, UserNotice
from marl.core.plugins import add_import_folder
from marl.host.untrusted_text import escape_for_terminal
from marl.scenario.load import explain_validation_error, format_problem_list
from marl.scenario.trust import folders_of_pythonpath_variable

app = typer.Typer(
    cls=CommandGroup,
    help="Reinforcement learning for teams of language models.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Run the command line. Errors are printed without traceback: exit status 2 for mistakes, 1 for failed runs."""
    # The working folder may be a stranger's: its code is importable once the user has agreed to it, or has set
    # PYTHONPATH. It then stands last, so that it hides no installed package.
    working_folder = Path.cwd()
    sys.path[:] = [folder for folder in sys.path if folder not in ("", str(working_folder))]
    if working_folder in folders_of_pythonpath_variable():
        add_import_folder(working_folder)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = partial(_show_warning, warnings.showwarning)
            app()
    except (ValueError, RunError, FloatingPointError, OSError) as error:
        message = (
            format_problem_list(explain_validation_error(error)).strip()
            if isinstance(error, ValidationError)
            else str(error)
        )
        notes = () if isinstance(error, ValidationError) else vars(error).get("__notes__", ())
        sys.stderr.write(escape_for_terminal("\n".join([f"marl: {message}", *notes])) + "\n")
        sys.exit(2 if isinstance(error, ValueError) else 1)


def _show_warning(
    show_other: Callable[..., None], message: Warning | str, category: type[Warning], *origin: Any
) -> None:
    """Print marl's own warnings as one line without their source line, and pass other warnings to `show_other`."""
    if issubclass(category, UserNotice):
        sys.stderr.write(escape_for_terminal(f"marl: {message}\n"))
    else:
        show_other(escape_for_terminal(str(message)), category, *origin)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"marl {version('marl-llm')}")
        raise typer.Exit


@app.callback()
def require_consent_until_command_ends(
    context: typer.Context,
    trust: Annotated[
        bool, typer.Option("--trust", help="With any command: agree to the scenario's accesses that `check` lists.")
    ] = False,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Require consent to external accesses of scenarios until the command ends."""
    context.with_resource(require_consent_to_external_accesses(trusted=trust))
