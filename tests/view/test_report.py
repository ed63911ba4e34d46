"""What a run says when it ends."""

import json
from pathlib import Path
from typing import Any

import pytest

from marl.protocols import LearnerConfig
from marl.runs import checkpoint
from marl.runs.checkpoint import CheckpointMetadata, CheckpointRetention
from marl.runs.run_folder import RunFolder
from marl.scenario.schema import EvaluationSettings
from marl.trainers.distillation.options import TeacherTerm
from marl.trainers.imitation.options import SampleSelection
from marl.trainers.imitation.settings import Sft
from marl.trainers.optim.settings import KlAnchor
from marl.trainers.policy_gradient.settings import Awr, Grpo, Ppo
from marl.view.closing_report import closing_report
from marl.view.page.run_json import summarize_run


def folder(path: Path, curve: dict[int, float], steps: int, mass: float = 1.0) -> RunFolder:
    rows = [
        {"step": s, **({"eval/nashconv": curve[s], "eval/legal_mass": mass} if s in curve else {})}
        for s in range(steps + 1)
    ]
    (path / "scenario.yaml").write_text("{}\n")
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return RunFolder(path)


def test_the_end_is_the_mean_of_the_last_tenth(tmp_path: Path) -> None:
    report = closing_report(folder(tmp_path, {0: 1.0, 85: 0.9, 90: 0.3, 95: 0.2, 100: 0.1}, 100), is_finished=True)
    assert "NashConv 1.000 -> 0.200 (legal mass 1.000)" in report


def test_a_run_that_was_stopped_after_its_last_measurement_says_that_one(tmp_path: Path) -> None:
    report = closing_report(folder(tmp_path, {0: 1.0, 60: 0.5}, 100), is_finished=False)
    assert "stopped at step 100" in report
    assert "NashConv 1.000 -> 0.500" in report


def test_an_interrupted_run_says_at_which_step_its_figures_were_last_measured(tmp_path: Path) -> None:
    report = closing_report(folder(tmp_path, {0: 1.0, 60: 0.5}, 100), is_finished=False)
    assert "NashConv 1.000 -> 0.500 at step 60" in report


def test_a_figure_that_was_measured_once_is_no_result_and_no_best(tmp_path: Path) -> None:
    home = folder(tmp_path, {0: 0.917}, 3)
    report = closing_report(
        home, is_finished=False, evaluation_settings=EvaluationSettings(nashconv=True, keep_best="eval/nashconv")
    )
    assert "NashConv 0.917 at step 0, measured once: nothing to compare it with" in report
    assert "->" not in report
    assert "best" not in report
    assert "█" not in report


def test_a_run_that_was_stopped_names_the_checkpoint_that_there_is(tmp_path: Path) -> None:
    home = folder(tmp_path, {}, 5)
    report = closing_report(home, False)
    assert f"stopped at step 5, before the first checkpoint: `{home.resume_command}` begins anew" in report
    checkpoint.write_checkpoint(
        home.checkpoints, CheckpointMetadata(3, 10), {}, lambda path: path.mkdir(parents=True), CheckpointRetention(1)
    )
    assert "stopped at step 5; go on from checkpoint 000003 (the steps after it are done again)" in closing_report(
        home, False
    )
    home.metrics_file.write_text("")
    assert "stopped before the first step\n" in closing_report(home, False)


def test_a_figure_with_little_legal_mass_does_not_count(tmp_path: Path) -> None:
    report = closing_report(folder(tmp_path, {0: 1.0, 10: 0.1}, 10, mass=0.9), is_finished=True)
    assert "NashConv 1.000 -> 0.100 (legal mass 0.900: below 0.98 the figure does not count)" in report
    # Neither the last tenth of the steps nor a second evaluation is needed to say so.
    report = closing_report(folder(tmp_path, {0: 1.0, 60: 0.5}, 100, mass=0.9), is_finished=False)
    assert "NashConv 1.000 -> 0.500 at step 60 (legal mass 0.900: below 0.98 the figure does not count)" in report
    report = closing_report(folder(tmp_path, {0: 1.0}, 3, mass=0.9), is_finished=False)
    note = "(legal mass 0.900: below 0.98 the figure does not count)"
    assert f"NashConv 1.000 at step 0, measured once: nothing to compare it with {note}" in report


