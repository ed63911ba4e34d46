from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from marl.models.weights import overwrite_model_weights
from marl.trainers.optim.anchors import scheduled_kl_coefficient
from marl.trainers.optim.optimizer import scheduled_lr
from marl.trainers.optim.settings import KlAnchor
from marl.trainers.policy_gradient.settings import Grpo
from tests.support.learning_samples import (
    SamplePlan,
    TinySource,
    context,
    equal_weights,
    first_step,
    make_samples,
    weights,
)


def copies(learner):
    return learner.state_dict()["objective"]["anchors"]


def test_a_frozen_reference_does_not_move_while_the_policy_does():
    learner = Grpo(lr=1e-2, reference=KlAnchor(coefficient=0.1)).build(context())
    initial = dict(TinySource().model().named_parameters())
    first = learner.update(make_samples(SamplePlan()))
    for i in range(3):
        last = learner.update(make_samples(SamplePlan(), seed=i))
    assert equal_weights(copies(learner)["initial"], {name: p.detach() for name, p in initial.items()})
    assert not equal_weights(weights(learner), copies(learner)["initial"])
    assert first["kl_reference"] == pytest.approx(0, abs=1e-6)
    assert last["kl_reference"] > 1e-3


def test_frozen_anchors_share_one_copy():
    anchors: dict[str, Any] = {"reference": KlAnchor(coefficient=0.1), "magnet": KlAnchor(coefficient=0.2)}
    learner = Grpo(**anchors, proximal=KlAnchor(coefficient=1, refresh=2)).build(context())
    assert copies(learner).keys() == {"initial", "proximal"}


def test_a_snapshot_is_taken_every_so_many_updates():
    learner = Grpo(lr=1e-2, proximal=KlAnchor(coefficient=0.1, refresh=3)).build(context())
    fresh = []
    for i in range(7):
        learner.update(make_samples(SamplePlan(), seed=i))
        fresh.append(equal_weights(copies(learner)["proximal"], weights(learner)))
    assert fresh == [False, False, True, False, False, True, False]


def test_a_stronger_anchor_holds_the_policy_closer():
    moved = {}
    for strength in (1e-9, 5.0):
        learner = Grpo(lr=3e-3, magnet=KlAnchor(coefficient=strength)).build(context(steps=30))
        for _ in range(15):
            metrics = learner.update(make_samples(SamplePlan()))
        moved[strength] = metrics["kl_magnet"]
    assert moved[5.0] < moved[1e-9] / 2


def test_coefficients_are_annealed_from_the_first_update_to_the_last():
    anchor = KlAnchor(coefficient=0.2, final=0.03)
    assert scheduled_kl_coefficient(anchor, 0, 11) == 0.2
    assert scheduled_kl_coefficient(anchor, 5, 11) == pytest.approx(0.115)
    assert scheduled_kl_coefficient(anchor, 10, 11) == pytest.approx(0.03)
    assert scheduled_kl_coefficient(anchor, 50, 11) == pytest.approx(0.03)
    assert scheduled_kl_coefficient(KlAnchor(coefficient=0.2), 10, 11) == 0.2
    assert scheduled_kl_coefficient(anchor, 0, 1) == 0.2


def test_magnets_and_step_sizes_fall_as_one_over_the_root_of_time():
    """1 / value^2 grows linearly: from 1 to 16 in 6 updates by 3 each, so 1, 1/2, 1/sqrt(7), …, 1/4."""
    falling = [1, 1 / 2, 7**-0.5, 10**-0.5, 13**-0.5, 1 / 4]
    anchor = KlAnchor(coefficient=0.2, final=0.05, schedule="inverse_sqrt")
    assert [scheduled_kl_coefficient(anchor, u, 6) for u in range(6)] == pytest.approx([0.2 * by for by in falling])
    assert scheduled_kl_coefficient(anchor, 50, 6) == pytest.approx(0.05)
    rate = Grpo(lr=1.0, lr_end=0.25, schedule="inverse_sqrt", warm_up=1)
    assert [scheduled_lr(rate, u, 7) for u in range(8)] == pytest.approx([0.5, *falling, 0.25])
    bent = KlAnchor(coefficient=0.2, final=0.1, schedule="cosine")
    assert [scheduled_kl_coefficient(bent, u, 3) for u in range(3)] == pytest.approx([0.2, 0.15, 0.1])


