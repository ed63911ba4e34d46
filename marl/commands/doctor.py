"""`marl doctor`: what this machine has, what is missing and how to get it, and a short training run."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from marl.commands.terminal import Overrides, echo

if TYPE_CHECKING:
    from marl.commands.health import Finding

app = typer.Typer()
_MARKS = {"ok": "ok    ", "absent": "absent", "wrong": "WRONG "}


@app.command()
def doctor(
    scenario: Annotated[
        Path | None, typer.Argument(help="A scenario (YAML) that is to run here.", show_default=False)
    ] = None,
    overrides: Overrides = None,
    *,
    quick: Annotated[
        bool, typer.Option("--quick", help="Leave the self-test out, which takes up to a minute.")
    ] = False,
) -> None:
    """Look at this machine: versions, accelerators, sandbox, vLLM, Ray, folders; then train for up to a minute.

    Says what to install for what is missing; with a scenario, also what that one needs. The exit status is 1 if
    something is wrong.
    """
    from marl.commands.health import findings, trainable
    from marl.commands.self_test import self_test

    looked_at = chain(
        findings(),
        [trainable(scenario, overrides or ())] if scenario else (),
        () if quick else self_test(),
    )
    if sum([_print(each) for each in looked_at]):
        raise typer.Exit(1)


def _print(finding: Finding) -> bool:
    """Print a finding; return True if it is wrong."""
    echo(f"{_MARKS[finding.state]}  {finding.topic}: {finding.text}")
    if finding.advice:
        echo(f"        {finding.advice}")
    return finding.state == "wrong"
