"""`marl check`."""

from __future__ import annotations

import warnings
from typing import Annotated

import typer

from marl.commands.consent import reach_lines
from marl.commands.terminal import File, Overrides, echo, tell
from marl.parts import RenamedKind
from marl.scenario.load import load

app = typer.Typer()


@app.command()
def check(
    scenario: File,
    overrides: Overrides = None,
    graders: Annotated[bool, typer.Option(help="Also try its verifiers on answers whose verdict is known.")] = False,
) -> None:
    """Check a scenario without loading a weight."""
    with warnings.catch_warnings(record=True, action="always", category=RenamedKind) as raised:
        checked = load(scenario, overrides or ())
    learning = [name for name, policy in checked.policies.items() if policy.learner]
    echo(f"{scenario}: fine; game {checked.game.kind}, trains {', '.join(learning)}")
    for message in dict.fromkeys(str(warning.message) for warning in raised):
        echo(f"note: {message}")
    tell(checked)
    if lines := reach_lines():
        echo(f"It reaches beyond its own text:\n{lines}")
    if graders:
        from marl.evaluation.graders import check_graders

        echo(f"{scenario}: graders: {check_graders(checked)} verdicts as they must be")
