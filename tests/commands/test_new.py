"""`marl new`: scenarios that run as they are written."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import marl
from marl.commands.cli import app
from marl.commands.starter import inspect_data


def new(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["new", *arguments], catch_exceptions=False)


def sums(folder: Path, question: str = "question", answer: str = "answer") -> Path:
    file = folder / "sums.csv"
    rows = [f"{a} pears and {b} more : how many ?,{a + b}" for a in range(6) for b in range(5)]
    file.write_text("\n".join([f"{question},{answer}", *rows]) + "\n")
    return file


@pytest.mark.parametrize("kind", ["self-play", "team", "one-role"])
def test_what_is_written_passes_the_check_as_it_is(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    assert f"next, marl check {file}" in new(kind, "--out", str(file)).output
    checked = CliRunner().invoke(app, ["check", str(file), "--quick"], catch_exceptions=False)
    assert f"{file}: fine" in checked.output
    assert all(len(line) <= 120 for line in file.read_text().splitlines() if str(file) not in line)


def test_only_the_solver_of_one_role_learns(tmp_path: Path) -> None:
    new("one-role", "--out", str(tmp_path / "mine.yaml"))
    policies = marl.load(tmp_path / "mine.yaml").policies
    assert [name for name, policy in policies.items() if policy.learner] == ["solver"]


def test_a_file_of_ones_own_is_read_by_its_columns_and_verified_as_numbers(tmp_path: Path) -> None:
    sums(tmp_path, "Problem", "Label")
    output = new("team", "--data", str(tmp_path / "sums.csv"), "--out", str(tmp_path / "mine.yaml")).output
    assert "30 rows, 6 held out; 'Problem' -> 'Label' (numbers)" in output
    text = (tmp_path / "mine.yaml").read_text()
    assert '{kind: file, path: "sums.csv", columns: {"question": "Problem", "answer": "Label"}, held_out: 6}' in text
    assert "{kind: numeric}" in text


def test_answers_that_are_no_numbers_are_compared_as_texts(tmp_path: Path) -> None:
    file = tmp_path / "colours.jsonl"
    file.write_text('{"input": "grass", "output": "green"}\n{"input": "snow", "output": "white as milk"}\n')
    data = inspect_data(file)
    assert (data.numeric, data.longest, data.held_out) == (False, 3, 1)


def test_unknown_columns_are_named_with_those_there_are(tmp_path: Path) -> None:
    file = sums(tmp_path, "left", "right")
    with pytest.raises(ValueError, match=r"--question: no column of .* has a usual name .*; choices: left, right"):
        inspect_data(file)
    with pytest.raises(ValueError, match=r"--answer rihgt: not every row of .* has it; .*right"):
        inspect_data(file, "left", "rihgt")
    assert inspect_data(file, "left", "right").question == "left"


def test_a_model_of_ones_own_gets_no_settings_that_only_tiny_ones_need(tmp_path: Path) -> None:
    new("self-play", "--model", "my/model", "--game", "nim", "--out", str(tmp_path / "mine.yaml"))
    text = (tmp_path / "mine.yaml").read_text()
    assert "model: my/model\n" in text
    assert "lr: 1.0e-6" in text
    assert "tiny" not in text
    assert "threads" not in text


def test_nothing_is_overwritten_and_what_does_not_fit_is_said(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    new("team", "--out", str(file))
    with pytest.raises(ValueError, match="exists already; choose another by --out"):
        new("team", "--out", str(file))
    with pytest.raises(ValueError, match="a game has no questions; choices: team, one-role"):
        new("self-play", "--data", "x.csv", "--out", str(tmp_path / "other.yaml"))
    with pytest.raises(ValueError, match=r"--game matrix: (.|\n)*table(.|\n)*a game that needs no settings"):
        new("self-play", "--game", "matrix", "--out", str(tmp_path / "other.yaml"))
    assert not (tmp_path / "other.yaml").exists()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["self-play", "team", "one-role"])
def test_what_is_written_trains(kind: str, tmp_path: Path) -> None:
    data = [] if kind == "self-play" else ["--data", str(sums(tmp_path))]
    new(kind, "--out", str(tmp_path / "mine.yaml"), *data)
    short = ["schedule.steps=2", "schedule.groups=4", "evaluate.every=2"]
    policies = marl.load(tmp_path / "mine.yaml").policies
    short += [f"policies.{name}.model.warm_up.steps=20" for name, policy in policies.items() if policy.model]
    scenario = marl.load(tmp_path / "mine.yaml", short)
    rows: list[dict[str, float]] = []
    assert marl.train(scenario, tmp_path / "run", on_step=lambda _, row: rows.append(dict(row)))
    name = "eval/random/win" if kind == "self-play" else "eval/held_out/success"
    assert name in rows[-1]
