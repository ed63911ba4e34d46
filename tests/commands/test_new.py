"""`marl new`: scenarios that run as they are written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import marl
from marl.commands import starter_fit
from marl.commands.cli import app
from marl.commands.starter import inspect_question_file
from marl.evaluation.dry_run import play_dry_run
from marl.memory.device import DeviceMemory
from marl.memory.preflight import estimate_memory_fit
from marl.models.tiny import Tiny
from marl.models.tiny_build import build_tiny_model


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


PROGRAM = """
import json, os, urllib.request

def ask(agent, text):
    body = json.dumps({"model": agent, "messages": [{"role": "user", "content": text}]}).encode()
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    with urllib.request.urlopen(urllib.request.Request(url, body, headers)) as response:
        return json.load(response)["choices"][0]["message"]["content"]

def main(task):
    return ask("solver", task["question"] + ask("planner", task["question"]))
"""


def test_the_scenario_of_a_program_runs_the_program_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "my_graph.py").write_text(PROGRAM)
    file = tmp_path / "mine.yaml"
    written = new("program", "--call", "my_graph:main", "--callers", "planner,solver", "--out", str(file))
    assert f"next, marl check {file}" in written.output
    checked = CliRunner().invoke(app, ["check", str(file), "--trust"], catch_exceptions=False)
    assert f"{file}: fine" in checked.output
    scenario = marl.load(file)
    assert [name for name, policy in scenario.policies.items() if policy.learner] == ["planner", "solver"]
    assert scenario.roles["planner"].history == "append"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["program"], "--call names the function"),
        (["team", "--call", "a:b"], "--call names the function"),
        (["program", "--call", "my_graph"], "--call 'my_graph': give a function as module:function"),
        (["program", "--call", "a:b", "--callers", "planner,Crew"], "--callers: 'Crew' is no name"),
        (["program", "--call", "a:b", "--callers", "x,x"], "--callers: x,x names an agent twice"),
    ],
)
def test_a_wrong_call_is_refused(arguments: list[str], message: str, tmp_path: Path) -> None:
    written = CliRunner().invoke(app, ["new", *arguments, "--out", str(tmp_path / "mine.yaml")])
    assert written.exit_code != 0
    assert message in str(written.exception)


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
    data = inspect_question_file(file)
    assert (data.numeric, data.answer_words, data.held_out_row_count) == (False, 3, 1)


def test_unknown_columns_are_named_with_those_there_are(tmp_path: Path) -> None:
    file = sums(tmp_path, "left", "right")
    with pytest.raises(ValueError, match=r"--question: no column of .* has a usual name .*; choices: left, right"):
        inspect_question_file(file)
    with pytest.raises(ValueError, match=r"--answer rihgt: not every row of .* has it; .*right"):
        inspect_question_file(file, "left", "rihgt")
    assert inspect_question_file(file, "left", "right").question == "left"


def test_a_model_of_ones_own_gets_no_settings_that_only_tiny_ones_need(tmp_path: Path) -> None:
    new("self-play", "--model", "my/model", "--game", "nim", "--out", str(tmp_path / "mine.yaml"))
    text = (tmp_path / "mine.yaml").read_text()
    assert "model: my/model\n" in text
    assert "lr: 1.0e-6" in text
    assert "tiny" not in text
    assert "threads" not in text


def test_a_file_elsewhere_that_was_typed_needs_no_further_consent(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    result = new("team", "--data", str(sums(tmp_path / "elsewhere")), "--out", str(tmp_path / "mine" / "team.yaml"))
    assert result.exit_code == 0
    assert "30 rows, 6 held out" in result.output


def test_editors_find_the_schema_beside_the_scenario(tmp_path: Path) -> None:
    new("self-play", "--out", str(tmp_path / "mine.yaml"))
    first = (tmp_path / "mine.yaml").read_text().splitlines()[0]
    name = first.removeprefix("# yaml-language-server: $schema=")
    assert "schedule" in json.loads((tmp_path / name).read_text())["properties"]


@pytest.mark.parametrize(("game", "exact"), [("kuhn_poker", True), ("leduc_poker", True), ("tic_tac_toe", False)])
def test_nashconv_is_measured_where_the_game_is_small_enough(game: str, exact: bool, tmp_path: Path) -> None:
    new("self-play", "--game", game, "--out", str(tmp_path / "mine.yaml"))
    assert marl.load(tmp_path / "mine.yaml").evaluate.nashconv is exact


def test_settings_for_a_model_fit_the_longest_move_and_the_memory_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "model"
    build_tiny_model(Tiny.model_validate({"hidden": 64, "vocabulary": "bytes", "context": 4096}), model, ())
    small = DeviceMemory("cpu", 2.0e9)
    monkeypatch.setattr(starter_fit, "_memory_of_this_machine", lambda: small)
    new("self-play", "--model", str(model), "--out", str(tmp_path / "mine.yaml"))
    scenario = marl.load(tmp_path / "mine.yaml")
    # "[check]" has seven bytes, and the template adds none behind it.
    assert scenario.roles["player"].sampling.max_tokens == 256 + len(" [check]")
    assert estimate_memory_fit(play_dry_run(scenario), small).fits_device


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
