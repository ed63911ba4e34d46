"""The learners of a run on a cluster: some in processes of their own, the others in the run's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from marl.cluster.learner_group import LearnerGroup
from marl.protocols import Learner
from marl.training.placement import LocalLearners
from marl.types import Metrics, Reading, Sample, Turn


class ClusterLearners(LocalLearners):
    """Learners of which those in processes of their own work at the same time."""

    def read(self, turns: Mapping[str, Sequence[Turn]], wanted: Mapping[str, frozenset[str]]) -> list[Reading]:
        readings = self._together(turns, lambda policy: self[policy].read(turns[policy], wanted[policy]))
        return [reading for policy in turns for reading in readings[policy]]

    def update(self, samples: Mapping[str, Sequence[Sample]]) -> dict[str, Metrics]:
        return self._together(samples, lambda policy: self[policy].update(samples[policy]))

    def close(self) -> None:
        """End the processes."""
        for learner in self.values():
            if isinstance(learner, LearnerGroup):
                learner.close()

    def _together(self, policies: Iterable[str], call: Callable[[str], Any]) -> dict[str, Any]:
        """Return policy -> what its call returns. All have ended by then; of several errors, the first is raised."""
        away = [policy for policy in policies if isinstance(self[policy], LearnerGroup)]
        with ThreadPoolExecutor(max(len(away), 1)) as threads:
            calls = {policy: threads.submit(call, policy) for policy in away}
            here = {policy: call(policy) for policy in policies if policy not in calls}
        return {policy: calls[policy].result() if policy in calls else here[policy] for policy in policies}


def start_all(builders: Mapping[str, Callable[[], Learner]]) -> ClusterLearners:
    """Return the learners that the functions build, all at the same time."""
    with ThreadPoolExecutor(max(len(builders), 1)) as threads:
        built = {policy: threads.submit(build) for policy, build in builders.items()}
    return ClusterLearners({policy: learner.result() for policy, learner in built.items()})
