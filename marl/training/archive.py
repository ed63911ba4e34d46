"""Archive of a run: what it lends to an experience in which policies meet their earlier weights."""

from __future__ import annotations

from collections.abc import Callable, Collection

from marl.evaluation.evaluate import opponent
from marl.protocols import EngineConfig, SavedWeights
from marl.runs import checkpoint
from marl.runs.run_folder import RunFolder
from marl.training.run import Run


class RunArchive:
    """The `Archive` of a run, whose methods are described there."""

    def __init__(self, run: Run, folder: RunFolder) -> None:
        self._run, self._folder, self._snapshots = run, folder, folder.snapshots

    @property
    def seed(self) -> int:
        return self._run.scenario.schedule.seed

    def save(self, policy: str, version: int) -> None:
        self._snapshots.write(policy, version, self._run.learners[policy].save)

    def policy_of(self, role: str) -> str:
        return self._run.scenario.roles[role].policy

    def weights(self, policy: str, version: int) -> SavedWeights:
        return SavedWeights(policy, self._snapshots.folder(policy, version).absolute(), version)

    def keep(self, policy: str, members: Callable[[int], Collection[int]]) -> None:
        oldest = next(iter(checkpoint.steps(self._folder.checkpoints)), 0)
        since = [version for version in self._snapshots.versions(policy) if version > oldest]
        self._snapshots.keep(policy, {*members(oldest), *since})

    def exported(self, name: str) -> EngineConfig | None:
        scenario = self._run.scenario
        return None if name in scenario.policies else opponent(scenario.game, name)

    def note_start(self, policy: str) -> None:
        self._snapshots.write_start(policy, self._run.learners[policy].state_dict())

    def begin_anew(self, policy: str, version: int) -> None:
        self._run.learners[policy].load_state_dict(self._snapshots.start(policy))
        self._run.publish(policy, version)
