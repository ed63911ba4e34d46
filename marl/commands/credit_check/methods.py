"""The methods of `marl credit-check`: every `assign` rule without a baseline, and every `baseline` on outcomes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from marl.commands.credit_check import estimands as exact
from marl.commands.credit_check import peer_estimands as against
from marl.commands.credit_check.known_answers import KnownAnswer, known_answers
from marl.commands.credit_check.measure import TASKS, CheckTask, Method, MethodBench, MethodResult
from marl.core.config import choices_hint

QUICK = ("hint", "2B")
"""Tasks of a quick check."""
_MEAN: dict[str, Any] = {"common": "mean"}
"""All agents of these games get the same reward, so the team's return is their mean."""
_WARM_UP_PASSES = 4
"""Passes over the episodes for rules that learn from earlier steps."""


@dataclass(frozen=True, slots=True)
class CheckPlan:
    """Settings of `marl credit-check`."""

    tasks: Sequence[CheckTask] = TASKS
    only: Sequence[str] = ()
    """Names of methods, or () for all."""
    extra: Sequence[Method] = ()
    """Additional methods, of plug-ins."""
    samples: int = 64
    """Number of samples of each (history, move)."""
    seed: int = 0
    seeds: Sequence[int] = (0, 1, 2, 3, 4)
    """Seeds of the networks that known answers fit."""


@dataclass(slots=True)
class CheckResults:
    """Results of `marl credit-check`."""

    answers: list[KnownAnswer] = field(default_factory=list)
    methods: list[MethodResult] = field(default_factory=list)


def run_credit_check(plan: CheckPlan, report: Callable[[str], None] = lambda _: None) -> CheckResults:
    """Check every method of `plan`. `report` is called with the name of each stage before it starts.

    Raises:
        ValueError: if `only` names a method that does not exist.
    """
    names = [method.name for method in credit_methods(TASKS[0])]
    for name in plan.only:
        if name not in names:
            raise ValueError(f"no method {name!r}; {choices_hint(name, names)}")
    results = CheckResults()
    # Known answers belong to no single method, so a selection of methods leaves them out.
    if not plan.only:
        report("known answers")
        results.answers += known_answers(plan.seeds)
    for task in plan.tasks:
        report(f"{task.name}: plays")
        bench = MethodBench(task, plan.samples, plan.seed)
        selected = [method for method in credit_methods(task) if not plan.only or method.name in plan.only]
        for method in [*selected, *plan.extra]:
            report(f"{task.name}: {method.name}")
            results.methods.append(bench(method))
    return results


def chosen_tasks(names: Sequence[str]) -> Sequence[CheckTask]:
    """Return the tasks called `names`.

    Raises:
        ValueError: if there is no such task.
    """
    tasks = {task.name: task for task in TASKS}
    for name in names:
        if name not in tasks:
            raise ValueError(f"no task {name!r}; {choices_hint(name, tasks)}")
    return [tasks[name] for name in names]


def credit_methods(task: CheckTask) -> Sequence[Method]:
    """Return every method with its estimand in the game of `task`."""
    return (*_closed_form(task), *_learned(), *_counterfactual(task), *_baselines())


def _assign(name: str, kind: str, estimand: exact.Estimand | None, warm_up_passes: int = 0, **settings: Any) -> Method:
    rule = {"assign": {"kind": kind, **settings}, "baseline": {"kind": "none"}}
    return Method(name, rule, estimand, warm_up_passes)


def _baseline(kind: str, estimand: exact.Estimand | None, warm_up_passes: int = 0, **settings: Any) -> Method:
    rule = {"assign": {"kind": "outcome"}, "baseline": {"kind": kind, **settings}}
    return Method(f"outcome / {kind}", rule, estimand, warm_up_passes)


def _closed_form(task: CheckTask) -> Sequence[Method]:
    shares: dict[str, Any] = {"agents": "equal", "calls": "equal", "discount": 0.5}
    # These games have no reward called `step`, so the outcome alone is compared.
    steps: dict[str, Any] = {"rewards": ["step"]}
    team = tuple(task.default)
    return (
        _assign("outcome", "outcome", exact.returns),
        _assign("uniform", "uniform", exact.returns, **_MEAN),
        _assign("last_speaker", "last_speaker", exact.last, **_MEAN),
        _assign("flow", "flow", exact.flow(0.9), decay=0.9, teams=(team,)),
        _assign("flow (heard)", "flow", exact.flow(0.9, ("heard",)), decay=0.9, teams=(team,), along=("heard",)),
        _assign("trajectory", "trajectory", exact.shares(0.5), **shares, **_MEAN),
        _assign("process", "process", against.compared("start"), combine="prime_paper", **steps, **_MEAN),
    )


def _learned() -> Sequence[Method]:
    values: dict[str, Any] = {"level": "turn", "values": "own"}
    # As published: credit is what the networks themselves say.
    parts = against.temporal(0.5, whole=False)
    drop: dict[str, Any] = {"rest": "drop", **_MEAN}
    fit: dict[str, Any] = {"fit": {"updates": 64}, **drop}
    return (
        _assign("gae", "gae", against.compared("prompt"), _WARM_UP_PASSES, **values),
        _assign("chain_gae", "chain_gae", against.chained(0.5), _WARM_UP_PASSES, lam=0.5, **values, **_MEAN),
        _assign("graph_gae", "graph_gae", against.temporal(0.5), _WARM_UP_PASSES, lam=0.5, **values, **_MEAN),
        _assign("graph_gae (parts)", "graph_gae", parts, _WARM_UP_PASSES, lam=0.5, share="equal", **values, **_MEAN),
        _assign("vdn", "vdn", exact.value_decomposition(exact.additive), _WARM_UP_PASSES, **fit),
        # QMIX's mixing network needs more updates than VDN's sum.
        _assign(
            "qmix",
            "qmix",
            exact.value_decomposition(exact.monotone),
            2 * _WARM_UP_PASSES,
            fit={"updates": 128, "lr": 1e-2},
            **drop,
        ),
        _assign("coma", "coma", exact.coma, _WARM_UP_PASSES, **fit),
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
        _baseline("value", against.compared("prompt"), _WARM_UP_PASSES, values="own"),
        replace(
            _baseline("agent_turn_group", against.candidates(4), std=False),
            name="tree: outcome / agent_turn_group",
            experience={"kind": "tree", "candidates": 4},
        ),
    )
