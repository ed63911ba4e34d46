"""The learners of a run on a cluster: some in processes of their own, the others in the run's."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from marl.cluster.learner_group import LearnerGroup, Provision
from marl.cluster.learner_worker import LearnerTask
from marl.protocols import Learner, LearnerConfig, LearnerContext
from marl.rollout.base import PartStatus
from marl.scenario.cluster import ClusterConfig
from marl.scenario.schema import Scenario
from marl.training.placement import LocalLearners, Sources, learner_contexts
from marl.types import Metrics, Reading, Sample, Turn


class ClusterLearners(LocalLearners):
    """Learners of which those in processes of their own work at the same time."""

    def __init__(self, learners: Mapping[str, Learner]) -> None:
        super().__init__(learners)
        self._away = [policy for policy, learner in learners.items() if isinstance(learner, LearnerGroup)]
        self._busy_s, self._measured = dict.fromkeys(self._away, 0.0), time.perf_counter()

    def read(self, turns: Mapping[str, Sequence[Turn]], wanted: Mapping[str, frozenset[str]]) -> list[Reading]:
        readings = self._together(turns, lambda policy: self[policy].read(turns[policy], wanted[policy]))
        return [reading for policy in turns for reading in readings[policy]]

    def update(self, samples: Mapping[str, Sequence[Sample]]) -> dict[str, Metrics]:
        figures = self._together(samples, lambda policy: self[policy].update(samples[policy]))
        idle = self._idle()
        return {name: {**each, "idle": idle[name]} if name in idle else each for name, each in figures.items()}

    def status(self) -> list[PartStatus]:
        groups = [learner for learner in self.values() if isinstance(learner, LearnerGroup)]
        return [part for group in groups for part in group.status()]

    def close(self) -> None:
        """End the processes."""
        for learner in self.values():
            if isinstance(learner, LearnerGroup):
                learner.close()

    def _together(self, policies: Collection[str], call: Callable[[str], Any]) -> dict[str, Any]:
        """Return policy -> what its call returns. All have ended by then; of several errors, the first is raised."""
        away = [policy for policy in policies if policy in self._away]
        with ThreadPoolExecutor(max(len(away), 1)) as threads:
            calls = {policy: threads.submit(self._timed, call, policy) for policy in away}
            here = {policy: call(policy) for policy in policies if policy not in calls}
        return {policy: calls[policy].result() if policy in calls else here[policy] for policy in policies}

    def _timed(self, call: Callable[[str], Any], policy: str) -> Any:
        began = time.perf_counter()
        result = call(policy)
        self._busy_s[policy] += time.perf_counter() - began
        return result

    def _idle(self) -> dict[str, float]:
        """Return policy -> share of the time since the last call in which its processes neither read nor learnt."""
        now = time.perf_counter()
        elapsed_s, self._measured = max(now - self._measured, 1e-9), now
        idle = {policy: 1 - min(busy_s / elapsed_s, 1.0) for policy, busy_s in self._busy_s.items()}
        self._busy_s = dict.fromkeys(self._busy_s, 0.0)
        return idle


def build_learners(scenario: Scenario, settings: ClusterConfig, sources: Sources) -> ClusterLearners:
    """Return a learner for each policy that has one: those named in the settings in processes of their own."""
    contexts, learners = learner_contexts(scenario, sources), settings.learners
    with ThreadPoolExecutor(max(len(learners), 1)) as threads:
        starting = {name: threads.submit(_start, *contexts[name], scenario, settings) for name in learners}
        here = {name: each.build(context) for name, (each, context) in contexts.items() if name not in learners}
    return ClusterLearners({name: starting[name].result() if name in starting else here[name] for name in contexts})


def _start(
    learner: LearnerConfig, context: LearnerContext, scenario: Scenario, settings: ClusterConfig
) -> LearnerGroup:
    threads = scenario.schedule.threads or max(1, int(settings.learner_cpus))
    size = settings.learners[context.policy]
    task = LearnerTask(learner, context, size, settings.data_parallel, threads, settings.start_s)
    losses = settings.tries if settings.keep_learners else 0
    reserved = settings.learner_cpus, settings.learner_gpus
    return LearnerGroup(task, Provision(*reserved, settings.deadline_s, settings.start_s, settings.room_s, losses))
