"""Learners of a run on a cluster: in processes of their own, or in the run's process."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from marl.cluster.learner_group import LearnerProcessResourcesAndDeadlines, MultiProcessLearner
from marl.cluster.learner_worker import LearnerProcessSettings
from marl.core.types import MetricsByPolicy, Reading, Sample, Turn
from marl.protocols import Learner
from marl.rollout.base import ProcessActivity
from marl.scenario.cluster import ClusterConfig
from marl.scenario.schema import Scenario
from marl.training.placement import LocalLearners, ModelSources, learner_settings_and_contexts

# Metrics of this module (name | unit | meaning), which `tests/bench/figures.py` copies into marl/README.md.
METRICS = """
policy/POLICY/idle | share | of the time since the last update in which a learner's processes neither read nor
    learnt (`cluster.learners`)
"""


class ClusterLearners(LocalLearners):
    """Learners of all policies. Learners in processes of their own read and update concurrently."""

    def __init__(self, learners: Mapping[str, Learner]) -> None:
        super().__init__(learners)
        self._groups = {
            policy: learner for policy, learner in learners.items() if isinstance(learner, MultiProcessLearner)
        }
        self._busy_s, self._measured_at = dict.fromkeys(self._groups, 0.0), time.perf_counter()

    def read(self, turns: Mapping[str, Sequence[Turn]], fields: Mapping[str, frozenset[str]]) -> list[Reading]:
        readings = self._call_in_parallel(turns, lambda policy: self[policy].read(turns[policy], fields[policy]))
        return [reading for policy in turns for reading in readings[policy]]

    def update(self, samples: Mapping[str, Sequence[Sample]]) -> MetricsByPolicy:
        metrics = self._call_in_parallel(samples, lambda policy: self[policy].update(samples[policy]))
        now = time.perf_counter()
        elapsed_s, self._measured_at = max(now - self._measured_at, 1e-9), now
        for policy, busy_s in self._busy_s.items():
            if policy in metrics:
                # `idle`: share of the time since the last update in which the learner's processes had no call.
                metrics[policy] = {**metrics[policy], "idle": 1 - min(busy_s / elapsed_s, 1.0)}
        self._busy_s = dict.fromkeys(self._busy_s, 0.0)
        return metrics

    def process_activities(self) -> list[ProcessActivity]:
        return [status for group in self._groups.values() for status in group.process_activities()]

    def close(self) -> None:
        """End all processes of learners."""
        for group in self._groups.values():
            group.close()

    def _call_in_parallel(self, policies: Collection[str], call: Callable[[str], Any]) -> dict[str, Any]:
        """Return policy -> result of `call(policy)`. Learners in Ray actors run at once. The first error is raised."""
        groups = [policy for policy in policies if policy in self._groups]
        with ThreadPoolExecutor(max(len(groups), 1)) as threads:
            pending = {policy: threads.submit(self._call_and_time, call, policy) for policy in groups}
            results: dict[str, Any] = {}
            for policy in policies:
                results[policy] = None if policy in pending else call(policy)
        for policy in pending:
            results[policy] = pending[policy].result()
        return results

    def _call_and_time(self, call: Callable[[str], Any], policy: str) -> Any:
        """Return the result of `call(policy)`, and add its duration to the policy's busy time."""
        began = time.perf_counter()
        result = call(policy)
        self._busy_s[policy] += time.perf_counter() - began
        return result


def build_learners(
    scenario: Scenario,
    settings: ClusterConfig,
    sources: ModelSources,
    node_ids: Mapping[str, tuple[str, ...]],
    starting: list[MultiProcessLearner],
) -> ClusterLearners:
    """Build a learner for each trained policy: in Ray actors if `cluster.learners` names the policy, else here.

    Args:
        scenario: scenario with the learners' settings.
        settings: resources and deadlines of processes.
        sources: policy -> source of its weights.
        node_ids: policy -> machine on which each process of its learner starts; empty if Ray chooses.
        starting: list to which learners in Ray actors are appended before they start.
    """
    contexts = learner_settings_and_contexts(scenario, sources)
    groups: dict[str, Any] = {}
    learners: dict[str, Learner] = {}
    # Learner groups start in threads: each may wait minutes for room while this process builds its own learners.
    with ThreadPoolExecutor(max(len(settings.learners), 1)) as threads:
        for policy in settings.learners:
            learner, context = contexts[policy]
            threads_per_process = scenario.schedule.threads or max(1, int(settings.learner_cpus))
            spec = LearnerProcessSettings(
                learner,
                context,
                settings.learners[policy],
                settings.data_parallel,
                threads_per_process,
                settings.start_s,
            )
            resources = _resources_and_deadlines(settings, node_ids.get(policy, ()))
            groups[policy] = threads.submit(MultiProcessLearner, spec, resources, starting)
        for policy, (learner, context) in contexts.items():
            if policy not in groups:
                learners[policy] = learner.build(context)
    return ClusterLearners(
        {policy: groups[policy].result() if policy in groups else learners[policy] for policy in contexts}
    )


def _resources_and_deadlines(settings: ClusterConfig, node_ids: tuple[str, ...]) -> LearnerProcessResourcesAndDeadlines:
    return LearnerProcessResourcesAndDeadlines(
        settings.learner_cpus,
        settings.learner_gpus,
        settings.deadline_s,
        settings.start_s,
        settings.room_s,
        settings.tries if settings.keep_learners else 0,
        node_ids,
    )
