"""`marl credit-check`: every `assign` alone, and every `baseline` on plain outcomes, against known answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from credit.validation import comparisons as against
from credit.validation import estimands as exact
from credit.validation.known_answers import KnownAnswer, known_answers
from credit.validation.measure import TASKS, Bench, CheckTask, Method, MethodResult
from marl.config import nearest

QUICK = ("hint", "2B")
"""Tasks of a quick check."""
_MEAN: dict[str, Any] = {"common": "mean"}
"""These games pay everybody the same, so the team's pay is the mean."""
_LEARNT = 4
"""Rehearsals of rules that learn from the steps before."""


@dataclass(frozen=True, slots=True)
class CheckPlan:
    """Settings of a check."""

    tasks: Sequence[CheckTask] = TASKS
    only: Sequence[str] = ()
    """Names of methods; empty: all."""
    extra: Sequence[Method] = ()
    """Further methods, of plug-ins."""
    samples: int = 64
    """For each (history, move)."""
    seed: int = 0
    seeds: Sequence[int] = (0, 1, 2, 3, 4)
    """Of the networks that are fitted for the known answers."""


@dataclass(slots=True)
class CheckResults:
    """Results of a check."""

    answers: list[KnownAnswer] = field(default_factory=list)
    methods: list[MethodResult] = field(default_factory=list)


def check(plan: CheckPlan, report: Callable[[str], None] = lambda _: None) -> CheckResults:
    """Check every method of the plan; `report` is called with what is being done.

    Raises:
        ValueError: if `only` names a method that does not exist.
    """
    names = [method.name for method in methods(TASKS[0])]
    for name in plan.only:
        if name not in names:
            raise ValueError(f"no method {name!r}; {nearest(name, names)}")
    results = CheckResults()
    if not plan.only:
        report("known answers")
        results.answers += known_answers(plan.seeds)
    for task in plan.tasks:
        report(f"{task.name}: plays")
        bench = Bench(task, plan.samples, plan.seed)
        chosen = [method for method in methods(task) if not plan.only or method.name in plan.only]
        for method in [*chosen, *plan.extra]:
            report(f"{task.name}: {method.name}")
            results.methods.append(bench(method))
    return results


def chosen_tasks(names: Sequence[str]) -> Sequence[CheckTask]:
    """Return tasks by their names.

    Raises:
        ValueError: if there is no such task.
    """
    known = {task.name: task for task in TASKS}
    for name in names:
        if name not in known:
            raise ValueError(f"no task {name!r}; {nearest(name, known)}")
    return [known[name] for name in names]


def methods(task: CheckTask) -> Sequence[Method]:
    """Return every method, with its estimand in this task's game."""
    return (*_closed_form(task), *_learnt(), *_counterfactual(task), *_baselines())


def _assign(name: str, kind: str, estimand: exact.Estimand | None, rehearsals: int = 0, **settings: Any) -> Method:
    rule = {"assign": {"kind": kind, **settings}, "baseline": {"kind": "none"}}
    return Method(name, rule, estimand, rehearsals)


def _baseline(kind: str, estimand: exact.Estimand | None, rehearsals: int = 0, **settings: Any) -> Method:
    rule = {"assign": {"kind": "outcome"}, "baseline": {"kind": kind, **settings}}
    return Method(f"outcome / {kind}", rule, estimand, rehearsals)


def _closed_form(task: CheckTask) -> Sequence[Method]:
    shares: dict[str, Any] = {"agents": "equal", "calls": "equal", "discount": 0.5}
    steps: dict[str, Any] = {"rewards": ["step"]}  # which these games do not pay
    everybody = tuple(task.default)
    return (
        _assign("outcome", "outcome", exact.returns),
        _assign("uniform", "uniform", exact.returns, **_MEAN),
        _assign("last_speaker", "last_speaker", exact.last, **_MEAN),
        _assign("flow", "flow", exact.flow(0.9), decay=0.9, teams=(everybody,)),
        _assign("flow (heard)", "flow", exact.flow(0.9, ("heard",)), decay=0.9, teams=(everybody,), along=("heard",)),
        _assign("trajectory", "trajectory", exact.shares(0.5), **shares, **_MEAN),
        _assign("process", "process", against.compared("start"), combine="prime_paper", **steps, **_MEAN),
    )


def _learnt() -> Sequence[Method]:
    values: dict[str, Any] = {"level": "turn", "values": "own"}
    # As published: credit is what the networks themselves say.
    parts = against.temporal(0.5, whole=False)
    drop: dict[str, Any] = {"rest": "drop", **_MEAN}
    fit: dict[str, Any] = {"fit": {"updates": 64}, **drop}
    return (
        _assign("gae", "gae", against.compared("prompt"), _LEARNT, **values),
        _assign("chain_gae", "chain_gae", against.chained(0.5), _LEARNT, lam=0.5, **values, **_MEAN),
        _assign("graph_gae", "graph_gae", against.temporal(0.5), _LEARNT, lam=0.5, **values, **_MEAN),
        _assign("graph_gae (parts)", "graph_gae", parts, _LEARNT, lam=0.5, share="equal", **values, **_MEAN),
        _assign("vdn", "vdn", exact.fitted(exact.additive), _LEARNT, **fit),
        # A mixer takes longer to fit than a sum.
        _assign("qmix", "qmix", exact.fitted(exact.monotone), 2 * _LEARNT, fit={"updates": 128, "lr": 1e-2}, **drop),
        _assign("coma", "coma", exact.coma, _LEARNT, **fit),
    )


def _counterfactual(task: CheckTask) -> Sequence[Method]:
    nothing = exact.always(task.default)
    default: dict[str, Any] = {"default": dict(task.default), **_MEAN}
    return (
        _assign("difference", "difference", exact.difference(nothing), **default),
        _assign("difference (policy)", "difference", exact.difference(None), against="policy", **_MEAN),
        _assign("leave_one_out", "leave_one_out", exact.leave_one_out(nothing), **default),
        _assign("shapley", "shapley", exact.shapley_values(nothing), **default),
        _assign("replay", "replay", exact.advantage, samples=1, **_MEAN),
        _assign("replay (siblings)", "replay", exact.siblings, form="siblings", samples=1, **_MEAN),
    )


def _baselines() -> Sequence[Method]:
    return (
        _baseline("group", against.compared("start", std=True)),
        _baseline("rloo", against.compared("start")),
        _baseline("role_average", against.compared("agent")),
        _baseline("agent_turn_group", against.compared("prompt of start", std=True)),
        _baseline("task_role", against.compared("step", std=True)),
        _baseline("agent_group", against.compared("start", std=True)),
        _baseline("joint", against.compared("start")),
        _baseline("decoupled", against.compared("start", std=True)),
        _baseline("greedy", against.greedy),
        _baseline("opo", against.compared("start")),
        _baseline("whiten", against.compared("step", std=True)),
        _baseline("value", against.compared("prompt"), _LEARNT, values="own"),
        replace(
            _baseline("agent_turn_group", against.candidates(4), std=False),
            name="tree: outcome / agent_turn_group",
            experience={"kind": "tree", "candidates": 4},
        ),
    )
