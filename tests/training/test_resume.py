"""A run that is killed and resumed is the run that was not: the same numbers to the last digit, the same bits."""

import random
import shutil
from pathlib import Path

import pytest
from real_runs import Desk, Kill, anchored, contents, duel, ended, outcome, rows, train_whole

SCENARIOS = {"anchored": anchored, "duel": duel}

WRITING = [
    Kill("open", "metrics.jsonl", 3),
    Kill("open", "metrics.jsonl", 6),
    Kill("open", "jsonl.zst.part", 2),
    Kill("os.rename", "jsonl.zst.part", 2),
    Kill("open", "judgements", 3),
    Kill("open", "state/state.json", 1),
    Kill("open", "policies", 2),
    Kill("open", "manifest.json", 1),
    Kill("os.rename", "checkpoints/.", 1),
    Kill("call", "_prune", 2),
    Kill("os.rename", "checkpoints/0", 1),
    Kill("shutil.rmtree", ".old", 1),
    Kill("open", "events", 1),
]
LEARNING = [
    Kill("call", "Episode.answer", 20),
    Kill("call", "Episode.answer", 150),
    Kill("call", "collect", 3),
    Kill("call", "Optimizer.clip", 2),
    Kill("call", "Optimizer.clip", 15),
    Kill("call", "Run.publish", 4),
    Kill("call", "GameEvaluator._against", 2),
]
BUILDING = [
    Kill("tempfile.mkdtemp", "", 1),
    Kill("open", "tokenizer", 1),
    Kill("open", "random.jsonl.zst", 1),
    Kill("call", "Optimizer.clip", 12),
    Kill("call", "publish_folder", 1),
]
RESUMING = [
    Kill("call", "set_aside", 1),
    Kill("os.truncate", "metrics.jsonl", 1),
    Kill("call", "_remove_after", 1),
    Kill("call", "GradientLearner.load_state_dict", 1),
    Kill("shutil.rmtree", "events", 1),
]


def resumed_to_the_end(desk: Desk) -> None:
    assert desk.train("--resume", "auto") == 0, desk.said()


def killed_by(desk: Desk, kill: Kill, whole: Desk) -> bool:
    """Go on until `kill` strikes; a run that it finds complete is compared, and begun anew."""
    status = desk.train("--resume", "auto", kill=kill)
    if status == 0:
        assert outcome(desk.run) == outcome(whole.run)
        status = desk.train("--overwrite", kill=kill)
    return status == -9


@pytest.fixture(scope="module", params=SCENARIOS)
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Desk:
    """A run that nothing happened to."""
    return train_whole(tmp_path_factory.mktemp(request.param), SCENARIOS[request.param]())


@pytest.fixture
def desk(whole: Desk, tmp_path: Path) -> Desk:
    """The same scenario and the same made models, to be trained once more."""
    (tmp_path / "cache").symlink_to(whole.path / "cache")
    return Desk(tmp_path, whole.scenario)


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(WRITING, id="writing"),
        pytest.param(LEARNING, id="learning"),
        pytest.param(RESUMING, id="resuming"),
    ],
)
@pytest.mark.slow
def test_a_run_killed_again_and_again_at_chosen_moments_is_the_run_that_was_not(kills, whole, desk):
    desk.train(kill=Kill("call", "Judge.__call__", 4))
    assert [kill for kill in kills if not killed_by(desk, kill, whole)] == [], desk.said()
    resumed_to_the_end(desk)
    assert outcome(desk.run) == outcome(whole.run)


def test_a_run_killed_at_random_moments_is_the_run_that_was_not(whole, desk):
    rng, kills = random.Random(len(rows(whole.run))), 0
    while kills < 5:
        process = desk.begin("--resume", "auto")
        process.join(rng.uniform(0.3, 1.2))
        process.kill()
        kills += ended(process) == -9
        if process.exitcode == 0:
            assert outcome(desk.run) == outcome(whole.run)
            shutil.rmtree(desk.run)
    resumed_to_the_end(desk)
    assert outcome(desk.run) == outcome(whole.run)


@pytest.mark.slow
def test_a_run_killed_while_its_model_is_made_is_the_run_that_was_not(whole, tmp_path):
    desk = Desk(tmp_path / "desk", whole.scenario)
    killed = [desk.train("--resume", "auto", kill=kill) for kill in BUILDING]
    assert killed == [-9] * len(BUILDING), desk.said()
    resumed_to_the_end(desk)
    assert outcome(desk.run) == outcome(whole.run)


def test_the_same_scenario_twice_gives_the_same_rows_and_the_same_bits(whole, tmp_path):
    again = train_whole(tmp_path / "again", whole.scenario)
    assert outcome(again.run) == outcome(whole.run)
    assert contents(whole.run, "checkpoints"), "there is something to compare"


def test_half_a_row_that_a_killed_run_left_is_cut_off(whole, desk):
    assert desk.train(kill=Kill("call", "Judge.__call__", 6)) == -9
    with (desk.run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "episode/co')
    resumed_to_the_end(desk)
    assert rows(desk.run) == rows(whole.run)
