"""`marl credit-check`: every credit rule against known answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from credit.validation.measure import Bench, Method, Row
from credit.validation.methods import methods
from credit.validation.tables import Fact, facts
from credit.validation.tasks import TASKS, Task
from marl.config import nearest

QUICK = ("hint", "2B")
"""The tasks of a quick check."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is checked."""

    tasks: Sequence[Task] = TASKS
    only: Sequence[str] = ()
    """Names of methods; empty: all."""
    extra: Sequence[Method] = ()
    """Further methods, of plug-ins."""
    samples: int = 64
    """For each (history, move)."""
    seed: int = 0
    seeds: Sequence[int] = (0, 1, 2, 3, 4)
    """Of the networks that are fitted for the tables of known answers."""


@dataclass(slots=True)
class Checked:
    """What came out."""

    facts: list[Fact] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)


def check(plan: Plan, say: Callable[[str], None] = lambda _: None) -> Checked:
    """Check every method of the plan; `say` is told what is done.

    Raises:
        ValueError: if `only` names a method that is not there.
    """
    _expect(plan)
    found = Checked()
    if not plan.only:
        say("known answers")
        found.facts += facts(plan.seeds)
    for task in plan.tasks:
        say(f"{task.name}: plays")
        bench = Bench(task, plan.samples, plan.seed)
        for method in _chosen(plan, task):
            say(f"{task.name}: {method.name}")
            found.rows.append(bench(method))
    return found


def chosen_tasks(names: Sequence[str]) -> Sequence[Task]:
    """Tasks by their names.

    Raises:
        ValueError: if there is no such task.
    """
    known = {task.name: task for task in TASKS}
    for name in names:
        if name not in known:
            raise ValueError(f"no task {name!r}; {nearest(name, known)}")
    return [known[name] for name in names]


def _chosen(plan: Plan, task: Task) -> Iterator[Method]:
    yield from (method for method in methods(task) if not plan.only or method.name in plan.only)
    yield from plan.extra


def _expect(plan: Plan) -> None:
    known = [method.name for method in methods(TASKS[0])]
    for name in plan.only:
        if name not in known:
            raise ValueError(f"no method {name!r}; {nearest(name, known)}")
