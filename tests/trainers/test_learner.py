import json
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from learning_samples import Plan, Source, brief, distance, gradient, make, same, sample, weights
from transformers import AutoModelForCausalLM

from marl.config import Sampling
from marl.errors import NonFinite
from marl.types import Completion, Request, Turn
from trainers.settings import Anchor, Grpo, Sft

FULL = {
    "lr": 1e-3,
    "magnet": Anchor(coefficient=0.5, final=0.1),
    "proximal": Anchor(coefficient=0.5, refresh=2),
    "entropy": 0.01,
}


def turn(prompt_ids: tuple[int, ...], token_ids: tuple[int, ...], sampling: Sampling | None = None) -> Turn:
    completion = Completion("", prompt_ids, token_ids, (0.0,) * len(token_ids), "stop")
    request = Request("actor", (), sampling or Sampling())
    return Turn(("e", 0), "player_0", 0, 0, "solver", request, completion, None)


def said(learner: Any, *turns: Turn) -> list[tuple[float, ...]]:
    return [reading.logprobs for reading in learner.read(turns)]


def alone(model: Any, prompt_ids: tuple[int, ...], token_ids: tuple[int, ...]) -> torch.Tensor:
    """[T, V] logits at the completion tokens, from one unpadded forward pass."""
    with torch.no_grad():
        return model(torch.tensor([[*prompt_ids, *token_ids]])).logits[0, len(prompt_ids) - 1 : -1]


def test_readings_of_ragged_turns_equal_unpadded_forward_passes():
    samples = make(Plan(distinct=9, count=9))
    learner = Grpo(micro_tokens=40).build(brief())
    turns = [turn(s.prompt_ids, s.token_ids) for s in samples] * 2
    for one, got in zip(turns, said(learner, *turns), strict=True):
        c = one.completion
        logprobs = alone(learner.model, c.prompt_ids, c.token_ids).log_softmax(-1)
        assert got == pytest.approx(logprobs.gather(1, torch.tensor(c.token_ids)[:, None])[:, 0].tolist(), abs=1e-5)
    assert said(learner, turn((1,), ())) == [()]


def test_the_temperature_of_each_row_is_respected():
    learner = Grpo().build(brief())
    hot, cold = (turn((1, 2), (3,), Sampling(temperature=t)) for t in (2.0, 0.5))
    logits = alone(learner.model, (1, 2), (3,))
    expected = [(logits / t).log_softmax(-1)[0, 3].item() for t in (2.0, 0.5)]
    assert [lp for (lp,) in said(learner, hot, cold)] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("cut", [{"top_p": 0.6}, {"top_k": 5}, {"top_p": 0.6, "top_k": 7, "temperature": 1.5}])
def test_truncated_readings_match_the_sampling_distribution(cut):
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    sampling = Sampling(**cut)
    learner = Grpo(truncated="recompute").build(brief())
    scores = alone(learner.model, (1, 2), (0,)) / 1
    scores = TemperatureLogitsWarper(float(sampling.temperature))(None, scores)
    scores = TopKLogitsWarper(sampling.top_k)(None, scores) if sampling.top_k else scores
    expected = TopPLogitsWarper(sampling.top_p)(None, scores).log_softmax(-1)[0]
    kept = expected.isfinite().nonzero().flatten().tolist()
    got = [lp for (lp,) in said(learner, *(turn((1, 2), (token,), sampling) for token in kept))]
    assert 1 < len(kept) < 30
    assert got == pytest.approx(expected[kept].tolist(), abs=1e-5)
    dropped = next(token for token in range(40) if token not in kept)
    (kept_after_all,) = said(learner, turn((1, 2), (dropped,), sampling))
    assert math.isfinite(kept_after_all[0])


@pytest.mark.parametrize("mode", ["token_mean", "seq_mean_token_mean"])
def test_the_gradient_does_not_depend_on_micro_batches(mode):
    samples = make(Plan(distinct=16, count=30))
    whole = gradient(Grpo(aggregation=mode, **FULL), samples)
    for micro_tokens in (1, 30, 60):
        assert distance(gradient(Grpo(aggregation=mode, micro_tokens=micro_tokens, **FULL), samples), whole) < 1e-6


