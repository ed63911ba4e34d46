"""Restore parts of a run from its folder: the simulator at a checkpoint, critics, or a learner that failed."""

from __future__ import annotations

import time
from pathlib import Path

from marl.core.types import Metrics
from marl.rollout.simulator import RolloutSimulator
from marl.runs.best_checkpoint import BestTracker
from marl.runs.checkpoint import checkpoint_steps, read_checkpoint, verify_policies
from marl.runs.failed_updates import load_failed_batch
from marl.runs.locks import read_lock
from marl.runs.run_folder import RunFolder
from marl.scenario.load import ScenarioError
from marl.scenario.schema import PolicyConfig, Scenario
from marl.training.build import build, prepare_models
from marl.training.critic import VALUES, LearnerCritic
from marl.training.placement import LocalLearners, build_engines, learner_contexts, make_simulator, use_threads

_RETRY_S = 0.05
"""Seconds between two attempts to lock a checkpoint."""


def best_step(folder: Path) -> int:
    """Return the step of the best checkpoint by `evaluate.keep_best`.

    Raises:
        ScenarioError: if the metric was never measured, or was best before training.
    """
    home = RunFolder(folder)
    best = BestTracker.from_rows(home.scenario().evaluate, home.rows())
    if not best.step:
        reason = (
            "no evaluate.keep_best was measured" if best.step is None else f"{best.metric} was best before training"
        )
        raise ScenarioError(f"{folder}: no best checkpoint: {reason}")
    return best.step


def restore_simulator(folder: Path, step: int | None = None) -> tuple[Scenario, RolloutSimulator]:
    """Return a run's scenario, and its simulator with the weights of a checkpoint (default: the newest intact one).

    The checkpoint is locked while it is read, so that the process that trains the run does not remove it.

    Raises:
        ScenarioError: if there is no run, or no such checkpoint.
    """
    home = RunFolder(folder)
    scenario = home.scenario()
    while True:
        chosen = home.latest_checkpoint(verify_policies)[0] if step is None else step
        with read_lock(home.checkpoints / f"{chosen:06d}") as is_locked:
            steps = checkpoint_steps(home.checkpoints)
            if is_locked and chosen in steps:
                use_threads(scenario.schedule.threads)
                policies = saved_policies(scenario, home.policies_folder(chosen), learn=False)
                return scenario, make_simulator(scenario, build_engines(policies, prepare_models(scenario, policies)))
        if step is not None or not chosen:
            choices = ", ".join(f"{other:06d}" for other in steps) or "none"
            raise ScenarioError(f"{folder}: no checkpoint of step {chosen}; there are: {choices}")
        time.sleep(_RETRY_S)  # the run is removing this checkpoint, as it has a newer one


def restored_critic(folder: Path, step: int) -> LearnerCritic:
    """Return the critic of a run's learners, with their state at a checkpoint.

    Raises:
        ScenarioError: if no learner of the run has a critic.
        CheckpointError: if the checkpoint is damaged.
    """
    home = RunFolder(folder)
    scenario = home.scenario()
    saved = saved_policies(scenario, home.policies_folder(step), learn=True)
    learner_kinds = {repr(policy.learner.kind) for policy in saved.values() if policy.learner}
    policies = {name: policy for name, policy in saved.items() if policy.learner and policy.learner.readable >= VALUES}
    if not policies:
        kinds = ", ".join(sorted(learner_kinds)) or "none"
        raise ScenarioError(
            f"--search: values: 'critic', but no learner of {folder} has one (learners: {kinds}); choices: rollouts"
        )
    state = read_checkpoint(home.checkpoints, step)[1]["learners"]
    contexts = learner_contexts(scenario.model_copy(update={"policies": policies}), prepare_models(scenario, policies))
    learners = {name: settings.build(context) for name, (settings, context) in contexts.items()}
    for name, learner in learners.items():
        learner.load_state_dict(state[name])
    return LearnerCritic(scenario, LocalLearners(learners))


def rerun_failed_update(folder: Path) -> Metrics:
    """Repeat the update kept in RUN/failed/STEP/POLICY; return its metrics, or raise the same error as before.

    Raises:
        ValueError: if `folder` holds no kept batch.
    """
    state, samples = load_failed_batch(folder)
    learner = build(RunFolder(folder.resolve().parents[2]).scenario()).learners[folder.resolve().name]
    learner.load_state_dict(state)
    return learner.update(samples)


def saved_policies(scenario: Scenario, folder: Path, *, learn: bool) -> dict[str, PolicyConfig]:
    """Return the scenario's policies with the weights of a checkpoint.

    Policies without a learner keep their model.

    Args:
        scenario: scenario of the run.
        folder: folder of the checkpoint's policies.
        learn: keep the learners; otherwise all policies are frozen.
    """
    policies = dict(scenario.policies)
    for name, policy in scenario.policies.items():
        if policy.learner and policy.model:
            # Without `publishes`, as of a reward model, the saved weights are no weights of the policy itself.
            restored = learn or policy.learner.publishes
            update = {"model": policy.model.with_saved_weights(folder / name)} if restored else {}
            policies[name] = policy.model_copy(update=update if learn else {**update, "learner": None})
    return policies
