"""`marl doctor`: what is here, what is missing and how to get it, and a short training run."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner

from marl.commands.cli import app
from marl.commands.machine_findings import check_machine, check_scenario
from marl.commands.self_test import self_test


def test_all_topics_are_looked_at_and_nothing_is_wrong_on_a_machine_that_runs_the_tests() -> None:
    found = list(check_machine())
    topics = {each.topic for each in found}
    assert topics >= {
        "python",
        "packages",
        "processor",
        "accelerator",
        "sandbox",
        "vllm",
        "ray",
        "runs",
        "cache",
        "hub",
    }
    assert [each for each in found if each.state == "wrong"] == []
    [packages] = [each for each in found if each.topic == "packages"]
    assert f"torch {version('torch')}" in packages.text


def test_what_is_missing_comes_with_the_command_that_installs_it() -> None:
    for each in check_machine():
        if each.topic in ("ray", "gguf", "tracking", "data", "bitsandbytes") and each.state == "absent":
            assert each.advice == f"pip install 'marl-llm[{each.topic}]'"


def test_a_folder_that_cannot_be_written_is_wrong(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MARL_CACHE", "/proc/marl")
    result = CliRunner().invoke(app, ["doctor", "--quick"])
    assert result.exit_code == 1
    assert "WRONG   cache: /proc/marl cannot be written" in result.output
    assert "set MARL_CACHE to a folder of yours" in result.output


def test_a_scenario_that_cannot_be_trained_here_is_wrong_with_its_reasons() -> None:
    fine = check_scenario(Path("scenarios/nim_self_play.yaml"), ())
    assert (fine.state, fine.text) == ("ok", "scenarios/nim_self_play.yaml can be trained here")
    lacking = check_scenario(Path("scenarios/nim_self_play.yaml"), ["policies.actor.model=no/such/folder/at/all"])
    assert lacking.state == "wrong"
    assert "no/such/folder/at/all" in lacking.text


@pytest.mark.slow
def test_the_self_test_learns_and_tells_how_fast() -> None:
    learning, speed = self_test()
    assert learning.state == "ok", learning.text
    assert "episodes a second" in speed.text
