"""Credit rules that do not fit their scenario are refused before a weight is loaded."""

from __future__ import annotations

import pytest

import marl
from marl.scenario.load import ScenarioError
from tests.support.paths import KUHN


def problems(*overrides: str) -> list[str]:
    with pytest.raises(ScenarioError) as refused:
        marl.load(KUHN, overrides)
    return [line.strip() for line in str(refused.value).splitlines()[1:]]


def test_a_baseline_by_name_is_refused_beside_an_assign_with_a_state() -> None:
    vdn, decoupled = "marl.credit.assign.value_decomposition:Vdn", "marl.credit.baselines.whiten:GdpoBaseline"
    both = f"{{assign: {{kind: '{vdn}', teams: [[player_0], [player_1]]}}, baseline: {{kind: '{decoupled}'}}}}"
    message = (
        f"credit.baseline: '{decoupled}' asks what each named reward alone would earn, which "
        f"credit.assign '{vdn}' cannot tell, as it learns from what it is asked; choose an assign "
        "without a state (outcome, flow, ...) or another baseline"
    )
    assert problems(f"credit={both}") == [message]
    assert problems(f"credit.compare.other={both}") == [
        message.replace("credit.", "credit.compare.other.", 1).replace(
            "which credit.assign", "which credit.compare.other.assign"
        )
    ]


def test_a_rule_beside_that_needs_what_no_learner_reads_is_refused() -> None:
    [problem] = problems("credit.compare.critic={baseline: {kind: 'marl.credit.baselines.value:Value'}}")
    assert problem.startswith(
        "credit.compare.critic: 'outcome' and 'marl.credit.baselines.value:Value' need values of what role"
    )


def test_a_rule_that_nobody_learns_by_must_find_its_values_all_the_same() -> None:
    # Imitation learns from no credit, but every rule judges every step.
    gae, imitates = (
        "credit={assign: {kind: 'marl.credit.assign.gae:PerAgentGae'}}",
        "policies.actor.learner={kind: sft}",
    )
    needs = "'marl.credit.assign.gae:PerAgentGae' and 'group' need values, which no learner here reads"
    [problem] = problems(gae, imitates)
    assert problem.startswith(f"credit: {needs} ('sft'), and nobody learns by this rule")
    own = "credit.roles.player={assign: outcome, baseline: role_average}"
    [problem] = problems(gae, own)
    assert problem.startswith(f"credit: {needs} ('grpo'), and nobody learns by this rule")
    marl.load(KUHN, [imitates, "credit={assign: {kind: 'marl.credit.assign.gae:PerAgentGae', values: none}}"])


def test_a_rule_beside_that_compares_needs_somebody_to_compare_with() -> None:
    [problem] = problems("schedule.group_size=1", "credit.baseline=none", "credit.compare.other={baseline: group}")
    assert problem.startswith("schedule.group_size: 1, but credit.compare.other.baseline 'group' compares episodes")


def test_the_name_of_a_rule_beside_is_a_part_of_a_metrics_name() -> None:
    [problem] = problems("credit.compare={a/b: {}}")
    assert problem.startswith("credit.compare: 'a/b' is no name: use letters, digits, '_' and '-'")


def test_a_rule_beside_may_be_any_rule() -> None:
    scenario = marl.load(KUHN, ["credit.compare.other={assign: flow, baseline: role_average, scale: 2}"])
    assert scenario.credit.compare["other"].scale == 2