def test_learning_rates_follow_their_schedule():
    linear = Grpo(lr=1.0, lr_end=0.2, schedule="linear", warm_up=1)
    assert [scheduled_lr(linear, u, 6) for u in range(7)] == pytest.approx([0.5, 1, 0.8, 0.6, 0.4, 0.2, 0.2])
    cosine = Grpo(lr=1.0, schedule="cosine")
    assert [scheduled_lr(cosine, u, 3) for u in range(3)] == pytest.approx([1, 0.5, 0])
    assert scheduled_lr(Grpo(lr=1.0), 99, 3) == 1.0


@pytest.mark.parametrize("estimator", ["exact", "k2", "k3_is"])
def test_the_penalty_enters_the_loss_with_its_coefficient(estimator):
    learner = Grpo(lr=1e-2, magnet=KlAnchor(coefficient=0.7, estimator=estimator)).build(context())
    for i in range(3):
        metrics = learner.update(make_samples(SamplePlan(noise=0.0), seed=i))
    assert metrics["kl_magnet"] > 1e-4
    assert metrics["loss"] == pytest.approx(metrics["policy_loss"] + 0.7 * metrics["kl_magnet"], rel=1e-4)


def test_anchors_take_no_part_in_gradients():
    learner: Any = Grpo(magnet=KlAnchor(coefficient=0.7)).build(context())
    learner.update(make_samples(SamplePlan()))
    (module,) = learner.objective.anchors.models.values()
    assert all(not p.requires_grad and p.grad is None for p in module.parameters())
    assert not module.training
    assert isinstance(module, torch.nn.Module)


@dataclass
class PartlyFrozen(TinySource):
    """The tiny model, of which all but the embeddings learn."""

    def model(self) -> Any:
        model = super().model()
        model.get_input_embeddings().requires_grad_(False)
        return model


ANCHORS: list[dict[str, Any]] = [
    {"reference": KlAnchor(coefficient=0.1)},
    {"magnet": KlAnchor(coefficient=0.1, refresh=2)},
]


@pytest.mark.parametrize("anchors", ANCHORS, ids=["fixed", "refreshed"])
def test_a_partly_frozen_model_that_is_no_adapter_is_held_close_to_what_it_was(anchors: dict[str, Any]) -> None:
    (name,) = anchors
    learner: Any = Grpo(lr=1e-2, **anchors).build(context(source=PartlyFrozen()))
    whole: Any = Grpo(lr=1e-2, **anchors).build(context())
    learner.update(make_samples(SamplePlan()))
    whole.update(make_samples(SamplePlan()))
    metrics, gradients = first_step(learner, make_samples(SamplePlan(), seed=1))
    assert metrics[f"kl_{name}"] > 1e-4, "the anchor must not move with the policy"
    assert gradients.keys() == dict(whole.publish()).keys() - {"model.embed_tokens.weight"}
    embeddings = dict(learner.publish())["model.embed_tokens.weight"]
    assert torch.equal(embeddings, TinySource().model().get_input_embeddings().weight)


def test_a_partly_frozen_model_is_published_saved_and_restored_whole(tmp_path: Path) -> None:
    learner = Grpo(lr=1e-2).build(context(source=PartlyFrozen()))
    learner.update(make_samples(SamplePlan()))
    sampler = TinySource().model()
    overwrite_model_weights(sampler, learner.publish())
    learner.save(tmp_path)
    saved = AutoModelForCausalLM.from_pretrained(tmp_path)
    other: Any = Grpo(lr=1e-2).build(context(source=PartlyFrozen()))
    other.load_state_dict(learner.state_dict())
    for model in (sampler, saved, other.model):
        assert equal_weights({name: p.detach() for name, p in model.named_parameters()}, weights(learner))
