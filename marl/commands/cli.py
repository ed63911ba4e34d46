"""The command line `marl COMMAND`. The commands are in the modules beside this one."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from marl.commands.command_group import CommandGroup
from marl.commands.consent import require_consent
from marl.core.errors import Notice, RunError
from marl.host.outside import escape_for_terminal
from marl.scenario.load import ScenarioError, explain, problem_list

app = typer.Typer(
    cls=CommandGroup,
    help="Reinforcement learning for teams of language models.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Run the command line. A user's mistake is printed as a message with exit status 2, never as a traceback."""
    # A user's plug-ins are importable from the working folder. It stands last (`python -m` puts it first), so that it
    # hides no installed package.
    working_folder = str(Path.cwd())
    sys.path[:] = [*(folder for folder in sys.path if folder not in ("", working_folder)), working_folder]
    with _errors_as_messages(), warnings.catch_warnings():
        warnings.showwarning = partial(_show_warning, warnings.showwarning)
        app()


@contextmanager
def _errors_as_messages() -> Iterator[None]:
    """Context that prints expected errors: exit status 2 for a user's mistake, 1 for a failed run."""
    try:
        yield
    except ValidationError as error:
        _fail(ScenarioError(problem_list(explain(error)).strip()), 2)
    except ValueError as error:
        _fail(error, 2)
    except (RunError, FloatingPointError, OSError) as error:
        _fail(error, 1)


def _show_warning(default: Callable[..., None], message: Warning | str, category: type[Warning], *origin: Any) -> None:
    """Print marl's own warnings as one line without their source line, and pass other warnings to `default`."""
    if issubclass(category, Notice):
        sys.stderr.write(escape_for_terminal(f"marl: {message}\n"))
    else:
        default(escape_for_terminal(str(message)), category, *origin)


def _fail(error: BaseException, status: int) -> None:
    sys.stderr.write(escape_for_terminal("\n".join([f"marl: {error}", *vars(error).get("__notes__", ())])) + "\n")
    sys.exit(status)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"marl {version('marl-llm')}")
        raise typer.Exit


@app.callback()
def begin(
    context: typer.Context,
    trust: Annotated[
        bool, typer.Option("--trust", help="With any command: agree to the scenario's accesses that `check` lists.")
    ] = False,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Require consent to external accesses of scenarios until the command ends."""
    context.with_resource(require_consent(trusted=trust))
