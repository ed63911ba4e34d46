"""`marl check`: validate a scenario, play it at random, and estimate its memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from marl.commands.consent import format_external_accesses
from marl.commands.options import with_options
from marl.commands.terminal import Overrides, ScenarioFile, echo
from marl.evaluation.dry_run import play_dry_run
from marl.evaluation.dry_run_findings import scenario_errors, scenario_warnings
from marl.evaluation.grader_check import check_graders_and_count_verdicts, verdict_remarks_on_gold_answers
from marl.evaluation.model_facts import find_config_file
from marl.memory.device import device_memory
from marl.memory.preflight import estimate_memory_fit
from marl.models.pretrained import Pretrained
from marl.scenario.credit_checks import credit_notes
from marl.scenario.load import format_problem_list, load
from marl.scenario.role_defaults import verdict_tag_notes
from marl.scenario.schema import Scenario
from marl.scenario.yaml_text import ScenarioError
from marl.view.memory_table import memory_table
from marl.view.placement import process_placement_lines
from marl.view.run_plan import format_bytes, memory_warnings, render_plan

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


@app.command(name="check")
@with_options(CheckOptions)
def check_scenario_file(scenario: ScenarioFile, overrides: Overrides = None, *, options: CheckOptions) -> None:
    """Check a scenario without loading a weight: its settings, and a few random episodes through its real prompts."""
    if options.device is None and options.model_config:
        raise ValueError("--model-config: has an effect with --device alone")
    if options.device is not None and options.quick:
        raise ValueError("--device: the lengths of prompts are known from random play, which --quick leaves out")
    memory = None if options.device is None else device_memory(options.device)
    checked = load(scenario, overrides or ())
    # The hub is asked for the sizes of models only with --device, because only the memory estimate needs them.
    configs = _model_config_files(checked, options.model_config or ()) if memory else {}
    try:
        random_play = None if options.quick else play_dry_run(checked, configs)
    except ValueError as error:
        raise ScenarioError(f"{scenario}: {error}") from error
    if random_play and (problems := list(scenario_errors(random_play))):
        raise ScenarioError(f"{scenario}: found in random play:\n{format_problem_list(problems)}")
    learning = [name for name, policy in checked.policies.items() if policy.learner]
    games = f"game {checked.game.kind}" if checked.game else f"games {', '.join(checked.games)}"
    warnings = list(scenario_warnings(random_play)) if random_play else []
    estimate = estimate_memory_fit(random_play, memory) if random_play and memory else None
    if estimate and not estimate.fits_device:
        needed, available = format_bytes(estimate.peak_bytes), format_bytes(estimate.device.usable_bytes)
        warnings.append(f"memory: about {needed}, more than the {available} that {options.device} leaves to the run")
    elif random_play and not estimate:
        warnings += memory_warnings(random_play)
    verdict = f"valid, but read {len(warnings)} warning{'s' * (len(warnings) > 1)}" if warnings else "fine"
    echo(f"{scenario}: {verdict}; {games}, trains {', '.join(learning)}")
    for warning in warnings:
        echo(f"WARNING {warning}")
    for note in (*credit_notes(checked), *verdict_tag_notes(checked), *verdict_remarks_on_gold_answers(checked)):
        echo(f"note: {note}")
    if lines := format_external_accesses():
        echo(f"It reaches beyond its own text:\n{lines}")
    if options.graders:
        echo(f"{scenario}: graders: {check_graders_and_count_verdicts(checked)} verdicts as they must be")
    if checked.cluster:
        echo("\n" + "\n".join(process_placement_lines(checked, checked.cluster)))
    if random_play:
        echo(f"\n{render_plan(random_play, full_prompts=options.prompts)}")
    if estimate:
        echo(f"\n{memory_table(estimate)}")
        if not estimate.fits_device:
            raise typer.Exit(1)


def _model_config_files(scenario: Scenario, config_options: Iterable[str]) -> dict[str, Path]:
    """Return model -> its config.json from `config_options` ("[MODEL=]FILE"). The key "" stands for every model.

    The settings of other models that are not on this machine are downloaded from the hub, without weights.

    Raises:
        ValueError: if a file does not exist, or the settings of a model are not available.
    """
    configs: dict[str, Path] = {}
    for entry in config_options:
        model_name, _, file = entry.rpartition("=")
        configs[model_name] = Path(file)
    for path in configs.values():
        if not path.is_file():
            raise ValueError(f"--model-config: there is no file {str(path)!r}")
    for name, policy in scenario.policies.items():
        model = policy.model and (policy.model.shared_base() or policy.model)
        if not isinstance(model, Pretrained) or find_config_file(model, configs):
            continue
        from marl.models.hub import (
            download_config_and_tokenizer,
        )  # The import is here, because the module loads slowly.

        if why := download_config_and_tokenizer(model.path):
            raise ValueError(
                f"policies.{name}.model: {model.path}: {why}; to know its sizes, give its config.json: --model-config "
                f"FILE, or --model-config {model.path}=FILE where several models are not here"
            )
    return configs
