"""Prepare the models of a scenario, and build its run.

Preparation stands above the training loop, since a tiny model is warmed up by a small run of its own.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

from marl.core.config import choices_hint
from marl.core.graph import write_trajectories
from marl.credit_stage.stage import CreditStage
from marl.models.hf_folder import move_into_place
from marl.protocols import ImitationWarmUp, ModelConfig, ModelPreparation, ModelSource
from marl.protocols.models import LANGUAGE_MODEL
from marl.runs.populations import require_populations
from marl.runs.run_folder import RunFolder
from marl.scenario.load import validate
from marl.scenario.schema import PolicyConfig, Scenario
from marl.scenario.teacher_checks import students_by_teacher, vocabulary_problem
from marl.training.loop import TrainingLoop
from marl.training.placement import LocalPlacement, Placement, set_torch_threads
from marl.training.run import Run
from marl.training.stop_request import StopRequest
from marl.training.warm_up import random_play, random_play_texts, warm_up_scenario_data
from marl.view.console import WarmUpProgress

_WARM_UP_VERSION = 3
"""Version of the warm-up: it grows when the same settings lead to other weights, so that cached models are not used."""


def build(scenario: Scenario, placement: Placement | None = None) -> Run:
    """Prepare the models, load their weights, and return the run; `placement` defaults to this process."""
    placement = placement or LocalPlacement()
    set_torch_threads(scenario.schedule.threads)
    require_populations(scenario)
    check_teacher_vocabularies(scenario)
    sources = prepare_models(scenario, scenario.policies)
    simulator, learners = placement.build_simulator(scenario, sources), placement.build_learners(scenario, sources)
    credit_stage = CreditStage(scenario.credit, tuple(scenario.games), scenario.schedule.deadline_s)
    return Run(scenario, simulator, learners, credit_stage, scenario.experience.build())


def prepare_models(
    scenario: Scenario, policies: Mapping[str, PolicyConfig], *, warmed_up: bool = True
) -> dict[str, ModelSource | None]:
    """Return policy -> source of its weights, or None for a policy without a model; train missing tiny models.

    `warmed_up`: False leaves out the training of tiny models, for callers that need only their tokenizers.
    """
    sources: dict[str, ModelSource | None] = {}
    for name, policy in policies.items():
        sources[name] = None
        if policy.model:
            context = _model_preparation_context(scenario, name, policy.model, warmed_up)
            sources[name] = policy.model.prepare(context)
    return sources


def _model_preparation_context(
    scenario: Scenario, policy: str, model: ModelConfig, warmed_up: bool
) -> ModelPreparation:
    """Return the context for preparing `model` of `policy`: its corpus, its warm-up and other policies' models.

    The base of an adapter is prepared for all policies with adapters on this base. A teacher without a role is prepared
    from the play of the policies that it teaches.
    """
    base = model.shared_base()
    policies: list[str] = []
    for name, other in scenario.policies.items():
        shares_base = base and other.model and other.model.shared_base() == base
        if name == policy or shares_base:
            policies.append(name)
    if policy not in scenario.sampling_policies:
        policies += students_by_teacher(scenario).get(policy, [])
    # A model is warmed up in seats of its roles. A league may give a role a seat in certain episodes only.
    seatings = [] if scenario.games else seatings_of_policies(scenario, policies)
    seated = scenario
    if seatings and seatings[0] != scenario.seats:
        seated = scenario.model_copy(update={"seats": seatings[0]})
    texts = partial(random_play_texts, seated, policies, other_seatings=seatings[1:])
    train = partial(warm_up, seated, policies, other_seatings=seatings[1:]) if warmed_up else _leave_untrained
    return ModelPreparation(policy, texts, train, partial(_prepare_language_model, scenario, warmed_up))


def _leave_untrained(base_model_folder: Path, _: ImitationWarmUp) -> Path:
    return base_model_folder


def seatings_of_policies(scenario: Scenario, policies: Collection[str]) -> list[dict[str, str]]:
    """Return assignments of roles (agent -> role), as few as needed for each role of `policies` to have a seat."""
    missing = {name for name, role in scenario.roles.items() if role.policy in policies}
    seatings: list[dict[str, str]] = []
    for seating in scenario.experience.seatings(scenario.seats):
        if missing & {*seating.values()}:
            seatings.append(dict(seating))
            missing -= {*seating.values()}
    return seatings


def check_teacher_vocabularies(scenario: Scenario) -> None:
    """Check that every teacher has the tokens of its students, with the same ids, and that the students' settings fit
    this vocabulary. Only tokenizers are loaded, and no tiny model is warmed up.

    Raises:
        ValueError: if two vocabularies differ, or a setting does not fit; the message names the field.
    """
    compared: set[str] = set()
    for teacher, students in students_by_teacher(scenario).items():
        compared |= {teacher, *students}
    policies = {name: policy for name, policy in scenario.policies.items() if name in compared}
    sources = prepare_models(scenario, policies, warmed_up=False)
    for name, policy in policies.items():
        source = sources[name]
        for field, teacher in policy.learner.taught_by.items() if policy.learner else ():
            teacher_source = sources[teacher]
            if source is None or teacher_source is None:
                continue
            vocabularies = source.tokenizer().get_vocab(), teacher_source.tokenizer().get_vocab()
            if problem := vocabulary_problem(name, teacher, *vocabularies):
                raise ValueError(f"policies.{name}.learner.{field}: {problem}")
            for error in policy.learner.vocabulary_conflicts(len(vocabularies[0])) if policy.learner else ():
                raise ValueError(f"policies.{name}.learner.{error}")


def _prepare_language_model(scenario: Scenario, warmed_up: bool, policy: str) -> ModelSource:
    """Return the source of the weights of `policy`'s language model.

    Raises:
        ValueError: if the policy has no language model.
    """
    models: dict[str, ModelConfig] = {}
    for name, settings in scenario.policies.items():
        if settings.model and settings.model.family == LANGUAGE_MODEL:
            models[name] = settings.model
    if policy not in models:
        raise ValueError(f"{policy!r} is no policy with a language model; {choices_hint(policy, models)}")
    return models[policy].prepare(_model_preparation_context(scenario, policy, models[policy], warmed_up))


def warm_up(
    scenario: Scenario,
    policies: Sequence[str],
    base_model_folder: Path,
    settings: ImitationWarmUp,
    *,
    other_seatings: Sequence[Mapping[str, str]] = (),
) -> Path:
    """Return the folder of the model in `base_model_folder` after its warm-up. The model is trained once, then
    cached. `other_seatings` are assignments of roles (agent -> role) that are played beside the scenario's seats."""
    identity = [
        _WARM_UP_VERSION,
        base_model_folder.name,
        settings.model_dump(mode="json"),
        scenario.plain_data_for_random_play(),
        "+".join(policies),
        *other_seatings,
    ]
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
    folder = base_model_folder.parent / f"{base_model_folder.name}-{digest}"
    if folder.is_dir():
        return folder
    # The temporary folder has the same parent, so that the finished model can be renamed within one file system.
    with tempfile.TemporaryDirectory(dir=base_model_folder.parent, prefix=f".{folder.name}-") as temporary:
        recorded = Path(temporary) / "random.jsonl.zst"
        write_trajectories(recorded, random_play(scenario, settings.episodes, settings.seed, other_seatings))
        imitation = validate(
            warm_up_scenario_data(scenario, policies, settings, base_model_folder, recorded, other_seatings), "warm-up"
        )
        home, steps = RunFolder(Path(temporary) / "run"), imitation.schedule.steps
        home.create(imitation)
        with closing(WarmUpProgress(policies[0], steps)) as progress:
            loop = TrainingLoop(build(imitation), home, [progress])
            progress.begin(home)
            # A StopRequest that is not entered installs no signal handlers, so Ctrl-C ends the warm-up at once.
            loop(StopRequest())
        move_into_place(home.checkpoints / f"{steps:06d}" / "policies" / policies[0], folder)
    return folder
