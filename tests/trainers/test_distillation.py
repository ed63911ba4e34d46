"""Distillation: its divergences against TRL's GKD and by hand, and what a teacher changes in an update."""

from __future__ import annotations

from dataclasses import replace
from math import log
from typing import Any

import pytest
import torch

from marl.core.config import Sampling
from marl.trainers.distillation.options import TeacherTerm
from marl.trainers.distillation.settings import Distillation
from marl.trainers.distillation.teachers import generalized_jensen_shannon, teacher_divergence
from marl.trainers.imitation.settings import Sft
from marl.trainers.optim.settings import KlAnchor
from marl.trainers.policy_gradient.settings import Grpo, Prime
from tests.support.learning_samples import (
    SamplePlan,
    TinySource,
    context,
    equal_weights,
    first_step,
    make_samples,
    weights,
)


class OtherSource(TinySource):
    """A teacher: weights of another seed, in the same architecture."""

    seed = 1

    def model(self) -> Any:
        model = super().model()
        generator = torch.Generator().manual_seed(self.seed)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
        return model


class ThirdSource(OtherSource):
    seed = 2


SOURCES = {"large": OtherSource(), "other": ThirdSource()}


def build(settings: Any) -> Any:
    return settings.build(replace(context(), teachers=SOURCES))


def two_roles() -> list[Any]:
    samples = make_samples(SamplePlan(distinct=8, count=10))
    return [replace(sample, role="planner" if turn % 3 else "solver") for turn, sample in enumerate(samples)]


@pytest.fixture
def logits():
    generator = torch.Generator().manual_seed(3)
    return [2 * torch.randn(1, 6, 11, generator=generator, dtype=torch.float64) for _ in range(2)]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("beta", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_each_divergence_and_its_gradient_are_those_of_trl(logits, beta, temperature):
    gkd = pytest.importorskip("trl.experimental.gkd.gkd_trainer").GKDTrainer
    student, teacher = logits
    ours, theirs = student.clone().requires_grad_(), student.clone().requires_grad_()
    logprobs = [(x / temperature).log_softmax(-1)[0] for x in (ours, teacher)]
    value = generalized_jensen_shannon(logprobs[0], logprobs[1], beta).sum()
    expected = gkd.generalized_jsd_loss(theirs, teacher, beta=beta, temperature=temperature, reduction="sum")
    assert value.item() == pytest.approx(expected.item(), rel=1e-9)
    value.backward()
    expected.backward()
    assert torch.allclose(ours.grad, theirs.grad, rtol=1e-7, atol=1e-12)


def test_the_divergence_over_the_teachers_best_tokens_counts_all_others_as_one():
    student = torch.tensor([[0.5, 0.25, 0.125, 0.125]], dtype=torch.float64).log()
    teacher = torch.tensor([[0.125, 0.5, 0.25, 0.125]], dtype=torch.float64).log()
    # The teacher's two best tokens have .25 and .125 of the student, so the others have .625 and .25.
    best_two = 0.25 * log(0.25 / 0.5) + 0.125 * log(0.125 / 0.25) + 0.625 * log(0.625 / 0.25)
    whole = 0.5 * log(4) + 0.25 * log(0.5) + 0.125 * log(0.5)
    assert teacher_divergence(student, teacher, top_k=2).item() == pytest.approx(best_two)
    assert teacher_divergence(student, teacher, top_k=4).item() == pytest.approx(whole)
    assert teacher_divergence(student, teacher).item() == pytest.approx(whole)
    assert best_two < whole


@pytest.mark.parametrize("longer", ["student", "teacher"])
def test_tokens_that_only_one_model_has_are_left_out_and_the_rest_is_renormalised(longer):
    short, long = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.2, 0.6, 0.2]]).log()
    student, teacher = (long, short) if longer == "student" else (short, long)
    p, q = ((0.25, 0.75), (0.5, 0.5)) if longer == "student" else ((0.5, 0.5), (0.25, 0.75))
    expected = sum(a * log(a / b) for a, b in zip(p, q, strict=True))
    assert teacher_divergence(student, teacher).item() == pytest.approx(expected)


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_an_update_has_the_gradient_of_trls_loss_on_the_models_own_logits(beta):
    gkd = pytest.importorskip("trl.experimental.gkd.gkd_trainer").GKDTrainer
    samples = make_samples(SamplePlan(distinct=5, count=5), sampling=Sampling(temperature=0.7))
    metrics, gradients = first_step(build(Distillation(teacher="large", beta=beta)), samples)
    student, teacher = TinySource().model(), OtherSource().model()
    total = torch.zeros(())
    tokens = 0
    for sample in samples:
        ids = torch.tensor([sample.prompt_ids + sample.token_ids])
        span = slice(len(sample.prompt_ids) - 1, ids.shape[1] - 1)
        pair = student(input_ids=ids).logits[:, span], teacher(input_ids=ids).logits[:, span].detach()
        total, tokens = (
            total + gkd.generalized_jsd_loss(*pair, beta=beta, reduction="sum"),
            tokens + span.stop - span.start,
        )
    (total / tokens).backward()
    assert metrics["loss"] == pytest.approx(total.item() / tokens, rel=1e-4)
    for name, parameter in student.named_parameters():
        assert torch.allclose(gradients[name], parameter.grad, rtol=1e-3, atol=1e-6), name


