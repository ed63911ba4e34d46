from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma2Config, GPT2Config, Qwen3Config

from marl.core.config import Sampling
from marl.trainers.batching.batches import collate
from marl.trainers.batching.rows import BatchRow
from marl.trainers.policy_gradient.settings import Grpo
from tests.support.learning_samples import (
    SamplePlan,
    context,
    log_distributions,
    make_samples,
    read_logprobs,
    turn,
    unpadded_logprobs,
)

SMALL: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
FAMILIES = [
    Qwen3Config(**SMALL, intermediate_size=64, head_dim=16),
    Gemma2Config(**SMALL, intermediate_size=64, head_dim=16, final_logit_softcapping=2.0, sliding_window=4),
    GPT2Config(vocab_size=40, n_embd=32, n_layer=2, n_head=2),
]


def test_readings_of_ragged_turns_equal_unpadded_forward_passes():
    samples = make_samples(SamplePlan(distinct=9, count=9))
    learner: Any = Grpo(micro_tokens=40).build(context())
    turns = [turn(s.prompt_ids, s.token_ids) for s in samples] * 2
    for one, got in zip(turns, read_logprobs(learner, *turns), strict=True):
        c = one.completion
        logprobs = unpadded_logprobs(learner.model, c.prompt_ids, c.token_ids).log_softmax(-1)
        assert got == pytest.approx(logprobs.gather(1, torch.tensor(c.token_ids)[:, None])[:, 0].tolist(), abs=1e-5)
    assert read_logprobs(learner, turn((1,), ())) == [()]


@pytest.mark.parametrize("config", FAMILIES, ids=lambda config: config.model_type)
def test_models_of_other_families_are_read_as_they_speak(config):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    rows = [BatchRow(s.prompt_ids, s.token_ids) for s in make_samples(SamplePlan(distinct=6, count=6))]
    batch = collate(rows, torch.device("cpu"))
    with torch.no_grad():
        got = log_distributions(model, batch)
    expected = torch.cat([unpadded_logprobs(model, row.prompt_ids, row.token_ids) for row in rows]).log_softmax(-1)
    assert torch.allclose(got, expected, atol=1e-5)


def test_the_temperature_of_each_row_is_respected():
    learner: Any = Grpo().build(context())
    hot, cold = (turn((1, 2), (3,), Sampling(temperature=t)) for t in (2.0, 0.5))
    logits = unpadded_logprobs(learner.model, (1, 2), (3,))
    expected = [(logits / t).log_softmax(-1)[0, 3].item() for t in (2.0, 0.5)]
    assert [lp for (lp,) in read_logprobs(learner, hot, cold)] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("cut", [{"top_p": 0.6}, {"top_k": 5}, {"top_p": 0.6, "top_k": 7, "temperature": 1.5}])
def test_truncated_readings_match_the_sampling_distribution(cut):
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    sampling = Sampling(**cut)
    learner: Any = Grpo(truncated="recompute").build(context())
    unread: Any = None  # the token ids, which these warpers do not read
    scores = unpadded_logprobs(learner.model, (1, 2), (0,)) / 1
    scores = TemperatureLogitsWarper(float(sampling.temperature))(unread, scores)
    scores = TopKLogitsWarper(sampling.top_k)(unread, scores) if sampling.top_k else scores
    expected = TopPLogitsWarper(sampling.top_p)(unread, scores).log_softmax(-1)[0]
    nucleus = expected.isfinite().nonzero().flatten().tolist()
    got = [lp for (lp,) in read_logprobs(learner, *(turn((1, 2), (token,), sampling) for token in nucleus))]
    assert 1 < len(nucleus) < 30
    assert got == pytest.approx(expected[nucleus].tolist(), abs=1e-5)
    dropped = next(token for token in range(40) if token not in nucleus)
    ((logprob,),) = read_logprobs(learner, turn((1, 2), (dropped,), sampling))
    whole = unpadded_logprobs(learner.model, (1, 2), (0,))[0].div(sampling.temperature).softmax(-1)
    assert logprob == pytest.approx((whole[dropped] / whole[[*nucleus, dropped]].sum()).log().item(), abs=1e-5)


def test_reading_is_without_dropout_and_learning_with_it():
    learner: Any = Grpo().build(context(attention_dropout=0.5))
    one = turn((1, 2, 3, 4), (5, 6))
    assert read_logprobs(learner, one) == read_logprobs(learner, one) == read_logprobs(Grpo().build(context()), one)
    assert learner.model.training


def test_reading_asks_for_log_probabilities_only_if_they_are_used():
    assert Grpo(old="read", fidelity=None).build(context()).needed_reading_fields == {"logprobs"}
    assert Grpo(fidelity=None).build(context()).needed_reading_fields == frozenset()
