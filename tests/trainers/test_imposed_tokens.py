"""Tokens that the policy did not choose (an imposed end of a thought) are read by later ones and never learned."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from marl.core.types import Advantage, Reading, Sample
from marl.trainers.batching.rows import imitation_rows, policy_gradient_rows
from marl.trainers.imitation.settings import Sft
from marl.trainers.policy_gradient.critic_settings import CriticConfig
from marl.trainers.policy_gradient.loss_settings import GspoTokenLoss, ReinforceLoss
from marl.trainers.policy_gradient.mismatch import add_mismatch_weights
from marl.trainers.policy_gradient.options import MismatchCorrection
from marl.trainers.policy_gradient.presets import Gspo
from marl.trainers.policy_gradient.settings import Grpo, Ppo
from marl.trainers.preferences.pairs import comparison_groups
from marl.trainers.preferences.settings import Dpo
from tests.support.learning_samples import SamplePlan, context, distance, gradient, make_sample, make_samples, turn

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


@pytest.mark.parametrize("settings", [Grpo(), Grpo(aggregation="seq_mean_token_mean"), Sft()], ids=["1", "2", "sft"])
def test_a_completion_that_was_imposed_as_a_whole_is_in_no_loss_and_no_denominator(settings: Grpo | Sft) -> None:
    others = make_samples(SamplePlan(distinct=4, count=4))
    imposed = replace(make_sample((1,), (2, 3), (-1.0, -1.0), turn=9), imposed=(0, 1))
    assert distance(gradient(settings, [imposed, *others]), gradient(settings, others)) == 0
    metrics = settings.build(context()).update([imposed])
    assert (metrics["rows"], metrics["tokens"], metrics["loss"], metrics["samples"]) == (0, 0, 0, 1)


def test_a_pair_of_which_one_side_was_imposed_is_no_pair() -> None:
    better = make_sample((1,), (2, 3), (-1.0, -1.0), paid=1.0)
    worse = replace(make_sample((1,), (4, 5), (-1.0, -1.0), turn=1), imposed=(0, 1))
    assert comparison_groups([better, worse], Dpo()) == []
    assert len(comparison_groups([better, replace(worse, imposed=(0,))], Dpo())) == 1


def test_an_imposed_token_outside_of_the_samplers_top_p_changes_nothing() -> None:
    settings = Grpo(truncated="recompute", fidelity=None)
    finite, infinite = (
        [replace(s, logprobs=(logprob, *s.logprobs[1:])) for s in samples(1.0, imposed=(0,)) if len(s.token_ids) > 1]
        for logprob in (-1.0, -math.inf)
    )
    assert distance(gradient(settings, infinite), gradient(settings, finite)) == 0


def test_the_check_of_the_samplers_fidelity_leaves_imposed_tokens_out() -> None:
    learner: Any = Grpo().build(context())
    [read] = learner.read([turn((1, 2), (3, 4, 5))])
    sampled = make_sample((1, 2), (3, 4, 5), (read.logprobs[0], -math.inf, read.logprobs[2]))
    metrics = learner.update([replace(sampled, imposed=(1,), reading=read)])
    assert metrics["fidelity_max"] == 0


def test_imposed_tokens_are_not_in_the_mean_ratio_of_a_row() -> None:
    # Both sampled tokens have the ratio 2, so that is their geometric mean, whatever the imposed token's ratio is.
    settings = MismatchCorrection(kind="tis", level="geometric", high=10.0)
    old = (-1.0, -1.0, -1.0)
    sampler = (-1.0, -1.0 - math.log(2), -1.0 - math.log(2))
    sample = replace(make_sample((1,), (2, 3, 4), sampler), imposed=(0,), reading=Reading(old))
    [row] = add_mismatch_weights(policy_gradient_rows([sample], "read", merge_equal=True), settings)
    assert row.columns["weights"] == pytest.approx((0.0, 2.0, 2.0))


def test_a_critic_learns_a_turns_value_even_if_its_first_token_was_imposed() -> None:
    # The target is for the state before the first token. An untrained critic gives 0, so the loss is (0 - 1)^2 / 2.
    sample = make_sample((1,), (2, 3), (-1.0, -1.0), advantage=Advantage(1.0, (), (1.0,)))
    settings = Ppo(fidelity=None, critic=CriticConfig(clip=None))
    for imposed in ((), (0,)):
        assert settings.build(context()).update([replace(sample, imposed=imposed)])["value_loss"] == 0.5
    per_token = replace(sample, imposed=(0,), advantage=Advantage(1.0, (1.0, 1.0), (7.0, 1.0)))
    assert settings.build(context()).update([per_token])["value_loss"] == 0.5
