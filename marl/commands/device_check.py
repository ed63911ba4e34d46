"""The part of `marl check` that asks for a device: does the run fit into its memory?"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from marl.commands.terminal import echo

if TYPE_CHECKING:
    from marl.evaluation.dry_run import DryRun
    from marl.memory.device import DeviceMemory
    from marl.scenario.schema import Scenario


def configs_of(scenario: Scenario, entries: Iterable[str]) -> dict[str, Path]:
    """Return model -> its config.json, as `entries` ("[MODEL=]FILE"); the model "" is any.

    The hub is asked for the settings of all others that are not on this machine, and for no weights.

    Raises:
        ValueError: if there is no such file, or if a model's settings cannot be had.
    """
    from marl.evaluation.model_facts import config_of
    from marl.models.hub import fetch_settings
    from marl.models.pretrained import Pretrained

    configs = {model: Path(file) for model, _, file in (each.rpartition("=") for each in entries)}
    for file in configs.values():
        if not file.is_file():
            raise ValueError(f"--model-config: there is no file {str(file)!r}")
    for name, policy in scenario.policies.items():
        model = policy.model and (policy.model.shared() or policy.model)
        if isinstance(model, Pretrained) and not config_of(model, configs) and (why := fetch_settings(model.path)):
            raise ValueError(
                f"policies.{name}.model: {model.path}: {why}; to know its sizes, give its config.json: --model-config "
                f"FILE, or --model-config {model.path}=FILE where several models are not here"
            )
    return configs


def show_memory(run: DryRun, memory: DeviceMemory) -> None:
    """Print what the run takes of a device's memory; exit with status 1 if that is too much."""
    from marl.memory.preflight import preflight
    from marl.view.memory_table import memory_table

    checked = preflight(run, memory)
    echo(f"\n{memory_table(checked)}")
    if not checked.fits:
        raise typer.Exit(1)