def test_only_the_figures_of_the_game_with_little_legal_mass_do_not_count(tmp_path: Path) -> None:
    row = {"eval/kuhn/nashconv": 0.5, "eval/kuhn/legal_mass": 0.9, "eval/nim/optimal": 0.5, "eval/nim/legal_mass": 1.0}
    lines = closing_report(written(tmp_path, row, row), is_finished=True).splitlines()
    assert "kuhn: NashConv 0.500 -> 0.500 (legal mass 0.900: below 0.98 the figure does not count)" in lines
    assert "nim: Probability of an optimal move 0.500 -> 0.500 (legal mass 1.000)" in lines


def test_the_lowest_of_several_legal_masses_decides(tmp_path: Path) -> None:
    home = folder(tmp_path, {0: 1.0, 95: 0.2}, 99)
    with home.metrics_file.open("a") as file:
        file.write(json.dumps({"step": 100, "eval/nashconv": 0.2, "eval/legal_mass": 0.97}) + "\n")
    note = "(legal mass 0.985, at the lowest 0.970: below 0.98 the figure does not count)"
    assert f"NashConv 1.000 -> 0.200 {note}" in closing_report(home, is_finished=True)


def written(path: Path, *rows: dict[str, Any]) -> RunFolder:
    (path / "metrics.jsonl").write_text("".join(json.dumps({"step": s} | row) + "\n" for s, row in enumerate(rows)))
    return RunFolder(path)


def held_out(success: float, low: float, high: float) -> dict[str, float]:
    name = "eval/held_out/success"
    return {name: success, f"{name}_low": low, f"{name}_high": high, "eval/held_out/episodes": 6.0}


def test_measures_on_held_out_starts_are_drawn_and_told_with_their_last_interval(tmp_path: Path) -> None:
    report = closing_report(written(tmp_path, held_out(0.25, 0.2, 0.3), {}, held_out(0.75, 0.7, 0.8)), is_finished=True)
    assert "success on held-out starts 0.250 -> 0.750 (95 % interval of the last evaluation [0.700, 0.800])" in report
    assert "success on held-out starts, by step\n   0.750 ┤" in report
    assert "█" in report
    assert "episodes" not in report


def test_each_role_that_a_model_speaks_for_is_told_of_before_and_after(tmp_path: Path) -> None:
    first = {"role/critic/reward/correct": 0.5, "role/critic/illegal": 0.1, "role/critic/entropy": 0.7}
    rows = [{}, first | {"role/verifier/tokens": 0.0}, {}, first | {"role/critic/illegal": 0.0}]
    report = closing_report(written(tmp_path, *rows), is_finished=True)
    assert "role critic: paid for correct 0.5 -> 0.5, illegal moves 0.1 -> 0, entropy 0.7 -> 0.7" in report
    assert "verifier" not in report


def test_the_best_evaluation_is_named_with_its_checkpoint(tmp_path: Path) -> None:
    folder = written(tmp_path, held_out(0.2, 0, 1), held_out(0.9, 0, 1), held_out(0.5, 0, 1))
    best = EvaluationSettings(held_out=6, keep_best="success", patience=1)
    assert "best eval/held_out/success 0.900 at step 1: its checkpoint is not kept" in closing_report(
        folder, True, best
    )
    (tmp_path / "checkpoints" / "000001").mkdir(parents=True)
    report = closing_report(folder, True, best)
    assert f"at step 1: {tmp_path}/checkpoints/000001" in report
    assert "stopped early: eval/held_out/success has not improved on 0.9 (step 1) for 1 evaluations" in report


def test_alarms_are_listed_with_the_steps_in_which_they_held(tmp_path: Path) -> None:
    name = "alarm/critic/constant"
    report = closing_report(written(tmp_path, {}, {name: 1.0}, {name: 1.0}, {name: 0.0}, {}), is_finished=True)
    assert "ALARM role critic: constant, in 2 steps from 1 to 2\n" in report
    last = closing_report(written(tmp_path, {}, {name: 0.0}, {name: 1.0}), is_finished=True)
    assert "ALARM role critic: constant, in step 2, to the end\n" in last
    assert last.splitlines()[-1].startswith("WARNING alarms held to the end, so this run has probably not learned")
    assert not report.splitlines()[-1].startswith("WARNING")


