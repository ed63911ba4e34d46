import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from marl.core.config import Sampling
from marl.trainers.imitation.settings import Sft
from marl.trainers.optim.settings import KlAnchor
from marl.trainers.policy_gradient.settings import Grpo
from tests.support.learning_samples import (
    SamplePlan,
    TinySource,
    context,
    distance,
    equal_weights,
    gradient,
    make_sample,
    make_samples,
    read_logprobs,
    turn,
    weights,
)

FULL = {
    "lr": 1e-3,
    "magnet": KlAnchor(coefficient=0.5, final=0.1),
    "proximal": KlAnchor(coefficient=0.5, refresh=2),
    "entropy": 0.01,
}


@pytest.mark.parametrize("mode", ["token_mean", "seq_mean_token_mean"])
def test_the_gradient_does_not_depend_on_micro_batches(mode):
    samples = make_samples(SamplePlan(distinct=16, count=30))
    whole = gradient(Grpo(aggregation=mode, **FULL), samples)
    for micro_tokens in (1, 30, 60):
        assert distance(gradient(Grpo(aggregation=mode, micro_tokens=micro_tokens, **FULL), samples), whole) < 1e-6


def test_the_gradient_is_that_of_the_loss_written_out():
    learner = Grpo().build(context())
    one = make_sample((1, 2), (3, 4), (-3.0, -3.7), advantage=1.5)
    model = TinySource().model()
    logprobs = model(torch.tensor([[1, 2, 3, 4]])).logits[0, 1:3].log_softmax(-1)[[0, 1], [3, 4]]
    ratio = (logprobs - torch.tensor([-3.0, -3.7])).exp()
    (-torch.minimum(1.5 * ratio, 1.5 * ratio.clamp(0.8, 1.2)).mean()).backward()
    expected = torch.cat([p.grad.flatten() for p in model.parameters()])
    assert distance(gradient(Grpo(), [one]), expected) < 1e-5
    assert learner.update([one])["grad_norm"] == pytest.approx(expected.norm().item(), rel=1e-5)


def test_without_samples_nothing_changes_but_the_count():
    learner: Any = Grpo(**FULL).build(context())
    before = weights(learner)
    metrics = learner.update([])
    assert equal_weights(weights(learner), before)
    assert learner.updates == 1
    assert not any(value for name, value in metrics.items() if name != "lr")
    assert metrics.keys() == learner.update(make_samples(SamplePlan())).keys()


def test_a_restored_learner_continues_bit_for_bit():
    settings = Grpo(minibatches=3, epochs=2, schedule="cosine", **FULL)
    options: dict[str, Any] = {"attention_dropout": 0.3}
    learner, other = settings.build(context(**options)), settings.build(context(**options))
    for i in range(3):
        learner.update(make_samples(SamplePlan(), seed=i))
    state = learner.state_dict()
    learned = [learner.update(make_samples(SamplePlan(), seed=i)) for i in (3, 4)]
    torch.rand(7)
    other.load_state_dict(state)
    assert [other.update(make_samples(SamplePlan(), seed=i)) for i in (3, 4)] == learned
    assert equal_weights(weights(other), weights(learner))


def test_updates_leave_the_global_random_numbers_alone():
    learner = Grpo(minibatches=2).build(context(attention_dropout=0.3))
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    learner.update(make_samples(SamplePlan()))
    assert torch.equal(torch.rand(3), expected)


def test_a_state_that_does_not_fit_is_refused():
    learner, other = Grpo(**FULL).build(context()), Grpo(magnet=KlAnchor(coefficient=1.0)).build(context())
    with pytest.raises(
        ValueError, match=r"anchors are \['initial'\], but the saved ones are \['initial', 'proximal'\]"
    ):
        other.load_state_dict(learner.state_dict())
    with pytest.raises(ValueError, match="weights do not fit"):
        Grpo().build(context(num_hidden_layers=2)).load_state_dict(learner.state_dict())


