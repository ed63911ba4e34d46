"""`marl eval suite`: a bare model's folder, a run and a scenario on several tasks and games, and two compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import marl
from marl.commands.eval.suite import read_suite, suite_player
from marl.evaluation.suite import Suite
from marl.evaluation.suite_play import EpisodeScoresOfProblem, paired_gain_metrics, suite_metrics
from marl.models.tiny import Tiny
from marl.models.tiny_build import build_tiny_model
from marl.runs.run_folder import RunFolder
from marl.scenario.load import ScenarioError
from tests.support.paths import SCENARIOS
from tests.support.run_processes import RunWorkspace

SUITE = SCENARIOS / "suites" / "arithmetic.yaml"
TEAM = SCENARIOS / "team_arithmetic.yaml"
TWO = SCENARIOS / "two_games.yaml"
MIXED = """
tests:
  sums: {task: {kind: arithmetic, numbers: [10, 49], train: 10, held_out: 6}, grader: numeric}
  kuhn: {game: kuhn_poker, against: nash}
problems: 6
samples: 4
sampling: {max_tokens: 5}
"""
PERFECT = """
game: nim
seats: {player_0: player, player_1: player}
roles: {player: {kind: player, policy: perfect}}
policies: {perfect: {engine: perfect_nim}}
schedule: {steps: 1, groups: 1, group_size: 1}
"""


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, whole: RunWorkspace) -> None:
    monkeypatch.setenv("MARL_CACHE", str(whole.path / "cache"))


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder that nobody trains: random weights, a byte tokenizer."""
    folder = tmp_path_factory.mktemp("bare") / "model"
    build_tiny_model(Tiny(hidden=16, layers=1, vocabulary="bytes"), folder, ())
    return folder


def written(folder: Path, text: str, name: str = "suite.yaml") -> Path:
    file = folder / name
    file.write_text(text)
    return file


def figures(said: str) -> dict[str, list[float]]:
    """Name -> value and bounds, as printed."""
    lines = [line.replace("[", " ").replace("]", " ").replace(",", " ").split() for line in said.splitlines()]
    return {name: [float(n) for n in numbers] for name, *numbers in lines if name.startswith(("eval/", "gain/"))}


def test_any_models_folder_takes_tasks_and_games_without_a_learner(run: Any, bare: Path, tmp_path: Path) -> None:
    suite, out = written(tmp_path, MIXED), tmp_path / "before.json"
    status, said, complaint = run("eval", "suite", suite, bare, "--out", out)
    assert (status, complaint) == (0, "")
    measured = figures(said)
    # Random bytes name no move: the refusal of Kuhn's seat costs a bet, and no sum is right.
    assert measured["eval/kuhn/mean"][0] < 0
    assert measured["eval/sums/pass@4"][0] == 0
    assert measured["eval/kuhn/unreadable"][0] == measured["eval/sums/unreadable"][0] == 1
    assert measured["eval/sums/maj@4"][0] == 0
    assert "eval/kuhn/maj@4" not in measured, "a game between several has no answer to vote for"
    answers = json.loads(out.read_text(), parse_constant=pytest.fail)["answers"]
    assert [len(problem["scores"]) for problem in answers["kuhn"]] == [4] * 6
    status, said, _ = run("eval", "suite", suite, bare, "--against", out)
    gains = {name: bounds for name, bounds in figures(said).items() if name.startswith("gain/")}
    assert {*map(tuple, gains.values())} == {(0.0, 0.0, 0.0)}, "the same problems and seeds give the same answers"
    status, _, complaint = run("eval", "suite", written(tmp_path, MIXED + "seed: 1\n"), bare, "--against", out)
    assert (status, complaint) == (2, f"marl: --against {out}: measured on another suite: seed: 0 -> 1\n")


def test_a_run_is_compared_with_the_scenario_that_it_began_from(run: Any, whole: RunWorkspace, tmp_path: Path) -> None:
    suite = written(tmp_path, "{tests: {own: {}, nash: {against: nash}}, problems: 20, samples: 4}")
    status, said, _ = run("eval", "suite", suite, whole.run, "--against", whole.path / "scenario.yaml")
    assert status == 0
    last, first = figures(said), figures(run("eval", "suite", suite, whole.path / "scenario.yaml")[1])
    assert last["eval/own/mean"][0] == pytest.approx(0), "in self-play a zero-sum game pays nothing"
    for name in ("nash/mean", "nash/pass@1", "nash/tokens"):
        gain, *bounds = last[f"gain/{name}"]
        assert gain == pytest.approx(last[f"eval/{name}"][0] - first[f"eval/{name}"][0], abs=2e-4)
        assert bounds[0] <= gain <= bounds[1]
    checkpoint = RunFolder(whole.run).verified_policies_folder(RunFolder(whole.run).latest_checkpoint()[0]) / "actor"
    told = written(tmp_path, "{tests: {kuhn: {game: kuhn_poker, roles: {player: {kind: player, policy: measured}}}}}")
    for target in (whole.run, checkpoint):
        found = suite_player(str(target), read_suite(told)).play_suite(Suite.model_validate(read_suite(told)))
        assert len(found["kuhn"]) == 100


