"""Imitation of distributions over answers, and with a critic beside it: against drawn answers and numbers by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from marl.core.types import Advantage, ImitationTarget, Sample
from marl.trainers.batching.rows import imitation_rows
from marl.trainers.imitation.settings import Sft
from marl.trainers.policy_gradient.critic_settings import CriticConfig
from tests.support.learning_samples import SamplePlan, context, first_step, flat, make_sample, make_samples
from tests.support.value_samples import with_random_critic

TRUNK = CriticConfig(where="trunk", coefficient=0.5, clip=None)
SOFT = (ImitationTarget((5, 6), 0.75), ImitationTarget((7,), 0.25))


def drawn(prompt: tuple[int, ...], turn: int, **more: Any) -> list[Sample]:
    """Return four samples, as often as `SOFT` has it."""
    answers = [(5, 6)] * 3 + [(7,)]
    return [make_sample(prompt, ids, (-1.0,) * len(ids), turn=turn + i, **more) for i, ids in enumerate(answers)]


@pytest.mark.parametrize("aggregation", ["token_mean", "seq_mean_token_sum", "seq_mean_token_mean"])
@pytest.mark.parametrize("merge", [True, False])
def test_a_distribution_is_learned_as_answers_drawn_from_it(aggregation: Any, merge: bool) -> None:
    settings = Sft(lr=1e-3, aggregation=aggregation, merge=merge)
    soft = [replace(drawn((1, 2), 0)[0], targets=SOFT), replace(drawn((3,), 9)[0], targets=SOFT)]
    many = [*drawn((1, 2), 0), *drawn((3,), 4)]
    one, other = (first_step(settings.build(context()), samples) for samples in (soft, many))
    assert one[0]["loss"] == pytest.approx(other[0]["loss"], rel=1e-5)
    assert torch.allclose(flat(one[1]), flat(other[1]), atol=1e-6)


def test_equal_targets_of_equal_prompts_are_one_row_that_counts_by_their_shares() -> None:
    samples = [replace(drawn((1, 2), turn)[0], targets=SOFT) for turn in range(3)]
    rows = imitation_rows(samples, merge_equal=True)
    assert [(row.token_ids, row.count) for row in rows] == [((5, 6), pytest.approx(2.25)), ((7,), pytest.approx(0.75))]


def test_the_loss_with_a_critic_is_the_cross_entropy_and_half_the_squared_error_of_each_prompt() -> None:
    learner = with_random_critic(Sft(lr=1e-3, critic=TRUNK, aggregation="seq_mean_token_sum").build(context()))
    soft = replace(drawn((1, 2), 0, advantage=Advantage(0.3, returns=(0.9,)))[0], targets=SOFT)
    with torch.no_grad():
        hidden = learner.model.model(torch.tensor([[1, 2]])).last_hidden_state[0, -1]
        head = learner.objective.modules["critic"].head
        value = float(head.weight[0] @ hidden + head.bias)
        nll = {
            ids: -sum(
                learner.model(torch.tensor([[1, 2, *ids]])).logits[0].log_softmax(-1)[1 + t, token].item()
                for t, token in enumerate(ids)
            )
            for ids in ((5, 6), (7,))
        }
    metrics, _ = first_step(learner, [soft])
    assert metrics["value_loss"] == pytest.approx(0.5 * (value - 0.9) ** 2, rel=1e-4)
    expected = 0.75 * nll[5, 6] + 0.25 * nll[7,] + 0.5 * metrics["value_loss"]
    assert metrics["loss"] == pytest.approx(expected, rel=1e-4)


def test_imitation_reads_values_and_asks_credit_for_them_only_with_a_critic() -> None:
    assert Sft().computable_reading_fields == Sft.readable_fields
    assert not Sft().trains_on_advantages
    assert Sft(critic=TRUNK).required_credit_fields == {"values"}
    assert Sft(critic=TRUNK).computable_reading_fields == Sft.readable_fields | {"values"}
    with pytest.raises(ValueError, match="credit gave none of 12 turns any"):
        Sft(critic=TRUNK).build(context()).update(make_samples(SamplePlan()))
