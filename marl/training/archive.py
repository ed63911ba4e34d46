"""Archive of a run's earlier weights, for experiences in which policies play against them."""

from __future__ import annotations

from collections.abc import Callable, Collection

from marl.evaluation.evaluate import opponent
from marl.protocols import EngineConfig, SavedWeights
from marl.runs import checkpoint
from marl.runs.run_folder import RunFolder
from marl.training.run import Run


class RunArchive:
    """Implementation of the protocol `WeightArchive` for a run and its folder."""

    def __init__(self, run: Run, folder: RunFolder) -> None:
        self._run, self._folder, self._snapshots = run, folder, folder.snapshots

    @property
    def seed(self) -> int:
        return self._run.scenario.schedule.seed

    def save(self, policy: str, version: int) -> None:
        self._snapshots.write(policy, version, self._run.learners[policy].save)

    def policy_of(self, role: str) -> str:
        return self._run.scenario.roles[role].policy

    def saved_weights(self, policy: str, version: int) -> SavedWeights:
        return SavedWeights(policy, self._snapshots.folder(policy, version).absolute(), version)

    def prune(self, policy: str, members: Callable[[int], Collection[int]]) -> None:
        oldest = next(iter(checkpoint.checkpoint_steps(self._folder.checkpoints)), 0)
        # Versions after the oldest checkpoint stay, as a run resumed from there needs its members of that time.
        later = [version for version in self._snapshots.versions(policy) if version > oldest]
        self._snapshots.remove_except(policy, {*members(oldest), *later})

    def exported_player(self, name: str) -> EngineConfig | None:
        scenario = self._run.scenario
        return None if name in scenario.policies else opponent(scenario.game, name)

    def save_initial_state(self, policy: str) -> None:
        self._snapshots.write_start(policy, self._run.learners[policy].state_dict())

    def reset_policy(self, policy: str, version: int) -> None:
        self._run.learners[policy].load_state_dict(self._snapshots.read_start(policy))
        self._run.publish(policy, version)
