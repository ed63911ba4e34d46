"""Play on starts that training never deals, the best checkpoint by it, and when to stop."""

import json
import shutil
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import yaml
from scipy import stats

from marl.core.statistics import confidence_interval
from marl.core.types import EpisodeMeasuresAndNewStarts, Request
from marl.evaluation.evaluate import Evaluator
from marl.evaluation.held_out import summarize_episodes
from marl.metrics.trajectory_metrics import summarize_trajectories
from marl.roles.answering import PlayerRole
from marl.runs.best_checkpoint import BestEvaluationTracker
from marl.runs.run_folder import RunFolder
from marl.scenario.load import ScenarioError, validate
from marl.scenario.schema import EvaluationSettings, Scenario
from marl.training.restore import best_checkpoint_step
from marl.view.closing_report import closing_report
from tests.support.evaluated_runs import evaluate_run
from tests.support.handmade_episodes import make_episode
from tests.support.run_processes import RunWorkspace, SignalTrigger, contents, metric_lines, outcome, train_to_end
from tests.support.small_games import FunctionEngine, make_simulator, random_move
from tests.support.solver_critic_game import (
    SEATS,
    Quiz,
    RecordingMonitor,
    policies,
    quiz_scenario,
    train_in_process,
    train_until_crash,
)


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, made: Path) -> None:
    monkeypatch.setenv("MARL_CACHE", str(made))


def evaluate(**more: Any) -> dict[str, Any]:
    return quiz_scenario()["evaluate"] | more


def checked(**more: Any) -> Scenario:
    return validate(yaml.safe_load(yaml.safe_dump(quiz_scenario(**more))))


def lines(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in metric_lines(folder)]


# --- figures ---------------------------------------------------------------------------------------------------------


def measured(name: str, **measures: float) -> Any:
    trajectory = make_episode(name, "a")
    trajectory.findings = EpisodeMeasuresAndNewStarts(measures)
    return trajectory


def test_a_measure_is_the_mean_over_the_episodes_that_have_it() -> None:
    played = [measured("0", success=1.0, rounds=3.0), measured("1", success=0.0), measured("2", success=1.0)]
    metrics = summarize_trajectories(played)
    assert metrics["episode/measure/success"] == pytest.approx(2 / 3)
    assert metrics["episode/measure/rounds"] == 3.0


def test_yes_or_no_has_wilsons_interval_and_other_figures_the_normal_one() -> None:
    rates = [1.0, 0.0, 1.0, 1.0]
    wilson = stats.binomtest(3, 4).proportion_ci(method="wilson")
    assert confidence_interval(rates) == pytest.approx((wilson.low, 0.75, wilson.high))
    values = [0.5, 1.0, 3.5, 2.0]
    low, high = stats.norm.interval(0.95, fmean(values), stats.sem(values))
    assert confidence_interval(values) == pytest.approx((low, fmean(values), high))


def test_a_figure_of_one_episode_has_no_interval() -> None:
    figures = summarize_episodes([measured("0", rounds=3.0)])
    assert (figures["rounds"], figures["episodes"]) == (3.0, 1.0)
    assert "rounds_low" not in figures


