"""Description of a distributed run's placement: processes, their work and their reserved resources."""

from __future__ import annotations

from collections.abc import Iterator

from marl.engines.workers.settings import WorkerEngineConfig
from marl.scenario.cluster import ClusterConfig, amounts
from marl.scenario.schema import Scenario


def placement_lines(scenario: Scenario, settings: ClusterConfig) -> Iterator[str]:
    """Yield lines that describe the processes of a run with `cluster`."""
    learning = [name for name, policy in scenario.policies.items() if policy.learner]
    here = [name for name in learning if name not in settings.learners]
    learners = f", learners of {', '.join(here)}" if here else ""
    yield f"placement  {_cluster(settings)}"
    yield f"  this process       deals, credit, checkpoints{learners}"
    yield f"  {_count(settings.simulators, 'simulator', 'simulators'):<18} {_simulators(scenario, settings)}"
    for policy, size in settings.learners.items():
        copied = "; its state is kept in this process after every update" if settings.keep_learners else ""
        reserved = amounts(settings.learner_cpus, settings.learner_gpus)
        processes = _count(size, "process", "processes")
        yield f"  {processes:<18} teach {policy} ({settings.data_parallel}), {reserved} each{copied}"
    if settings.kind == "ray":
        yield f"  reserved in all    {amounts(*settings.reserved)}"


def _cluster(settings: ClusterConfig) -> str:
    if settings.kind == "local":
        return "all in this process, in turns"
    if settings.address:
        return f"on the Ray cluster at {settings.address}"
    return "on a Ray cluster of the run's own, on this machine"


def _simulators(scenario: Scenario, settings: ClusterConfig) -> str:
    engines = {name: policy.engine for name, policy in scenario.policies.items()}
    workers = {name: engine for name, engine in engines.items() if isinstance(engine, WorkerEngineConfig)}
    resources = f"{amounts(settings.cpus, settings.gpus)} each" if settings.kind == "ray" else "in this process"
    sampling = [f"{name} ({engine.kind})" for name, engine in engines.items() if name not in workers]
    text = f"{resources}: games and engines of {', '.join(sampling)}"
    if workers:
        processes = [f"{name} ({_count(engine.workers, 'process', 'processes')})" for name, engine in workers.items()]
        text += f"; beside each, workers of {', '.join(processes)}, which reserve nothing of their own"
    return text


def _count(number: int, singular: str, plural: str) -> str:
    return f"{number} {singular if number == 1 else plural}"
