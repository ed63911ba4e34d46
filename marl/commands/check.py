"""`marl check`."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from marl.commands.consent import reach_lines
from marl.commands.device_check import configs_of, show_memory
from marl.commands.options import with_options
from marl.commands.terminal import File, Overrides, echo, tell
from marl.memory.device import DeviceMemory, device_memory
from marl.parts import RenamedKind
from marl.scenario.load import load, problem_list
from marl.scenario.yaml_text import ScenarioError
from marl.view.placement import placement_lines

if TYPE_CHECKING:
    from marl.evaluation.dry_run import DryRun
    from marl.scenario.schema import Scenario

app = typer.Typer()


@dataclass(frozen=True)
class CheckOptions:
    """Options of `marl check`: what it looks at, and what it shows."""

    quick: Annotated[bool, typer.Option("--quick", help="Look at the settings alone; play nothing.")] = False
    prompts: Annotated[bool, typer.Option("--prompts", help="Show whole prompts.")] = False
    graders: Annotated[bool, typer.Option(help="Also try its verifiers on answers whose verdict is known.")] = False
    device: Annotated[
        str | None, typer.Option(help="Estimate its memory, and say if it fits: cpu, cuda:0, or a size such as 80GiB.")
    ] = None
    model_config: Annotated[
        list[str] | None, typer.Option(help="With --device: config.json of a model that is not here, [MODEL=]FILE.")
    ] = None

    def memory(self) -> DeviceMemory | None:
        """Return the memory of the device; None if none was named.

        Raises:
            ValueError: if it is not here, or if other options do not go with it.
        """
        if self.device is None:
            if self.model_config:
                raise ValueError("--model-config: has an effect with --device alone")
            return None
        if self.quick:
            raise ValueError("--device: the lengths of prompts are known from random play, which --quick leaves out")
        return device_memory(self.device)


@app.command()
@with_options(CheckOptions)
def check(scenario: File, overrides: Overrides = None, *, options: CheckOptions) -> None:
    """Check a scenario without loading a weight: its settings, and a few random episodes through its real prompts."""
    memory = options.memory()
    with warnings.catch_warnings(record=True, action="always", category=RenamedKind) as raised:
        checked = load(scenario, overrides or ())
    configs = configs_of(checked, options.model_config or ()) if memory else {}
    played = None if options.quick else _played(scenario, checked, configs)
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
    _show_more(scenario, checked, played, options)
    if played and memory:
        show_memory(played, memory)


def _show_more(file: Path, scenario: Scenario, played: DryRun | None, options: CheckOptions) -> None:
    if options.graders:
        from marl.evaluation.graders import check_graders

        echo(f"{file}: graders: {check_graders(scenario)} verdicts as they must be")
    if scenario.cluster:
        echo("\n" + "\n".join(placement_lines(scenario, scenario.cluster)))
    if played:
        from marl.view.plan import plan

        echo(f"\n{plan(played, whole_prompts=options.prompts)}")


def _played(file: Path, scenario: Scenario, configs: dict[str, Path]) -> DryRun:
    """Return a dry run.

    Raises:
        ScenarioError: if it fails, or shows that the scenario cannot be trained.
    """
    from marl.evaluation.dry_run import dry_run

    try:
        run = dry_run(scenario, configs)
    except ValueError as error:
        raise ScenarioError(f"{file}: {error}") from error
    if problems := list(run.problems()):
        raise ScenarioError(f"{file}: found in random play:\n{problem_list(problems)}")
    return run
