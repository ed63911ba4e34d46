"""Settings of a run's placement: the number of its simulators and learner processes, and the machines they use."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Literal, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from marl.core.config import Config
from marl.protocols import DataParallel

LEAST_RAY = (2, 40)
"""Oldest supported version of Ray (major, minor), as in `pyproject.toml`."""
_LOCAL_FIELDS = ("kind", "simulators")
"""Fields of `ClusterConfig` that have an effect with `kind: local`."""


class ClusterConfig(Config):
    """Settings of a run's placement: simulators with separate engines, and processes of learners.

    The run itself, with its folder, stays on the machine on which it was started.
    """

    kind: Literal["ray", "local"] = "ray"
    """`ray`: each simulator is a process on any machine of a Ray cluster. `local`: all simulators are in the run's own
    process and are stepped one after the other, with bit-identical results but no gain in speed."""
    simulators: int = Field(default=1, ge=1, le=1024)
    """Number of simulators. The order of a step's episodes alone decides which simulator plays an episode."""
    address: str | None = None
    """Address of the Ray cluster: HOST:PORT, or `auto` for a cluster that was started on this machine. Null: the run
    starts a cluster on this machine, which listens on loopback alone and ends with the run."""
    learners: dict[str, PositiveInt] = Field(default_factory=dict)
    """Policy -> number of processes that train it, each on its shard of every minibatch. These policies learn at the
    same time. All other policies learn in the run's own process, one after the other."""
    data_parallel: DataParallel = "ddp"
    """Strategy of data parallelism for a learner's processes. `ddp`: each process has all weights. `fsdp`: each has a
    shard of the weights, for models that do not fit into one process."""
    learner_cpus: PositiveFloat = 1.0
    """Number of CPUs that each process of a learner reserves."""
    learner_gpus: NonNegativeFloat = 0.0
    """Number of GPUs that each process of a learner reserves."""
    keep_learners: bool = True
    """True: each process of a learner keeps its share of the learner's state after every update, on its machine and on
    that of another process, and the run repeats the update if a process is lost. False: the loss of a process ends the
    run, which can be resumed from its newest checkpoint."""
    cpus: PositiveFloat = 1.0
    """Number of CPUs that each simulator reserves. With 0.5, two simulators share a CPU."""
    gpus: NonNegativeFloat = 0.0
    """Number of GPUs that each simulator reserves. With 0.5, two simulators share a GPU."""
    weight_transfer: Literal["store", "broadcast"] = "store"
    """Way of new weights to simulators that are not on the learner's GPU. `store`: through Ray's object store, once to
    each machine. `broadcast`: from the run to all simulators together, while all are idle, by gloo (CPUs) or NCCL
    (GPUs), and through the object store whenever a broadcast is not possible or fails."""
    deadline_s: PositiveFloat = 120.0
    """Maximum time in seconds without a heartbeat of a process. After this time the process is killed and replaced."""
    start_s: PositiveFloat = 600.0
    """Maximum time in seconds in which a process starts and loads its weights."""
    room_s: PositiveFloat = 60.0
    """Maximum time in seconds in which the replacement of a lost process waits for free resources. After this time,
    other processes do its work until resources are free."""
    wait_s: NonNegativeFloat = 0.0
    """Maximum time in seconds to wait, at the start of a run, for machines with room for all processes. The cluster's
    autoscaler is asked for them. With 0, a cluster that is too small is refused at once."""
    tries: PositiveInt = 5
    """Maximum number of processes lost in succession at the same work without a result. The next loss ends the run."""

    @model_validator(mode="after")
    def _check_settings_have_effect(self) -> Self:
        if self.kind != "local":
            return self
        useless: list[str] = []
        for name, field in type(self).model_fields.items():
            is_default = dict(self)[name] == field.get_default(call_default_factory=True)
            if name not in _LOCAL_FIELDS and not is_default:
                useless.append(name)
        if useless:
            names = ", ".join(sorted(useless))
            raise ValueError(f"{names}: no effect on kind: local, which starts no process; use kind: ray")
        return self

    @property
    def reserved_cpus_and_gpus(self) -> tuple[float, float]:
        """Return the numbers of CPUs and of GPUs that all simulators and learner processes reserve together."""
        learners = sum(self.learners.values())
        cpus = self.simulators * self.cpus + learners * self.learner_cpus
        return cpus, self.simulators * self.gpus + learners * self.learner_gpus

    @property
    def process_resources(self) -> list[dict[str, float]]:
        """Return what each simulator and each learner process reserves, by Ray's names of resources."""
        simulator, learner = (
            {"CPU": self.cpus, "GPU": self.gpus},
            {"CPU": self.learner_cpus, "GPU": self.learner_gpus},
        )
        return [simulator] * self.simulators + [learner] * sum(self.learners.values())

    def ray_requirement_errors(self) -> Iterator[str]:
        """Yield an error message if the placement needs Ray, but Ray is not installed or is too old."""
        if self.kind != "ray":
            return
        oldest, remedy = ".".join(map(str, LEAST_RAY)), "pip install 'marl-llm[ray]', or use kind: local"
        try:
            installed = version("ray")
        except PackageNotFoundError:
            yield f"kind: 'ray' needs Ray {oldest} or later, which is not installed; {remedy}"
            return
        if tuple(map(int, installed.split(".")[:2])) < LEAST_RAY:
            yield f"kind: 'ray' needs Ray {oldest} or later, and {installed} is installed; {remedy}"


def format_cpus_and_gpus(cpus: float, gpus: float) -> str:
    """Return the numbers of CPUs and GPUs in words, such as `2 CPU and 1 GPU`."""
    return f"{cpus:g} CPU" + (f" and {gpus:g} GPU" if gpus else "")
