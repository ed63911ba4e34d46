"""Restore from a run's folder: the simulator at a checkpoint, the learners' critics, or a failed update."""

from __future__ import annotations

import time
from pathlib import Path

from marl.core.types import Metrics
from marl.protocols import Learner, RoleConfig
from marl.rollout.simulator import RolloutSimulator
from marl.runs.best_checkpoint import BestEvaluationTracker
from marl.runs.checkpoint import checkpoint_steps, read_checkpoint, verify_policy_checksums
from marl.runs.failed_updates import load_failed_batch
from marl.runs.locks import checkpoint_lock
from marl.runs.run_folder import RunFolder
from marl.scenario.load import ScenarioError
from marl.scenario.schema import PolicyConfig, Scenario
from marl.training.build import build, prepare_models
from marl.training.critic import VALUES, LearnerCritic
from marl.training.placement import (
    LocalLearners,
    build_engines,
    learner_settings_and_contexts,
    set_torch_threads,
    simulator_from_engines,
)

_RETRY_S = 0.05
"""Time between two attempts to lock a checkpoint [seconds]."""


def best_checkpoint_step(folder: Path) -> int:
    """Return the step of the run's best checkpoint, by the metric `evaluate.keep_best`.

    Raises:
        ScenarioError: if the metric was never measured, or was best before training.
    """
    home = RunFolder(folder)
    best = BestEvaluationTracker.from_rows(home.scenario().evaluate, home.rows())
    if not best.step:
        untrained = f"{best.metric} was best before training"
        reason = "no evaluate.keep_best was measured" if best.step is None else untrained
        raise ScenarioError(f"{folder}: no best checkpoint: {reason}")
    return best.step


def restore_simulator(folder: Path, step: int | None = None) -> tuple[Scenario, RolloutSimulator]:
    """Return a run's scenario, and its simulator with the weights of checkpoint `step` (default: the newest intact).

    The checkpoint is locked while it is read, so that the process that trains the run does not remove it.

    Raises:
        ScenarioError: if there is no run, or no such checkpoint.
    """
    home = RunFolder(folder)
    scenario = home.scenario()
    while True:
        chosen = home.latest_checkpoint(verify_policy_checksums)[0] if step is None else step
        with checkpoint_lock(home.checkpoints / f"{chosen:06d}") as is_locked:
            steps = checkpoint_steps(home.checkpoints)
            if is_locked and chosen in steps:
                set_torch_threads(scenario.schedule.threads)
                saved = home.verified_policies_folder(chosen)
                policies = policies_with_saved_weights(scenario, saved, keep_learners=False)
                scenario = scenario.model_copy(update={"roles": roles_with_saved_instructions(scenario, saved)})
                return scenario, simulator_from_engines(
                    scenario, build_engines(policies, prepare_models(scenario, policies))
                )
        if not steps:
            raise ScenarioError(
                f"{folder}: this run has no checkpoint, so there are no weights to load; checkpoint.every is the "
                "number of steps after which one is written"
            )
        if step is not None:
            choices = ", ".join(f"{other:06d}" for other in steps)
            raise ScenarioError(f"{folder}: no checkpoint of step {chosen}; there are: {choices}")
        time.sleep(_RETRY_S)  # the run has replaced this checkpoint by a newer one meanwhile


def restore_critic(folder: Path, step: int) -> LearnerCritic:
    """Return the critic of a run's learners, with the learners' state at checkpoint `step`.

    Raises:
        ScenarioError: if no learner of the run has a critic.
        CheckpointError: if the checkpoint is damaged.
    """
    home = RunFolder(folder)
    scenario = home.scenario()
    saved = policies_with_saved_weights(scenario, home.verified_policies_folder(step), keep_learners=True)
    learner_kinds: set[str] = set()
    policies: dict[str, PolicyConfig] = {}
    for name, policy in saved.items():
        if policy.learner:
            learner_kinds.add(repr(policy.learner.kind))
            if policy.learner.computable_reading_fields >= VALUES:
                policies[name] = policy
    if not policies:
        kinds = ", ".join(sorted(learner_kinds)) or "none"
        raise ScenarioError(
            f"--search: values: 'critic', but no learner of {folder} has one (learners: {kinds}); choices: rollouts"
        )
    state = read_checkpoint(home.checkpoints, step)[1]["learners"]
    needed = dict(policies)
    for policy in policies.values():
        for teacher in policy.learner.taught_by.values() if policy.learner else ():
            needed[teacher] = scenario.policies[teacher]
    contexts = learner_settings_and_contexts(
        scenario.model_copy(update={"policies": policies}), prepare_models(scenario, needed)
    )
    learners: dict[str, Learner] = {}
    for name, (settings, context) in contexts.items():
        learners[name] = settings.build(context)
        learners[name].load_state_dict(state[name])
    return LearnerCritic(scenario, LocalLearners(learners))


def rerun_failed_update(folder: Path) -> Metrics:
    """Repeat the failed update that is stored in `folder` (RUN/failed/STEP/POLICY), and return its metrics.

    The repeated update fails with the same error.

    Raises:
        ValueError: if `folder` holds no stored batch.
    """
    state, samples = load_failed_batch(folder)
    learner = build(RunFolder(folder.resolve().parents[2]).scenario()).learners[folder.resolve().name]
    learner.load_state_dict(state)
    return learner.update(samples)


def policies_with_saved_weights(scenario: Scenario, folder: Path, *, keep_learners: bool) -> dict[str, PolicyConfig]:
    """Return policy -> settings with the weights of a checkpoint; policies without a learner keep their model.

    Args:
        scenario: scenario of the run.
        folder: folder of the checkpoint's policies.
        keep_learners: True to keep the learners, False to freeze all policies.
    """
    policies = dict(scenario.policies)
    for name, policy in scenario.policies.items():
        if policy.learner and not policy.model and not keep_learners:
            policies[name] = policy.model_copy(update={"learner": None})
        elif policy.learner and policy.model:
            # A reward model's learner publishes no weights, so without `keep_learners` its policy keeps its own.
            restored = keep_learners or policy.learner.publishes
            update = {"model": policy.model.with_saved_weights(folder / name)} if restored else {}
            policies[name] = policy.model_copy(update=update if keep_learners else {**update, "learner": None})
    return policies


def roles_with_saved_instructions(scenario: Scenario, folder: Path) -> dict[str, RoleConfig]:
    """Return the roles of a scenario with the instructions that learners had saved at a checkpoint.

    Args:
        scenario: scenario of the run.
        folder: folder of the checkpoint's policies.
    """
    roles = dict(scenario.roles)
    for name, policy in scenario.policies.items():
        saved = policy.learner.saved_instructions(folder / name) if policy.learner else {}
        for role, instructions in saved.items():
            roles[role] = roles[role].with_instructions(instructions)
    return roles
