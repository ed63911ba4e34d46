"""Beginning, going on, stopping."""

import json
import shutil
import signal
import threading

import pytest

import marl
from marl.scenario.load import ScenarioError
from tests.support.run_processes import RunWorkspace, SignalTrigger, anchored_scenario, contents, metric_lines, outcome


@pytest.fixture
def done(whole: RunWorkspace, desk: RunWorkspace) -> RunWorkspace:
    """A copy of the whole run."""
    shutil.copytree(whole.run, desk.run)
    return desk


def longer(desk: RunWorkspace) -> dict[str, object]:
    return desk.scenario["schedule"] | {"steps": 10, "groups": 4}


@pytest.mark.one_in(3)
def test_ctrl_c_while_weights_are_loaded_stops_at_once(desk):
    assert desk.train(kill=SignalTrigger("call", "load_model", 1, (signal.SIGINT,))) == 130
    assert "Traceback" not in desk.take_output()


@pytest.mark.one_in(3)
def test_ctrl_c_while_a_model_is_taught_leaves_no_half_taught_model(tmp_path):
    desk = RunWorkspace(tmp_path, anchored_scenario())
    assert desk.train(kill=SignalTrigger("call", "Optimizer.clip_gradients", 5, (signal.SIGINT,))) == 130
    assert "Traceback" not in desk.take_output()
    assert [p for p in (tmp_path / "cache" / "tiny").iterdir() if "-" in p.name] == []
    assert desk.train() == 0


def test_a_run_in_the_way_is_neither_continued_nor_removed_unasked(done):
    before = outcome(done.run)
    assert done.train() == 2
    said = done.take_output()
    assert str(done.run) in said
    assert all(option in said for option in ("--resume auto", "--overwrite", "--out"))
    assert outcome(done.run) == before


@pytest.mark.one_in(3)
def test_overwrite_starts_over_and_removes_only_what_is_the_runs(done):
    before = outcome(done.run)
    (done.run / "notes.txt").write_text("mine")
    (done.run / "metrics.jsonl").write_text("old\n")
    assert done.train("--overwrite") == 0
    assert outcome(done.run) == before
    assert (done.run / "notes.txt").read_text() == "mine"


def test_resume_and_overwrite_together_are_refused(done):
    before = outcome(done.run)
    assert done.train("--overwrite", "--resume", "auto") == 2
    assert "give one of them" in done.take_output()
    assert outcome(done.run) == before


def test_a_complete_run_is_left_as_it_is_and_says_so(done):
    before = contents(done.run, "checkpoints", "trajectories"), (done.run / "metrics.jsonl").read_bytes()
    assert done.train("--resume", "auto") == 0
    assert "complete at step 8: nothing to do" in done.take_output()
    after = contents(done.run, "checkpoints", "trajectories"), (done.run / "metrics.jsonl").read_bytes()
    assert after == before


@pytest.mark.one_in(3)
def test_a_changed_scenario_is_refused_field_by_field_unless_forced(done):
    before = outcome(done.run)
    assert done.train("--resume", "auto", schedule=longer(done)) == 2
    said = done.take_output()
    assert "schedule.groups: 8 -> 4" in said
    assert "schedule.steps: 8 -> 10" in said
    assert said.count("->") == 2
    assert outcome(done.run) == before
    assert done.train("--resume", "auto", "--force", schedule=longer(done)) == 0
    assert len(metric_lines(done.run)) == 11
    assert marl.load(done.run / "scenario.yaml").schedule.groups == 4


@pytest.mark.one_in(3)
def test_resume_from_a_checkpoint_of_choice_takes_newer_ones_out_of_the_way(whole, desk):
    assert desk.train(kill=SignalTrigger("call", "prune_checkpoints", 2)) == -9
    assert desk.train("--resume", str(desk.run / "checkpoints" / "000003")) == 0
    assert "going on from step 3" in desk.take_output()
    assert metric_lines(desk.run) == metric_lines(whole.run)
    assert (desk.run / "checkpoints" / "000006.aside1" / "manifest.json").is_file()


@pytest.mark.parametrize(
    ("where", "status", "message"),
    [
        ("latest", 2, "give 'auto', or a checkpoint of this run"),
        ("/tmp/other/checkpoints/000006", 2, "give 'auto', or a checkpoint of this run"),
        ("000007", 1, "there is none of this name; checkpoints: 000006, 000008"),
    ],
)
def test_resume_from_what_is_no_checkpoint_of_the_run_is_refused(where, status, message, done):
    assert done.train("--resume", where) == status
    assert message in done.take_output()


@pytest.mark.one_in(3)
def test_resume_auto_in_an_empty_folder_begins(whole, desk):
    assert desk.train("--resume", "auto") == 0
    assert outcome(desk.run) == outcome(whole.run)


def test_resume_of_a_checkpoint_in_an_empty_folder_is_refused(desk):
    assert desk.train("--resume", "000003") == 2
    assert f"--resume 000003: no run in {desk.run}" in desk.take_output()
    assert not desk.run.exists()


def test_the_callback_gets_every_row_once_also_in_another_thread(whole, tmp_path, monkeypatch):
    monkeypatch.setenv("MARL_CACHE", str(whole.path / "cache"))
    got: list[tuple[int, list[str]]] = []
    scenario = marl.load(whole.path / "scenario.yaml", ["schedule.steps=3"])

    def work() -> None:
        assert marl.train(scenario, tmp_path / "run", on_step=lambda step, metrics: got.append((step, list(metrics))))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [(row["step"], [k for k in row if k not in ("step", "crc32")]) for row in lines] == got
    with pytest.raises(ScenarioError, match="holds a run"):
        marl.train(scenario, tmp_path / "run")
