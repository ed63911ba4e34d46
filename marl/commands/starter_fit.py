"""Settings of a starter scenario that depend on its model and on the memory of this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from marl.evaluation.dry_run import DryRun, play_dry_run
from marl.memory.device import DeviceMemory, device_memory
from marl.memory.preflight import estimate_memory_fit
from marl.scenario.schema import Scenario
from marl.view.run_plan import format_bytes

_THOUGHT_TOKENS = 256
"""Number of tokens that an answer may take before its move."""


@dataclass(frozen=True, slots=True)
class MachineFittedSettings:
    """Settings with which the starter scenario of a model runs on this machine."""

    max_tokens: int | None
    """Maximum length of an answer [tokens]: the longest legal move and `_THOUGHT_TOKENS` (None: moves uncountable)."""
    learner: Mapping[str, Any]
    """Learner settings that save memory, such as `micro_tokens` -> value."""
    warning: str = ""
    """Note to the user if the run does not fit into the memory even so."""


def fit_settings_to_machine(scenario: Scenario) -> MachineFittedSettings | None:
    """Return settings that fit `scenario` to its game and to this machine, or None if its model is not on this machine.

    The scenario is played at random, so that the lengths of prompts and moves are known. No weights are loaded.
    """
    run = play_dry_run(scenario)
    lengths: list[int] = []
    for role in run.prompt_token_counts:
        # Only a game that lists its legal moves tells the longest answer; a team game has mere examples.
        if any(turn.request.options for turn in run.turns_by_role[role]):
            lengths += run.legal_answer_tokens(role).values()
    max_tokens = max(lengths) + _THOUGHT_TOKENS if lengths else None
    if max_tokens:
        run = _with_max_tokens(run, max_tokens)
    device = _memory_of_this_machine()
    try:
        estimate = estimate_memory_fit(run, device)
    except ValueError:  # a model on the hub has unknown sizes until it is downloaded
        return MachineFittedSettings(max_tokens, {}) if max_tokens else None
    learner = {
        change.field.removeprefix("learner."): change.value
        for change in estimate.reduced.changes
        if change.field.startswith("learner.")
    }
    warning = ""
    # Only the learner's settings are changed; those of engine or model are left to the user, with a warning.
    if len(learner) < len(estimate.reduced.changes) or estimate.reduced.peak_bytes > device.usable_bytes:
        warning = (
            f"the run may need more than the {format_bytes(device.bytes)} of {device.name}: "
            f"marl check --device {device.name} says which settings save memory"
        )
    return MachineFittedSettings(max_tokens, learner, warning)


def _with_max_tokens(dry_run: DryRun, max_tokens: int) -> DryRun:
    """Return `dry_run` with answers of at most `max_tokens` tokens in every role that a model plays."""
    roles = dict(dry_run.scenario.roles)
    for name in dry_run.prompt_token_counts:
        sampling = roles[name].sampling.model_copy(update={"max_tokens": max_tokens})
        roles[name] = roles[name].model_copy(update={"sampling": sampling})
    return replace(dry_run, scenario=dry_run.scenario.model_copy(update={"roles": roles}))


def _memory_of_this_machine() -> DeviceMemory:
    """Return the memory of the first GPU, or of the processor if there is no GPU."""
    try:
        return device_memory("cuda:0")
    except ValueError:
        return device_memory("cpu")
