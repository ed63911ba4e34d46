"""Prepare the models of a scenario, and build its run.

An embedded model is warmed up first, in a small run of its own: that is why models are prepared here, above the loop.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

from marl.config import nearest
from marl.graph import write_trajectories
from marl.judging.by_game import GamesJudge
from marl.models.hf_folder import publish_folder
from marl.protocols import ModelConfig, ModelContext, ModelSource, WarmUp
from marl.protocols.models import LANGUAGE_MODEL
from marl.runs.run_folder import RunFolder
from marl.scenario.load import validate
from marl.scenario.schema import PolicyConfig, Scenario
from marl.training.interrupt import Interrupt
from marl.training.loop import Training
from marl.training.placement import LocalPlacement, Placement, use_threads
from marl.training.run import Run
from marl.training.warm_up import corpus, lesson, random_play
from marl.view.console import WarmUpProgress

_FORMAT = 3
"""Raise it when the same settings of a warm-up teach something else."""


def build(scenario: Scenario, placement: Placement | None = None) -> Run:
    """Prepare the models, load their weights and put the parts of a run together; default: all in this process."""
    placement = placement or LocalPlacement()
    use_threads(scenario.schedule.threads)
    weights = sources(scenario, scenario.policies)
    simulator, learners = placement.simulator(scenario, weights), placement.learners(scenario, weights)
    judge = GamesJudge(scenario.credit, tuple(scenario.games), scenario.schedule.deadline_s)
    return Run(scenario, simulator, learners, judge, scenario.experience.build())


def sources(scenario: Scenario, policies: Mapping[str, PolicyConfig]) -> dict[str, ModelSource | None]:
    """Return where each policy's weights come from, after they were made where they did not exist."""
    return {
        name: policy.model.prepare(_context(scenario, name, policy.model)) if policy.model else None
        for name, policy in policies.items()
    }


def _context(scenario: Scenario, policy: str, model: ModelConfig) -> ModelContext:
    """Return the context of a policy's model; with an adapter, for all policies that share its base."""
    base = model.shared()
    bases = {name: other.model.shared() for name, other in scenario.policies.items() if other.model}
    policies = [name for name in scenario.policies if name == policy or (base and bases.get(name) == base)]
    start_of, seated = partial(_start_of, scenario), _seated(scenario, policies)
    return ModelContext(policy, partial(corpus, seated, policies), partial(warm_up, seated, policies), start_of)


def _seated(scenario: Scenario, policies: Sequence[str]) -> Scenario:
    """Return the scenario, in which one of these policies has a seat, if only in some episodes of its experience."""
    if scenario.games:
        return scenario
    roles = {name for name, role in scenario.roles.items() if role.policy in policies}
    seatings = [dict(seats) for seats in scenario.experience.seatings(scenario.seats)]
    seats = next((seats for seats in seatings if roles & {*seats.values()}), scenario.seats)
    return scenario if seats == scenario.seats else scenario.model_copy(update={"seats": seats})


def _start_of(scenario: Scenario, policy: str) -> ModelSource:
    models = {name: each.model for name, each in scenario.policies.items() if each.model}
    models = {name: model for name, model in models.items() if model.family == LANGUAGE_MODEL}
    if policy not in models:
        raise ValueError(f"{policy!r} is no policy with a language model; {nearest(policy, models)}")
    return models[policy].prepare(_context(scenario, policy, models[policy]))


def warm_up(scenario: Scenario, policies: Sequence[str], base: Path, settings: WarmUp) -> Path:
    """Return the folder of the model in `base` after its warm-up, which is done once and cached beside `base`."""
    played = scenario.play_data()
    identity = [_FORMAT, base.name, settings.model_dump(mode="json"), played, "+".join(policies)]
    name = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
    folder = base.parent / f"{base.name}-{name}"
    if not folder.is_dir():
        with tempfile.TemporaryDirectory(dir=base.parent, prefix=f".{folder.name}-") as temporary:
            recorded = Path(temporary) / "random.jsonl.zst"
            write_trajectories(recorded, random_play(scenario, settings.episodes, settings.seed))
            learning_roles = validate(lesson(scenario, policies, settings, base, recorded), "warm-up")
            publish_folder(_train(learning_roles, policies[0], Path(temporary) / "run"), folder)
    return folder


def _train(scenario: Scenario, policy: str, folder: Path) -> Path:
    """Return the folder of what a policy has learnt in a whole run.

    Ctrl-C ends it as it ends all that is done before a run begins: at once.
    """
    home, steps = RunFolder(folder), scenario.schedule.steps
    home.create(scenario)
    with closing(WarmUpProgress(policy, steps)) as progress:
        training = Training(build(scenario), home, [progress])
        progress.begin(home)
        training(Interrupt())
    return home.checkpoints / f"{steps:06d}" / "policies" / policy
