"""A learner whose model is an adapter on a shared base: only the adapter learns, and everything else holds as ever."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from marl.core.errors import NonFiniteError
from marl.models.adapter import Adapter, AdapterSource
from marl.models.lora import save_adapter
from marl.models.pretrained import Pretrained, PretrainedSource
from marl.protocols import LearnerBuildArguments
from marl.trainers.batching.batches import collate
from marl.trainers.batching.rows import BatchRow
from marl.trainers.forward.attention import has_dropout
from marl.trainers.imitation.settings import Sft
from marl.trainers.optim.settings import KlAnchor
from marl.trainers.policy_gradient.settings import Grpo
from tests.support.learning_samples import (
    SamplePlan,
    TinySource,
    context,
    distance,
    equal_weights,
    first_step,
    gradient,
    log_distributions,
    make_sample,
    make_samples,
    read_logprobs,
    turn,
    unpadded_logprobs,
    weights,
)

FULL = {
    "lr": 1e-2,
    "magnet": KlAnchor(coefficient=0.5, final=0.1),
    "proximal": KlAnchor(coefficient=0.5, refresh=2),
    "entropy": 0.01,
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> PretrainedSource:
    folder = tmp_path_factory.mktemp("base") / "model"
    TinySource().model().save_pretrained(folder)
    return PretrainedSource("actor", str(folder))


def adapter(base: PretrainedSource, policy: str = "actor", **settings: Any) -> LearnerBuildArguments:
    source = AdapterSource(policy, Adapter(base=Pretrained(path=base.path), **settings), base)
    return replace(context(), policy=policy, source=source)


def frozen(learner: Any) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in learner.model.named_parameters() if not p.requires_grad}


@pytest.mark.parametrize("settings", [Grpo(**FULL), Sft(lr=1e-2)], ids=["grpo", "sft"])
def test_only_the_adapter_moves(base: PretrainedSource, settings: Any) -> None:
    learner, other = settings.build(adapter(base)), settings.build(adapter(base, "other"))
    before, still, other_weights = frozen(learner), weights(learner), weights(other)
    for seed in range(3):
        learner.update(make_samples(SamplePlan(), seed=seed))
    assert equal_weights(frozen(learner), before)
    assert equal_weights(weights(other), other_weights)
    after = weights(learner)
    assert after.keys() == still.keys()
    assert all("lora_" in name and not torch.equal(after[name], still[name]) for name in after)


def test_two_learners_and_their_anchors_hold_the_base_once(base: PretrainedSource) -> None:
    learners: list[Any] = [Grpo(**FULL).build(adapter(base, name)) for name in ("one", "other")]
    models = [model for each in learners for model in (each.model, *each.objective.anchors.models.values())]
    places = {p.data_ptr() for model in models for name, p in model.named_parameters() if "lora" not in name}
    adapter_places = {p.data_ptr() for model in models for name, p in model.named_parameters() if "lora" in name}
    assert len(models) == 6
    assert len(places) == len(list(TinySource().model().parameters()))
    assert len(adapter_places) == 4 * len(weights(learners[0])), "the initial weights are the base's"


def test_state_holds_the_adapter_alone_and_a_restored_learner_continues_bit_for_bit(base: PretrainedSource) -> None:
    settings = Grpo(minibatches=3, epochs=2, schedule="cosine", **FULL)
    learner, other = (settings.build(adapter(base, dropout=0.2)) for _ in range(2))
    for i in range(3):
        learner.update(make_samples(SamplePlan(), seed=i))
    state = learner.state_dict()
    names = weights(learner).keys()
    assert state["model"].keys() == state["optimizer"].keys() == names
    assert {n: copied.keys() for n, copied in state["objective"]["anchors"].items()} == {
        "initial": set(),
        "proximal": names,
    }
    learned = [learner.update(make_samples(SamplePlan(), seed=i)) for i in (3, 4)]
    torch.rand(7)
    other.load_state_dict(state)
    assert [other.update(make_samples(SamplePlan(), seed=i)) for i in (3, 4)] == learned
    assert equal_weights(weights(other), weights(learner))


def test_a_reference_is_the_base_until_it_is_refreshed(base: PretrainedSource) -> None:
    learner: Any = Grpo(lr=1e-2, reference=KlAnchor(coefficient=0.1)).build(adapter(base))
    first = learner.update(make_samples(SamplePlan()))
    last = learner.update(make_samples(SamplePlan(), seed=1))
    assert first["kl_reference"] == pytest.approx(0, abs=1e-6)
    assert last["kl_reference"] > 1e-5
    rows = [BatchRow((1, 2, 3), (4, 5))]
    anchored = log_distributions(learner.objective.anchors.models["reference"], collate(rows, torch.device("cpu")))
    assert torch.allclose(
        anchored, unpadded_logprobs(TinySource().model(), (1, 2, 3), (4, 5)).log_softmax(-1), atol=1e-5
    )


@pytest.mark.parametrize("settings", [{}, {"use_dora": True}, {"targets": ("q_proj", "lm_head")}], ids=str)
def test_a_reference_that_is_the_base_gives_what_a_copy_gives(base: PretrainedSource, settings: Any) -> None:
    grpo = Grpo(lr=1e-2, reference=KlAnchor(coefficient=0.3))
    first = adapter(base, **settings)
    built: Any = grpo.build(first), grpo.build(first)
    learner, copied = built
    initial = copy.deepcopy(first.source.model()).requires_grad_(False)
    copied.objective.anchors.models["reference"] = copied.objective.anchors.loss_models["reference"] = initial
    assert not learner.objective.anchors.state_dict()["initial"]
    for seed in range(3):
        one, other = (
            learner.update(make_samples(SamplePlan(), seed=seed)),
            copied.update(make_samples(SamplePlan(), seed=seed)),
        )
        assert one == pytest.approx(other, abs=1e-6)
    assert max(distance(weights(learner)[name], tensor) for name, tensor in weights(copied).items()) < 1e-5


def test_a_reference_of_an_adapter_that_was_taught_is_a_copy_of_it(base: PretrainedSource, tmp_path: Path) -> None:
    taught: Any = Sft(lr=1e-1).build(adapter(base))
    taught.update(make_samples(SamplePlan()))
    save_adapter(taught.model, tmp_path)
    learner: Any = Grpo(lr=1e-2, reference=KlAnchor(coefficient=0.3)).build(adapter(base, path=str(tmp_path)))
    assert equal_weights(learner.objective.anchors.state_dict()["initial"], weights(taught))
    assert learner.update(make_samples(SamplePlan()))["kl_reference"] == pytest.approx(0, abs=1e-6)
    assert learner.update(make_samples(SamplePlan()))["kl_reference"] > 1e-5


@pytest.mark.parametrize(
    "settings",
    [
        {"use_dora": True, "dropout": 0.1},
        {"use_dora": True, "use_rslora": True, "targets": ("embed_tokens", "lm_head", "q_proj")},
        {"targets": r".*(up|down)_proj"},
    ],
    ids=["dora", "dora on the ends", "pattern"],
)
def test_every_kind_of_adapter_learns_saves_and_resumes_bit_for_bit(
    base: PretrainedSource, settings: Any, tmp_path: Path
) -> None:
    built: list[Any] = [Sft(lr=3e-2).build(adapter(base, **settings)) for _ in range(2)]
    learner, other = built
    before, still = weights(learner), frozen(learner)
    losses = [learner.update(make_samples(SamplePlan()))["loss"] for _ in range(4)]
    assert losses[-1] < losses[0] - 0.1
    assert all(not torch.equal(tensor, before[name]) for name, tensor in weights(learner).items())
    assert equal_weights(frozen(learner), still)
    other.load_state_dict(learner.state_dict())
    save_adapter(learner.model, tmp_path)
    again = Sft(lr=3e-2).build(adapter(base, path=str(tmp_path), **settings))
    assert equal_weights(weights(again), weights(learner))
    assert learner.update(make_samples(SamplePlan(), seed=1)) == other.update(make_samples(SamplePlan(), seed=1))
    assert equal_weights(weights(other), weights(learner))


def test_shared_prompts_give_the_same_gradients(base: PretrainedSource) -> None:
    samples = [make_sample((1, 2, 3, n % 2), (n % 5, 7, n), (-3.5,) * 3, advantage=n - 3.5, turn=n) for n in range(8)]
    taught = Grpo(**FULL).build(adapter(base))
    taught.update(make_samples(SamplePlan()))  # an adapter that has not learnt yet gives A no gradient
    by_packing = []
    for packing in ("shared", "padded"):
        learner = Grpo(**FULL, packing=packing).build(adapter(base))
        learner.load_state_dict(taught.state_dict())
        by_packing.append(first_step(learner, samples)[1])
    shared, plain = by_packing
    assert shared.keys() == plain.keys() == weights(taught).keys()
    assert max(distance(shared[name], plain[name]) for name in plain) < 1e-5


def test_the_gradient_is_that_of_the_merged_weights(base: PretrainedSource) -> None:
    """dL/dB = alpha / rank dL/dW Aᵀ, where W is the layer's whole weight."""
    samples = make_samples(SamplePlan())
    gradients = first_step(Grpo().build(adapter(base, alpha=24)), samples)[1]
    first = weights(Grpo().build(adapter(base, alpha=24)))
    whole = dict(zip(dict(TinySource().model().named_parameters()), split(gradient(Grpo(), samples)), strict=True))
    for name, grad in gradients.items():
        layer, _, which = name.removesuffix(".default.weight").rpartition(".")
        if which == "lora_B":
            expected = 3 * whole[f"{layer}.weight"] @ first[name.replace("lora_B", "lora_A")].T
            assert distance(grad, expected) < 1e-4
        else:
            assert not grad.any(), "B is zero at first"


