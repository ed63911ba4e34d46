"""Archive of a run's earlier weights, for experiences whose policies play against them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from marl.evaluation.evaluate import opponent_engine_settings
from marl.protocols import EngineConfig, SavedWeights
from marl.runs import checkpoint
from marl.runs.populations import read_population
from marl.runs.run_folder import RunFolder
from marl.training.run import Run


class RunWeightArchive:
    """Archive (protocol `WeightArchive`) of the weights of one run, stored in the run's folder."""

    def __init__(self, run: Run, folder: RunFolder) -> None:
        self._run, self._folder, self._snapshots = run, folder, folder.snapshots

    @property
    def seed(self) -> int:
        return self._run.scenario.schedule.seed

    def save(self, policy: str, version: int) -> None:
        self._snapshots.write_version(policy, version, self._run.learners[policy].save)

    def policy_of_role(self, role: str) -> str:
        return self._run.scenario.roles[role].policy

    def saved_weights(self, policy: str, version: int) -> SavedWeights:
        return SavedWeights(policy, self._snapshots.version_folder(policy, version).absolute(), version)

    def population_members(self, run: Path, policy: str) -> list[tuple[str, SavedWeights, float]]:
        members: list[tuple[str, SavedWeights, float]] = []
        for member in read_population(str(run)):
            weights = SavedWeights(policy, member.folder.absolute(), member.version)
            members.append((f"{member.policy}.{member.version:06d}", weights, member.weight))
        return members

    def prune_weights(self, policy: str, versions_after_step: Callable[[int], Collection[int]]) -> None:
        oldest = next(iter(checkpoint.checkpoint_steps(self._folder.checkpoints)), 0)
        # If the run is resumed from its oldest checkpoint, it needs the versions that became members after it.
        later = [version for version in self._snapshots.saved_versions(policy) if version > oldest]
        self._snapshots.remove_versions_except(policy, {*versions_after_step(oldest), *later})

    def reference_player(self, name: str) -> EngineConfig | None:
        scenario = self._run.scenario
        return None if name in scenario.policies else opponent_engine_settings(scenario.game, name)

    def save_initial_learner_state(self, policy: str) -> None:
        self._snapshots.write_initial_state(policy, self._run.learners[policy].state_dict())

    def reset_to_initial_state(self, policy: str, version: int) -> None:
        self._run.learners[policy].load_state_dict(self._snapshots.read_initial_state(policy))
        self._run.schedule_publication(policy, version)
