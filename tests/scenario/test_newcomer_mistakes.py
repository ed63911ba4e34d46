"""Mistakes of newcomers in starter scenarios and on the command line: each is refused with field, value and remedy."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from marl.commands.cli import app
from tests.support.command_line import run_marl

MISTAKES = yaml.safe_load(Path(__file__).with_name("newcomer_mistakes.yaml").read_text())
COMMANDS = {
    "check": "Missing argument 'scenario'",
    "check nope.yaml": "nope.yaml: no such file; scenarios there: self-play.yaml, team.yaml",
    "check sums.csv": "sums.csv: not YAML: line 2",
    "check .": ".: cannot be read: [Errno 21] Is a directory",
    "check team.yaml --prompt": "No such option: --prompt (Possible options: --prompts)",
    "check team.yaml --device gpu": "--device: 'gpu' is no device; choices: cpu, cuda:0 (or another number)",
    "check team.yaml game.stages.9.scores=[correct]": "no item '9' in a list of 5, counted from 0",
    "check team.yaml policies.solver.engine.kind.slots=2": "policies.solver.engine.kind",
    "train": "Missing argument 'scenario'",
    "train team.yaml schedule.steps": "override 'schedule.steps': write it as dotted.path=value, e.g. ",
    "train team.yaml schedule.step=5": "schedule.step: unknown field 'step'; did you mean 'steps'",
    "train team.yaml game.rewards={}": "game.rewards: empty, so no role is ever paid or learns; write rewards: {ROLE:",
    "train team.yaml --output runs/x": "No such option: --output (Possible options: --out)",
    "train team.yaml --resume": "Option '--resume' requires an argument",
    "train team.yaml --resume runs/nope": "--resume runs/nope: no run in runs/team",
    "trian team.yaml": "No such command 'trian'. Did you mean 'train'",
    "new teams": "'teams' is not one of 'self-play', 'team', 'one-role'",
    "new team": "team.yaml exists already; choose another by --out",
    "new team --data nope.csv --out n.yaml": "--data: no such file: nope.csv",
    "new team --data sums.csv --question quest --out n.yaml": "--question quest: not every row of sums.csv has it",
    "new self-play --game chess --out n.yaml": "--game chess: ",
    "new self-play --data sums.csv --out n.yaml": "--data sums.csv: a game has no questions; choices: team, one-role",
    "eval nope": "nope: no run and no scenario; give a run's folder or a scenario (YAML)",
    "show nope": "nope: no run here (no scenario.yaml)",
    "why nope 000001.0.0:0": "nope: no run here (no scenario.yaml)",
    "describe grop": "nothing is called 'grop'; did you mean 'group' or 'grpo'",
    "list game": "no group of parts 'game'; did you mean 'games'?",
    "export nope solver --out x": "nope: no run here (no scenario.yaml)",
}


@pytest.fixture(scope="module")
def starters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a CSV file, and the scenarios `team` on it and `self-play` as `marl new` writes them."""
    folder = tmp_path_factory.mktemp("starters")
    rows = [
        f"{name} has {a} pears and gets {b} : how many ?,{a + b}"
        for name in ("Ann", "Bob", "Eve", "Tom")
        for a in range(6)
        for b in range(6)
    ]
    (folder / "problems.csv").write_text("\n".join(["question,answer", *rows]) + "\n")
    (folder / "sums.csv").write_text("\n".join(["question,answer", *rows[:9]]) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for words in (["team", "--data", "problems.csv"], ["self-play"]):
            assert CliRunner().invoke(app, ["new", *words], catch_exceptions=False).exit_code == 0
    return folder


@pytest.mark.parametrize("mistake", MISTAKES, ids=[re.sub(r"\W+", "_", each["as"])[:40] for each in MISTAKES])
def test_a_mistake_in_a_file_is_refused_with_field_value_and_remedy(
    mistake: dict[str, str], starters: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (starters / f"{mistake['file']}.yaml").read_text()
    assert mistake["write"] in text
    monkeypatch.chdir(starters)
    (starters / "mine.yml").write_text(text.replace(mistake["write"], mistake["as"], 1))
    status, output, errors = run_marl(monkeypatch, capsys, "check", "mine.yml")
    assert (status, output) == (2, "")
    assert mistake["says"] in errors.replace(f"{starters}/", "")
    assert "Traceback" not in errors
    # Lines that are indented by four characters quote the file, or say where a path begins.
    problems = [line for line in errors.splitlines()[1:] if line[:4].strip()]
    assert len(problems) <= 2


@pytest.mark.parametrize("words", COMMANDS)
def test_a_mistake_on_the_command_line_is_refused_with_the_word_and_the_choices(
    words: str, starters: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(starters)
    monkeypatch.setenv("COLUMNS", "300")
    status, _, errors = run_marl(monkeypatch, capsys, *words.split())
    assert status
    assert COMMANDS[words] in re.sub(r"\s*│\s*", " ", errors)
    assert "Traceback" not in errors


def test_the_table_holds_as_many_mistakes_as_were_promised() -> None:
    assert len(MISTAKES) + len(COMMANDS) >= 102
