"""`marl why`: the chain from rewards to a turn's advantage, from a run's folder alone."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import marl
from marl.core.graph import Trajectory
from marl.runs.run_folder import RunFolder
from marl.scenario.load import ScenarioError
from marl.view.credit_chain import describe_update_from_turn
from marl.view.credit_explanation import explain_advantage
from tests.support.small_team_scenarios import small_scenario

# One process makes the run that all share.
pytestmark = pytest.mark.xdist_group("why")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two steps of planner, solver and critic, of which every episode is recorded."""
    folder = tmp_path_factory.mktemp("why")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MARL_CACHE", str(folder / "cache"))
        assert marl.train(small_scenario("team_arithmetic", groups=2), folder / "run")
    return folder / "run"


def number(pattern: str, text: str) -> float:
    found = re.search(pattern, text)
    assert found, text
    return float(found.group(1))


def test_every_judged_turn_has_a_chain_whose_numbers_are_those_on_disk(run: Path) -> None:
    home = RunFolder(run)
    assert home.recorded_steps() == [1, 2]
    record = home.read_credit_of_step(2)
    for episode in record.episodes:
        for turn in episode.turns:
            text = explain_advantage(run, f"{turn.turn[0]}:{turn.turn[1]}")
            assert number(r"in all (\S+)", text) == pytest.approx(turn.pool_reward, abs=1e-3)
            assert number(r"gave this turn (\S+)", text) == pytest.approx(turn.assigned, abs=1e-3)
            assert number(r"= (\S+)\n", text) == pytest.approx(turn.advantage, abs=2e-3)
            paid = [reward.value for reward in episode.rewards if reward.agent == turn.agent]
            assert text.count(f" to {turn.agent} after turn ") == len(paid)
            assert "3 peers with the same start" in text


def test_a_reward_names_its_rule_its_turn_and_the_check_behind_it(run: Path) -> None:
    for episode in RunFolder(run).read_credit_of_step(1).episodes:
        reward = next((r for r in episode.rewards if (r.agent, r.name) == ("solver", "format")), None)
        if reward:
            text = explain_advantage(run, f"{episode.episode}:1")
            assert f"+{reward.value:.4g} format to solver after turn {reward.turn[1]}: 0.1 * own.readable" in text
            assert re.search(r"scored correct = [01] by verifier \(turn \d\)", text)
            return
    pytest.fail("no answer of the solver was readable in a whole step")


def test_the_turns_that_led_to_a_turn_and_those_that_it_led_to_are_named(run: Path) -> None:
    planner, solver = (explain_advantage(run, f"000001.0.0:{index}") for index in (0, 1))
    assert re.search(r"^later turns that it led to\n  1 of solver: heard", planner, re.MULTILINE)
    assert re.search(r"^earlier turns that led to it\n  0 of planner: heard", solver, re.MULTILINE)
    assert "earlier turns" not in planner


def test_a_turn_that_is_not_judged_says_why(run: Path) -> None:
    text = explain_advantage(run, "000001.0.0:3")
    assert text.endswith("no credit: role 'verifier' answers by rule")


def test_held_out_episodes_are_written_before_and_after_training(run: Path) -> None:
    home = RunFolder(run)
    assert home.steps_with_held_out_episodes() == [0, 2]
    before, after = home.read_held_out_episodes(0), home.read_held_out_episodes(2)
    assert [episode.deal for episode in before] == [episode.deal for episode in after]
    assert len(after) == 4
    row = list(home.rows())[-1]
    assert row["eval/held_out/success"] == sum(episode.findings.measures["success"] for episode in after) / 4


