"""Steps of other runs' checkpoints: a run keeps the checkpoints with which it began, also after a resume."""

from __future__ import annotations

from contextlib import suppress
from typing import TypeVar

from marl.core.config import Config
from marl.core.errors import RunFolderError
from marl.models.pretrained import TrainedPolicyRef
from marl.runs.trained_model import Trained
from marl.scenario.schema import Scenario

C = TypeVar("C", bound=Config)


def with_fixed_steps(scenario: Scenario, recorded: Scenario | None) -> Scenario:
    """Return `scenario` with a number for each step `latest` or `best` of another run's policy.

    Without it, a resumed run would load other weights than it began with if the other run has trained on meanwhile: for
    example another teacher, frozen opponent, reference policy or reward model.

    Args:
        scenario: scenario that is trained.
        recorded: the scenario of the run that goes on, whose steps are kept, or None for a new run.
    """
    policies = {
        name: _with_fixed_steps(policy, recorded.policies.get(name) if recorded else None)
        for name, policy in scenario.policies.items()
    }
    changed = any(policies[name] is not policy for name, policy in scenario.policies.items())
    return scenario.model_copy(update={"policies": policies}) if changed else scenario


def _with_fixed_steps(settings: C, recorded: object) -> C:
    """Return a copy of `settings` in which every reference to another run's policy names a checkpoint by its number.

    Return `settings` itself if all do already. `recorded` is the same part of the recorded scenario, if there is one.
    """
    update: dict[str, object] = {}
    for field, value in settings:
        of_recorded = dict(recorded).get(field) if isinstance(recorded, Config) else None
        if isinstance(value, Config) and (fixed := _with_fixed_steps(value, of_recorded)) is not value:
            update[field] = fixed
    if isinstance(settings, TrainedPolicyRef) and isinstance(settings.step, str):
        update["step"] = _step(settings, recorded)
    return settings.model_copy(update=update) if update else settings


def _step(reference: TrainedPolicyRef, recorded: object) -> int | str:
    """Return the step of `recorded` if it refers to the same policy, else the step of the present checkpoint."""
    if isinstance(recorded, TrainedPolicyRef) and (recorded.run, recorded.policy) == (reference.run, reference.policy):
        return recorded.step
    # A missing run or checkpoint is reported where the weights are loaded.
    with suppress(ValueError, RunFolderError):
        return int(reference.folder(is_language_model=isinstance(reference, Trained)).parents[1].name)
    return reference.step
