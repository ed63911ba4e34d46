"""`marl doctor`: check this machine, advise how to install missing packages, and train for a short time."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from marl.commands.machine_findings import check_machine, check_scenario
from marl.commands.self_test import self_test
from marl.commands.terminal import Overrides, echo

app = typer.Typer()
_MARKS = {"ok": "ok    ", "absent": "absent", "wrong": "WRONG "}


@app.command(name="doctor")
def diagnose_machine(
    scenario: Annotated[
        Path | None, typer.Argument(help="A scenario (YAML) that is to run here.", show_default=False)
    ] = None,
    overrides: Overrides = None,
    *,
    quick: Annotated[bool, typer.Option("--quick", help="Skip the self-test, which takes up to a minute.")] = False,
) -> None:
    """Check this machine: versions, accelerators, sandbox, vLLM, Ray, folders; then train for up to a minute.

    Advises how to install missing packages; with a scenario, also those that the scenario needs. The exit status is 1
    if something is wrong.
    """
    findings = chain(
        check_machine(),
        [check_scenario(scenario, overrides or ())] if scenario else (),
        () if quick else self_test(),
    )
    # `findings` is a generator, so each finding is printed before the next check, which may take long.
    any_wrong = False
    for finding in findings:
        echo(f"{_MARKS[finding.state]}  {finding.topic}: {finding.text}")
        if finding.advice:
            echo(f"        {finding.advice}")
        any_wrong |= finding.state == "wrong"
    if any_wrong:
        raise typer.Exit(1)
