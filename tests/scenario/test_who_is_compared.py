"""Rules of credit that cannot teach what a scenario asks for, because of who is compared, or paid, together."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import marl
from marl.core.types import Deal
from marl.credit_stage.stage import CreditStage
from marl.protocols import Evidence
from marl.scenario.credit_checks import credit_notes
from marl.scenario.load import ScenarioError
from marl.scenario.schema import CreditConfig
from marl.training.placement import simulator_from_engines
from tests.support.paths import KUHN
from tests.support.small_games import FunctionEngine, random_move
from tests.support.small_team_scenarios import SCENARIOS

TEAM_RULES = ["uniform", "last_speaker", "trajectory", "vdn", "qmix", "coma", "difference", "leave_one_out", "shapley"]
TEAM_RULES += ["replay", "chain_gae, values: none"]


def refused(*overrides: str, file: Path = KUHN) -> list[str]:
    with pytest.raises(ScenarioError) as caught:
        marl.load(file, overrides)
    return [line.removeprefix("  ") for line in str(caught.value).split("\n")[1:]]


@pytest.mark.parametrize("kind", TEAM_RULES)
def test_a_rule_that_adds_up_all_rewards_of_a_zero_sum_game_is_refused_with_teams_that_make_sense(kind: str) -> None:
    [problem] = refused(f"credit.assign={{kind: {kind}}}")
    assert problem.startswith(f"credit.assign: '{kind.split(',')[0]}' adds up what all agents are paid, and in the ")
    [teams] = re.findall(r"`(teams: .*?)`", problem)
    assert teams == "teams: [[player_0], [player_1]]"
    assert marl.load(KUHN, [f"credit.assign={{kind: {kind}, {teams}}}"])


@pytest.mark.parametrize("kind", ["uniform", "last_speaker"])
def test_what_is_refused_judges_every_turn_of_kuhn_poker_with_0_and_the_teams_do_not(kind: str) -> None:
    kuhn, names = marl.load(KUHN), [f"{i}" for i in range(40)]
    play = simulator_from_engines(kuhn, {"actor": FunctionEngine(random_move)}).play
    evidence = Evidence(play([Deal(name, name, i, kuhn.seats) for i, name in enumerate(names)]), "kuhn_poker")

    def worths(**settings: Any) -> set[float]:
        rule = CreditConfig.model_validate({"assign": {"kind": kind, **settings}, "baseline": "none"})
        return {worth.value for worth in CreditStage(rule)(evidence).earned.values()}

    assert worths() == {0.0}
    assert {-2.0, -1.0, 1.0, 2.0} <= worths(teams=[["player_0"], ["player_1"]]), "all that Kuhn poker pays"


@pytest.mark.parametrize(
    ("override", "field", "teams"),
    [
        ("credit.baseline={kind: joint}", "credit.baseline", "[[attacker], [defender]]"),
        ("credit.roles.defender.assign.kind=uniform", "credit.roles.defender.assign", "[[attacker], [defender]]"),
        ("credit.compare.other.assign.kind=vdn", "credit.compare.other.assign", "[[attacker], [defender]]"),
    ],
)
def test_every_half_of_every_rule_is_looked_at(override: str, field: str, teams: str) -> None:
    [problem] = refused(override, file=SCENARIOS / "taboo.yaml")
    assert problem.startswith(f"{field}: ")
    assert f"`teams: {teams}`" in problem


def test_rules_that_judge_each_agent_by_its_own_rewards_stay_allowed() -> None:
    assert marl.load(KUHN, ["credit.assign.kind=flow"])
    assert marl.load(KUHN, ["credit.baseline={kind: joint, teams: [[player_0], [player_1]]}"])
    assert marl.load(SCENARIOS / "chain.yaml", ["credit.assign={kind: uniform}"]), "a team that is paid together"


def test_teams_of_strangers_are_refused_before_play() -> None:
    assert refused("credit.assign={kind: uniform, teams: [[player_0], [player_2]]}") == [
        "credit.assign.teams: no agent 'player_2' in this game; agents: player_0, player_1"
    ]


def test_check_recommends_to_compare_by_problem_where_others_pose_it() -> None:
    sage = SCENARIOS / "sage.yaml"
    told = [*credit_notes(marl.load(sage, ["credit={baseline: {kind: rloo, like: start}}"]))]
    assert [re.findall(r"role '(\w+)' works on problems that others pose", note) for note in told] == [
        ["critic"],
        ["planner"],
        ["solver"],
    ]
    assert "give credit.roles.planner a rule of its own with a baseline `like: problem`" in told[1]


@pytest.mark.parametrize("file", sorted(SCENARIOS.glob("*.yaml")), ids=lambda file: file.stem)
def test_no_shipped_scenario_compares_starts_where_problems_are_posed(file: Path) -> None:
    assert not [note for note in credit_notes(marl.load(file)) if "that others pose" in note]
