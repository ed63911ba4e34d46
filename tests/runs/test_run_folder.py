"""What a run leaves in its folder and shows while it runs."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from rich.console import Console
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import AutoModelForCausalLM, AutoTokenizer

import marl
from marl.commands.play import load_scenario_and_simulator, play_and_print_episodes
from marl.runs.metric_rows import CRC
from marl.runs.run_folder import RunFolder, describe_environment
from marl.scenario.load import validate
from marl.training.build import build
from marl.training.loop import StopRequest, TrainingLoop
from marl.view.console import console_monitor
from marl.view.trackers import ExperimentTracker
from tests.support.run_processes import (
    RunWorkspace,
    SignalTrigger,
    anchored_scenario,
    kuhn_scenario,
    metric_lines,
    two_policy_scenario,
)


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> RunWorkspace:
    """A run that was killed once and went on."""
    desk = RunWorkspace(tmp_path_factory.mktemp("resumed"), anchored_scenario())
    assert desk.train(kill=SignalTrigger("os.rename", "run/checkpoints/.000006")) == -9
    assert desk.train("--resume", "auto") == 0
    return desk


def test_a_trained_run_can_be_played(resumed, capsys):
    play_and_print_episodes(
        *load_scenario_and_simulator(resumed.run, random=False), seat=None, episodes=2, out_file=None
    )
    assert capsys.readouterr().out.count("episode play.") == 2


def test_the_resolved_scenario_loads_again_as_the_same(resumed):
    assert marl.load(resumed.run / "scenario.yaml") == marl.load(resumed.path / "scenario.yaml")


def test_settings_added_to_the_software_later_are_no_change_of_a_runs_scenario(tmp_path):
    scenario = kuhn_scenario()
    folder = RunFolder(tmp_path / "run")
    folder.create(validate(scenario))
    old = yaml.safe_load((folder.path / "scenario.yaml").read_text())
    del old["schedule"]["deadline_s"], old["alarms"]
    (folder.path / "scenario.yaml").write_text(yaml.safe_dump(old))
    assert folder.setting_differences(validate(scenario)) == []
    scenario["schedule"]["deadline_s"] = 7.0
    assert folder.setting_differences(validate(scenario)) == ["schedule.deadline_s: 600.0 -> 7.0"]


def test_a_scenario_that_is_no_longer_valid_is_compared_as_it_was_written(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.create(validate(kuhn_scenario()))
    with (folder.path / "scenario.yaml").open("a") as file:
        file.write("forgotten: 1\n")
    assert folder.setting_differences(validate(kuhn_scenario())) == ["forgotten: 1 -> None"]


def test_the_environment_names_versions_seed_threads_and_machine(resumed):
    written = json.loads((resumed.run / "environment.json").read_text())
    assert written["packages"]["torch"] == torch.__version__
    assert (written["seed"], written["threads"]) == (0, 1)
    assert {"command", "python", "machine", "accelerator"} < written.keys()
    assert describe_environment(marl.load(resumed.path / "scenario.yaml"))["packages"] == written["packages"]


def test_event_files_hold_the_rows_once_each_after_a_kill(resumed):
    assert len(list((resumed.run / "events").iterdir())) == 1
    events = EventAccumulator(str(resumed.run / "events"), size_guidance={"scalars": 0}).Reload()
    lines = [json.loads(line) for line in (resumed.run / "metrics.jsonl").read_text().splitlines()]
    names = {name for line in lines for name in line if name not in ("step", CRC)}
    assert set(events.Tags()["scalars"]) == names
    for name in names:
        held = [(line["step"], torch.tensor(line[name]).item()) for line in lines if name in line]
        assert [(event.step, event.value) for event in events.Scalars(name)] == held


def test_every_row_is_whole_and_each_step_has_one(resumed):
    assert [json.loads(line)["step"] for line in metric_lines(resumed.run)] == list(range(9))


def test_a_checkpoints_policy_loads_with_transformers(resumed):
    folder = resumed.run / "checkpoints" / "000008" / "policies" / "actor"
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    assert AutoTokenizer.from_pretrained(folder).chat_template
    state = load_file(folder.parents[1] / "state" / "state.safetensors")
    for name, tensor in model.named_parameters():
        assert torch.equal(tensor, state[f"/learners/actor/model/{name}"])


def test_a_pipe_gets_plain_lines(resumed):
    said = resumed.take_output()
    assert "\x1b" not in said
    assert "step 0/8  eval/nashconv" in said
    assert "going on from step 3" in said
    assert f"run folder: {resumed.run}" in said


def test_a_terminal_gets_a_live_table_that_begins_with_the_run_and_is_put_away(resumed):
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120)
    watch = console_monitor(console, 8, "demo")
    assert screen.getvalue() == "", "a run that cannot begin leaves the terminal as it was"
    watch.begin(RunFolder(resumed.run))
    watch.log_metrics(8, {"eval/nashconv": 0.125})
    watch.close()
    assert "eval/nashconv" in screen.getvalue()
    assert "0.125" in screen.getvalue()
    assert screen.getvalue().rstrip().endswith("\x1b[?25h"), "the cursor is back"


def test_a_tracker_of_a_resumed_run_gets_the_whole_curve(resumed, monkeypatch):
    got: list[tuple[int, dict[str, float]]] = []
    library = SimpleNamespace(
        init=lambda **settings: SimpleNamespace(**settings),
        log=lambda metrics, step: got.append((step, metrics)),
        finish=lambda: got.append((-1, {})),
    )
    monkeypatch.setitem(sys.modules, "trackio", library)
    tracker = ExperimentTracker("trackio")
    tracker.begin(RunFolder(resumed.run))
    tracker.log_metrics(9, {"a": 1.0})
    tracker.close()
    assert [step for step, _ in got] == [*range(9), 9, -1]
    assert "step" not in got[3][1]


def trained(scenario: dict[str, Any], folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The weights that each policy speaks with, before and after."""
    home = RunFolder(folder / "run")
    checked = validate(yaml.safe_load(yaml.safe_dump(scenario)))
    home.create(checked)
    run: Any = build(checked)

    def weights() -> dict[str, Any]:
        engines: dict[str, Any] = dict(run.simulator.engines)
        return {name: {k: v.clone() for k, v in e.network.model.state_dict().items()} for name, e in engines.items()}

    before = weights()
    assert TrainingLoop(run, home, [])(StopRequest())
    return before, weights()


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_a_frozen_policy_keeps_its_weights_bit_by_bit_while_the_other_learns(tmp_path, monkeypatch):
    monkeypatch.setenv("MARL_CACHE", str(tmp_path))
    before, after = trained(two_policy_scenario(learner=None), tmp_path)
    assert same(before["right"], after["right"])
    assert not same(before["left"], after["left"])


def test_two_policies_learn_apart(tmp_path, monkeypatch):
    monkeypatch.setenv("MARL_CACHE", str(tmp_path))
    before, after = trained(two_policy_scenario(), tmp_path)
    assert not same(before["left"], before["right"])
    for name in ("left", "right"):
        assert not same(before[name], after[name])
    assert not same(after["left"], after["right"])


@pytest.mark.slow
def test_two_processes_with_hash_seeds_of_their_own_give_the_same_rows(resumed, tmp_path):
    environment = os.environ | {"MARL_CACHE": str(resumed.path / "cache"), "PYTHONHASHSEED": "12345"}
    command = [sys.executable, "-m", "marl", "train", str(resumed.path / "scenario.yaml"), "--out", str(tmp_path)]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    assert metric_lines(tmp_path) == metric_lines(resumed.run)