def test_it_needs_no_model(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("checkpoints", "cache"))
    code = (
        "import sys; from marl.commands.cli import main; sys.argv[1:] = sys.argv[2:]\n"
        "try: main()\nfinally: assert not {'torch', 'transformers'} & sys.modules.keys()"
    )
    command = [sys.executable, "-c", code, "", "why", str(tmp_path), "000002.0.0:1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == explain_advantage(run, "000002.0.0:1").splitlines()[0]


def test_what_cannot_be_explained_is_named(run: Path, tmp_path: Path) -> None:
    refusals = {
        "000002.0.0": "write a turn as EPISODE:INDEX",
        "000010.0.0:1": r"no episode 000010.0.0 among the recorded steps \(1, 2\)",
        "000002.0.0:77": "episode 000002.0.0 has the turns 0 to 4",
    }
    for turn, message in refusals.items():
        with pytest.raises(ScenarioError, match=message):
            explain_advantage(run, turn)
    shutil.copytree(run, tmp_path / "older")
    shutil.rmtree(tmp_path / "older" / "credit")
    with pytest.raises(ScenarioError, match="step 2 was recorded without its credit record, by an older version"):
        explain_advantage(tmp_path / "older", "000002.0.0:1")


@pytest.mark.parametrize("turn", ["000002.0.0:²", "²:0", "000002.0.0:" + "9" * 400])
def test_odd_digits_are_no_index(turn: str, run: Path) -> None:
    with pytest.raises(ScenarioError, match=r"write a turn as EPISODE:INDEX|no episode|has the turns 0 to 4"):
        explain_advantage(run, turn)


@pytest.mark.parametrize(
    "said",
    ["{", '{"scores": 5}', '{"scores": {"a": "x"}}', '{"scores": {"a": null, "b": true}}', '{"a": ' * 50_000, "{]"],
)
def test_readers_that_say_anything_but_scores_have_none(said: str, run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    home = RunFolder(tmp_path / "run")
    episodes = home.load_trajectories(2)
    for trajectory in episodes:
        for place, turn in enumerate(trajectory.turns):
            if not turn.completion.token_ids:
                completion = replace(turn.completion, text=said)
                trajectory.turns[place] = replace(turn, completion=completion)
    home.record_trajectories(2, episodes)
    text = explain_advantage(home.path, f"{episodes[0].id}:0")
    assert "scored" not in text
    assert "assign" in text


def test_a_policy_is_said_to_be_updated_only_in_the_steps_of_its_update(run: Path) -> None:
    home = RunFolder(run)
    scenario, trajectory = home.scenario(), home.load_trajectory(2, 0)
    planner, solver = trajectory.turns[:2]
    metrics = {"step": 2, "policy/solver/samples": 24.0, "policy/planner/entropy": 1.2}
    remark = describe_update_from_turn(solver, trajectory, scenario, 2, metrics)
    assert remark == "policy solver was updated with it in step 2"
    remark = describe_update_from_turn(planner, trajectory, scenario, 2, metrics)
    assert remark == "policy planner was not updated in step 2"
    assert describe_update_from_turn(solver, trajectory, scenario, 2, {}) == ""


def test_no_policy_is_said_to_be_updated_with_turns_on_which_no_learner_trains(run: Path) -> None:
    home = RunFolder(run)
    scenario, trajectory, metrics = home.scenario(), home.load_trajectory(2, 0), {"policy/solver/samples": 24.0}
    solver = trajectory.turns[1]
    untrained = scenario.roles["solver"].model_copy(update={"trainable": False})
    frozen = scenario.policies["solver"].model_copy(update={"learner": None})
    opponent = Trajectory(replace(trajectory.deal, policies={"solver": "solver@7"}), trajectory.start)
    for changed, episode, reason in (
        (
            scenario.model_copy(update={"roles": {"solver": untrained}}),
            trajectory,
            "role 'solver' has trainable: false",
        ),
        (scenario.model_copy(update={"policies": {"solver": frozen}}), trajectory, "policy 'solver' has no learner"),
        (scenario, opponent, "role 'solver' was played by 'solver@7' instead of its own policy"),
    ):
        remark = describe_update_from_turn(solver, episode, changed, 2, metrics)
        assert remark == f"no learner trains on this turn: {reason}"
