"""However a minibatch is cut into micro-batches, and in whatever order, it teaches the same."""

import random
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config

from marl.trainers.imitation.settings import Sft
from marl.trainers.optim.settings import KlAnchor
from marl.trainers.policy_gradient.loss_settings import GspoLoss
from marl.trainers.policy_gradient.settings import Grpo
from tests.support.learning_samples import (
    VOCABULARY,
    SamplePlan,
    TinySource,
    context,
    distance,
    gradient,
    make_samples,
    weights,
)

LEARNERS = {
    "grpo": Grpo(),
    "grpo_everything": Grpo(
        reference=KlAnchor(coefficient=0.3, estimator="k3_is"),
        magnet=KlAnchor(coefficient=0.5, final=0.1),
        entropy=0.01,
        aggregation="seq_mean_token_mean",
    ),
    "gspo": Grpo(loss=GspoLoss(), aggregation="seq_mean_token_mean"),
    "sft": Sft(),
}
CUTS = {"one": 10**6, "some": 60, "many": 1}


def sharing_samples(count: int = 24) -> list:
    """Samples of which some share prompts, and some all tokens."""
    return make_samples(SamplePlan(distinct=16, count=count))


@pytest.mark.parametrize("cut", ["some", "many"])
@pytest.mark.parametrize("name", LEARNERS)
def test_the_gradient_is_the_same_in_one_micro_batch_or_many_in_any_order(name, cut):
    samples, settings = sharing_samples(), LEARNERS[name]
    whole = gradient(settings.model_copy(update={"micro_tokens": CUTS["one"]}), samples)
    random.Random(1).shuffle(samples)
    pieces = gradient(settings.model_copy(update={"micro_tokens": CUTS[cut]}), samples)
    assert distance(pieces, whole) < 1e-6


class Double(TinySource):
    """A GPT-2 in float64. (Llamas and their like normalise in float32, whatever they are given.)"""

    def model(self):
        torch.manual_seed(0)
        config = GPT2Config(
            vocab_size=VOCABULARY, n_embd=32, n_layer=1, n_head=2, n_positions=128, initializer_range=0.15
        )
        config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.0
        return AutoModelForCausalLM.from_config(config).double()


@pytest.mark.parametrize("name", LEARNERS)
def test_ten_steps_in_double_precision_end_at_the_same_weights(name):
    ends = []
    for cut in CUTS.values():
        settings = LEARNERS[name].model_copy(update={"micro_tokens": cut, "lr": 1e-3})
        learner = settings.build(context(steps=20, source=Double()))
        for step in range(10):
            samples = make_samples(SamplePlan(distinct=16, count=24), seed=step)
            random.Random(cut).shuffle(samples)
            learner.update(samples)
        ends.append(torch.cat([tensor.flatten() for tensor in weights(learner).values()]))
    assert ends[0].dtype == torch.float64
    assert max(float((end - ends[0]).abs().max()) for end in ends[1:]) < 1e-9


def test_two_ranks_with_common_totals_have_the_gradient_of_one():
    """What a rank needs to know of the others is in `MinibatchTotals`: gradients are summed, not averaged."""
    from marl.trainers.batching.batches import collate
    from marl.trainers.batching.rows import count_minibatch_totals

    learner: Any = Grpo(aggregation="seq_mean_token_mean").build(context())
    rows = learner.objective.rows(sharing_samples())
    totals = count_minibatch_totals(rows)

    def rank(part):
        learner.model.zero_grad()
        learner.objective.forward_loss(
            learner.model, collate(part, torch.device("cpu")), totals
        ).loss_B.sum().backward()
        return torch.cat([p.grad.flatten() for p in learner.model.parameters()])

    whole, parts = rank(rows), [rank(rows[::2]), rank(rows[1::2])]
    assert distance(parts[0] + parts[1], whole) < 1e-6
