"""The methods of `marl credit-check`: each `assign` rule without a baseline, and `outcome` with each `baseline`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from marl.commands.credit_check import estimands, peer_estimands
from marl.commands.credit_check.estimands import Estimand
from marl.commands.credit_check.known_answers import ExpectedAndComputedCredit, compute_credit_of_known_cases
from marl.commands.credit_check.measure import (
    TASKS,
    CheckedCreditMethod,
    CreditCheckTask,
    CreditMethodMeasurement,
    CreditMethodResult,
)
from marl.commands.credit_check.segment_measure import SEGMENT_METHODS, SegmentMeasurement
from marl.commands.credit_check.segment_tasks import SEGMENT_TASKS, SegmentTask
from marl.core.config import choices_hint

QUICK = ("hint", "2B")
"""Names of the tasks of `marl credit-check --quick`."""
_MEAN: dict[str, Any] = {"common": "mean"}
"""Setting of an `assign` rule that credits the mean return of the team. In these games all agents get equal rewards."""
_PASSES_BEFORE_MEASUREMENT = 4
"""Number of passes over the episodes before credit is measured, for rules that learn from earlier steps."""


@dataclass(frozen=True, slots=True)
class CreditCheckPlan:
    """Selected tasks, methods and seeds of `marl credit-check`."""

    tasks: Sequence[CreditCheckTask | SegmentTask] = (*TASKS, *SEGMENT_TASKS)
    only: Sequence[str] = ()
    """Names of the methods to check, or () for all methods and known answers."""
    extra: Sequence[CheckedCreditMethod] = ()
    """Further methods to check, such as the rules of plug-ins."""
    samples: int = 64
    """Number of sampled turns of each pair of history and move."""
    seed: int = 0
    seeds: Sequence[int] = (0, 1, 2, 3, 4)
    """Seeds for the initial weights of mixers, one fit for each seed."""


@dataclass(slots=True)
class CreditCheckResults:
    """Results of `marl credit-check`: known answers, and the metrics of each method on each task."""

    answers: list[ExpectedAndComputedCredit] = field(default_factory=list)
    methods: list[CreditMethodResult] = field(default_factory=list)


def run_credit_check(plan: CreditCheckPlan, report_stage: Callable[[str], None] = lambda _: None) -> CreditCheckResults:
    """Check every method of `plan` and return the results. `report_stage` is called with each stage's name when it
    starts.

    Raises:
        ValueError: if `plan.only` names a method that does not exist.
    """
    names = [method.name for method in (*credit_methods(TASKS[0]), *SEGMENT_METHODS)]
    for name in plan.only:
        if name not in names:
            raise ValueError(f"no method {name!r}; {choices_hint(name, names)}")
    results = CreditCheckResults()
    # Known answers belong to several methods at once, so they are skipped if the user selects single methods.
    if not plan.only:
        report_stage("known answers")
        results.answers += compute_credit_of_known_cases(plan.seeds)
    for task in plan.tasks:
        report_stage(f"{task.name}: plays")
        if isinstance(task, SegmentTask):
            measure_segments = SegmentMeasurement(task, plan.samples, plan.seed)
            for segment_method in SEGMENT_METHODS:
                if not plan.only or segment_method.name in plan.only:
                    report_stage(f"{task.name}: {segment_method.name}")
                    results.methods.append(measure_segments(segment_method))
            continue
        measure = CreditMethodMeasurement(task, plan.samples, plan.seed)
        selected = [method for method in credit_methods(task) if not plan.only or method.name in plan.only]
        for method in [*selected, *plan.extra]:
            report_stage(f"{task.name}: {method.name}")
            results.methods.append(measure(method))
    return results


def find_credit_check_tasks(task_names: Sequence[str]) -> Sequence[CreditCheckTask | SegmentTask]:
    """Return the tasks called `task_names`, in the order of `task_names`.

    Raises:
        ValueError: if no task has one of the names.
    """
    tasks: dict[str, CreditCheckTask | SegmentTask] = {task.name: task for task in (*TASKS, *SEGMENT_TASKS)}
    for name in task_names:
        if name not in tasks:
            raise ValueError(f"no task {name!r}; {choices_hint(name, tasks)}")
    return [tasks[name] for name in task_names]


def _assign_rule_method(
    name: str, kind: str, estimand: Estimand | None, passes_before_measurement: int = 0, **settings: Any
) -> CheckedCreditMethod:
    """Return the method that assigns credit by the rule `kind`, without a baseline."""
    rule = {"assign": {"kind": kind, **settings}, "baseline": {"kind": "none"}}
    return CheckedCreditMethod(name, rule, estimand, passes_before_measurement)


def _baseline_rule_method(
    kind: str, estimand: Estimand | None, passes_before_measurement: int = 0, **settings: Any
) -> CheckedCreditMethod:
    """Return the method that gives every turn its agent's return minus the baseline `kind`."""
    rule = {"assign": {"kind": "outcome"}, "baseline": {"kind": kind, **settings}}
    return CheckedCreditMethod(f"outcome / {kind}", rule, estimand, passes_before_measurement)


