"""Tokens that the policy did not choose (an imposed end of a thought) are read by later ones and never learned."""

from __future__ import annotations

from dataclasses import replace

import pytest

from marl.core.types import Advantage, Reading, Sample
from marl.trainers.batching.rows import imitation_rows, policy_gradient_rows
from marl.trainers.imitation.settings import Sft
from marl.trainers.policy_gradient.loss_settings import GspoTokenLoss, ReinforceLoss
from marl.trainers.policy_gradient.mismatch import add_mismatch_weights
from marl.trainers.policy_gradient.options import MismatchCorrection
from marl.trainers.policy_gradient.presets import Gspo
from marl.trainers.policy_gradient.settings import Grpo
from tests.support.learning_samples import SamplePlan, distance, gradient, make_sample, make_samples

LEARNERS = [
    Grpo(),
    Grpo(aggregation="seq_mean_token_mean"),
    Grpo(loss=ReinforceLoss(), mismatch=MismatchCorrection(kind="mis", low=0.1, high=10.0)),
    Gspo(loss=GspoTokenLoss()),
]


def samples(first: float, *, imposed: tuple[int, ...]) -> list[Sample]:
    """Samples whose first token has the advantage `first`."""
    made = make_samples(SamplePlan(distinct=4, count=12))
    return [
        replace(s, imposed=imposed, advantage=Advantage(1.0, tokens=(first, *[1.0] * (len(s.token_ids) - 1))))
        for s in made
    ]


@pytest.mark.parametrize("settings", LEARNERS, ids=["token mean", "mean of means", "mismatch", "gspo_token"])
def test_the_advantage_of_an_imposed_token_moves_no_weight(settings: Grpo) -> None:
    imposed = [gradient(settings, samples(first, imposed=(0,))) for first in (1.0, 5.0)]
    chosen = [gradient(settings, samples(first, imposed=())) for first in (1.0, 5.0)]
    assert distance(*imposed) == 0
    assert distance(*chosen) > 1e-3
    assert distance(imposed[0], chosen[0]) > 1e-3


def test_imitation_leaves_it_out_of_loss_and_denominator() -> None:
    one, other = make_sample((1,), (2, 3), (-1.0, -1.0)), make_sample((1,), (2, 4), (-1.0, -1.0))
    rows = imitation_rows([replace(one, imposed=(1,)), replace(other, imposed=(1,)), one], merge_equal=True)
    assert [(row.token_ids, row.loss_mask, row.loss_token_count) for row in rows] == [
        ((2, 3), (True, False), 1),
        ((2, 4), (True, False), 1),
        ((2, 3), None, 2),
    ]
    last = [gradient(Sft(), [replace(s, imposed=(1,))]) for s in (one, other)]
    assert distance(*last) == 0


def test_dropping_tokens_for_their_mismatch_does_not_bring_it_back() -> None:
    settings = MismatchCorrection(kind="mis", low=0.5, high=2.0, denominator="kept")
    tokens = replace(
        make_sample((1,), (2, 3, 4), (-1.0, -1.0, -9.0)), imposed=(0,), reading=Reading((-1.0, -1.0, -1.0))
    )
    [row] = add_mismatch_weights(policy_gradient_rows([tokens], "read", merge_equal=True), settings)
    assert row.loss_mask == (False, True, False)


def test_the_same_tokens_chosen_and_imposed_are_two_rows() -> None:
    chosen = make_sample((1,), (2, 3), (-1.0, -1.0))
    rows = policy_gradient_rows([chosen, replace(chosen, imposed=(1,))], "sampler", merge_equal=True)
    assert [row.loss_mask for row in rows] == [None, (True, False)]