def test_scripted_players_need_neither_weights_nor_a_learner_and_win(run: Any, tmp_path: Path) -> None:
    suite = written(tmp_path, "{tests: {nim: {against: random}}, problems: 40, samples: 2}")
    status, said, complaint = run("eval", "suite", suite, written(tmp_path, PERFECT, "perfect.yaml"))
    assert (status, complaint) == (0, "")
    mean, low, _ = figures(said)["eval/nim/mean"]
    assert mean > low > 0.5, "it loses only from the few starts that are lost"


def test_two_are_compared_problem_by_problem() -> None:
    suite = Suite.model_validate({"tests": {"t": {"task": "arithmetic"}}, "samples": 2, "k": [1, 2]})
    hard = [EpisodeScoresOfProblem(f"{i}", (0.0, float(i % 2)), answers=("a", "b"), tokens=(3, 5)) for i in range(50)]
    easy = [EpisodeScoresOfProblem(f"{i}", (1.0, float(i % 2)), answers=("a", "b"), tokens=(3, 5)) for i in range(50)]
    assert suite_metrics(suite, {"t": hard})["eval/t/pass@1"] == 0.25
    assert suite_metrics(suite, {"t": hard})["eval/t/pass@2"] == 0.5
    assert (
        suite_metrics(suite, {"t": hard})["eval/t/maj@2"] == 0.25
    )  # a tie of two, one of which is right half the time
    gains = paired_gain_metrics(suite, {"t": hard}, {"t": easy})
    # Every problem gains the same half, so that there is no doubt, although problems differ.
    assert [gains[f"gain/t/mean{end}"] for end in ("", "_low", "_high")] == [0.5, 0.5, 0.5]
    assert gains["gain/t/pass@2_low"] < 0.5 < gains["gain/t/pass@2_high"]
    with pytest.raises(ScenarioError, match="not the same problems: 50 before and 44 after, 44 of them in common"):
        paired_gain_metrics(suite, {"t": hard}, {"t": easy[6:]})


def test_a_problem_without_an_episode_on_one_side_is_left_out_and_shifts_no_other() -> None:
    suite = Suite.model_validate({"tests": {"t": {"task": "arithmetic"}}, "samples": 1, "k": [1]})
    before = [EpisodeScoresOfProblem(f"{i % 45}", (float(i % 2),)) for i in range(50)]
    after = [EpisodeScoresOfProblem(f"{i % 45}", (i % 2 + 0.25,)) for i in range(50)]
    gains = paired_gain_metrics(suite, {"t": before[:10] + before[11:]}, {"t": after[:21] + after[22:]})
    # By position, problem 11 before would be compared with problem 10 after.
    assert [gains[f"gain/t/mean{end}"] for end in ("", "_low", "_high")] == pytest.approx([0.25] * 3)


def test_the_shipped_suite_fits_the_team_and_any_model(bare: Path) -> None:
    suite = read_suite(SUITE)
    for target, answering in ((TEAM, "critic"), (bare, "solver")):
        tests = {test.name: test for test in suite_player(str(target), suite).assign_policies_to_tests(suite)}
        assert {test.answering_role for test in tests.values()} == {answering}
        assert all(not policy.learner for test in tests.values() for policy in test.scenario.policies.values())
    held_out = tests["two_digits"].scenario.game.held_out_reset_options(1000)
    assert len(held_out) == 1000


def test_the_suite_of_transfer_has_a_test_for_every_game_of_spiral_trained_on_or_not() -> None:
    suite, spiral = read_suite(SCENARIOS / "suites" / "transfer.yaml"), SCENARIOS / "spiral.yaml"
    tests = suite_player(str(spiral), suite).assign_policies_to_tests(suite)
    games = marl.load(spiral).games
    assert {test.name: test.scenario.game for test in tests} == {name: played.game for name, played in games.items()}
    assert [name for name, played in games.items() if not played.weight] == ["nim", "sums", "puzzles"]