def credited(**figures: float) -> dict[str, float]:
    return {f"credit/solver/{name}": value for name, value in figures.items()}


def test_each_role_that_is_judged_is_told_of_with_how_sound_its_credit_was(tmp_path: Path) -> None:
    early = credited(zero=0.9, conservation=9.0, purity=1.0, stopping_bias_t=9.0)
    late = credited(zero=0.25, conservation=1.0, purity=1.0, stopping_bias_t=-0.5)
    report = closing_report(written(tmp_path, {}, *[early] * 10, late, late), is_finished=True)
    assert "credit of role solver: 25% of its turns got advantage 0 and taught nothing\n" in report
    assert "WARNING" not in report


def test_nothing_is_told_of_credit_from_which_no_role_learns(tmp_path: Path) -> None:
    home = written(tmp_path, {}, credited(zero=0.25, conservation=2.0))
    assert "WARNING role solver: its credit is 2 times its reward" in closing_report(home, is_finished=True)
    assert "role solver" not in closing_report(home, is_finished=True, credited_roles={"critic": Grpo()})
    assert len(summarize_run(home, EvaluationSettings())["warnings"]) == 1
    assert not summarize_run(home, EvaluationSettings(), credited_roles=["critic"])["warnings"]
    assert "credit of role solver" in closing_report(home, is_finished=True, credited_roles={"solver": Grpo()})


@pytest.mark.parametrize(
    ("learner", "ending"),
    [
        (Grpo(reference=KlAnchor(coefficient=0)), "taught nothing"),
        (Grpo(distill=TeacherTerm(teacher="t"), magnet=KlAnchor(coefficient=1)), "taught only through distill, magnet"),
        (Ppo(entropy=0.01), "taught only through entropy, critic"),
        (Awr(), "taught only through loss, critic"),
        (Sft(keep=SampleSelection(best=1, by="earned")), "taught only through sft"),
    ],
)
def test_turns_of_advantage_0_are_not_said_to_teach_nothing_where_other_terms_teach_them(
    tmp_path: Path, learner: LearnerConfig, ending: str
) -> None:
    home = written(tmp_path, {}, credited(zero=0.5))
    report = closing_report(home, is_finished=True, credited_roles={"solver": learner})
    assert f"credit of role solver: 50% of its turns got advantage 0 and {ending}\n" in report


def test_a_role_without_turns_of_advantage_0_is_not_told_of_what_they_taught(tmp_path: Path) -> None:
    report = closing_report(written(tmp_path, {}, credited(zero=0.0)), is_finished=True)
    assert "credit of role solver: none of its turns got advantage 0\n" in report


def test_figures_that_were_never_told_are_left_out(tmp_path: Path) -> None:
    report = closing_report(written(tmp_path, {}, credited(zero=0.5)), is_finished=True)
    assert "credit of role solver: 50% of its turns got advantage 0 and taught nothing\n" in report


def test_unlike_turns_that_were_compared_are_a_warning_even_if_only_once(tmp_path: Path) -> None:
    pure = credited(zero=0.0, purity=1.0)
    report = closing_report(written(tmp_path, {}, pure, credited(zero=0.0, purity=0.5), pure), is_finished=True)
    assert "WARNING role solver: purity 0.5 in the worst step: turns were compared that do not have in common" in report


@pytest.mark.parametrize(("t", "word"), [(4.5, "more"), (-30.0, "less")])
def test_credit_that_pays_for_going_on_is_a_warning(tmp_path: Path, t: float, word: str) -> None:
    report = closing_report(written(tmp_path, {}, credited(zero=0.0, stopping_bias_t=t)), is_finished=True)
    assert f"WARNING role solver: stopping bias t {t:.3g}: of two turns that earned the same" in report
    assert f"the agent went on is credited {word}\n" in report


def test_a_student_is_reported_with_its_divergence_from_its_teacher(tmp_path: Path) -> None:
    name = "policy/actor/kl_teacher"
    report = closing_report(written(tmp_path, {}, {name: 0.5}, {name: 0.25}, {name: 0.0125}), is_finished=True)
    assert "policy actor: divergence from its teacher 0.5 -> 0.0125 nats a token" in report
    assert "nats a token" in closing_report(written(tmp_path, {}, {name: 0.5}), is_finished=True)