def test_the_same_starts_are_played_with_the_same_seeds_every_time_and_again_greedily() -> None:
    requests: list[Request] = []
    voice = FunctionEngine(lambda request: (requests.append(request), random_move(request))[1])
    setting = checked(evaluate=evaluate(greedy=True))
    laid = make_simulator(
        Quiz(), {"solver": voice, "critic": voice}, **{seat: PlayerRole(policy=seat) for seat in SEATS}
    )
    evaluator = Evaluator(setting, laid)
    first, again = evaluator(0), evaluator(2)
    assert first == again
    assert requests[: len(requests) // 2] == requests[len(requests) // 2 :]
    assert {request.state.split()[1] for request in requests} == {"12", "13", "14", "15", "16", "17"}
    assert {request.sampling.temperature for request in requests} == {0.0, 1.0}
    assert (first["eval/held_out/episodes"], first["eval/held_out_greedy/episodes"]) == (6.0, 6.0)
    assert [t.id for t in evaluator.held_out_episodes] == [f"held_out.{i}" for i in range(6)]
    assert {turn.request.sampling.temperature for t in evaluator.held_out_episodes for turn in t.turns} == {1.0}
    assert {"eval/held_out/return/solver", "eval/held_out/role/critic/illegal"} < first.keys()
    assert laid.tokens == {"eval": 2 * len(requests)}


def test_without_held_out_starts_no_episodes_of_an_evaluation_are_kept() -> None:
    assert Evaluator(checked(evaluate={}), make_simulator(Quiz(), FunctionEngine(random_move))).held_out_episodes == []


def test_evaluation_changes_nothing_of_the_training(tmp_path: Path) -> None:
    assert train_in_process(tmp_path / "with", quiz_scenario(evaluate=evaluate(every=1, greedy=True)))
    assert train_in_process(tmp_path / "without", quiz_scenario(evaluate={}))
    weights = [contents(tmp_path / name, "checkpoints/000006/policies") for name in ("with", "without")]
    assert weights[0]
    assert weights[0] == weights[1]
    measured, plain = lines(tmp_path / "with"), lines(tmp_path / "without")
    for row in (*measured, *plain):
        row.pop("step/eval_tokens")
    assert [{k: v for k, v in row.items() if not k.startswith("eval/")} for row in measured] == plain


def test_tokens_of_evaluations_are_counted_by_themselves(tmp_path: Path) -> None:
    assert train_in_process(tmp_path, quiz_scenario())
    counted = [(row["step/tokens"], row["step/eval_tokens"]) for row in lines(tmp_path)]
    assert counted[0][0] == 0.0
    assert [later[0] > earlier[0] for earlier, later in pairwise(counted)] == [True] * 6
    grown = [later[1] > earlier[1] for earlier, later in pairwise(counted)]
    assert grown == [False, True] * 3, "every second step"


# --- the best one ----------------------------------------------------------------------------------------------------


def best(goal: str, *values: float, patience: int | None = None) -> BestEvaluationTracker:
    settings = EvaluationSettings.model_validate({"keep_best": "eval/x", "goal": goal, "patience": patience})
    return BestEvaluationTracker.from_rows(
        settings, [{"step": 10 * step, "eval/x": value} for step, value in enumerate(values)]
    )


def test_the_best_is_the_first_of_the_highest_or_of_the_lowest() -> None:
    assert best("max", 0.1, 0.5, 0.5, 0.2).step == 10
    assert best("min", 0.3, 0.5, 0.2, 0.2).step == 20
    assert best("max", float("nan"), 0.1, float("nan")).step == 10
    assert best("max").step is None


def test_it_is_given_up_when_so_many_evaluations_brought_nothing_better() -> None:
    assert not best("max", 0.1, 0.5, 0.4, 0.5, patience=3).out_of_patience
    assert best("max", 0.1, 0.5, 0.4, 0.5, 0.3, patience=3).out_of_patience
    assert not best("max", 0.1, 0.5, 0.4, 0.5, 0.6, patience=3).out_of_patience


def test_rows_without_an_evaluation_do_not_count() -> None:
    settings = EvaluationSettings.model_validate({"keep_best": "success", "patience": 1})
    found = BestEvaluationTracker.from_rows(
        settings, [{"step": 0, "eval/held_out/success": 0.5}, {"step": 1}, {"step": 2, "step/tokens": 3}]
    )
    assert (found.step, found.value, found.out_of_patience) == (0, 0.5, False)


# The critic learns to say yes, so it is best at the first evaluation that this is turned against.
EARLY = {"evaluate": evaluate(every=1, goal="min", keep_best="eval/held_out/return/critic", patience=3)}
EARLY |= {"schedule": quiz_scenario()["schedule"] | {"steps": 60}, "checkpoint": {"every": 1, "keep": 1}}


@pytest.mark.slow
def test_the_run_stops_when_nothing_gets_better_and_keeps_the_best_beside_the_latest(tmp_path: Path) -> None:
    voice = RecordingMonitor()
    assert train_in_process(tmp_path, quiz_scenario(**EARLY), voice), "it counts as finished"
    end, found = lines(tmp_path)[-1]["step"], best_step_of(tmp_path)
    assert end == found + 3 < 60
    kept = {path.name for path in (tmp_path / "checkpoints").iterdir()}
    assert kept == {f"{step:06d}" for step in (found, end) if step}
    assert voice.messages[-1].startswith("stopped early: eval/held_out/return/critic has not improved on")
    report = closing_report(RunFolder(tmp_path), True, checked(**EARLY).evaluate)
    assert f"at step {found}" in report
    assert voice.messages[-1] in report
    before = outcome(tmp_path)
    assert train_in_process(tmp_path, quiz_scenario(**EARLY), resume="auto")
    assert outcome(tmp_path) == before, "there is nothing left to do"


def best_step_of(folder: Path) -> int:
    step = BestEvaluationTracker.from_rows(checked(**EARLY).evaluate, lines(folder)).step
    assert step is not None
    return step


@pytest.mark.slow
def test_the_best_checkpoint_outlives_a_crash_and_later_ones(tmp_path: Path) -> None:
    changes = {"checkpoint": {"every": 2, "keep": 1}, "evaluate": evaluate(every=1, keep_best="eval/held_out/success")}
    assert train_in_process(tmp_path / "whole", quiz_scenario(**changes))
    for step in (2, 3, 5):
        train_until_crash(tmp_path / f"{step}", quiz_scenario(**changes), after=step)
        assert train_in_process(tmp_path / f"{step}", quiz_scenario(**changes), resume="auto")
        assert outcome(tmp_path / f"{step}") == outcome(tmp_path / "whole")


def test_a_run_that_goes_back_forgets_the_best_that_came_later(tmp_path: Path) -> None:
    changes = {"checkpoint": {"every": 1, "keep": 9}, "evaluate": evaluate(every=1)}
    assert train_in_process(tmp_path, quiz_scenario(**changes))
    before = outcome(tmp_path)
    assert train_in_process(tmp_path, quiz_scenario(**changes), resume=str(tmp_path / "checkpoints" / "000002"))
    for aside in (tmp_path / "checkpoints").glob("*.aside*"):
        shutil.rmtree(aside)
    assert outcome(tmp_path) == before


def test_the_best_checkpoint_can_be_measured(tmp_path: Path) -> None:
    figure = evaluate(every=1, keep_best="eval/held_out/return/critic")
    assert train_in_process(
        tmp_path, quiz_scenario(evaluate=figure, schedule=quiz_scenario()["schedule"] | {"steps": 12})
    )
    step = best_checkpoint_step(tmp_path)
    assert step > 0
    logged = lines(tmp_path)[step]
    again = evaluate_run(tmp_path, None, 6, step)
    for name in ("eval/held_out/success", "eval/held_out/return/critic", "eval/held_out/episodes"):
        assert again[name] == logged[name]


def test_a_run_without_a_best_says_so(tmp_path: Path) -> None:
    assert train_in_process(tmp_path, quiz_scenario(evaluate={}))
    with pytest.raises(ScenarioError, match=r"no best checkpoint: no evaluate\.keep_best was measured"):
        best_checkpoint_step(tmp_path)


def test_a_measure_that_the_game_does_not_have_ends_the_run_before_it_begins(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"evaluate.keep_best: no figure 'eval/held_out/succes'; did you mean .*success"
    ):
        train_in_process(tmp_path, quiz_scenario(evaluate=evaluate(keep_best="succes")))
    assert lines(tmp_path) == []


FIGURES = sorted(f"{seat}{figure}" for seat in ("", "critic/", "solver/") for figure in ("draw", "loss", "mean", "win"))
RANDOM = ", ".join(f"eval/random/{figure}" for figure in FIGURES)
WRONG = {
    "held_out: 7": "evaluate.held_out: 7, but game 'tests.support.solver_critic_game:Quiz' holds 6 starts "
    "out of training",
    "held_out: null": "evaluate.keep_best: nothing measures 'eval/held_out/success'; nothing is evaluated; give "
    "evaluate.held_out",
    "{held_out: null, keep_best: null, greedy: true}": "evaluate.greedy: true, but nothing is held out to be played "
    "so; give evaluate.held_out",
    "{keep_best: null, patience: 2}": "evaluate.patience: 2, but nothing says what is best; give evaluate.keep_best",
    "keep_best: eval/held_out_greedy/success": "evaluate.keep_best: nothing measures 'eval/held_out_greedy/success'; "
    "did you mean 'eval/held_out/...'? choices: eval/held_out/...",
    "keep_best: policy/solver/loss": "evaluate.keep_best: nothing measures 'policy/solver/loss'; choices: "
    "eval/held_out/...",
    "{keep_best: eval/nash/mean, against: {random: 3}}": "evaluate.keep_best: nothing measures 'eval/nash/mean'; "
    "did you mean 'eval/random/mean' or 'eval/random/solver/mean' or 'eval/random/critic/mean'? choices: "
    f"eval/held_out/..., {RANDOM}",
}


@pytest.mark.parametrize(("change", "message"), [*WRONG.items()], ids=[*WRONG])
def test_what_cannot_be_measured_is_named(change: str, message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        checked(evaluate=evaluate(**yaml.safe_load(change)))
    assert str(caught.value).split("\n  ")[1:] == [message]


def test_a_game_that_holds_nothing_out_is_named() -> None:
    role = {"kind": "player", "policy": "solver"}
    seats = {"player_0": "solver", "player_1": "solver"}
    only = {"solver": policies()["solver"]}
    scenario = quiz_scenario(game={"kind": "nim"}, roles={"solver": role}, seats=seats, policies=only)
    with pytest.raises(ScenarioError, match=r"evaluate\.held_out: 6, but game 'nim' holds no starts out of training"):
        validate(scenario, "mine.yaml")


# --- killed ----------------------------------------------------------------------------------------------------------

KILLS = [
    SignalTrigger("call", "HeldOutEvaluator.__call__", 2),
    SignalTrigger("open", "metrics.jsonl", 5),
    SignalTrigger("open", "manifest.json", 2),
    SignalTrigger("os.rename", "checkpoints/.", 2),
    SignalTrigger("call", "prune_checkpoints", 2),
    SignalTrigger("os.rename", "checkpoints/0", 1),
    SignalTrigger("shutil.rmtree", ".old", 1),
    SignalTrigger("call", "UpdateSchedule.__call__", 3),
    SignalTrigger("call", "BestEvaluationTracker.update", 4),
]


@pytest.mark.slow
def test_a_run_with_everything_killed_again_and_again_is_the_run_that_was_not(tmp_path: Path) -> None:
    learners = policies(solver={"update_every": 2}, critic={"alternate": {"period": 3, "start": 1, "steps": 2}})
    alarms = {"turns": 1, "patience": 2, "constant": 0.5, "stop": []}
    changes = {"policies": learners, "alarms": alarms, "checkpoint": {"every": 3, "keep": 1}}
    scenario = quiz_scenario(**changes, evaluate=evaluate(every=1, keep_best="eval/held_out/return/critic", patience=5))
    whole = train_to_end(tmp_path / "whole", scenario | {"schedule": quiz_scenario()["schedule"] | {"steps": 9}})
    for number, kill in enumerate(KILLS):
        desk = RunWorkspace(tmp_path / f"{number}", whole.scenario)
        desk.path.mkdir()
        (desk.path / "cache").symlink_to(whole.path / "cache")
        assert desk.train(kill=kill) == -9, (kill, desk.take_output())
        assert desk.train("--resume", "auto") == 0, desk.take_output()
        assert outcome(desk.run) == outcome(whole.run), kill