def test_the_student_comes_near_its_teacher_and_the_teacher_stays():
    learner = build(Distillation(teacher="large", lr=1e-2))
    samples = make_samples(SamplePlan())
    kl = [learner.update(samples)["kl_teacher"] for _ in range(30)]
    assert kl[-1] < kl[0] / 10
    teacher = learner.objective._teachers._models[0]
    fresh = OtherSource().model()
    assert all(torch.equal(p, q) for p, q in zip(teacher.parameters(), fresh.parameters(), strict=True))
    assert not any(parameter.requires_grad for parameter in teacher.parameters())


def test_each_role_is_taught_by_its_own_teacher():
    samples = two_roles()
    tokens: dict[str, int] = {}
    loss: dict[str, float] = {}
    for role, teacher in (("planner", "large"), ("solver", "other")):
        mine = [sample for sample in samples if sample.role == role]
        tokens[role] = sum(len(sample.token_ids) for sample in mine)
        loss[role] = first_step(build(Distillation(teacher=teacher)), mine)[0]["loss"]
    both = first_step(build(Distillation(teacher={"planner": "large", "solver": "other"})), samples)[0]["loss"]
    expected = sum(tokens[role] * loss[role] for role in tokens) / sum(tokens.values())
    assert both == pytest.approx(expected, rel=1e-5)
    assert loss["planner"] != pytest.approx(loss["solver"], rel=1e-2)


def test_equal_turns_of_roles_with_different_teachers_are_not_merged():
    sample = make_samples(SamplePlan(distinct=1, count=1))[0]
    pair = [replace(sample, role="planner"), replace(sample, role="solver", id=("episode", 1))]
    rows = build(Distillation(teacher={"planner": "large", "solver": "other"})).update(pair)["rows"]
    assert rows == 2
    assert build(Distillation(teacher="large")).update(pair)["rows"] == 1


@pytest.mark.parametrize("packing", ["padded", "packed", "shared"])
def test_layouts_of_the_batch_do_not_change_the_divergence(packing):
    settings = Distillation(teacher={"planner": "large", "solver": "other"}, packing=packing, micro_tokens=40)
    assert build(settings).update(two_roles())["kl_teacher"] == pytest.approx(
        build(Distillation(teacher={"planner": "large", "solver": "other"}, packing="padded")).update(two_roles())[
            "kl_teacher"
        ],
        rel=1e-4,
    )


@pytest.mark.parametrize("kind", [Grpo, Prime, Sft])
def test_a_term_adds_its_coefficient_times_the_divergence_to_the_loss_of_a_learner(kind):
    samples = make_samples(SamplePlan())
    more: dict[str, Any] = {} if kind is Sft else {"fidelity": None, "reference": KlAnchor(coefficient=0.1)}
    plain, plain_gradients = first_step(build(kind(**more)), samples)
    taught, gradients = first_step(build(kind(**more, distill=TeacherTerm(teacher="large", coefficient=0.3))), samples)
    alone, alone_gradients = first_step(build(Distillation(teacher="large")), samples)
    assert taught["kl_teacher"] == pytest.approx(alone["kl_teacher"], rel=1e-4)
    assert taught["loss"] == pytest.approx(plain["loss"] + 0.3 * alone["loss"], rel=1e-4)
    for name, gradient in alone_gradients.items():
        assert torch.allclose(gradients[name], plain_gradients[name] + 0.3 * gradient, rtol=1e-3, atol=1e-6)


def test_a_terms_coefficient_falls_to_its_final_value():
    term = TeacherTerm(teacher="large", coefficient=0.4, final=0.0)
    learner = Grpo(fidelity=None, lr=1e-9, distill=term).build(replace(context(steps=3), teachers=SOURCES))
    silent = [replace(sample, advantage=replace(sample.advantage, value=0.0)) for sample in make_samples(SamplePlan())]
    shares = [(metrics["loss"] / metrics["kl_teacher"]) for metrics in (learner.update(silent) for _ in range(3))]
    assert shares == pytest.approx([0.4, 0.2, 0.0], abs=1e-4)


def test_a_resumed_student_takes_the_same_steps():
    samples = make_samples(SamplePlan())
    settings = Distillation(teacher="large", lr=1e-2)
    learner, resumed = build(settings), build(settings)
    learner.update(samples)
    resumed.load_state_dict(learner.state_dict())
    learner.update(samples)
    resumed.update(samples)
    assert equal_weights(weights(learner), weights(resumed))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"teacher": "a", "coefficient": 0}, "coefficient=0.0"),
        ({"teacher": "a", "schedule": "cosine"}, "no effect without final"),
        ({"teacher": "a", "beta": 1.5}, "beta"),
        ({"teacher": "a", "top_k": 0}, "top_k"),
        ({"coefficient": 1}, "teacher"),
    ],
)
def test_terms_without_effect_are_refused_by_name(settings, message):
    with pytest.raises(ValueError, match=message):
        TeacherTerm(**settings)
