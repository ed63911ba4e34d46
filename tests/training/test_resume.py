"""A run that is killed and resumed is the run that was not: the same numbers to the last digit, the same bits."""

import json
import random
import shutil
from pathlib import Path

import pytest

from tests.support.run_processes import (
    RunWorkspace,
    SignalTrigger,
    anchored_scenario,
    contents,
    exit_status,
    metric_lines,
    outcome,
    train_to_end,
    two_policy_scenario,
)

SCENARIOS = {"anchored": anchored_scenario, "duel": two_policy_scenario}

WRITING = [
    SignalTrigger("open", "metrics.jsonl", 3),
    SignalTrigger("open", "metrics.jsonl", 6),
    SignalTrigger("open", "jsonl.zst.part", 2),
    SignalTrigger("os.rename", "jsonl.zst.part", 2),
    SignalTrigger("open", "credit", 3),
    SignalTrigger("open", "state/state.json", 1),
    SignalTrigger("open", "policies", 2),
    SignalTrigger("open", "manifest.json", 1),
    SignalTrigger("os.rename", "checkpoints/.", 1),
    SignalTrigger("call", "prune_checkpoints", 2),
    SignalTrigger("os.rename", "checkpoints/0", 1),
    SignalTrigger("shutil.rmtree", ".old", 1),
    SignalTrigger("open", "events", 1),
]
LEARNING = [
    SignalTrigger("call", "Episode.play_agent_answer", 20),
    SignalTrigger("call", "Episode.play_agent_answer", 150),
    SignalTrigger("call", "collect_samples", 3),
    SignalTrigger("call", "Optimizer.clip_gradients", 2),
    SignalTrigger("call", "Optimizer.clip_gradients", 15),
    SignalTrigger("call", "Run.publish", 4),
    SignalTrigger("call", "play_match", 2),
]
BUILDING = [
    SignalTrigger("tempfile.mkdtemp", "", 1),
    SignalTrigger("open", "tokenizer", 1),
    SignalTrigger("open", "random.jsonl.zst", 1),
    SignalTrigger("call", "Optimizer.clip_gradients", 12),
    SignalTrigger("call", "move_into_place", 1),
]
RESUMING = [
    SignalTrigger("call", "rename_checkpoints_after", 1),
    SignalTrigger("os.truncate", "metrics.jsonl", 1),
    SignalTrigger("call", "PolicySnapshots.remove_versions_after_step", 1),
    SignalTrigger("call", "GradientLearner.load_state_dict", 1),
    SignalTrigger("shutil.rmtree", "events", 1),
]


def resumed_to_the_end(desk: RunWorkspace) -> None:
    assert desk.train("--resume", "auto") == 0, desk.take_output()


def killed_by(desk: RunWorkspace, kill: SignalTrigger, whole: RunWorkspace) -> bool:
    """Go on until `kill` strikes; a run that it finds complete is compared, and begun anew."""
    status = desk.train("--resume", "auto", kill=kill)
    if status == 0:
        assert outcome(desk.run) == outcome(whole.run)
        status = desk.train("--overwrite", kill=kill)
    return status == -9


@pytest.fixture(scope="module", params=["duel", pytest.param("anchored", marks=pytest.mark.slow)])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RunWorkspace:
    """A run that nothing happened to."""
    return train_to_end(tmp_path_factory.mktemp(request.param), SCENARIOS[request.param]())


@pytest.fixture
def desk(whole: RunWorkspace, tmp_path: Path) -> RunWorkspace:
    """The same scenario and the same made models, to be trained once more."""
    (tmp_path / "cache").symlink_to(whole.path / "cache")
    return RunWorkspace(tmp_path, whole.scenario)


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(WRITING, id="writing"),
        pytest.param(LEARNING, id="learning"),
        pytest.param(RESUMING, id="resuming"),
    ],
)
@pytest.mark.slow
@pytest.mark.one_in(2)
def test_a_run_killed_again_and_again_at_chosen_moments_is_the_run_that_was_not(kills, whole, desk):
    desk.train(kill=SignalTrigger("call", "CreditStage.__call__", 4))
    assert [kill for kill in kills if not killed_by(desk, kill, whole)] == [], desk.take_output()
    resumed_to_the_end(desk)
    assert outcome(desk.run) == outcome(whole.run)


@pytest.mark.one_in(3)
def test_a_run_killed_at_random_moments_is_the_run_that_was_not(whole, desk):
    rng, kills = random.Random(len(metric_lines(whole.run))), 0
    while kills < 5:
        process = desk.start_training("--resume", "auto")
        process.join(rng.uniform(0.3, 1.2))
        process.kill()
        kills += exit_status(process) == -9
        if process.exitcode == 0:
            assert outcome(desk.run) == outcome(whole.run)
            shutil.rmtree(desk.run)
    resumed_to_the_end(desk)
    assert outcome(desk.run) == outcome(whole.run)


@pytest.mark.slow
def test_a_run_killed_while_its_model_is_made_is_the_run_that_was_not(whole, tmp_path):
    desk = RunWorkspace(tmp_path / "desk", whole.scenario)
    killed = [desk.train("--resume", "auto", kill=kill) for kill in BUILDING]
    assert killed == [-9] * len(BUILDING), desk.take_output()
    resumed_to_the_end(desk)
    assert outcome(desk.run) == outcome(whole.run)


@pytest.mark.one_in(3)
def test_the_same_scenario_twice_gives_the_same_rows_and_the_same_bits(whole, tmp_path):
    again = train_to_end(tmp_path / "again", whole.scenario)
    assert outcome(again.run) == outcome(whole.run)
    assert contents(whole.run, "checkpoints"), "there is something to compare"


@pytest.mark.one_in(3)
def test_half_a_row_that_a_killed_run_left_is_cut_off(whole, desk):
    assert desk.train(kill=SignalTrigger("call", "CreditStage.__call__", 6)) == -9
    with (desk.run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "episode/co')
    resumed_to_the_end(desk)
    assert metric_lines(desk.run) == metric_lines(whole.run)


@pytest.mark.one_in(3)
def test_a_runs_folder_stands_for_its_scenario_and_may_get_more_steps(desk: RunWorkspace) -> None:
    assert desk.train() == 0
    assert desk.take_output()
    run = str(desk.run)
    assert exit_status(desk.start("train", run)) == 2
    assert f"go on with it by `marl train {run} --resume auto`" in desk.take_output()
    steps = desk.scenario["schedule"]["steps"] + 1
    assert exit_status(desk.start("train", run, f"schedule.steps={steps}", "--resume", "auto")) == 0
    assert f"schedule.steps: {steps - 1} -> {steps}" in desk.take_output()
    assert [json.loads(line)["step"] for line in metric_lines(desk.run)] == list(range(steps + 1))
    assert exit_status(desk.start("train", run, "schedule.groups=9", "--resume", "auto")) == 2
    assert "was started with another scenario" in desk.take_output()
