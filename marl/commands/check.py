"""`marl check`."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from marl.commands.consent import reach_lines
from marl.commands.terminal import File, Overrides, echo, tell
from marl.parts import RenamedKind
from marl.scenario.load import load, problem_list
from marl.scenario.yaml_text import ScenarioError

if TYPE_CHECKING:
    from marl.evaluation.dry_run import DryRun
    from marl.scenario.schema import Scenario

app = typer.Typer()


@app.command()
def check(
    scenario: File,
    overrides: Overrides = None,
    quick: Annotated[bool, typer.Option("--quick", help="Look at the settings alone; play nothing.")] = False,
    prompts: Annotated[bool, typer.Option("--prompts", help="Show whole prompts.")] = False,
    graders: Annotated[bool, typer.Option(help="Also try its verifiers on answers whose verdict is known.")] = False,
) -> None:
    """Check a scenario without loading a weight: its settings, and a few random episodes through its real prompts."""
    with warnings.catch_warnings(record=True, action="always", category=RenamedKind) as raised:
        checked = load(scenario, overrides or ())
    played = None if quick else _played(scenario, checked)
    learning = [name for name, policy in checked.policies.items() if policy.learner]
    played_games = f"game {checked.game.kind}" if checked.game else f"games {', '.join(checked.games)}"
    echo(f"{scenario}: fine; {played_games}, trains {', '.join(learning)}")
    for message in dict.fromkeys(str(warning.message) for warning in raised):
        echo(f"note: {message}")
    tell(checked)
    for note in played.notes() if played else ():
        echo(f"note: {note}")
    if lines := reach_lines():
        echo(f"It reaches beyond its own text:\n{lines}")
    if graders:
        from marl.evaluation.graders import check_graders

        echo(f"{scenario}: graders: {check_graders(checked)} verdicts as they must be")
    if played:
        from marl.view.plan import plan

        echo(f"\n{plan(played, whole_prompts=prompts)}")


def _played(file: Path, scenario: Scenario) -> DryRun:
    """Return a dry run.

    Raises:
        ScenarioError: if it fails, or shows that the scenario cannot be trained.
    """
    from marl.evaluation.dry_run import dry_run

    try:
        run = dry_run(scenario)
    except ValueError as error:
        raise ScenarioError(f"{file}: {error}") from error
    if problems := list(run.problems()):
        raise ScenarioError(f"{file}: found in random play:\n{problem_list(problems)}")
    return run
