"""Teachers of distillation: what is refused before a weight is loaded, and a run with a teacher and two roles."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import marl
from marl.evaluation.dry_run import play_dry_run
from marl.evaluation.dry_run_findings import scenario_errors
from marl.memory.estimate import estimate_memory, measure_model_sizes_and_workloads
from marl.models.tiny import Tiny
from marl.models.tiny_build import make_tiny_tokenizer
from marl.rollout.simulator import RolloutSimulator
from marl.runs.run_folder import RunFolder
from marl.scenario.load import validate
from marl.training.build import build, check_teacher_vocabularies
from marl.training.loop import TrainingLoop

TINY: dict[str, Any] = {"kind": "tiny", "hidden": 16, "layers": 1, "vocabulary": "bytes"}


ROLES = {name: {"kind": "player", "policy": "student", "sampling": {"max_tokens": 6}} for name in ("first", "second")}


def data(learner: dict[str, Any], **policies: Any) -> dict[str, Any]:
    return {
        "game": {"kind": "nim"},
        "seats": {"player_0": "first", "player_1": "second"},
        "roles": ROLES,
        "policies": {
            "student": {"model": TINY, "learner": learner},
            "large": {"model": {**TINY, "seed": 1}},
            **policies,
        },
        "schedule": {"steps": 3, "groups": 1, "group_size": 1, "threads": 1},
        "evaluate": {"every": 100},
    }


def student(teacher: Any) -> dict[str, Any]:
    return {"kind": "distillation", "teacher": teacher, "lr": 0.01}


@pytest.mark.parametrize(
    ("learner", "policies", "message"),
    [
        (student("larg"), {}, r"student.learner.teacher: no policy 'larg'; did you mean 'large'"),
        (student("student"), {"large": None}, "teacher: 'student' would teach itself; name another policy"),
        (
            {"kind": "grpo", "distill": {"teacher": "peer"}},
            {"peer": {"model": TINY, "learner": {"kind": "sft"}}, "large": None},
            r"learner.distill.teacher: 'peer' has a learner \(sft\) and would change while it teaches",
        ),
        (
            student("rule"),
            {"rule": {"engine": {"kind": "random"}}},
            "teacher: engine 'random' of 'rule' has no weights whose probabilities could be read; frozen policies with "
            "a model: large",
        ),
        (student({"first": "large"}), {}, "teacher.second: missing; role 'second' trains this policy"),
        (
            student({"first": "large", "second": "large", "third": "large"}),
            {},
            "teacher.third: no role 'third' trains this policy; choices: first, second",
        ),
        ({"kind": "distillation"}, {}, "teacher"),
        (student("large"), {"idle": {"model": TINY}}, "policies.idle: no role speaks with this policy"),
    ],
)  # fmt: skip
def test_a_teacher_that_cannot_teach_is_refused_by_field_value_and_choices(learner, policies, message):
    given = data(learner, **policies)
    given["policies"] = {name: policy for name, policy in given["policies"].items() if policy}
    with pytest.raises(ValueError, match=message):
        validate(given)


def test_a_teacher_with_another_vocabulary_is_refused_before_weights_are_loaded(monkeypatch):
    monkeypatch.setattr("marl.models.weights.load_model", lambda _: pytest.fail("weights were loaded"))
    words = {**TINY, "vocabulary": "words", "words": ["alpha", "beta"]}
    settings = validate(data(student("large"), large={"model": words}))
    with pytest.raises(ValueError, match=r"student.learner.teacher: 'large' has another vocabulary .*the id of "):
        build(settings)


def test_a_teacher_with_another_vocabulary_is_refused_before_a_tiny_model_is_warmed_up(monkeypatch):
    monkeypatch.setattr("marl.training.build.warm_up", lambda *_, **__: pytest.fail("a model was warmed up"))
    words = {**TINY, "vocabulary": "words"}
    given = data(student("large"), large={"model": words | {"warm_up": {"steps": 1000}}})
    given["policies"]["student"]["model"] = TINY | {"warm_up": {"steps": 1000}}
    with pytest.raises(ValueError, match=r"student.learner.teacher: 'large' has another vocabulary"):
        build(validate(given))


@pytest.mark.parametrize("kind", ["distillation", "grpo"])
def test_a_top_k_that_leaves_out_no_token_is_refused_before_weights_are_loaded(monkeypatch, kind):
    monkeypatch.setattr("marl.models.weights.load_model", lambda _: pytest.fail("weights were loaded"))
    size = len(make_tiny_tokenizer("bytes"))

    def scenario(top_k: int) -> Any:
        teacher = {"teacher": "large", "top_k": top_k}
        learner = {"kind": kind} | (teacher if kind == "distillation" else {"distill": teacher})
        return validate(data(learner) | {"credit": {"baseline": {"kind": "none"}}})

    field = "top_k" if kind == "distillation" else "distill.top_k"
    message = f"policies.student.learner.{field}: {size} leaves out none of the vocabulary's {size} tokens"
    with pytest.raises(ValueError, match=re.escape(message)):
        check_teacher_vocabularies(scenario(size))
    check_teacher_vocabularies(scenario(size - 1))


def test_the_check_of_a_scenario_names_a_top_k_that_leaves_out_no_token():
    folder = str(Tiny(hidden=16, words=("alpha",)).cached_folder(()))
    given = data(student("large") | {"top_k": 5}, large={"model": {"kind": "pretrained", "path": folder}})
    given["policies"]["student"]["model"] = {"kind": "pretrained", "path": folder}
    [error] = [error for error in scenario_errors(play_dry_run(validate(given))) if "top_k" in error]
    assert error.startswith("policies.student.learner.top_k: 5 leaves out none of the vocabulary's 5 tokens, so it")


def test_the_check_of_a_scenario_names_a_teacher_with_another_vocabulary(tmp_path):
    words = validate(data(student("large"), large={"model": {**TINY, "vocabulary": "words"}}))
    [error] = [error for error in scenario_errors(play_dry_run(words)) if "vocabulary" in error]
    assert error.startswith("policies.student.learner.teacher: 'large' has a vocabulary of words, 'student' of bytes")
    folders: dict[str, str] = {}
    for name, texts in (("mine", ["alpha"]), ("other", ["alpha", "beta"])):
        folders[name] = str(Tiny(hidden=16, words=tuple(texts)).cached_folder(()))
    given = data(student("large"), large={"model": {"kind": "pretrained", "path": folders["other"]}})
    given["policies"]["student"]["model"] = {"kind": "pretrained", "path": folders["mine"]}
    [error] = [error for error in scenario_errors(play_dry_run(validate(given))) if "vocabulary" in error]
    assert "'large' has another vocabulary (6 tokens, 'student' has 5; the id of 'beta' is missing for" in error
    assert not [error for error in scenario_errors(play_dry_run(validate(data(student("large"))))) if "voc" in error]


def test_a_run_is_taught_by_a_policy_for_each_role_and_builds_no_engine_for_them(tmp_path):
    learner = {"kind": "distillation", "teacher": {"first": "large", "second": "other"}, "lr": 0.01}
    settings = validate(data(learner, other={"model": {**TINY, "seed": 2}}))
    simulator = build(settings).simulator
    assert isinstance(simulator, RolloutSimulator)
    assert simulator.engines.keys() == {"student"}
    marl.train(settings, tmp_path / "run")
    rows = list(RunFolder(tmp_path / "run").rows())
    divergences = [row["policy/student/kl_teacher"] for row in rows if "policy/student/kl_teacher" in row]
    assert len(divergences) == 3
    assert divergences[-1] < divergences[0]


def test_a_run_teaches_the_next_one(tmp_path):
    first = data({"kind": "grpo", "lr": 0.01})
    del first["policies"]["large"]
    first["schedule"] |= {"steps": 1, "group_size": 2}
    marl.train(validate(first), tmp_path / "first")
    model = {"kind": "trained", "run": str(tmp_path / "first"), "policy": "student"}
    settings = validate(data(student("large"), large={"model": model}))
    marl.train(settings, tmp_path / "second")
    last = list(RunFolder(tmp_path / "second").rows())[-1]
    assert last["policy/student/kl_teacher"] >= 0


def test_a_teacher_stays_the_same_if_its_run_trains_on_before_the_student_goes_on(tmp_path):
    first = data({**student("large"), "lr": 0.1})
    first["schedule"] |= {"steps": 1}
    marl.train(validate(first), tmp_path / "first")
    model = {"kind": "trained", "run": str(tmp_path / "first"), "policy": "student"}
    given = data(student("large"), large={"model": model}) | {"checkpoint": {"every": 1}}
    marl.train(validate(given), tmp_path / "whole")

    def interrupt_after_two_steps(step: int, _: object) -> None:
        if step == 2:
            raise KeyboardInterrupt

    assert not marl.train(validate(given), tmp_path / "parts", on_step=interrupt_after_two_steps)
    first["schedule"] |= {"steps": 3}
    marl.train(validate(first), tmp_path / "first", resume="auto")
    assert marl.train(validate(given), tmp_path / "parts", resume="auto")
    whole, parts = (RunFolder(tmp_path / run) for run in ("whole", "parts"))
    assert [row.get("policy/student/kl_teacher") for row in parts.rows()] == [
        row.get("policy/student/kl_teacher") for row in whole.rows()
    ]
    teacher = parts.scenario().policies["large"].model
    assert teacher is not None
    assert dict(teacher)["step"] == 1


def test_an_adapter_learns_from_another_adapter_on_the_same_base(tmp_path):
    base = {"kind": "adapter", "base": TINY, "rank": 2, "seed": 1}
    given = data(student("large"), large={"model": {**base, "alpha": 64.0}})
    given["policies"]["student"]["model"] = {**base, "seed": 0}
    run = build(validate(given))
    learner: Any = run.learners["student"]
    teacher = learner.objective._teachers._models[0]
    before = {name: tensor.clone() for name, tensor in teacher.state_dict().items()}
    TrainingLoop(run, RunFolder(tmp_path / "run"), []).step()
    assert all(torch.equal(before[name], tensor) for name, tensor in teacher.state_dict().items())
    assert learner.model.training
    assert not teacher.training


def test_the_memory_of_a_teacher_is_that_of_its_weights_without_an_engine():
    settings = validate(data(student("large")))
    estimate = estimate_memory(settings, measure_model_sizes_and_workloads(play_dry_run(settings)))
    contents = {(item.policies, item.content) for item in estimate.items if "large" in item.policies}
    assert contents == {(("student", "large"), "weights of a teacher")}
