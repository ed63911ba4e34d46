"""Learners of a run on a cluster: some in processes of their own, the others in the run's process."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from marl.cluster.learner_group import LearnerGroup, LearnerResources
from marl.cluster.learner_worker import LearnerSpec
from marl.core.types import Metrics, Reading, Sample, Turn
from marl.protocols import Learner, LearnerConfig, LearnerContext
from marl.rollout.base import ProcessStatus
from marl.scenario.cluster import ClusterConfig
from marl.scenario.schema import Scenario
from marl.training.placement import LocalLearners, Sources, learner_contexts


class ClusterLearners(LocalLearners):
    """Learners of all policies. Learners in processes of their own work at the same time."""

    def __init__(self, learners: Mapping[str, Learner]) -> None:
        super().__init__(learners)
        self._groups = {policy: learner for policy, learner in learners.items() if isinstance(learner, LearnerGroup)}
        self._busy_s, self._measured = dict.fromkeys(self._groups, 0.0), time.perf_counter()

    def read(self, turns: Mapping[str, Sequence[Turn]], fields: Mapping[str, frozenset[str]]) -> list[Reading]:
        readings = self._call_in_parallel(turns, lambda policy: self[policy].read(turns[policy], fields[policy]))
        return [reading for policy in turns for reading in readings[policy]]

    def update(self, samples: Mapping[str, Sequence[Sample]]) -> dict[str, Metrics]:
        metrics = self._call_in_parallel(samples, lambda policy: self[policy].update(samples[policy]))
        now = time.perf_counter()
        elapsed_s, self._measured = max(now - self._measured, 1e-9), now
        for policy, busy_s in self._busy_s.items():
            if policy in metrics:
                # Share of the time since the last update in which the processes neither read nor learnt.
                metrics[policy] = {**metrics[policy], "idle": 1 - min(busy_s / elapsed_s, 1.0)}
        self._busy_s = dict.fromkeys(self._busy_s, 0.0)
        return metrics

    def status(self) -> list[ProcessStatus]:
        return [status for group in self._groups.values() for status in group.status()]

    def close(self) -> None:
        """End the processes."""
        for group in self._groups.values():
            group.close()

    def _call_in_parallel(self, policies: Collection[str], call: Callable[[str], Any]) -> dict[str, Any]:
        """Return policy -> result of its call, after the end of all calls. Of several errors, the first is raised."""
        groups = [policy for policy in policies if policy in self._groups]
        with ThreadPoolExecutor(max(len(groups), 1)) as threads:
            calls = {policy: threads.submit(self._timed, call, policy) for policy in groups}
            local = {policy: call(policy) for policy in policies if policy not in calls}
        return {policy: calls[policy].result() if policy in calls else local[policy] for policy in policies}

    def _timed(self, call: Callable[[str], Any], policy: str) -> Any:
        began = time.perf_counter()
        result = call(policy)
        self._busy_s[policy] += time.perf_counter() - began
        return result


def build_learners(scenario: Scenario, settings: ClusterConfig, sources: Sources) -> ClusterLearners:
    """Return a learner for each policy that learns, in processes of its own if named in `cluster.learners`."""
    contexts = learner_contexts(scenario, sources)
    groups: dict[str, Any] = {}
    learners: dict[str, Learner] = {}
    # Groups start in threads, as each may wait minutes for room, while this process builds its own learners.
    with ThreadPoolExecutor(max(len(settings.learners), 1)) as threads:
        for policy in settings.learners:
            groups[policy] = threads.submit(_start_group, *contexts[policy], scenario, settings)
        for policy, (learner, context) in contexts.items():
            if policy not in groups:
                learners[policy] = learner.build(context)
    return ClusterLearners(
        {policy: groups[policy].result() if policy in groups else learners[policy] for policy in contexts}
    )


def _start_group(
    learner: LearnerConfig, context: LearnerContext, scenario: Scenario, settings: ClusterConfig
) -> LearnerGroup:
    threads = scenario.schedule.threads or max(1, int(settings.learner_cpus))
    size = settings.learners[context.policy]
    resources = LearnerResources(
        settings.learner_cpus,
        settings.learner_gpus,
        settings.deadline_s,
        settings.start_s,
        settings.room_s,
        settings.tries if settings.keep_learners else 0,
    )
    return LearnerGroup(
        LearnerSpec(learner, context, size, settings.data_parallel, threads, settings.start_s), resources
    )
