"""Settings of a run's placement: how many simulators play, and on which machines."""

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
"""Fields that have an effect with `kind: local`."""


class ClusterConfig(Config):
    """Placement of a run: several simulators with separate engines play its episodes.

    The run itself, with its folder, stays on the machine on which it was started.
    """

    kind: Literal["ray", "local"] = "ray"
    """`ray`: each simulator is a process, on any machine of a Ray cluster. `local`: all are in this process and take
    turns, which is no faster: the same numbers to the last bit, to compare with."""
    simulators: PositiveInt = 1
    """Number of simulators. The episodes of a step are dealt out among them by their number alone."""
    address: str | None = None
    """Ray cluster: `auto` for the one that was started on this machine, or HOST:PORT. Null: one of the
    run's own on this machine, which listens on loopback alone and ends with the run."""
    learners: dict[str, PositiveInt] = Field(default_factory=dict)
    """Policy -> number of processes that teach it together, each from its share of every minibatch; learners in such
    processes work at the same time. Policies that are not named learn in the run's own process, one after the other."""
    data_parallel: DataParallel = "ddp"
    """Weights in the processes of a learner: all in each (`ddp`), or a shard in each (`fsdp`), for models that do not
    fit into one."""
    learner_cpus: PositiveFloat = 1.0
    """Processors that each process of a learner reserves."""
    learner_gpus: NonNegativeFloat = 0.0
    """GPUs that each process of a learner reserves."""
    keep_learners: bool = True
    """Keep a copy of a learner's state in the run's own process after every update, so that the update is repeated if
    one of its processes is lost. Without, the run ends then, and goes on from its newest checkpoint when resumed."""
    cpus: PositiveFloat = 1.0
    """Processors that each simulator reserves; 0.5 lets two share one."""
    gpus: NonNegativeFloat = 0.0
    """GPUs that each simulator reserves; 0.5 lets two share one."""
    deadline_s: PositiveFloat = 120.0
    """Maximum time in seconds without a heartbeat of a process; then it is killed and replaced."""
    start_s: PositiveFloat = 600.0
    """Maximum time in seconds for a process to start and load its weights."""
    room_s: PositiveFloat = 60.0
    """Maximum wait in seconds for free resources for a process that replaces a lost one; then other processes do its
    work until resources are free."""
    tries: PositiveInt = 5
    """Processes that may be lost one after another at the same work, without any result, before the run ends."""

    @model_validator(mode="after")
    def _has_effect(self) -> Self:
        fields = type(self).model_fields
        changed = {
            name for name, value in dict(self).items() if value != fields[name].get_default(call_default_factory=True)
        }
        if self.kind == "local" and (useless := sorted(changed - set(_LOCAL_FIELDS))):
            raise ValueError(f"{', '.join(useless)}: no effect on kind: local, which starts no process; use kind: ray")
        return self

    @property
    def reserved(self) -> tuple[float, float]:
        """Return the processors and GPUs that all simulators and all processes of learners reserve."""
        learners = sum(self.learners.values())
        cpus = self.simulators * self.cpus + learners * self.learner_cpus
        return cpus, self.simulators * self.gpus + learners * self.learner_gpus

    def missing(self) -> Iterator[str]:
        """Yield a message if Ray is needed and is not installed, or too old."""
        if self.kind != "ray":
            return
        oldest, how = ".".join(map(str, LEAST_RAY)), "pip install 'marl-llm[ray]', or use kind: local"
        try:
            installed = version("ray")
        except PackageNotFoundError:
            yield f"kind: 'ray' needs Ray {oldest} or later, which is not installed; {how}"
            return
        if tuple(int(number) for number in installed.split(".")[:2]) < LEAST_RAY:
            yield f"kind: 'ray' needs Ray {oldest} or later, and {installed} is installed; {how}"


def amounts(cpus: float, gpus: float) -> str:
    """Return processors and GPUs in words."""
    return f"{cpus:g} CPU" + (f" and {gpus:g} GPU" if gpus else "")
