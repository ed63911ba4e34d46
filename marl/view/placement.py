"""Description of a distributed run's placement: processes, their work and their reserved resources."""

from __future__ import annotations

from collections.abc import Iterator

from marl.engines.workers.settings import WorkerEngineConfig
from marl.scenario.cluster import ClusterConfig, format_cpus_and_gpus
from marl.scenario.schema import Scenario
from marl.view.number_format import count_with_noun


def process_placement_lines(scenario: Scenario, settings: ClusterConfig) -> Iterator[str]:
    """Yield lines that describe the processes of a run with `cluster`."""
    here, sampling, workers = [], [], []
    for name, policy in scenario.policies.items():
        if policy.learner and name not in settings.learners:
            here.append(name)
        if isinstance(policy.engine, WorkerEngineConfig):
            workers.append(f"{name} ({count_with_noun(policy.engine.workers, 'process', 'processes')})")
        else:
            sampling.append(f"{name} ({policy.engine.kind})")
    cluster = "on a Ray cluster of the run's own, on this machine"
    if settings.kind == "local":
        cluster = "all in this process, in turns"
    elif settings.address:
        cluster = f"on the Ray cluster at {settings.address}"
    yield f"placement  {cluster}"
    learners = f", learners of {', '.join(here)}" if here else ""
    yield f"  this process       deals, credit, checkpoints{learners}"
    resources = (
        f"{format_cpus_and_gpus(settings.cpus, settings.gpus)} each" if settings.kind == "ray" else "in this process"
    )
    beside = f"; beside each, workers of {', '.join(workers)}, which reserve nothing of their own" if workers else ""
    simulators = count_with_noun(settings.simulators, "simulator", "simulators")
    yield f"  {simulators:<18} {resources}: games and engines of {', '.join(sampling)}{beside}"
    for policy, size in settings.learners.items():
        copied = "; each keeps its share of the state after every update" if settings.keep_learners else ""
        reserved = format_cpus_and_gpus(settings.learner_cpus, settings.learner_gpus)
        processes = count_with_noun(size, "process", "processes")
        yield f"  {processes:<18} teach {policy} ({settings.data_parallel}), {reserved} each{copied}"
    if settings.kind == "ray":
        yield f"  reserved in all    {format_cpus_and_gpus(*settings.reserved_cpus_and_gpus)}"