def test_tied_weights_are_published_once_and_saved_whole(tmp_path):
    learner: Any = Grpo(lr=1e-2).build(context(tie_word_embeddings=True))
    learner.update(make_samples(SamplePlan()))
    names = [name for name, _ in learner.publish()]
    assert "lm_head.weight" not in names
    assert len(names) == len(set(names))
    learner.save(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert equal_weights(dict(loaded.named_parameters()), dict(learner.publish()))
    assert (tmp_path / "model.safetensors").exists()
    assert json.loads((tmp_path / "tokenizer.json").read_text()) == {}


def test_the_learner_raises_what_is_rewarded_and_lowers_what_is_punished():
    learner = Grpo(lr=1e-2).build(context(steps=30))
    good, bad = turn((1, 2), (3, 4)), turn((1, 2), (5, 6))
    first = read_logprobs(learner, good, bad)
    for _ in range(5):
        now = read_logprobs(learner, good, bad)
        learner.update(
            [make_sample((1, 2), (3, 4), now[0], advantage=1), make_sample((1, 2), (5, 6), now[1], advantage=-1)]
        )
    last = read_logprobs(learner, good, bad)
    assert sum(last[0]) > sum(first[0]) + 0.5
    assert sum(last[1]) < sum(first[1]) - 0.5


def test_the_entropy_bonus_is_subtracted():
    metrics = Grpo(entropy=0.5).build(context()).update(make_samples(SamplePlan()))
    assert metrics["loss"] == pytest.approx(metrics["policy_loss"] - 0.5 * metrics["entropy"], rel=1e-5)


def test_the_distance_to_the_sampler_is_measured_before_the_weights_move():
    once, often = (Grpo(lr=1e-2, epochs=n).build(context()).update(make_samples(SamplePlan())) for n in (1, 4))
    assert once["kl_sampler"] == often["kl_sampler"] > 0
    assert once["ratio_mean"] != often["ratio_mean"]


def test_ratios_to_the_learners_own_reading_start_at_one():
    learner: Any = Grpo(old="read", fidelity=None).build(context())
    samples = make_samples(SamplePlan())
    readings = learner.read([turn(s.prompt_ids, s.token_ids) for s in samples])
    metrics = learner.update([replace(s, reading=r) for s, r in zip(samples, readings, strict=True)])
    assert metrics["ratio_mean"] == pytest.approx(1, abs=1e-5)
    assert metrics["ratio_change"] == pytest.approx(0, abs=1e-5)
    assert metrics["clip_fraction"] == 0
    assert metrics["kl_sampler"] > 0.01


def test_ratios_change_in_a_second_epoch():
    learner: Any = Grpo(lr=1e-2, old="read", fidelity=None, epochs=2).build(context())
    samples = make_samples(SamplePlan())
    readings = learner.read([turn(s.prompt_ids, s.token_ids) for s in samples])
    metrics = learner.update([replace(s, reading=r) for s, r in zip(samples, readings, strict=True)])
    assert metrics["ratio_change"] > 1e-3


@pytest.mark.parametrize("settings", [Grpo(), Grpo(micro_tokens=30), Grpo(micro_tokens=60, merge=False, epochs=2)])
def test_figures_of_tokens_are_those_of_the_weights_before_the_update(settings):
    learner, samples = settings.build(context()), make_samples(SamplePlan(distinct=8, count=20))
    logits = {}
    for one in samples:
        with torch.no_grad():
            output = learner.model(torch.tensor([[*one.prompt_ids, *one.token_ids]]))
        logits[one.id] = output.logits[0, len(one.prompt_ids) - 1 : -1].log_softmax(-1)
    learner.update([])
    learner.token_figures = {}
    learner.update(samples)
    assert learner.token_figures.keys() == {one.id for one in samples}
    for one in samples:
        figures, expected = learner.token_figures[one.id], logits[one.id]
        chosen = expected[range(len(one.token_ids)), one.token_ids]
        assert figures.logprobs == pytest.approx(chosen.tolist(), abs=1e-5)
        assert figures.entropy == pytest.approx((-expected.exp() * expected).sum(-1).tolist(), abs=1e-5)


def test_no_figures_of_tokens_are_gathered_unless_they_are_wanted():
    learner: Any = Grpo().build(context())
    learner.update(make_samples(SamplePlan(distinct=2, count=4)))
    assert learner.token_figures is None


def test_imitation_lowers_its_loss_and_asks_neither_for_advantages_nor_log_probabilities():
    learner = Sft(lr=1e-2).build(context())
    samples = [
        replace(s, logprobs=(), sampling=Sampling(temperature=0.0))
        for s in make_samples(SamplePlan(distinct=4, count=8))
    ]
    losses = [learner.update(samples)["loss"] for _ in range(20)]
    assert losses[-1] < losses[0] - 1
    assert not Sft().trains_on_advantages
    assert Sft().supports(Sampling(top_p=0.5))


def test_imitation_is_the_mean_negative_log_probability():
    learner = Sft().build(context())
    samples = make_samples(SamplePlan())
    readings = read_logprobs(learner, *(turn(s.prompt_ids, s.token_ids) for s in samples))
    expected = -sum(map(sum, readings)) / sum(map(len, readings))
    assert learner.update(samples)["loss"] == pytest.approx(expected, rel=1e-5)


def test_minibatches_deal_every_sample_once_an_epoch():
    learner: Any = Grpo(minibatches=5, epochs=3, lr=1e-3).build(context())
    metrics = learner.update(make_samples(SamplePlan(distinct=12, count=12)))
    assert metrics["tokens"] == 3 * sum(len(s.token_ids) for s in make_samples(SamplePlan(distinct=12, count=12)))
    assert {s["step"].item() for s in learner._optimizer.state_dict().values()} == {15.0}


def test_minibatches_are_drawn_anew_by_seed_and_update():
    def learned(seed: int, updates: int) -> dict[str, torch.Tensor]:
        learner = Grpo(minibatches=4, lr=1e-3).build(context(seed=seed))
        for _ in range(updates):
            learner.update([])
        learner.update(make_samples(SamplePlan()))
        return weights(learner)

    assert equal_weights(learned(0, 0), learned(0, 0))
    assert not equal_weights(learned(0, 0), learned(1, 0))
    assert not equal_weights(learned(0, 0), learned(0, 1))


def test_a_prompt_without_tokens_and_a_temperature_of_zero_are_refused():
    learner: Any = Grpo().build(context())
    with pytest.raises(ValueError, match="at least one token"):
        learner.update([make_sample((), (2,), (-1.0,))])
    with pytest.raises(ValueError, match="temperature=0"):
        learner.read([turn((1,), (2,), Sampling(temperature=0.0))])