def credit_methods(task: CreditCheckTask) -> Sequence[CheckedCreditMethod]:
    """Return the methods to check, each with its exact estimand in the game of `task`."""
    passes, team = _PASSES_BEFORE_MEASUREMENT, tuple(task.default_moves)
    team_return_per_turn, reward_flow_estimand, gae = (
        estimands.team_return_per_turn,
        estimands.reward_flow_estimand,
        peer_estimands.graph_gae_estimand,
    )
    peer_advantage_estimand, default_moves = (
        peer_estimands.peer_advantage_estimand,
        estimands.fixed_move_policy(task.default_moves),
    )
    # Settings of the rule `trajectory`, with equal shares for agents and calls.
    shares: dict[str, Any] = {"agents": "equal", "calls": "equal", "discount": 0.5}
    # None of the games pays a reward named `step`, so rules with this setting see outcome rewards only.
    steps: dict[str, Any] = {"rewards": ["step"]}
    own_values: dict[str, Any] = {"level": "turn", "values": "own"}
    team_values: dict[str, Any] = {"lam": 0.5, **own_values, **_MEAN}
    # As in the papers, the credit of a turn is the output of the networks alone (`rest: drop`).
    drop: dict[str, Any] = {"rest": "drop", **_MEAN}
    fit: dict[str, Any] = {"fit": {"updates": 64}, **drop}
    default: dict[str, Any] = {"default": dict(task.default_moves), **_MEAN}
    sampled: dict[str, Any] = {"samples": 1, **_MEAN}
    vdn = estimands.value_decomposition_estimand(estimands.fit_additive_mixer)
    qmix = estimands.value_decomposition_estimand(estimands.fit_monotonic_mixer)
    tree = _baseline_rule_method("agent_turn_group", peer_estimands.q_minus_peer_mean_estimand(4), std=False)
    tree_experience = {"kind": "tree", "candidates": 4}
    return (
        # Credit rules that use the episode's rewards alone.
        _assign_rule_method("outcome", "outcome", team_return_per_turn),
        _assign_rule_method("uniform", "uniform", team_return_per_turn, **_MEAN),
        _assign_rule_method("last_speaker", "last_speaker", estimands.team_return_at_last_turn, **_MEAN),
        _assign_rule_method("flow", "flow", reward_flow_estimand(0.9), decay=0.9, teams=(team,)),
        _assign_rule_method(
            "flow (heard)", "flow", reward_flow_estimand(0.9, ("heard",)), decay=0.9, teams=(team,), along=("heard",)
        ),
        _assign_rule_method("trajectory", "trajectory", estimands.discounted_share_estimand(0.5), **shares, **_MEAN),
        _assign_rule_method(
            "process", "process", peer_advantage_estimand("start"), combine="prime_paper", **steps, **_MEAN
        ),
        # Credit rules that learn values from earlier steps.
        _assign_rule_method("gae", "gae", peer_advantage_estimand("prompt"), passes, **own_values),
        _assign_rule_method("chain_gae", "chain_gae", peer_estimands.chain_gae_estimand(0.5), passes, **team_values),
        _assign_rule_method("graph_gae", "graph_gae", gae(0.5), passes, **team_values),
        _assign_rule_method(
            "graph_gae (parts)", "graph_gae", gae(0.5, full_leaf_returns=False), passes, share="equal", **team_values
        ),
        _assign_rule_method("vdn", "vdn", vdn, passes, **fit),
        # QMIX's mixing network needs more updates than VDN's sum.
        _assign_rule_method("qmix", "qmix", qmix, 2 * passes, fit={"updates": 128, "lr": 1e-2}, **drop),
        _assign_rule_method("coma", "coma", estimands.coma_advantages, passes, **fit),
        # Credit rules that compare an episode with its outcome under other decisions.
        _assign_rule_method("difference", "difference", estimands.difference_reward_estimand(default_moves), **default),
        _assign_rule_method(
            "difference (policy)", "difference", estimands.difference_reward_estimand(None), against="policy", **_MEAN
        ),
        _assign_rule_method(
            "leave_one_out", "leave_one_out", estimands.leave_one_out_estimand(default_moves), **default
        ),
        _assign_rule_method("shapley", "shapley", estimands.shapley_estimand(default_moves), **default),
        _assign_rule_method("replay", "replay", estimands.exact_advantages, **sampled),
        _assign_rule_method("replay (siblings)", "replay", estimands.returns_minus_values, form="siblings", **sampled),
        # Credit rules that subtract a baseline from every turn's return.
        _baseline_rule_method("group", peer_advantage_estimand("start", divide_by_std=True)),
        _baseline_rule_method("rloo", peer_advantage_estimand("start")),
        _baseline_rule_method("role_average", peer_advantage_estimand("agent")),
        _baseline_rule_method("agent_turn_group", peer_advantage_estimand("prompt of start", divide_by_std=True)),
        _baseline_rule_method("task_role", peer_advantage_estimand("step", divide_by_std=True)),
        _baseline_rule_method("agent_group", peer_advantage_estimand("start", divide_by_std=True)),
        _baseline_rule_method("joint", peer_advantage_estimand("start")),
        _baseline_rule_method("decoupled", peer_advantage_estimand("start", divide_by_std=True)),
        _baseline_rule_method("greedy", peer_estimands.return_minus_greedy_return),
        _baseline_rule_method("opo", peer_advantage_estimand("start")),
        _baseline_rule_method("whiten", peer_advantage_estimand("step", divide_by_std=True)),
        _baseline_rule_method("value", peer_advantage_estimand("prompt"), passes, values="own"),
        replace(tree, name="tree: outcome / agent_turn_group", experience=tree_experience),
    )
