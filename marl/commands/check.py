"""`marl check`: validate a scenario, play it at random, and estimate its memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from marl.commands.consent import format_reaches
from marl.commands.options import with_options
from marl.commands.terminal import Overrides, ScenarioFile, echo, print_notes
from marl.evaluation.dry_run import DryRun, dry_run
from marl.evaluation.grader_check import check_graders
from marl.evaluation.model_facts import config_of
from marl.memory.device import DeviceMemory, device_memory
from marl.memory.preflight import preflight
from marl.models.pretrained import Pretrained
from marl.scenario.load import load, problem_list
from marl.scenario.schema import Scenario
from marl.scenario.yaml_text import ScenarioError
from marl.view.memory_table import memory_table
from marl.view.placement import placement_lines
from marl.view.run_plan import render_plan

app = typer.Typer()


@dataclass(frozen=True)
class CheckOptions:
    """Options of `marl check`."""

    quick: Annotated[bool, typer.Option("--quick", help="Check the settings only; play nothing.")] = False
    prompts: Annotated[bool, typer.Option("--prompts", help="Show full prompts.")] = False
    graders: Annotated[bool, typer.Option(help="Also test the verifiers on answers with known verdicts.")] = False
    device: Annotated[
        str | None,
        typer.Option(help="Estimate the memory of the run on this device: cpu, cuda:0, or a size such as 80GiB."),
    ] = None
    model_config: Annotated[
        list[str] | None,
        typer.Option(help="With --device: config.json of a model that is not on this machine, [MODEL=]FILE."),
    ] = None

    def memory(self) -> DeviceMemory | None:
        """Return the memory of the device, or None if no device was named.

        Raises:
            ValueError: if the device is not on this machine, or other options exclude `--device`.
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
def check(scenario: ScenarioFile, overrides: Overrides = None, *, options: CheckOptions) -> None:
    """Check a scenario without loading a weight: its settings, and a few random episodes through its real prompts."""
    memory = options.memory()
    checked = load(scenario, overrides or ())
    # Sizes of models matter only for memory, so the hub is asked only with --device.
    configs = _model_configs(checked, options.model_config or ()) if memory else {}
    random_play = None if options.quick else _play_at_random(scenario, checked, configs)
    learning = [name for name, policy in checked.policies.items() if policy.learner]
    games = f"game {checked.game.kind}" if checked.game else f"games {', '.join(checked.games)}"
    echo(f"{scenario}: fine; {games}, trains {', '.join(learning)}")
    print_notes(checked)
    for note in random_play.notes() if random_play else ():
        echo(f"note: {note}")
    if lines := format_reaches():
        echo(f"It reaches beyond its own text:\n{lines}")
    if options.graders:
        echo(f"{scenario}: graders: {check_graders(checked)} verdicts as they must be")
    if checked.cluster:
        echo("\n" + "\n".join(placement_lines(checked, checked.cluster)))
    if random_play:
        echo(f"\n{render_plan(random_play, full_prompts=options.prompts)}")
    if random_play and memory:
        estimate = preflight(random_play, memory)
        echo(f"\n{memory_table(estimate)}")
        if not estimate.fits:
            raise typer.Exit(1)


def _play_at_random(file: Path, scenario: Scenario, configs: dict[str, Path]) -> DryRun:
    """Play a few random episodes of `scenario`.

    Raises:
        ScenarioError: if an episode fails, or shows that the scenario cannot be trained.
    """
    try:
        run = dry_run(scenario, configs)
    except ValueError as error:
        raise ScenarioError(f"{file}: {error}") from error
    if problems := list(run.problems()):
        raise ScenarioError(f"{file}: found in random play:\n{problem_list(problems)}")
    return run


def _model_configs(scenario: Scenario, entries: Iterable[str]) -> dict[str, Path]:
    """Return model -> config.json from `entries` ("[MODEL=]FILE"); the key "" stands for every model.

    Settings of other models that are not on this machine are downloaded from the hub, without weights.

    Raises:
        ValueError: if a file does not exist, or the settings of a model are not available.
    """
    configs: dict[str, Path] = {}
    for entry in entries:
        model_name, _, file = entry.rpartition("=")
        configs[model_name] = Path(file)
    for path in configs.values():
        if not path.is_file():
            raise ValueError(f"--model-config: there is no file {str(path)!r}")
    for name, policy in scenario.policies.items():
        model = policy.model and (policy.model.shared_base() or policy.model)
        if not isinstance(model, Pretrained) or config_of(model, configs):
            continue
        from marl.models.hub import cache_config_and_tokenizer  # takes long to import

        if why := cache_config_and_tokenizer(model.path):
            raise ValueError(
                f"policies.{name}.model: {model.path}: {why}; to know its sizes, give its config.json: --model-config "
                f"FILE, or --model-config {model.path}=FILE where several models are not here"
            )
    return configs
