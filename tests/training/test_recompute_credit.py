"""Recorded play judged again says what the run said, and what another rule would have."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

import marl
from marl.core.graph import write_trajectories
from marl.core.types import Metrics
from marl.credit_stage.records import CreditRecord
from marl.scenario.load import ScenarioError, load, validate
from marl.training.recompute_credit import CreditRecomputation, format_ranges
from marl.training.replaced_credit import scenario_with_credit_rule
from tests.support.paths import SCENARIOS
from tests.support.run_processes import kuhn_scenario, tiny_model

MUTED = {
    "kind": "marl.credit.assign.counterfactual:Shapley",
    "common": "mean",
    "default": {"speaker": "one", "guesser": "red"},
}
SHIPPED = sorted(SCENARIOS.glob("*.yaml"))[::5]
OWN_VALUES = {"kind": "marl.credit.baselines.value:Value", "values": "own"}


@pytest.fixture(scope="module", autouse=True)
def cache(made: Path) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MARL_CACHE", str(made))
        yield


def trained(folder: Path, **changes: Any) -> Path:
    """A run of five steps, of which checkpoints 2, 4 and 5 are kept and all trajectories."""
    schedule = {"steps": 5, "groups": 4, "group_size": 4, "threads": 1}
    quick = {"schedule": schedule, "evaluate": {}, "checkpoint": {"every": 2, "keep": 5}}
    assert marl.train(validate(kuhn_scenario(**quick) | changes), folder)
    return folder


def hint(**credit: Any) -> dict[str, Any]:
    """A speaker and a guesser with weights of their own."""
    names = ("speaker", "guesser")
    roles = {name: {"kind": "player", "policy": name, "sampling": {"max_tokens": 6}} for name in names}
    learner = {"kind": "grpo", "lr": 1e-2}
    policies = {name: {"model": tiny_model(seed), "learner": learner} for seed, name in enumerate(names)}
    seats = dict(zip(names, names, strict=True))
    return {"game": {"kind": "marl.games.hint:HintConfig"}, "seats": seats, "roles": roles, "policies": policies} | {
        "credit": credit
    }


@pytest.fixture(scope="module")
def average(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("average") / "run", credit={"baseline": "role_average"})


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Learns from a rule that reads and has a state; reported beside one that plays."""
    rule = {"baseline": OWN_VALUES, "compare": {"shapley": {"assign": MUTED}}}
    return trained(tmp_path_factory.mktemp("team") / "run", **hint(**rule))


def without_judgements(run: Path, folder: Path) -> Path:
    """Return a copy of a run as older versions left it, so that its own rule has to judge again."""
    return shutil.copytree(run, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("credit"))


