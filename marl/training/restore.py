"""Restore a run from its folder: its simulator with a checkpoint's weights, or a learner that failed."""

from __future__ import annotations

import time
from pathlib import Path

from marl.rollout.simulator import RolloutSimulator
from marl.runs.best_checkpoint import Best
from marl.runs.checkpoint import read, steps, verify_policies
from marl.runs.failed_updates import read_kept
from marl.runs.leases import leased
from marl.runs.run_folder import RunFolder
from marl.scenario.load import ScenarioError
from marl.scenario.schema import PolicyConfig, Scenario
from marl.training.build import build, sources
from marl.training.critic import VALUES, LearnersCritic
from marl.training.placement import LocalLearners, build_engines, learner_contexts, make_simulator, use_threads
from marl.types import Metrics

_SOON_S = 0.05


def best_step(folder: Path) -> int:
    """Return the step at which the run was best, by its `evaluate.keep_best`.

    Raises:
        ScenarioError: if that was not measured, or the run was best before its first checkpoint.
    """
    home = RunFolder(folder)
    best = Best.of(home.scenario().evaluate, home.rows())
    if not best.step:
        why = "no evaluate.keep_best was measured" if best.step is None else f"{best.figure} was best before training"
        raise ScenarioError(f"{folder}: no best checkpoint: {why}")
    return best.step


def restore(folder: Path, step: int | None = None) -> tuple[Scenario, RolloutSimulator]:
    """Return a run's scenario, and its simulator with the weights of one checkpoint (default: the newest whole one).

    While they are read, the checkpoint is not removed by a run that goes on.

    Raises:
        ScenarioError: if there is no run or no such checkpoint.
    """
    home = RunFolder(folder)
    scenario = home.scenario()
    while True:
        chosen = home.latest(verify_policies)[0] if step is None else step
        with leased(home.checkpoints / f"{chosen:06d}") as held:
            have = steps(home.checkpoints)
            if held and chosen in have:
                use_threads(scenario.schedule.threads)
                policies = saved_policies(scenario, home.policies(chosen), learn=False)
                return scenario, make_simulator(scenario, build_engines(policies, sources(scenario, policies)))
        if step is not None or not chosen:
            known = ", ".join(f"{each:06d}" for each in have) or "none"
            raise ScenarioError(f"{folder}: no checkpoint of step {chosen}; there are: {known}")
        time.sleep(_SOON_S)  # it is being removed: the run has a newer one


def restored_critic(folder: Path, step: int) -> LearnersCritic:
    """Return the critic of a run's learners as they were at a checkpoint.

    Raises:
        ScenarioError: if no learner of the run has a critic.
        CheckpointError: if the checkpoint is damaged.
    """
    home = RunFolder(folder)
    scenario = home.scenario()
    saved = saved_policies(scenario, home.policies(step), learn=True)
    policies = {name: policy for name, policy in saved.items() if policy.learner and policy.learner.readable >= VALUES}
    if not policies:
        kinds = ", ".join(sorted({repr(policy.learner.kind) for policy in saved.values() if policy.learner})) or "none"
        raise ScenarioError(
            f"--search: values: 'critic', but no learner of {folder} has one (learners: {kinds}); choices: rollouts"
        )
    state = read(home.checkpoints, step)[1]["learners"]
    contexts = learner_contexts(scenario.model_copy(update={"policies": policies}), sources(scenario, policies))
    learners = {name: settings.build(context) for name, (settings, context) in contexts.items()}
    for name, learner in learners.items():
        learner.load_state_dict(state[name])
    return LearnersCritic(scenario, LocalLearners(learners))


def rerun(folder: Path) -> Metrics:
    """Repeat the update kept in RUN/failed/STEP/POLICY and return its figures; it raises what it raised then.

    Raises:
        ValueError: if `folder` holds no kept batch.
    """
    state, samples = read_kept(folder)
    learner = build(RunFolder(folder.resolve().parents[2]).scenario()).learners[folder.resolve().name]
    learner.load_state_dict(state)
    return learner.update(samples)


def saved_policies(scenario: Scenario, folder: Path, *, learn: bool) -> dict[str, PolicyConfig]:
    """Return the policies with the weights that a checkpoint saved in `folder`, with or without their learners.

    Policies that never learnt stay as they are. Without its learner, a policy that trains a reward model does, too.
    """
    policies = dict(scenario.policies)
    for name, policy in scenario.policies.items():
        if policy.learner and policy.model:
            restored = learn or policy.learner.publishes
            update = {"model": policy.model.saved(folder / name)} if restored else {}
            policies[name] = policy.model_copy(update=update if learn else {**update, "learner": None})
    return policies