def test_the_gradient_is_that_of_the_loss_written_out():
    learner = Grpo().build(brief())
    one = sample((1, 2), (3, 4), (-3.0, -3.7), advantage=1.5)
    model = Source().model()
    logprobs = model(torch.tensor([[1, 2, 3, 4]])).logits[0, 1:3].log_softmax(-1)[[0, 1], [3, 4]]
    ratio = (logprobs - torch.tensor([-3.0, -3.7])).exp()
    (-torch.minimum(1.5 * ratio, 1.5 * ratio.clamp(0.8, 1.2)).mean()).backward()
    expected = torch.cat([p.grad.flatten() for p in model.parameters()])
    assert distance(gradient(Grpo(), [one]), expected) < 1e-6
    assert learner.update([one])["grad_norm"] == pytest.approx(expected.norm().item(), rel=1e-5)


def test_without_samples_nothing_changes_but_the_count():
    learner = Grpo(**FULL).build(brief())
    before = weights(learner)
    metrics = learner.update([])
    assert same(weights(learner), before)
    assert learner.updates == 1
    assert not any(value for name, value in metrics.items() if name != "lr")
    assert metrics.keys() == learner.update(make(Plan())).keys()


def test_a_restored_learner_continues_bit_for_bit():
    settings = Grpo(minibatches=3, epochs=2, schedule="cosine", **FULL)
    options = {"attention_dropout": 0.3}
    learner, other = settings.build(brief(**options)), settings.build(brief(**options))
    for i in range(3):
        learner.update(make(Plan(), seed=i))
    state = learner.state_dict()
    learned = [learner.update(make(Plan(), seed=i)) for i in (3, 4)]
    torch.rand(7)
    other.load_state_dict(state)
    assert [other.update(make(Plan(), seed=i)) for i in (3, 4)] == learned
    assert same(weights(other), weights(learner))


def test_updates_leave_the_global_random_numbers_alone():
    learner = Grpo(minibatches=2).build(brief(attention_dropout=0.3))
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    learner.update(make(Plan()))
    assert torch.equal(torch.rand(3), expected)


def test_a_state_that_does_not_fit_is_refused():
    learner, other = Grpo(**FULL).build(brief()), Grpo(magnet=Anchor(coefficient=1.0)).build(brief())
    with pytest.raises(
        ValueError, match=r"anchors are \['initial'\], but the saved ones are \['initial', 'proximal'\]"
    ):
        other.load_state_dict(learner.state_dict())
    with pytest.raises(ValueError, match="weights do not fit"):
        Grpo().build(brief(num_hidden_layers=2)).load_state_dict(learner.state_dict())