def test_of_several_games_each_test_takes_the_one_that_it_names_or_fits() -> None:
    suite, measured = read_suite(SCENARIOS / "suites" / "small_games.yaml"), suite_player(str(TWO), read_suite(SUITE))
    tables = {test.name: test for test in measured.assign_policies_to_tests(suite)}
    games = {name: (table.scenario.game.kind, table.test.against) for name, table in tables.items()}
    assert games == {
        "nim": ("nim", "random"),
        "nim_minimax": ("nim", "minimax"),
        "kuhn": ("kuhn_poker", "random"),
        "kuhn_nash": ("kuhn_poker", "nash"),
    }
    assert {*tables["nim"].scenario.seats.values()} == {"player"}
    [own] = measured.assign_policies_to_tests(Suite.model_validate({"tests": {"kuhn": {}}}))
    assert own.scenario.game.model_dump()["illegal"]["penalty"] == 3, "the game as the scenario has it"
    with pytest.raises(ScenarioError, match=r"tests\.sums: .*several games \(kuhn, nim\), of which none fit the test"):
        measured.assign_policies_to_tests(
            suite.model_copy(update={"tests": {"sums": read_suite(SUITE).tests["two_digits"]}})
        )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{tests: {}}", "tests: must have at least 1, has 0"),
        (
            "{tests: {a: {task: arithmetic, game: nim}}}",
            "tests.a.task: 'arithmetic' beside game: 'nim'; give one of them",
        ),
        ("{tests: {a: {tsk: arithmetic}}}", "tests.a.tsk: unknown field 'tsk'; did you mean 'task'"),
        ("{tests: {a: {task: arithmetic}}, samples: 2, k: [4]}", "k: 4 of samples: 2; choices: 1 to 2"),
        ("{tests: {a: {task: arithmetic}}, sampling: {temperature: 0}}", "samples: 8 at sampling.temperature: 0"),
        (
            "{tests: {a: {game: nim, against: nsh}}}",
            "tests.a.against: game 'nim' has no 'nsh'; choices: minimax, random",
        ),
        (
            "{tests: {a: {task: arithmetic, measure: sucess}}}",
            "tests.a.measure: game 'team' has no 'sucess'; did you mean",
        ),
        (
            "{tests: {a: {task: arithmetic, answer: [judge]}}}",
            "tests.a.answer: game 'team' has no 'judge'; choices: grader",
        ),
        ("{tests: {a: {}}}", "tests.a: a bare model has no game of its own; give the test a task or a game"),
        ("{tests: {a: {task: {kind: file, path: no.csv}}}}", "no.csv"),
        ("{tests: {a: {game: nim, seats: {player_0: x}}}}", "tests.a.seats: have no effect without a game and roles"),
    ],
)
def test_a_faulty_suite_is_refused_by_field_value_and_choices(
    bare: Path, tmp_path: Path, text: str, problem: str
) -> None:
    def played() -> None:
        suite = read_suite(written(tmp_path, text))
        suite_player(str(bare), suite).play_suite(suite)

    with pytest.raises(ScenarioError) as caught:
        played()
    assert problem in str(caught.value)


def test_who_cannot_take_a_suite_is_refused_before_anything_is_loaded(run: Any, bare: Path, tmp_path: Path) -> None:
    suite = written(tmp_path, MIXED)
    refused = {
        (SCENARIOS / "nim_self_play.yaml",): "tests.sums.task: game 'nim' of what is measured has no task",
        (bare, "--step", 3): "--step 3 names a checkpoint, and",
        (bare, "--episodes", 3): "No such option: --episodes",
        (bare, "model.dtyp=float32"): "policies.measured.model.dtyp: unknown field 'dtyp'; did you mean 'dtype'",
        (tmp_path / "nobody",): "no run, no scenario, and neither a model's folder",
        (bare, "--against", suite.with_suffix(".json")): "not figures of a suite, as",
    }
    for arguments, problem in refused.items():
        status, _, complaint = run("eval", "suite", suite, *arguments)
        assert (status, problem in complaint) == (2, True), complaint
    told = written(tmp_path, "{tests: {a: {task: arithmetic, roles: {solver: {kind: solver, policy: measured}}}}}")
    status, _, complaint = run("eval", "suite", told, TEAM)
    assert (status, "several policies; say which one is measured; choices: critic, planner, solver" in complaint) == (
        2,
        True,
    )
