"""`marl credit`: what it prints, what it writes and what it refuses."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from marl.core.graph import Trajectory
from marl.credit_stage.records import CreditRecord, RecomputedCredit
from marl.runs.run_folder import RunFolder
from marl.training.recompute_credit import CreditRecomputation, format_ranges
from marl.view.credit_table import write_credit_table
from tests.support.handmade_episodes import make_episode
from tests.support.run_processes import RunWorkspace


@pytest.fixture
def step(whole: RunWorkspace) -> int:
    """A step of the run whose trajectories were recorded."""
    return RunFolder(whole.run).recorded_steps()[-1]


def test_a_table_names_every_role_and_agent(run: Any, whole: RunWorkspace, step: int) -> None:
    status, said, complaint = run("credit", whole.run, "--with", "outcome/none")
    assert (status, complaint) == (0, "")
    title, _, rule, difference, baseline, headings, first, second, tokens = said.splitlines()
    assert difference == "differs from the run's own rule in:"
    assert baseline.startswith("  credit.baseline: none instead of group ")
    assert title == f"{whole.run}: step {step}, 32 episodes"
    assert rule == "outcome/none"
    assert headings.split()[:6] == ["role", "agent", "turns", "earned", "std", "advantage"]
    assert headings.split()[6:] == ["std", "zero", "conserved", "purity", "bias", "t"]
    paid = [t.returns["player_1"] for t in CreditRecomputation(whole.run, step).trajectories if len(t.turns) > 1]
    rows = [line.split() for line in (first, second)]
    assert [row[:2] for row in rows] == [["player", "player_0"], ["player", "player_1"]]
    # player_1 takes one turn, the second, in every hand in which the first move could be read.
    assert int(rows[1][2]) == len(paid)
    assert float(rows[1][3]) == pytest.approx(sum(paid) / len(paid), rel=1e-3)
    assert tokens == "tokens spent by credit: 0"


def test_without_a_rule_it_is_the_runs_own(run: Any, whole: RunWorkspace, step: int) -> None:
    status, said, _ = run("credit", whole.run, "--step", step)
    assert status == 0
    rows = [json.loads(line) for line in (whole.run / "metrics.jsonl").read_text().splitlines()]
    told = next(row for row in rows if row["step"] == step)
    assert said.splitlines()[2] == "the run's own rule"
    zero, conserved, purity, _ = (float(cell) for cell in said.splitlines()[4].split()[-4:])
    assert conserved == pytest.approx(told["credit/player/conservation"], rel=1e-3)
    assert purity == told["credit/player/purity"] == 1.0
    assert 0 <= zero <= 1


def test_options_may_come_first_and_the_command_may_be_named(run: Any, whole: RunWorkspace) -> None:
    plain = run("credit", whole.run, "--with", "flow")
    assert plain[0] == 0
    assert run("credit", "--with", "flow", whole.run) == plain
    assert run("credit", "judge", whole.run, "--with", "flow") == plain


def test_a_rule_with_settings_is_written_in_yaml_as_it_stands_under_assign(run: Any, whole: RunWorkspace) -> None:
    status, said, _ = run("credit", whole.run, "--with", "{kind: flow, decay: .5}")
    whole_rule = run("credit", whole.run, "--with", "{assign: {kind: flow, decay: .5}}")[1]
    assert status == 0
    assert said.splitlines()[3:] == whole_rule.splitlines()[3:]
    assert said.splitlines()[3:] != run("credit", whole.run, "--with", "flow")[1].splitlines()[3:]


@pytest.mark.parametrize(
    ("move", "cell"),
    [
        ("=HYPERLINK(1)", "'=HYPERLINK(1)"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("-1+cmd|' /C calc'!A0", "'-1+cmd|' /C calc'!A0"),
        ("\t=1", "'\t=1"),
        ("-12.5", "-12.5"),
        ("bet", "bet"),
        (None, ""),
    ],
)
def test_a_move_that_looks_like_a_formula_is_text_in_a_csv_file(move: str | None, cell: str, tmp_path: Path) -> None:
    played = make_episode("played", ["ann"])
    trajectory = Trajectory(played.deal, played.start)
    trajectory.add(replace(played.turns[0], action=move), [])
    recomputed = RecomputedCredit("outcome", CreditRecord((), (), ()), {}, 0)
    write_credit_table(tmp_path / "turns.csv", recomputed, [trajectory])
    with (tmp_path / "turns.csv").open(newline="") as file:
        assert next(csv.DictReader(file))["action"] == cell


@pytest.mark.parametrize("ending", [".jsonl", ".csv"])
def test_every_turn_is_written(run: Any, whole: RunWorkspace, tmp_path: Path, step: int, ending: str) -> None:
    out = tmp_path / f"turns{ending}"
    status, said, _ = run("credit", whole.run, "--with", "flow/none", "--step", step, "--out", out)
    again = CreditRecomputation(whole.run, step)
    credit = again("flow/none").credit()
    assert (status, said.splitlines()[-1]) == (0, f"{out}: {len(credit)} turns")
    text = out.read_text()
    rows = list(csv.DictReader(text.splitlines())) if ending == ".csv" else [*map(json.loads, text.splitlines())]
    turns = [turn for trajectory in again.trajectories for turn in trajectory.turns]
    for row, turn in zip(rows, turns, strict=True):
        assert (row["episode"], int(row["turn"]), row["agent"], row["role"]) == (*turn.id, turn.agent, turn.role)
        assert (row["action"] or None) == turn.action
        assert float(row["earned"]) == float(row["advantage"]) == credit[turn.id].value
        assert not row["tokens"]


def test_rules_are_compared_by_role(run: Any, whole: RunWorkspace) -> None:
    flow = "{assign: {kind: flow, decay: 0.5}, baseline: none}"
    status, said, complaint = run("credit", "compare", whole.run, "--with", "outcome/none", "--with", flow)
    assert (status, complaint) == (0, "")
    lines = said.splitlines()
    assert [line.split(maxsplit=1)[:1] for line in lines[3:5]] == [["1"], ["2"]]
    headings, row = lines[6].split(), lines[7].split()
    assert headings == ["role", "pearson", "spearman", "same", "sign", "|difference|"]
    assert row[:3] == ["1", "2", "player"]
    # A player's own turn reads its earlier one, which so gets half of what it was paid: the same sign, always.
    assert all(0 < float(cell) < 1 for cell in row[3:5])
    assert float(row[6]) > 0


def test_one_rule_is_compared_with_the_runs_own(run: Any, whole: RunWorkspace) -> None:
    own = "{assign: outcome, baseline: {kind: group, std: false}}"
    status, said, _ = run("credit", "compare", whole.run, "--with", own)
    assert status == 0
    assert "the run's own rule" in said
    assert said.splitlines()[-1].split() == ["1", "2", "player", "1", "1", "1", "0"]


def test_help_shows_the_default_command(run: Any) -> None:
    status, said, _ = run("credit", "--help")
    assert status == 0
    assert "judge" in said
    assert "compare" in said
    assert "The default subcommand" in " ".join(said.replace("│", " ").split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["credit", "no_such_run"], "no_such_run: no run here (no scenario.yaml)"),
        (["credit", "RUN", "--with", "flwo"], "credit.assign.kind: unknown kind 'flwo'; did you mean 'flow'"),
        (
            ["credit", "RUN", "--with", "{kind: flow, decya: .5}"],
            "unknown field 'decya'; did you mean 'decay'? choices: ",
        ),
        (["credit", "RUN", "--with", "{kind: flwo}"], "credit.assign.kind: unknown kind 'flwo'; did you mean 'flow'"),
        (["credit", "RUN", "--step", "99"], "--step 99: no trajectories of this step were recorded; there are: STEPS"),
        (["credit", "RUN", "--step", "0"], "Invalid value for '--step'"),
        (["credit", "RUN", "--step", "1-3"], "Invalid value for '--step'"),
        (["credit", "RUN", "--out", "turns.xlsx"], "no such format '.xlsx'; choices: .jsonl, .csv"),
        (["credit", "compare", "RUN"], "Missing option"),
        (["credit", "compare", "RUN", "--with", "flow/nothing"], "credit.baseline.kind: unknown kind 'nothing'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_done_is_said_with_status_2(
    run: Any, whole: RunWorkspace, words: list[str], message: str
) -> None:
    status, _, complaint = run(*(str(whole.run) if word == "RUN" else word for word in words))
    assert status == 2
    assert message.replace("STEPS", format_ranges(RunFolder(whole.run).recorded_steps())) in complaint
    assert "Traceback" not in complaint
