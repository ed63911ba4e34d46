"""The command line: marl train | eval | play | why | credit | check | list | schema | tiny | plot | rerun."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from marl.commands import catalogue, check, look, train
from marl.commands.consent import TrustAnywhere, consent_needed
from marl.commands.credit import credit
from marl.errors import RunError
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
for commands in (train, look, check, catalogue):
    app.add_typer(commands.app)
app.add_typer(credit, name="credit")


def main() -> None:
    """Run the command line; what a user got wrong is a message and exit status 2, never a traceback."""
    # A user's own parts lie where the command is typed; last, so that they hide nothing that is installed.
    sys.path.append(str(Path.cwd()))
    with _explained(), warnings.catch_warnings():
        warnings.showwarning = partial(_show_warning, warnings.showwarning)
        app()


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
    """Write renamed kinds as one line, without a place in the source; show other warnings by default."""
    if issubclass(category, RenamedKind):
        sys.stderr.write(for_terminal(f"marl: {message}\n"))
    else:
        default(for_terminal(str(message)), category, *place)


def _fail(error: BaseException, status: int) -> None:
    sys.stderr.write(for_terminal("\n".join([f"marl: {error}", *vars(error).get("__notes__", ())])) + "\n")
    sys.exit(status)


@app.callback()
def begin(
    context: typer.Context,
    trust: Annotated[
        bool, typer.Option("--trust", help="With any command: agree to what its scenario reaches, as `check` lists it.")
    ] = False,
) -> None:
    """Ask for consent to what scenarios reach until the command ends."""
    context.with_resource(consent_needed(trusted=trust))