def told(run: Path, step: int) -> Metrics:
    """What the run itself said of credit in a step."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    row = next(row for row in rows if row["step"] == step)
    return {name: value for name, value in row.items() if name.startswith("credit/")}


def with_credit(run: Path, **changes: Any) -> Path:
    """The run with other settings of credit in its scenario."""
    file = run / "scenario.yaml"
    settings = yaml.safe_load(file.read_text())
    file.write_text(yaml.safe_dump(settings | {"credit": settings["credit"] | changes}))
    return run


# --- the run's own rule ----------------------------------------------------------------------------------------


def without_token_figures(record: CreditRecord) -> CreditRecord:
    """The record without what only an update knows of tokens."""
    episodes = [
        replace(each, turns=tuple(replace(turn, token_entropy=(), token_mismatch=()) for turn in each.turns))
        for each in record.episodes
    ]
    return replace(record, episodes=tuple(episodes))


@pytest.mark.parametrize("step", [1, 3, 4, 5])
def test_the_runs_own_rule_says_of_a_recorded_step_what_it_said_then(average: Path, tmp_path: Path, step: int) -> None:
    again = CreditRecomputation(without_judgements(average, tmp_path), step)
    assert again().metrics == told(average, step)
    learnt = without_token_figures(CreditRecomputation(average, step)().record)
    assert again().record == learnt, "which is what it learnt from"
    assert any("credit/average/" in name for name in told(average, step))
    # From the start, from checkpoint 2, from there over step 3, from checkpoint 4.
    assert bool(again.notes) == (step == 4)


@pytest.mark.parametrize("step", [3, 5])
def test_with_the_weights_of_then_whatever_is_read_and_played_is_the_same(
    team: Path, tmp_path: Path, step: int
) -> None:
    then = told(team, step)
    assert then["credit/tokens"] > 0
    assert {"credit/speaker/correlation/shapley", "credit/guesser/conservation"} <= set(then)
    again = CreditRecomputation(without_judgements(team, tmp_path), step)
    assert again().metrics == then
    assert again.notes == []


OWN = {
    "assign": {"kind": "outcome", "to_go": True},
    "baseline": {"kind": "group", "std": False},
    "scale": 0.5,
    "overlong": {"limit": 6, "buffer": 4},
    "roles": {"player": {"assign": {"kind": "flow", "decay": 0.5}, "scale": 0.25}},
}
"""A rule with a setting in each field that another rule has to keep."""


@pytest.mark.parametrize("rule", ["outcome", "outcome/group", "/group", "{baseline: group}"])
def test_the_runs_own_kinds_have_the_runs_own_numbers_to_the_bit(average: Path, tmp_path: Path, rule: str) -> None:
    run = with_credit(without_judgements(average, tmp_path), **OWN)
    own, again = CreditRecomputation(run, 2)(), CreditRecomputation(run, 2)(rule)
    assert again.record == own.record
    assert again.metrics == own.metrics
    assert again.differences == ()


def test_the_recorded_credit_is_that_of_the_runs_own_kinds_without_weights(team: Path) -> None:
    again = CreditRecomputation(team, 4)
    own = again("outcome/marl.credit.baselines.value:Value")
    assert own.record == again().record
    assert own.metrics == told(team, 4)
    assert "run" not in again.__dict__


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_naming_a_shipped_scenarios_own_rule_changes_none_of_its_settings(file: Path) -> None:
    scenario = load(file)
    assign, baseline = scenario.credit.assign.kind, scenario.credit.baseline.kind
    for rule in (assign, f"{assign}/{baseline}", f"/{baseline}"):
        assert scenario_with_credit_rule(scenario, rule) is scenario


def test_another_rule_replaces_what_it_names_and_lists_what_differs(average: Path, tmp_path: Path) -> None:
    run = with_credit(without_judgements(average, tmp_path), **(OWN | {"roles": {}}))
    again = CreditRecomputation(run, 2)
    flow = again("flow")
    whole = "{assign: flow, baseline: {kind: group, std: false}, scale: 0.5, overlong: {limit: 6, buffer: 4}}"
    assert flow.record == again(whole).record
    assert len(flow.differences) == 1
    assert flow.differences[0].startswith("credit.assign: flow ")
    assert flow.differences[0].endswith('instead of outcome {"to_go": true}')
    assert again("{scale: 2}").differences == ("credit.scale: 2.0 instead of 0.5",)
    plain = again("{kind: outcome}")
    assert [line.partition(":")[0] for line in plain.differences] == ["credit.assign"], "a mapping names all settings"


def test_a_role_with_a_rule_of_its_own_keeps_it_and_that_is_said(average: Path, tmp_path: Path) -> None:
    run = with_credit(without_judgements(average, tmp_path), **OWN)
    flow, own = CreditRecomputation(run, 2)("flow"), CreditRecomputation(run, 2)()
    assert flow.credit() == own.credit()
    assert flow.notes == ("flow does not replace the rules of their own that these roles have: player",)


def test_what_was_recorded_needs_no_weights(team: Path) -> None:
    again = CreditRecomputation(team, 4)
    assert again().metrics == told(team, 4)
    assert "run" not in again.__dict__


def test_with_other_weights_it_is_said_whose_they_are(team: Path, tmp_path: Path) -> None:
    again = CreditRecomputation(without_judgements(team, tmp_path), 4)
    assert again().metrics != told(team, 4)
    assert again.notes == [
        "step 4 was played with the weights after step 3, of which there is no checkpoint; what was played or read "
        "here is by those after step 2",
        "the run's own rule has a state: it was shown the recorded steps before first (3)",
    ]


def test_steps_that_were_not_recorded_are_said_to_be_missing_in_a_state(average: Path, tmp_path: Path) -> None:
    (tmp_path / "trajectories").mkdir()
    for name in ("scenario.yaml", *(f"trajectories/{step:06d}.jsonl.zst" for step in (1, 2, 5))):
        shutil.copy(average / name, tmp_path / name)
    again = CreditRecomputation(tmp_path)
    again()
    assert again.notes == [
        "the run's own rule has a state: it was shown the recorded steps before first (1-2) and lacks steps that were "
        "not recorded (3-4)"
    ]


# --- another rule ----------------------------------------------------------------------------------------------


def test_a_rule_without_a_state_says_what_a_run_with_it_would_have(average: Path) -> None:
    own = "{assign: {kind: outcome, to_go: true}, baseline: {kind: group, std: false}, scale: 2}"
    again = CreditRecomputation(average, 2)
    turns = again(own).record.turns()
    for trajectory in again.trajectories:
        for turn in trajectory.turns:
            # Kuhn pays at the end, so all of it is to go.
            assert turns[turn.id].earned == 2 * trajectory.returns.get(turn.agent, 0.0)
    assert again.notes == []
    assert "run" not in again.__dict__, "no weights are loaded for what needs none"


def test_a_state_of_another_rule_is_that_of_all_steps_before(average: Path, tmp_path: Path) -> None:
    other = with_credit(without_judgements(average, tmp_path), baseline={"kind": "none"})
    assert CreditRecomputation(other, 5)("/role_average").metrics == told(average, 5)


def test_two_kinds_are_an_assign_and_a_baseline(average: Path) -> None:
    again = CreditRecomputation(average, 2)
    assert again("flow/none").record == again("{assign: flow, baseline: none}").record
    assert again("flow").record == again("flow/role_average").record, "the baseline stays the run's"
    assert again("/none").record == again("outcome/none").record == again("{baseline: none}").record
    assert again("marl.credit.assign.reward_rules:RewardFlowAssign/none").credit() == again("flow/none").credit()


def test_what_agents_are_worth_to_one_another_is_played_with_the_runs_weights(team: Path) -> None:
    again = CreditRecomputation(team, 5)
    verdict = again(json.dumps({"assign": MUTED, "baseline": "none"}))
    assert verdict.tokens == verdict.metrics["credit/tokens"] > 0
    # Efficiency: what the two are worth sums to what they were paid, beyond `one` and `red` (Shapley 1953).
    for trajectory in again.trajectories:
        if trajectory.turns[-1].agent == "guesser":
            nobody = float(trajectory.start == "red")
            worths = [verdict.record.turns()[turn.id].earned for turn in trajectory.turns]
            assert sum(worths) == pytest.approx(trajectory.returns.get("guesser", 0.0) - nobody)
    # Rules that were asked before change nothing of what a rule plays.
    assert CreditRecomputation(team, 5)(verdict.rule).record == verdict.record
    assert again(verdict.rule).record == verdict.record


# --- what cannot be done ---------------------------------------------------------------------------------------


def test_a_step_that_was_not_recorded_is_refused_with_those_that_were(average: Path) -> None:
    with pytest.raises(ScenarioError, match=r"--step 9: no trajectories of this step were recorded; there are: 1-5$"):
        CreditRecomputation(average, 9)


def test_a_run_without_trajectories_is_refused(average: Path, tmp_path: Path) -> None:
    shutil.copy(average / "scenario.yaml", tmp_path)
    with pytest.raises(ScenarioError, match=r"no trajectories were recorded \(checkpoint\.trajectories\)"):
        CreditRecomputation(tmp_path)


def test_a_damaged_file_is_named(average: Path, tmp_path: Path) -> None:
    shutil.copy(average / "scenario.yaml", tmp_path)
    file = tmp_path / "trajectories" / "000001.jsonl.zst"
    write_trajectories(file, CreditRecomputation(average, 1).trajectories)
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(ValueError, match=r"000001\.jsonl\.zst: not a whole trajectory file"):
        CreditRecomputation(tmp_path)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("flwo", "--with flwo: 1 problem\n  credit.assign.kind: unknown kind 'flwo'; did you mean 'flow'"),
        ("flow/rol_average", "credit.baseline.kind: unknown kind 'rol_average'; did you mean 'role_average'"),
        ("flow/", "credit.baseline.kind: unknown kind ''; choices: "),
        (
            "{assign: {kind: flow, decai: 1}}",
            "credit.assign.decai: unknown field 'decai'; did you mean 'decay'",
        ),
        ("{asign: flow}", "credit.asign: unknown field 'asign'; did you mean 'assign'"),
        ("3", r"--with 3: no rule; give a kind of assign \(shapley\)"),
        ("{assign: flow", "--with {assign: flow: not YAML"),
        (
            "outcome/marl.credit.baselines.value:Value",
            "'outcome' and 'marl.credit.baselines.value:Value' need values of what role 'player' says",
        ),
    ],
)
def test_a_rule_that_is_none_is_refused_with_what_would_be_one(average: Path, rule: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        CreditRecomputation(average, 1)(rule)


def test_a_checkpoint_of_another_rule_is_refused(team: Path, tmp_path: Path) -> None:
    for name in ("checkpoints", "trajectories"):
        shutil.copytree(team / name, tmp_path / name)
    file = tmp_path / "scenario.yaml"
    file.write_text((team / "scenario.yaml").read_text().replace("    shapley:", "    other:"))
    with pytest.raises(ScenarioError, match=r"checkpoint 000004 is of another rule .* it has no 'other'"):
        CreditRecomputation(tmp_path, 5)()


def test_numbers_are_told_in_ranges() -> None:
    assert format_ranges([1, 2, 3, 7, 9, 10]) == "1-3, 7, 9-10"
    assert format_ranges([4]) == "4"
