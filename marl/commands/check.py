"""`marl check`."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from marl.commands.consent import reach_lines
from marl.commands.terminal import File, Overrides, echo, tell
from marl.memory.device import device_memory
from marl.parts import RenamedKind
from marl.scenario.load import load, problem_list
from marl.scenario.yaml_text import ScenarioError

if TYPE_CHECKING:
    from marl.evaluation.dry_run import DryRun
    from marl.memory.device import DeviceMemory
    from marl.scenario.schema import Scenario

app = typer.Typer()


@app.command()
def check(
    scenario: File,
    overrides: Overrides = None,
    quick: Annotated[bool, typer.Option("--quick", help="Look at the settings alone; play nothing.")] = False,
    prompts: Annotated[bool, typer.Option("--prompts", help="Show whole prompts.")] = False,
    graders: Annotated[bool, typer.Option(help="Also try its verifiers on answers whose verdict is known.")] = False,
    device: Annotated[
        str | None, typer.Option(help="Estimate its memory, and say if it fits: cpu, cuda:0, or a size such as 80GiB.")
    ] = None,
    model_config: Annotated[
        list[str] | None, typer.Option(help="With --device: the config.json of a model that is not here: [MODEL=]FILE.")
    ] = None,
) -> None:
    """Check a scenario without loading a weight: its settings, and a few random episodes through its real prompts."""
    with warnings.catch_warnings(record=True, action="always", category=RenamedKind) as raised:
        checked = load(scenario, overrides or ())
    memory = device_memory(device) if device else None
    if memory and quick:
        raise ValueError("--device: how long prompts are is known from random play, which --quick leaves out")
    played = None if quick else _played(scenario, checked, _configs(model_config, device))
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
    if played and memory:
        _show_memory(played, memory)


def _configs(given: list[str] | None, device: str | None) -> dict[str, Path]:
    """Return model -> its config.json; the model "" is any.

    Raises:
        ValueError: if there is no such file, or no device.
    """
    if given and not device:
        raise ValueError("--model-config: has an effect with --device alone")
    pairs = [each.rpartition("=") for each in given or ()]
    configs = {model: Path(file) for model, _, file in pairs}
    for file in configs.values():
        if not file.is_file():
            raise ValueError(f"--model-config: no file {str(file)!r}")
    return configs


def _show_memory(run: DryRun, memory: DeviceMemory) -> None:
    """Print what the run takes of a device's memory; exit with status 1 if that is too much."""
    from marl.memory.preflight import preflight
    from marl.view.memory_table import memory_table

    checked = preflight(run, memory)
    echo(f"\n{memory_table(checked)}")
    if not checked.fits:
        raise typer.Exit(1)


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
