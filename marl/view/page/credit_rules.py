"""Credit rules that the page can recompute, and the comparison of another rule with the run's own on one step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from marl.core.graph import Trajectory
from marl.core.types import Advantage
from marl.credit_stage.diagnostics import credit_rule_agreement_by_role
from marl.credit_stage.records import CreditRecord, RecomputedCredit
from marl.view.credit_table import credit_statistics_by_role


@dataclass(frozen=True, slots=True)
class CreditRuleChoice:
    """One kind of `assign` or `baseline`, and whether the page can recompute credit with this kind."""

    kind: str
    problem: str
    """Reason why the page cannot use the kind on this run, or ""."""
    command: str
    """Shell command that recomputes credit with the kind if the kind needs model weights, else ""."""


@dataclass(frozen=True, slots=True)
class CreditRuleChoices:
    """All registered kinds of `assign` and `baseline`, and the two kinds that the run itself used."""

    assign: str
    """Kind of the run's own `assign`."""
    baseline: str
    """Kind of the run's own `baseline`."""
    assigns: Sequence[CreditRuleChoice]
    baselines: Sequence[CreditRuleChoice]


class CreditRecomputer(Protocol):
    """Protocol for recomputing the credit of recorded steps by another rule, without model weights."""

    assigns: Sequence[str]
    """All registered kinds of `assign`."""
    baselines: Sequence[str]
    """All registered kinds of `baseline`."""

    def credit_rule_choices(self, run: Path, assign_kind: str) -> CreditRuleChoices:
        """Return the kinds of `assign` and `baseline`, some with a reason for which they cannot be used on `run`.

        Each baseline is combined with `assign_kind` ("": the run's own `assign`).

        Raises:
            ScenarioError: if the run's scenario cannot be loaded.
        """
        ...

    def recompute(self, run: Path, step: int, rule: str) -> RecomputedCredit:
        """Return the credit of a recorded step under `rule`: `ASSIGN`, `/BASELINE` or `ASSIGN/BASELINE`.

        Raises:
            ScenarioError: if the rule does not fit the scenario, or needs weights.
        """
        ...


def names_only_registered_rules(rules: CreditRecomputer, rule: str) -> bool:
    """Return True if `rule` (`ASSIGN`, `/BASELINE` or `ASSIGN/BASELINE`) names only registered kinds."""
    assign, slash, baseline = rule.partition("/")
    if slash and baseline not in rules.baselines:
        return False
    return assign in rules.assigns or (not assign and bool(slash))


def compare_credit_rules_by_role(
    recorded: CreditRecord | None, recomputed: RecomputedCredit, trajectories: Sequence[Trajectory]
) -> list[dict[str, Any]]:
    """Return each role's statistics of the `recorded` and of the `recomputed` credit, and the agreement of both."""
    figures = {
        name: credit_statistics_by_role(record)
        for name, record in (("own", recorded), ("other", recomputed.record))
        if record
    }
    agreements: dict[str, dict[str, float]] = {}
    if recorded:
        own_credit = {
            turn: Advantage(credit.advantage, credit.token_advantages) for turn, credit in recorded.turns().items()
        }
        agreements = credit_rule_agreement_by_role(trajectories, own_credit, recomputed.credit())
    rows: list[dict[str, Any]] = []
    for role in sorted({role for by_role in figures.values() for role in by_role}):
        of_role = {name: figures.get(name, {}).get(role) for name in ("own", "other")}
        rows.append({"role": role, **of_role, "agreement": agreements.get(role, {})})
    return rows
