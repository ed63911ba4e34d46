"""The command line: `marl COMMAND`. The commands are in the modules beside this one."""

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

from marl.commands import (
    catalogue,
    check,
    doctor,
    export,
    export_data,
    look,
    new,
    page,
    respond,
    show,
    status,
    top,
    train,
)
from marl.commands.consent import TrustAnywhere, consent_needed
from marl.commands.credit import credit
from marl.errors import Notice, RunError
from marl.parts import RenamedKind
from marl.scenario.load import ScenarioError, explain, problem_list
from marl.text import for_terminal

app = typer.Typer(
    cls=TrustAnywhere,
    help="Reinforcement learning for teams of language models.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for commands in (new, train, look, page, respond, show, export, export_data, check, doctor, catalogue, status, top):
    app.add_typer(commands.app)
app.add_typer(credit, name="credit")


def main() -> None:
    """Run the command line; what a user got wrong is a message and exit status 2, never a traceback."""
    _search_working_folder_last()
    with _explained(), warnings.catch_warnings():
        warnings.showwarning = partial(_show_warning, warnings.showwarning)
        app()


def _search_working_folder_last() -> None:
    """Let a user's own parts be imported from the working directory, so that they hide nothing that is installed.

    `python -m` searches it first. What is installed in place (`pip install -e`) is found after all of `sys.path`, and
    so is named there.
    """
    here, installed = str(Path.cwd()), str(Path(__file__).parents[2])
    before = [folder for folder in sys.path if folder not in ("", here)]
    sys.path[:] = dict.fromkeys([*before, installed, here])


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except ValidationError as error:
        _fail(ScenarioError(problem_list(explain(error)).strip()), 2)
    except ValueError as error:
        _fail(error, 2)
    except (RunError, FloatingPointError, OSError) as error:
        _fail(error, 1)


def _show_warning(default: Callable[..., None], message: Warning | str, category: type[Warning], *place: Any) -> None:
    """Write our own warnings as one line, without a place in the source; show others by default."""
    if issubclass(category, RenamedKind | Notice):
        sys.stderr.write(for_terminal(f"marl: {message}\n"))
    else:
        default(for_terminal(str(message)), category, *place)


def _fail(error: BaseException, status: int) -> None:
    sys.stderr.write(for_terminal("\n".join([f"marl: {error}", *vars(error).get("__notes__", ())])) + "\n")
    sys.exit(status)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"marl {version('marl-llm')}")
        raise typer.Exit


@app.callback()
def begin(
    context: typer.Context,
    trust: Annotated[
        bool, typer.Option("--trust", help="With any command: agree to what its scenario reaches, as `check` lists it.")
    ] = False,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Ask for consent to what scenarios reach until the command ends."""
    context.with_resource(consent_needed(trusted=trust))
