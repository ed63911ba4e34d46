"""Preference learning through a real model, against TRL's own code and against losses written out."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from marl.core.types import Sample
from marl.models.adapter import Adapter, AdapterSource
from marl.models.pretrained import Pretrained, PretrainedSource
from marl.trainers.imitation.options import SampleSelection
from marl.trainers.imitation.settings import Sft
from marl.trainers.preferences.settings import Dpo
from tests.support.learning_samples import (
    VOCABULARY,
    TinySource,
    context,
    distance,
    equal_weights,
    first_step,
    flat,
    make_sample,
    read_logprobs,
    turn,
    unpadded_logprobs,
    weights,
)


def siblings(groups: int = 5, size: int = 4, seed: int = 0, turns: int = 1) -> list[Sample]:
    """Return episodes of `turns` turns of random tokens, paid 0, .5 or 1."""
    rng = random.Random(seed)

    def words(low: int, high: int) -> tuple[int, ...]:
        return tuple(rng.randrange(VOCABULARY) for _ in range(rng.randint(low, high)))

    samples = []
    for group in range(groups):
        prompts = [words(3, 9) for _ in range(turns)]
        for episode in range(size):
            paid = rng.choice((0.0, 0.5, 1.0))
            made = [make_sample(one, words(1, 6), (), group=f"g{group}", paid=paid) for one in prompts]
            samples += [replace(one, id=(f"{group}.{episode}", nth)) for nth, one in enumerate(made)]
    return samples


def moved(settings: Dpo, samples: list[Sample], updates: int = 2) -> Any:
    """Return a learner that is no longer where its reference is."""
    learner = settings.build(context())
    for _ in range(updates):
        learner.update(samples)
    return learner


def step(learner: Any, samples: list[Sample]) -> tuple[dict[str, float], Tensor]:
    """Return the metrics of one update, and its gradient [P] before clipping."""
    metrics, gradients = first_step(learner, samples)
    return metrics, flat(gradients)


def copy_of(learner: Any) -> Any:
    model = TinySource().model()
    model.load_state_dict(learner.model.state_dict())
    return model


def by_hand(samples: list[Sample]) -> list[tuple[Sample, Sample]]:
    return [
        (a, b)
        for a in samples
        for b in samples
        if a.group == b.group and a.prompt_ids == b.prompt_ids and a.paid > b.paid and a.token_ids != b.token_ids
    ]


class TrlModel:
    """What TRL's fused head returns, from the logits of a real model."""

    training = True

    def __init__(self, model: Any) -> None:
        self.model = model

    def __call__(self, *, labels: Tensor, use_cache: bool, fused_lm_head: bool, **inputs: Tensor) -> Any:
        logprobs, next_ids = self.model(**inputs).logits[:, :-1].log_softmax(-1), labels[:, 1:]
        chosen = logprobs.gather(2, next_ids.clamp(min=0)[..., None]).squeeze(2)
        more = dict.fromkeys(("entropy", "mean_logits"), torch.zeros_like(chosen))
        facts = {"log_probs": torch.where(next_ids >= 0, chosen, 0.0), "is_top1": torch.zeros_like(chosen).bool()}
        return SimpleNamespace(**facts, **more)


def trl_inputs(pairs: list[tuple[Sample, Sample]]) -> dict[str, Tensor]:
    texts = [pair[side] for side in (0, 1) for pair in pairs]
    width = max(len(s.prompt_ids) + len(s.token_ids) for s in texts)

    def table(values: Any) -> Tensor:
        return torch.tensor([row + [0] * (width - len(row)) for row in map(values, texts)])

    return {
        "input_ids": table(lambda s: [*s.prompt_ids, *s.token_ids]),
        "attention_mask": table(lambda s: [1] * (len(s.prompt_ids) + len(s.token_ids))),
        "completion_mask": table(lambda s: [0] * len(s.prompt_ids) + [1] * len(s.token_ids)),
    }


