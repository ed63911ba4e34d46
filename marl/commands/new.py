"""`marl new`: write a commented scenario that runs at once."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from marl.commands.consent import require_consent_to_external_accesses
from marl.commands.options import with_options
from marl.commands.starter import SCHEMA_FILE, AgentCallingProgram, Kind, inspect_question_file, starter_scenario_yaml
from marl.commands.starter_fit import fit_settings_to_machine
from marl.commands.terminal import echo
from marl.core.errors import RaiseRunFolderErrorOnFailedWrite
from marl.host.data_files import write_atomically
from marl.scenario.load import ScenarioError, load
from marl.scenario.schema import Scenario
from marl.scenario.trust import store_consent

app = typer.Typer()


@dataclass(frozen=True)
class NewOptions:
    """Options of `marl new`."""

    out: Annotated[Path | None, typer.Option(help="The file to write; default: KIND.yaml.")] = None
    data: Annotated[
        Path | None, typer.Option(help="Questions and answers, for a team: .csv, .jsonl, .jsonl.zst or .parquet.")
    ] = None
    question: Annotated[str | None, typer.Option(help="Its column of questions; default: found by usual names.")] = None
    answer: Annotated[str | None, typer.Option(help="Its column of answers; default: found by usual names.")] = None
    model: Annotated[
        str | None, typer.Option(help="A model's folder, or its name on the hub; default: a tiny model.")
    ] = None
    game: Annotated[str, typer.Option(help="Game of self-play; marl list games shows the choices.")] = "kuhn_poker"
    call: Annotated[
        str | None, typer.Option(help="Function that runs a program, as module:function; for kind program.")
    ] = None
    callers: Annotated[
        str, typer.Option(help="Agents that the program asks, separated by commas; the last one's answer is verified.")
    ] = "solver"
    python: Annotated[Path | None, typer.Option(help="Python interpreter of the program; default: marl's own.")] = None


@app.command(name="new")
@with_options(NewOptions)
def create_starter_scenario(
    kind: Annotated[Kind, typer.Argument(help="Kind of scenario.", show_default=False)], options: NewOptions
) -> None:
    """Write a commented scenario that runs at once: self-play, a team, one role of a team, or a program."""
    file = options.out or Path(f"{kind}.yaml")
    if file.exists():
        raise ScenarioError(f"{file} exists already; choose another by --out")
    if kind == "self-play" and options.data:
        raise ScenarioError(f"--data {options.data}: a game has no questions; choices: team, one-role, program")
    if (kind == "program") != bool(options.call):
        raise ScenarioError("--call names the function that runs a program, and is needed for the kind program alone")
    subject: str | AgentCallingProgram = options.game
    if options.call:
        subject = AgentCallingProgram(options.call, tuple(options.callers.split(",")), options.python)
    data = inspect_question_file(options.data, options.question, options.answer) if options.data else None
    write = partial(starter_scenario_yaml, kind, file, options.model, game_or_program=subject, question_file=data)
    text = write()
    schema = json.dumps(Scenario.model_json_schema()).encode()
    with RaiseRunFolderErrorOnFailedWrite(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, text.encode())
        write_atomically(file.parent / SCHEMA_FILE, schema)
    # The new file is loaded at once, so that a faulty template shows here and not at `marl train`.
    # The user typed all paths and names of the new file, which counts as consent to use them.
    with require_consent_to_external_accesses(trusted=True):
        checked = load(file)
        fitted = fit_settings_to_machine(checked) if options.model else None
        if fitted:
            text = write(fitted_settings=fitted)
            with RaiseRunFolderErrorOnFailedWrite(file):
                write_atomically(file, text.encode())
            load(file)
    # The consent is stored, so that no later command asks for paths that the user has typed.
    store_consent(text, file.parent)
    if data:
        answers = "numbers" if data.numeric else "texts that must be equal"
        columns = f"{data.question!r} -> {data.answer!r} ({answers})"
        echo(f"{data.path}: {data.rows} rows, {data.held_out_row_count} held out; {columns}")
    if fitted and fitted.warning:
        echo(f"note: {fitted.warning}")
    echo(f"{file}: next, marl check {file}; marl train {file}")
