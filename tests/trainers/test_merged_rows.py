from dataclasses import replace

import pytest

from marl.core.config import Sampling
from marl.core.types import Advantage, Reading
from marl.trainers.batching.rows import imitation_rows, policy_gradient_rows
from marl.trainers.imitation.settings import Sft
from marl.trainers.optim.settings import KlAnchor
from marl.trainers.policy_gradient.settings import Grpo
from tests.support.learning_samples import SamplePlan, context, distance, gradient, make_sample, make_samples

MODES = [
    {"aggregation": "token_mean"},
    {"aggregation": "token_sum"},
    {"aggregation": "seq_mean_token_sum"},
    {"aggregation": "seq_mean_token_mean"},
    {"aggregation": "seq_mean_token_sum_norm", "norm": 7},
]
EVERYTHING = {
    "magnet": KlAnchor(coefficient=0.5),
    "proximal": KlAnchor(coefficient=0.3, refresh=1, estimator="k2"),
    "reference": KlAnchor(coefficient=0.3, estimator="k3"),
    "entropy": 0.05,
}


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode["aggregation"])
def test_merged_rows_have_the_gradient_of_the_samples(mode):
    samples = make_samples(SamplePlan(distinct=8, count=60))
    merged = gradient(Grpo(**mode, **EVERYTHING), samples)
    unmerged = gradient(Grpo(**mode, **EVERYTHING, merge=False), samples)
    assert distance(merged, unmerged) < 1e-6


def test_merging_changes_no_metric_but_the_number_of_rows():
    samples = make_samples(SamplePlan(distinct=8, count=60))
    one, other = (Grpo(**EVERYTHING, merge=merge).build(context()).update(samples) for merge in (True, False))
    assert one.pop("rows") < 20
    assert other.pop("rows") == 60
    assert one == pytest.approx(other, rel=1e-5, abs=1e-7)
    assert one["clip_fraction"] > 0.1


def test_merged_token_advantages_and_mixed_signs_have_the_gradient_of_the_samples():
    plain = make_samples(SamplePlan(distinct=4, count=40))
    samples = [
        replace(s, advantage=Advantage(0.0, tokens=tuple((-1.0) ** (i + k) * (1 + i) for k in range(len(s.token_ids)))))
        for i, s in enumerate(plain)
    ]
    assert len(policy_gradient_rows(samples, "sampler", merge_equal=True)) <= 8
    assert distance(gradient(Grpo(), samples), gradient(Grpo(merge=False), samples)) < 1e-6


def test_imitation_merges_too():
    samples = make_samples(SamplePlan(distinct=4, count=40))
    assert distance(gradient(Sft(), samples), gradient(Sft(merge=False), samples)) < 1e-6


def test_signs_are_kept_apart_and_zero_goes_with_the_positive():
    samples = [make_sample((1,), (2,), (-1.0,), advantage=a) for a in (1.0, -2.0, 0.0, -0.5)]
    rows = policy_gradient_rows(samples, "sampler", merge_equal=True)
    assert [(row.count, row.columns["advantages"]) for row in rows] == [(2, (1.0,)), (2, (-2.5,))]
    assert [row.count for row in imitation_rows(samples, merge_equal=True)] == [4]


@pytest.mark.parametrize(
    "other",
    [
        {"prompt_ids": (3,)},
        {"token_ids": (3,)},
        {"sampling": Sampling(temperature=0.5)},
        {"sampling": Sampling(top_p=0.5)},
        {"versions": (1, 1)},
        {"versions": (0, 1), "id": ("episode", 1)},
    ],
)
def test_samples_that_differ_are_not_merged(other):
    first = make_sample((1,), (2,), (-1.0,))
    assert len(policy_gradient_rows([first, replace(first, **other)], "sampler", merge_equal=True)) == 2


def test_float_noise_in_log_probabilities_is_averaged():
    samples = [make_sample((1,), (2,), (lp,)) for lp in (-1.0, -1.000002)]
    (row,) = policy_gradient_rows(samples, "sampler", merge_equal=True)
    assert row.columns["old"] == row.columns["sampled"] == (pytest.approx(-1.000001),)


def test_the_old_policy_can_be_the_learners_own_reading():
    (row,) = policy_gradient_rows(
        [make_sample((1,), (2,), (-1.0,), reading=Reading((-1.5,)))], "read", merge_equal=True
    )
    assert (row.columns["old"], row.columns["sampled"]) == ((-1.5,), (-1.0,))
    with pytest.raises(ValueError, match=r"old='read' needs a reading of turn \('episode', 0\)"):
        policy_gradient_rows([make_sample((1,), (2,), (-1.0,))], "read", merge_equal=True)


def test_numbers_that_do_not_match_the_tokens_are_named():
    with pytest.raises(ValueError, match="2 tokens, but logprobs has 1 numbers"):
        policy_gradient_rows([make_sample((1,), (2, 3), (-1.0,))], "sampler", merge_equal=True)
    with pytest.raises(ValueError, match=r"1 tokens, but advantage.tokens has 2 numbers"):
        policy_gradient_rows(
            [make_sample((1,), (2,), (-1.0,), advantage=Advantage(0, (1.0, 2.0)))], "sampler", merge_equal=True
        )


def test_empty_completions_teach_nothing():
    assert policy_gradient_rows([make_sample((1,), (), ())], "sampler", merge_equal=True) == []