def test_tied_weights_are_published_once_and_saved_whole(tmp_path):
    learner = Grpo(lr=1e-2).build(brief(tie_word_embeddings=True))
    learner.update(make(Plan()))
    names = [name for name, _ in learner.publish()]
    assert "lm_head.weight" not in names
    assert len(names) == len(set(names))
    learner.save(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert same(dict(loaded.named_parameters()), dict(learner.publish()))
    assert (tmp_path / "model.safetensors").exists()
    assert json.loads((tmp_path / "tokenizer.json").read_text()) == {}


def test_a_poisoned_advantage_is_named_and_the_weights_stay():
    samples = make(Plan(distinct=3, count=20))
    poisoned = [replace(s, advantage=replace(s.advantage, value=math.nan)) if s.id[1] == 7 else s for s in samples]
    learner = Grpo(**FULL).build(brief())
    before = weights(learner)
    with pytest.raises(
        NonFinite, match=r"policy 'actor': the loss .* episode 'episode', turn 7 \(role 'solver'\)"
    ) as error:
        learner.update(poisoned)
    assert (error.value.policy, error.value.what, error.value.samples) == ("actor", "loss", (("episode", 7),))
    assert same(weights(learner), before)
    assert learner.updates == 0


def test_a_poisoned_log_probability_is_named_even_if_clipping_would_hide_it():
    samples = [*make(Plan()), sample((1,), (2,), (-math.inf,), turn=99)]
    with pytest.raises(NonFinite) as error:
        Grpo().build(brief()).update(samples)
    assert error.value.samples == (("episode", 99),)


def test_an_exploding_ratio_is_named():
    samples = [*make(Plan()), sample((1,), (2,), (-200.0,), advantage=-1.0, turn=99)]
    learner = Grpo().build(brief())
    before = weights(learner)
    with pytest.raises(NonFinite, match="the loss is not finite") as error:
        learner.update(samples)
    assert error.value.samples == (("episode", 99),)
    assert same(weights(learner), before)


def test_an_exploding_gradient_of_a_finite_loss_is_named():
    # e^85 is finite in float32, its square is not.
    samples = [*make(Plan()), sample((1,), (2,), (-88.0,), advantage=-1.0, turn=99)]
    learner = Grpo(max_norm=1e30).build(brief())
    before = weights(learner)
    with pytest.raises(NonFinite, match="the gradient is not finite") as error:
        learner.update(samples)
    assert error.value.samples == (("episode", 99),)
    assert same(weights(learner), before)
    assert all(p.grad is None for p in learner.model.parameters())


def test_the_learner_raises_what_is_rewarded_and_lowers_what_is_punished():
    learner = Grpo(lr=1e-2).build(brief(steps=30))
    good, bad = turn((1, 2), (3, 4)), turn((1, 2), (5, 6))
    first = said(learner, good, bad)
    for _ in range(5):
        now = said(learner, good, bad)
        learner.update([sample((1, 2), (3, 4), now[0], advantage=1), sample((1, 2), (5, 6), now[1], advantage=-1)])
    last = said(learner, good, bad)
    assert sum(last[0]) > sum(first[0]) + 0.5
    assert sum(last[1]) < sum(first[1]) - 0.5


def test_imitation_lowers_its_loss_and_asks_neither_for_advantages_nor_log_probabilities():
    learner = Sft(lr=1e-2).build(brief())
    samples = [replace(s, logprobs=(), sampling=Sampling(temperature=0.0)) for s in make(Plan(distinct=4, count=8))]
    losses = [learner.update(samples)["loss"] for _ in range(20)]
    assert losses[-1] < losses[0] - 1
    assert not Sft.judged
    assert Sft().corrects(Sampling(top_p=0.5))


def test_imitation_is_the_mean_negative_log_probability():
    learner = Sft().build(brief())
    samples = make(Plan())
    readings = said(learner, *(turn(s.prompt_ids, s.token_ids) for s in samples))
    expected = -sum(map(sum, readings)) / sum(map(len, readings))
    assert learner.update(samples)["loss"] == pytest.approx(expected, rel=1e-5)


def test_minibatches_deal_every_sample_once_an_epoch():
    learner = Grpo(minibatches=5, epochs=3, lr=1e-3).build(brief())
    metrics = learner.update(make(Plan(distinct=12, count=12)))
    assert metrics["tokens"] == 3 * sum(len(s.token_ids) for s in make(Plan(distinct=12, count=12)))
    assert {s["step"].item() for s in learner._optimizer.state_dict().values()} == {15.0}


def test_reading_asks_for_log_probabilities_only_if_they_are_used():
    assert Grpo(old="read").build(brief()).needs == {"logprobs"}
    assert Grpo().build(brief()).needs == frozenset()


def test_a_prompt_without_tokens_and_a_temperature_of_zero_are_refused():
    learner = Grpo().build(brief())
    with pytest.raises(ValueError, match="at least one token"):
        learner.update([sample((), (2,), (-1.0,))])
    with pytest.raises(ValueError, match="temperature=0"):
        learner.read([turn((1,), (2,), Sampling(temperature=0.0))])
