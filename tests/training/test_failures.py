"""What goes wrong in the middle of a run, or before it: a clear end, and nothing lost."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.run_processes import RunWorkspace, contents, kuhn_scenario, metric_lines, train_to_end

FRAGILE = {"kind": "tests.support.failing_games:FailingKuhnConfig", "share": 0.05}
RICH = {"kind": "tests.support.failing_games:Rich"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunWorkspace:
    return train_to_end(tmp_path_factory.mktemp("whole"), kuhn_scenario())


@pytest.fixture
def desk(whole: RunWorkspace, tmp_path: Path) -> RunWorkspace:
    """The same scenario with a model that exists: making one would play the game, too."""
    policies = {"actor": whole.scenario["policies"]["actor"] | {"model": str(trained(whole))}}
    return RunWorkspace(tmp_path, whole.scenario | {"policies": policies, "evaluate": {"every": 4, "nashconv": True}})


def trained(whole: RunWorkspace) -> Path:
    return whole.run / "checkpoints" / "000008" / "policies" / "actor"


def schedule(**changes: Any) -> dict[str, Any]:
    return kuhn_scenario()["schedule"] | changes


def steps(desk: RunWorkspace) -> list[str]:
    return sorted(path.name for path in (desk.run / "checkpoints").iterdir())


def row(desk: RunWorkspace, name: str) -> list[float]:
    """One metric, step by step."""
    return [json.loads(line)[name] for line in metric_lines(desk.run) if name in line]


def test_a_game_that_raises_ends_the_run_after_a_checkpoint_and_is_named(desk):
    assert desk.train(game=FRAGILE) == 1
    said = desk.take_output()
    assert re.search(r"marl: game FailingKuhn raised ZeroDivisionError: the pot has gone", said)
    assert re.search(r"episode '?[\d.]+'?, seed \d+.*actions \[.*'bet'\]", said)
    assert "Traceback" not in said
    done = len(metric_lines(desk.run)) - 1
    assert done > 0, "or this test shows nothing"
    assert steps(desk)[-1] == f"{done:06d}"


@pytest.mark.one_in(3)
def test_going_on_after_a_game_that_raised_counts_the_failed_step_once(desk):
    assert desk.train(game=FRAGILE) == 1
    first, before = re.sub(r"time/.*", "", desk.take_output().splitlines()[-1]), metric_lines(desk.run)
    assert desk.train("--resume", "auto", game=FRAGILE) == 1
    assert desk.take_output().splitlines()[-1] == first, "the same error again"
    assert metric_lines(desk.run) == before
    dropping = schedule(on_error="drop")
    assert desk.train("--resume", "auto", "--force", game=FRAGILE, schedule=dropping) == 0
    forced = metric_lines(desk.run)
    assert desk.train("--overwrite", game=FRAGILE, schedule=dropping) == 0
    assert metric_lines(desk.run) == forced


def test_episodes_of_a_game_that_raises_are_dropped_and_counted_if_asked_for(desk):
    assert desk.train(game=FRAGILE, schedule=schedule(on_error="drop")) == 0
    dropped, played = row(desk, "episode/dropped"), row(desk, "episode/count")
    assert sum(dropped) > 0
    assert [d + p for d, p in zip(dropped, played, strict=True)] == [32.0] * 8


def test_a_game_that_exits_ends_the_run_with_an_error_and_a_checkpoint(desk):
    assert desk.train(game=FRAGILE | {"exits": True}) == 1
    assert "marl: game FailingKuhn raised SystemExit: 0" in desk.take_output()
    assert steps(desk)


def test_episodes_of_evaluations_are_dropped_too(desk):
    evaluate = {"every": 4, "against": {"random": 200}}
    assert desk.train(game=FRAGILE, schedule=schedule(on_error="drop"), evaluate=evaluate) == 0
    played = row(desk, "eval/random/episodes")
    assert played
    assert all(0 < episodes < 200 for episodes in played)


def test_a_run_ends_when_too_many_episodes_were_dropped(desk):
    game = FRAGILE | {"share": 0.2}
    assert desk.train(game=game, schedule=schedule(on_error="drop", max_drops=10)) == 1
    said = desk.take_output()
    assert "10 episodes were dropped before this one (schedule.max_drops)" in said
    assert "the pot has gone" in said


def test_an_evaluation_that_fails_keeps_its_steps_row_and_a_checkpoint(desk):
    game, evaluate = {"kind": "tests.support.failing_games:SlowKuhnConfig"}, {"every": 5, "against": {"random": 40}}
    assert desk.train(game=game, evaluate=evaluate) == 1
    lines = [json.loads(line) for line in metric_lines(desk.run)]
    assert "the pot has gone" in desk.take_output()
    assert "eval/random/mean" in lines[0]
    assert "eval/random/mean" not in lines[-1]
    assert [line["step"] for line in lines] == list(range(6))
    assert steps(desk) == ["000003", "000005"]


def test_an_alarm_of_a_step_whose_evaluation_failed_ends_the_run_once_it_goes_on(desk):
    game, evaluate = {"kind": "tests.support.failing_games:SlowKuhnConfig"}, {"every": 5, "against": {"random": 40}}
    # A share of at least 0 holds in each step, so that the alarm is raised in step 5.
    alarms = {"patience": 5, "turns": 1, "unreadable": 0.0, "stop": ["unreadable"]}
    assert desk.train(game=game, evaluate=evaluate, alarms=alarms) == 1
    assert "ALARM role player" not in desk.take_output()
    assert desk.train("--resume", "auto", "--force", evaluate=evaluate, alarms=alarms) == 1
    assert "stopped after step 5, with a checkpoint (alarms.stop): ALARM role player" in desk.take_output()
    assert desk.train("--resume", "auto", "--force", evaluate=evaluate, alarms=alarms) == 0
    lines = [json.loads(line) for line in metric_lines(desk.run)]
    assert [line["step"] for line in lines] == list(range(9))
    assert "eval/random/mean" in lines[5]


def refusing(desk: RunWorkspace, times: int) -> dict[str, Any]:
    """Policies whose engine fails to load the weights of step 5, which is the time of no checkpoint."""
    engine = {"kind": "tests.support.failing_engines:RefusingEngineConfig", "version": 5, "times": times}
    return {"actor": desk.scenario["policies"]["actor"] | {"engine": engine}}


@pytest.mark.one_in(3)
def test_an_engine_that_fails_once_to_take_new_weights_gets_them_again_and_the_run_is_the_same(desk):
    assert desk.train(policies=refusing(desk, 0)) == 0
    undisturbed = metric_lines(desk.run), contents(desk.run, "trajectories", "credit")
    assert desk.train("--overwrite", policies=refusing(desk, 1)) == 0
    assert "the step is kept (checkpoint 000005), and its weights are sent again" in desk.take_output()
    assert (metric_lines(desk.run), contents(desk.run, "trajectories", "credit")) == undisturbed


@pytest.mark.one_in(3)
def test_a_finished_update_whose_weights_no_engine_takes_is_saved_before_the_run_ends(desk):
    assert desk.train(policies=refusing(desk, 0)) == 0
    undisturbed = metric_lines(desk.run), contents(desk.run, "trajectories", "credit")
    assert desk.train("--overwrite", policies=refusing(desk, 9)) == 1
    said = desk.take_output()
    assert "the engine of policy 'actor' has died" in said
    assert "The steps done are kept: checkpoint 000005" in said
    assert steps(desk) == ["000003", "000005"]
    assert desk.train("--resume", "auto", "--force", policies=refusing(desk, 0)) == 0
    assert (metric_lines(desk.run), contents(desk.run, "trajectories", "credit")) == undisturbed


@pytest.mark.parametrize("std", [True, False])
@pytest.mark.one_in(3)
def test_an_infinite_reward_is_named_kept_and_repeated(std, desk):
    credit = {"baseline": {"kind": "group", "std": std}}
    assert desk.train(game=RICH, credit=credit) == 1
    said = desk.take_output()
    assert "Traceback" not in said
    blame = r"marl: policy 'actor': the loss is not finite at episode '[\d.]+', turn \d \(role 'player'\)"
    found = re.search(blame, said)
    assert found, said
    kept = re.search(r"marl rerun (\S+)", said)
    assert kept
    before = contents(desk.run, "checkpoints"), (desk.run / "metrics.jsonl").read_bytes()
    assert ended_again(desk, kept[1]) == found[0]
    assert (contents(desk.run, "checkpoints"), (desk.run / "metrics.jsonl").read_bytes()) == before


def ended_again(desk: RunWorkspace, kept: str) -> str:
    process = desk.start("rerun", kept)
    process.join(60)
    assert process.exitcode == 1
    return desk.take_output().splitlines()[0][: len("marl: ") + 400].split(";")[0]


def test_weights_that_explode_in_the_middle_of_an_update_are_caught_and_the_rest_of_it_repeats(desk):
    learner = {"kind": "grpo", "lr": 1e30, "minibatches": 3}
    policies = {"actor": desk.scenario["policies"]["actor"] | {"learner": learner}}
    assert desk.train(policies=policies) == 1
    said = desk.take_output()
    found = re.search(r"marl: policy 'actor': the (loss|gradient) is not finite at episode .*", said)
    assert found, said
    kept = re.search(r"marl rerun (\S+)", said)
    assert kept
    state = json.loads((Path(kept[1]) / "learner" / "state.json").read_text())
    assert state["minibatch"] > 0, "an earlier minibatch had been learnt from"
    assert "To try: lower policies.actor.learner.lr (now 1e+30) or policies.actor.learner.max_norm (now 1), " in said
    assert ended_again(desk, kept[1]) == found[0].split(";")[0]


@pytest.mark.one_in(3)
def test_an_update_that_fails_right_after_a_resume_suspects_the_checkpoint_unless_it_failed_before(desk):
    settings: dict[str, Any] = {"game": RICH, "checkpoint": {"every": 1, "keep": 1}}
    assert desk.train(**settings) == 1
    assert "To try: their advantages are not finite, so mend the reward or the credit rule" in desk.take_output()
    done = len(metric_lines(desk.run)) - 1
    assert steps(desk) == [f"{done:06d}"], "the newest one before the failure, as without it"
    assert desk.train("--resume", "auto", **settings) == 1
    suspicion = f"This was the first update after going on from checkpoint {done:06d}. If it went well before, that"
    assert suspicion not in desk.take_output()
    shutil.rmtree(desk.run / "failed")
    assert desk.train("--resume", "auto", **settings) == 1
    assert suspicion in desk.take_output()


@pytest.mark.parametrize("in_torch", [True, False])
@pytest.mark.one_in(3)
def test_memory_that_is_used_up_in_play_leaves_the_steps_done_and_says_what_to_lower(in_torch, desk):
    experience = {"kind": "tests.support.out_of_memory_plugins:HungryPlay", "torch": in_torch}
    assert desk.train(experience=experience) == 1
    said = desk.take_output()
    assert "Traceback" not in said
    assert "marl: out of memory (stage: play): lower policies.actor.engine.slots (now 256), " in said
    assert "roles.player.sampling.max_tokens (now 6)" in said
    assert "The steps done are kept: checkpoint 000003; to go on from it: marl train " in said
    assert len(said.splitlines()[-1]) < 600
    assert steps(desk)[-1] == "000003"


def hungry(minibatches: int, after: int) -> dict[str, Any]:
    """A learner that runs out of memory in the minibatch after `after`."""
    loss = {"kind": "tests.support.out_of_memory_plugins:HungryLoss", "after": after}
    return {"kind": "grpo", "lr": 3e-3, "minibatches": minibatches, "loss": loss}


def test_memory_that_is_used_up_before_an_update_has_changed_anything_leaves_the_steps_done(desk):
    policies = {"actor": desk.scenario["policies"]["actor"] | {"learner": hungry(minibatches=1, after=2)}}
    assert desk.train(policies=policies) == 1
    said = desk.take_output()
    assert "out of memory (stage: learn): lower policies.actor.learner.micro_tokens (now 32768), " in said
    assert "or set gradient_checkpointing: true" in said
    assert "The steps done are kept: checkpoint 000002" in said
    assert len(metric_lines(desk.run)) == 3


def test_memory_that_is_used_up_in_the_middle_of_an_update_leaves_no_checkpoint_of_half_a_step(desk):
    policies = {"actor": desk.scenario["policies"]["actor"] | {"learner": hungry(minibatches=2, after=5)}}
    assert desk.train(policies=policies, checkpoint={"every": 1}) == 1
    said = desk.take_output()
    assert "Step 3 was broken off in the middle of its update; to go on from: checkpoint 000002" in said
    assert steps(desk) == ["000001", "000002"]


@pytest.mark.one_in(3)
def test_credit_that_raises_leaves_the_steps_done_as_they_were_before_it_had_judged_the_next(desk, whole):
    told = desk.path / "told"
    scenario = {
        "seats": {"player_0": "left", "player_1": "right"},
        "roles": dict.fromkeys(("left", "right"), desk.scenario["roles"]["player"]),
        "credit": {
            "baseline": {"kind": "role_average"},  # has judged one role when the other's rule raises
            "roles": {"right": {"assign": {"kind": "tests.support.failing_credit:Fussy", "file": str(told)}}},
        },
    }
    told.touch()
    assert desk.train(**scenario) == 0, desk.take_output()
    undisturbed = metric_lines(desk.run)
    told.unlink()
    assert desk.train("--overwrite", **scenario) == 1
    assert "nobody has told me who deserves this" in (said := desk.take_output())
    assert "The steps done are kept: checkpoint 000003" in said
    told.touch()
    assert desk.train("--resume", "auto", **scenario) == 0
    assert metric_lines(desk.run) == undisturbed


def test_rerun_of_what_is_no_kept_batch_is_an_error(desk):
    process = desk.start("rerun", str(desk.path))
    process.join(60)
    assert process.exitcode == 2
    assert "no kept batch here" in desk.take_output()


@pytest.fixture
def model(whole: RunWorkspace, tmp_path: Path) -> Path:
    """A good model folder."""
    return Path(shutil.copytree(trained(whole), tmp_path / "model"))


def refused(desk: RunWorkspace, model: Path) -> str:
    policies = {"actor": {"model": str(model), "learner": {"kind": "grpo"}}}
    assert desk.train(policies=policies) == 2
    assert not (desk.run / "metrics.jsonl").exists() or metric_lines(desk.run) == []
    said = desk.take_output()
    assert "Traceback" not in said
    assert "actor" in said
    assert repr(str(model)) in said
    return said


def test_a_model_folder_without_tokenizer_is_refused(desk, model):
    for file in model.glob("tokenizer*"):
        file.unlink()
    assert "has no tokenizer" in refused(desk, model)


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json"])
def test_a_model_folder_with_a_broken_file_is_refused(name, desk, model):
    (model / name).write_text("{")
    refused(desk, model)


def test_a_model_folder_with_weights_cut_off_is_refused(desk, model):
    file = model / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    assert "was it cut off?" in refused(desk, model)


def test_a_model_folder_that_is_not_there_is_refused_and_mending_the_path_is_enough(desk, model):
    assert "there is no such folder" in refused(desk, desk.path / "nowhere")
    policies = {"actor": {"model": str(model), "learner": {"kind": "grpo"}}}
    assert desk.train(policies=policies) == 0, "the refused run is not in the way"


@pytest.mark.parametrize("tracker", ["wandb", "mlflow", "trackio"])
def test_a_tracker_that_is_not_installed_is_an_error_before_anything_is_made(tracker, desk):
    if shutil.which(tracker):
        pytest.skip(f"{tracker} is installed")
    assert desk.train(track=[tracker]) == 2
    assert f"track: '{tracker}' is not installed; pip install 'marl-llm[tracking]'" in desk.take_output()
    assert not desk.run.exists()
