"""Prepare the models of a scenario, and build its run.

An embedded tiny model is warmed up by a small run. Preparation therefore lives above the training loop.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

from marl.core.config import choices_hint
from marl.core.graph import write_trajectories
from marl.credit_stage.stage import CreditStage
from marl.models.hf_folder import move_into_place
from marl.protocols import ModelConfig, ModelContext, ModelSource, WarmUp
from marl.protocols.models import LANGUAGE_MODEL
from marl.runs.run_folder import RunFolder
from marl.scenario.load import validate
from marl.scenario.schema import PolicyConfig, Scenario
from marl.training.loop import TrainingLoop
from marl.training.placement import LocalPlacement, Placement, use_threads
from marl.training.run import Run
from marl.training.stop_request import StopRequest
from marl.training.warm_up import corpus, random_play, warm_up_scenario_data
from marl.view.console import WarmUpProgress

_FORMAT = 3
"""Version of the warm-up. Increase it when equal settings lead to other weights, so that cached models are not used."""


def build(scenario: Scenario, placement: Placement | None = None) -> Run:
    """Prepare the models, load their weights, and return the run (default placement: this process)."""
    placement = placement or LocalPlacement()
    use_threads(scenario.schedule.threads)
    sources = prepare_models(scenario, scenario.policies)
    simulator, learners = placement.simulator(scenario, sources), placement.learners(scenario, sources)
    credit_stage = CreditStage(scenario.credit, tuple(scenario.games), scenario.schedule.deadline_s)
    return Run(scenario, simulator, learners, credit_stage, scenario.experience.build())


def prepare_models(scenario: Scenario, policies: Mapping[str, PolicyConfig]) -> dict[str, ModelSource | None]:
    """Return policy -> source of its weights, or None without a model. Missing tiny models are made here."""
    sources: dict[str, ModelSource | None] = {}
    for name, policy in policies.items():
        sources[name] = policy.model.prepare(_model_context(scenario, name, policy.model)) if policy.model else None
    return sources


def _model_context(scenario: Scenario, policy: str, model: ModelConfig) -> ModelContext:
    """Return the context in which `model` of `policy` is prepared.

    The base of an adapter is prepared for all policies with adapters on this base.
    """
    base = model.shared_base()
    policies: list[str] = []
    for name, other in scenario.policies.items():
        shares_base = base and other.model and other.model.shared_base() == base
        if name == policy or shares_base:
            policies.append(name)
    seated = _with_seated_policy(scenario, policies)
    prepare_other = partial(_prepare_language_model, scenario)
    return ModelContext(policy, partial(corpus, seated, policies), partial(warm_up, seated, policies), prepare_other)


def _with_seated_policy(scenario: Scenario, policies: Sequence[str]) -> Scenario:
    """Return the scenario with seats in which one of `policies` plays, as the model is warmed up in its own role.

    A league, for example, gives some players a seat in some of its episodes only.
    """
    if scenario.games:
        return scenario
    roles = {name for name, role in scenario.roles.items() if role.policy in policies}
    for seating in scenario.experience.seatings(scenario.seats):
        if roles & {*seating.values()}:
            seats = dict(seating)
            return scenario if seats == scenario.seats else scenario.model_copy(update={"seats": seats})
    return scenario


def _prepare_language_model(scenario: Scenario, policy: str) -> ModelSource:
    """Return the source of another policy's language model.

    Raises:
        ValueError: if the policy has no language model.
    """
    models: dict[str, ModelConfig] = {}
    for name, settings in scenario.policies.items():
        if settings.model and settings.model.family == LANGUAGE_MODEL:
            models[name] = settings.model
    if policy not in models:
        raise ValueError(f"{policy!r} is no policy with a language model; {choices_hint(policy, models)}")
    return models[policy].prepare(_model_context(scenario, policy, models[policy]))


def warm_up(scenario: Scenario, policies: Sequence[str], base: Path, settings: WarmUp) -> Path:
    """Return the folder of the model in `base` after its warm-up, which is trained once and cached beside `base`."""
    identity = [
        _FORMAT,
        base.name,
        settings.model_dump(mode="json"),
        scenario.play_data(),
        "+".join(policies),
    ]
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
    folder = base.parent / f"{base.name}-{digest}"
    if folder.is_dir():
        return folder
    # In the same parent folder, so that the finished model is moved within one file system.
    with tempfile.TemporaryDirectory(dir=base.parent, prefix=f".{folder.name}-") as temporary:
        recorded = Path(temporary) / "random.jsonl.zst"
        write_trajectories(recorded, random_play(scenario, settings.episodes, settings.seed))
        imitation = validate(warm_up_scenario_data(scenario, policies, settings, base, recorded), "warm-up")
        home, steps = RunFolder(Path(temporary) / "run"), imitation.schedule.steps
        home.create(imitation)
        with closing(WarmUpProgress(policies[0], steps)) as progress:
            loop = TrainingLoop(build(imitation), home, [progress])
            progress.begin(home)
            # Nobody enters this stop request: Ctrl-C ends the warm-up at once, like all work before the first step.
            loop(StopRequest())
        move_into_place(home.checkpoints / f"{steps:06d}" / "policies" / policies[0], folder)
    return folder