def split(flat: Tensor) -> list[Tensor]:
    shapes = [p.shape for p in TinySource().model().parameters()]
    parts = flat.split([shape.numel() for shape in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


def test_dropout_is_noticed_and_readings_are_without_it(base: PretrainedSource) -> None:
    learner: Any = Sft(lr=1e-2).build(adapter(base, dropout=0.5))
    learner.update(make_samples(SamplePlan()))
    assert has_dropout(learner.model)
    plain: Any = Sft().build(adapter(base))
    assert not has_dropout(plain.model)
    one = turn((1, 2, 3), (4, 5))
    assert read_logprobs(learner, one) == read_logprobs(learner, one)


def test_merging_and_micro_batches_change_nothing(base: PretrainedSource) -> None:
    samples = make_samples(SamplePlan(distinct=8, count=20))
    kinds = [{}, {"merge": False}, {"micro_tokens": 20}]
    learners = [Grpo(lr=1e-3, **kind).build(adapter(base)) for kind in kinds]
    for learner in learners:
        for seed in range(2):
            learner.update(make_samples(SamplePlan(), seed=seed))
        learner.update(samples)
    for learner in learners[1:]:
        for name, tensor in weights(learners[0]).items():
            assert distance(weights(learner)[name], tensor) < 1e-3


def test_a_number_that_is_not_finite_is_blamed_on_its_sample(base: PretrainedSource) -> None:
    learner = Grpo().build(adapter(base))
    before = weights(learner)
    good = make_sample((1, 2), (3, 4), (-3.0, -3.7))
    bad = make_sample((1, 2), (5, 6), (-3.0, float("nan")), turn=1)
    with pytest.raises(NonFiniteError, match="turn 1"):
        learner.update([good, bad])
    assert equal_weights(weights(learner), before)


def test_what_is_saved_is_a_peft_folder(base: PretrainedSource, tmp_path: Path) -> None:
    from peft import PeftModel

    learner: Any = Sft(lr=1e-2).build(adapter(base))
    learner.update(make_samples(SamplePlan()))
    learner.model.save_pretrained(tmp_path)
    assert not list(tmp_path.glob("model*"))
    loaded = PeftModel.from_pretrained(TinySource().model(), str(tmp_path)).eval()
    rows = [BatchRow((1, 2, 3), (4, 5))]
    batch = collate(rows, torch.device("cpu"))
    with torch.no_grad():
        expected = log_distributions(learner.model.eval(), batch)
    assert torch.allclose(unpadded_logprobs(loaded, (1, 2, 3), (4, 5)).log_softmax(-1), expected, atol=1e-5)