def trl_loss(kind: str, beta: float, smoothing: float, model: Any, pairs: Any) -> tuple[Tensor, dict[str, list[float]]]:
    trl = pytest.importorskip("trl.trainer.dpo_trainer")
    trainer = trl.DPOTrainer.__new__(trl.DPOTrainer)
    inputs, reference = trl_inputs(pairs), TrlModel(TinySource().model())
    texts = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    labels = inputs["input_ids"].masked_fill(inputs["completion_mask"] == 0, -100)
    with torch.no_grad():
        logprobs = reference(**texts, labels=labels, use_cache=False, fused_lm_head=True).log_probs.sum(1).chunk(2)
    inputs |= {"ref_chosen_logps": logprobs[0], "ref_rejected_logps": logprobs[1]}
    accelerator = SimpleNamespace(device="cpu", gather=lambda x: x, gather_for_metrics=lambda x: x)
    metrics: dict[str, list[float]] = defaultdict(list)
    trainer.__dict__.update(
        model=TrlModel(model), accelerator=accelerator, aux_loss_enabled=False, ld_alpha=None, beta=beta,
        precompute_ref_logps=True, f_divergence_type="reverse_kl", loss_types=[kind], loss_weights=[1.0],
        label_smoothing=smoothing, use_weighting=False, _metrics={"train": metrics}, _total_train_tokens=0, _tp_size=1,
    )  # fmt: skip
    return trainer._compute_loss(TrlModel(model), inputs, False), metrics


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("sigmoid", {}),
        ("robust", {"loss": "robust", "smoothing": 0.2}),
        ("hinge", {"loss": "hinge"}),
        ("ipo", {"loss": "ipo", "over": "mean"}),
        ("sigmoid_norm", {"over": "mean"}),
    ],
)
def test_loss_gradient_and_rewards_are_those_of_trl_on_all_pairs(kind: str, settings: dict[str, Any]) -> None:
    samples = siblings()
    learner = moved(Dpo(lr=3e-3, beta=0.3, **settings), samples)
    model = copy_of(learner)
    loss, trl_metrics = trl_loss(kind, 0.3, settings.get("smoothing", 0.0), model, pairs := by_hand(samples))
    loss.backward()
    metrics, gradient = step(learner, samples)
    assert metrics["pairs"] == len(pairs) > 10
    assert metrics["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert distance(gradient, torch.cat([p.grad.flatten() for p in model.parameters()])) < 1e-5
    if settings.get("over") != "mean":  # TRL's rewards are sums whatever the loss
        for ours, theirs in (("accuracy", "accuracies"), ("margin", "margins"), ("reward_better", "chosen")):
            assert metrics[ours] == pytest.approx(trl_metrics[f"rewards/{theirs}"][0], rel=1e-4), ours


def gained(model: Any, reference: Any, entry: list[Sample]) -> tuple[Tensor, Tensor]:
    """Return (Σ log π - log reference, Σ log π) over an entry's tokens, one text at a time."""

    def total(model: Any) -> Tensor:
        logprobs = []
        for one in entry:
            ids = torch.tensor([[*one.prompt_ids, *one.token_ids]])
            rows = model(ids).logits[0, len(one.prompt_ids) - 1 : -1].log_softmax(-1)
            logprobs.append(rows[range(len(one.token_ids)), one.token_ids].sum())
        return torch.stack(logprobs).sum()

    with torch.no_grad():
        before = total(reference)
    now = total(model)
    return now - before, now


def written_out(settings: Dpo, model: Any, pairs: list[tuple[list[Sample], list[Sample]]]) -> Tensor:
    reference, losses = TinySource().model(), []
    for better, worse in pairs:
        (up, logprob_up), (down, _) = gained(model, reference, better), gained(model, reference, worse)
        right = torch.sigmoid(settings.beta * (up - down))
        smoothed = (1 - settings.smoothing) * right.log() + settings.smoothing * (1 - right).log()
        loss = (up - down - 0.5 / settings.beta) ** 2 if settings.loss == "ipo" else -smoothed
        losses.append(loss - settings.nll * logprob_up / sum(len(s.token_ids) for s in better))
    return torch.stack(losses).mean()


@pytest.mark.parametrize("settings", [{"smoothing": 0.1}, {"loss": "ipo"}, {"nll": 0.7}], ids=["cdpo", "ipo", "nll"])
def test_what_trl_lacks_is_the_loss_written_out(settings: dict[str, Any]) -> None:
    samples = siblings(3, 3)
    learner = moved(Dpo(lr=3e-3, **settings), samples)
    model = copy_of(learner)
    loss = written_out(learner.settings, model, [([a], [b]) for a, b in by_hand(samples)])
    loss.backward()
    metrics, gradient = step(learner, samples)
    assert metrics["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert distance(gradient, torch.cat([p.grad.flatten() for p in model.parameters()])) < 1e-5


def test_an_episode_is_as_likely_as_all_its_turns_together() -> None:
    samples = siblings(3, 3, turns=2)
    learner = moved(Dpo(lr=3e-3, pairs="episodes"), samples)
    model = copy_of(learner)
    episodes: dict[str, list[Sample]] = defaultdict(list)
    for one in samples:
        episodes[one.id[0]].append(one)
    entries = list(episodes.values())
    pairs = [(a, b) for a in entries for b in entries if a[0].group == b[0].group and a[0].paid > b[0].paid]
    loss = written_out(learner.settings, model, pairs)
    loss.backward()
    metrics, gradient = step(learner, samples)
    assert metrics["pairs"] == len(pairs) > 3
    assert metrics["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert distance(gradient, torch.cat([p.grad.flatten() for p in model.parameters()])) < 1e-5


@pytest.mark.parametrize("kind", ["siblings", "best_worst", "episodes"])
def test_the_gradient_does_not_depend_on_micro_batches(kind: Any) -> None:
    samples = siblings(8, 4, turns=2)
    learner = moved(Dpo(lr=3e-3, pairs=kind, nll=0.1), samples)
    other = Dpo(lr=3e-3, pairs=kind, nll=0.1, micro_tokens=1).build(context())
    other.load_state_dict(learner.state_dict())
    whole, small = step(learner, samples), step(other, samples)
    assert distance(small[1], whole[1]) < 1e-6
    assert small[0] == pytest.approx(whole[0], rel=1e-4, abs=1e-6)


def test_minibatches_never_tear_a_pair_apart() -> None:
    samples = siblings(7, 4, turns=2)
    random.Random(1).shuffle(samples)
    one, many = (Dpo(minibatches=n).build(context()).update(samples) for n in (1, 4))
    assert many["pairs"] * 4 == one["pairs"] == len(by_hand(samples))
    assert (many["tokens"], many["rows"]) == (one["tokens"], one["rows"])
    assert one["rows"] < 2 * one["pairs"]


def test_the_better_side_becomes_likelier_than_the_worse_one() -> None:
    samples = siblings(3, 2, seed=1)
    learner = Dpo(lr=1e-2, beta=1.0).build(context())
    first, *_, last = [learner.update(samples) for _ in range(16)]
    assert (first["accuracy"], first["margin"]) == (0.0, 0.0)
    assert last["accuracy"] == 1.0
    assert last["margin"] > 2
    assert last["loss"] < 0.2


def test_the_reference_follows_when_it_is_told_to() -> None:
    samples = siblings()
    learner = Dpo(lr=3e-3, refresh=2).build(context())
    margins = [learner.update(samples)["margin"] for _ in range(4)]
    assert margins[0] == margins[2] == 0.0
    assert min(margins[1], margins[3]) > 0.0


def test_without_a_pair_nothing_is_learnt() -> None:
    learner = Dpo(lr=1e-2).build(context())
    before = weights(learner)
    metrics = learner.update([replace(one, paid=1.0) for one in siblings()])
    assert equal_weights(weights(learner), before)
    assert (metrics["pairs"], metrics["rows"], metrics["loss"]) == (0.0, 0.0, 0.0)
    assert metrics.keys() == learner.update(siblings()).keys()


def test_a_restored_learner_continues_bit_for_bit() -> None:
    settings = Dpo(lr=3e-3, refresh=2, minibatches=3, epochs=2, schedule="cosine")
    learner, other = settings.build(context()), settings.build(context())
    for seed in range(3):
        learner.update(siblings(seed=seed))
    other.load_state_dict(learner.state_dict())
    learned, again = ([each.update(siblings(seed=seed)) for seed in (3, 4)] for each in (learner, other))
    assert again == learned
    assert equal_weights(weights(other), weights(learner))


def test_an_adapter_learns_against_its_base(tmp_path: Any) -> None:
    TinySource().model().save_pretrained(tmp_path / "model")
    source = AdapterSource(
        "actor",
        Adapter(base=Pretrained(path=str(tmp_path / "model"))),
        PretrainedSource("actor", str(tmp_path / "model")),
    )
    learner: Any = Dpo(lr=1e-2, beta=1.0).build(replace(context(), source=source))
    samples = siblings(3, 2, seed=1)
    frozen = {name: p.detach().clone() for name, p in learner.model.named_parameters() if not p.requires_grad}
    margins = [learner.update(samples)["margin"] for _ in range(8)]
    assert margins[0] == pytest.approx(0, abs=1e-6)
    assert margins[-1] > 0.5
    assert all(torch.equal(p, frozen[name]) for name, p in learner.model.named_parameters() if name in frozen)
    # What it has gained on the base is what the base itself says.
    (better, worse), base = by_hand(samples)[0], TinySource().model()
    now = [sum(one) for one in read_logprobs(learner, *(turn(s.prompt_ids, s.token_ids) for s in (better, worse)))]
    before = [
        float(
            unpadded_logprobs(base, s.prompt_ids, s.token_ids)
            .log_softmax(-1)[range(len(s.token_ids)), s.token_ids]
            .sum()
        )
        for s in (better, worse)
    ]
    gain = (now[0] - before[0]) - (now[1] - before[1])
    assert learner.update([better, worse])["margin"] == pytest.approx(gain, rel=1e-4)


def test_imitation_of_the_best_raises_them_alone_and_says_how_many_they_were() -> None:
    samples = siblings(3, 4, seed=2)
    best = [one for one in samples if one.paid == 1.0]
    settings = Sft(keep=SampleSelection(at_least=0.9), minibatches=2)
    chosen, plain = settings.build(context()), Sft(minibatches=2).build(context())
    metrics, expected = chosen.update(samples), plain.update(best)
    assert metrics["kept"] == len(best) < len(samples)
    assert metrics["loss"] == expected["loss"]
    assert equal_weights(weights(chosen), weights(plain))


def test_imitation_can_leave_out_what_was_said_twice() -> None:
    samples = siblings(3, 4)
    once, twice = (
        Sft(duplicates=False).build(context()).update(many)["loss"] for many in (samples, samples + samples[:5])
    )
    assert once == twice != Sft().build(context()).update(samples + samples[:5])["loss"]
