"""Every loss of a policy through a real model, against the same one written a second time."""

import math
import random
from dataclasses import replace
from typing import Any

import pytest
import torch

from marl.core.errors import NonFiniteError
from marl.core.types import Advantage, Reading
from marl.trainers.batching.batches import collate
from marl.trainers.batching.rows import count_minibatch_totals
from marl.trainers.optim.settings import KlAnchor
from marl.trainers.policy_gradient.loss_settings import PpoClipLoss
from marl.trainers.policy_gradient.options import EntropyControl, MismatchCorrection
from marl.trainers.policy_gradient.presets import Reinforce
from marl.trainers.policy_gradient.settings import Grpo
from tests.support.learning_samples import (
    SamplePlan,
    context,
    distance,
    equal_weights,
    make_sample,
    make_samples,
    turn,
    weights,
)
from tests.support.reference_policy_gradients import (
    LOSSES,
    advantages,
    aggregate,
    built,
    chosen,
    gradient_error,
    loss_gradient,
    update_gradient,
)

SAMPLES = make_samples(SamplePlan(distinct=10, count=10))
KINDS = pytest.mark.parametrize("kind", LOSSES)


def settings(kind, **more):
    return Grpo(**{"loss": LOSSES[kind][1], "fidelity": None, **more})


def by_token(samples):
    """Return the same samples with an advantage for each token."""
    rng = random.Random(5)
    return [replace(s, advantage=Advantage(0.0, tuple(rng.gauss(0.3, 1) for _ in s.token_ids))) for s in samples]


def independent(learner, kind, samples, mode="token_mean", norm=None):
    old = [torch.tensor(s.logprobs) for s in samples]
    losses = [LOSSES[kind][0](chosen(learner.model, s), o, advantages(s)) for s, o in zip(samples, old, strict=True)]
    return aggregate(losses, mode, norm)


@KINDS
@pytest.mark.parametrize(("mode", "norm"), [("token_mean", None), ("seq_mean_token_mean", None)])
def test_the_gradient_through_the_model_is_that_of_the_loss_written_again(kind, mode, norm):
    learner = built(settings(kind, aggregation=mode, norm=norm))
    loss = independent(learner, kind, SAMPLES, mode, norm)
    expected = loss_gradient(learner.model, loss)
    assert distance(update_gradient(learner, SAMPLES), expected) < 1e-5
    assert learner.metrics["loss"] == pytest.approx(loss.item(), rel=1e-5, abs=1e-6)
    assert expected.norm() > 1e-3


@KINDS
def test_advantages_of_single_tokens_reach_the_loss(kind):
    learner, samples = built(settings(kind)), by_token(SAMPLES)
    assert gradient_error(learner, samples, independent(learner, kind, samples)) < 1e-5


@KINDS
@pytest.mark.parametrize("single", [False, True])
def test_merged_samples_have_the_gradient_of_those_computed_one_by_one(kind, single):
    samples = make_samples(SamplePlan(distinct=5, count=20))
    samples = by_token(samples) if single else samples
    merged, alone = (update_gradient(built(settings(kind, opsm=0.05, merge=merge)), samples) for merge in (True, False))
    assert distance(merged, alone) < 1e-6


@KINDS
def test_micro_batches_of_any_size_and_order_add_up_to_one(kind):
    samples = make_samples(SamplePlan(distinct=16, count=16))
    whole = update_gradient(built(settings(kind)), samples)
    for seed in range(2):
        shuffled = random.Random(seed).sample(samples, len(samples))
        assert distance(update_gradient(built(settings(kind, micro_tokens=32)), shuffled), whole) < 1e-6


@KINDS
def test_poison_where_tokens_do_not_count_changes_nothing(kind):
    learner = built(settings(kind, opsm=0.05, reference=KlAnchor(coefficient=0.5, estimator="k3_is")), moved=0.02)
    rows = [
        replace(r, loss_mask=tuple(i != 1 for i in range(len(r.token_ids)))) for r in learner.objective.rows(SAMPLES)
    ]
    batch, totals, results = collate(rows, learner.device), count_minibatch_totals(rows), []
    for poison in (0.0, math.nan, math.inf):
        columns = {n: torch.where(batch.loss_mask_BT, c, poison) for n, c in batch.columns.items()}
        loss = learner.objective.forward_loss(learner.model, replace(batch, columns=columns), totals).loss_B.sum()
        results.append((loss.detach(), loss_gradient(learner.model, loss)))
    assert all(torch.equal(loss, results[0][0]) and torch.equal(grad, results[0][1]) for loss, grad in results)
    assert results[0][1].isfinite().all()


def test_reinforce_sums_over_tokens_and_averages_over_samples():
    learner = built(Reinforce(fidelity=None))
    expected = loss_gradient(learner.model, independent(learner, "reinforce", SAMPLES, "seq_mean_token_sum"))
    assert distance(update_gradient(learner, SAMPLES), expected) < 1e-5


def test_log_ratios_that_are_brought_back_have_no_gradient():
    near, far = (
        make_samples(SamplePlan(distinct=3, count=3, noise=0.1)),
        make_sample((1, 2), (3, 4), (-9.0, -4.6), turn=99, advantage=-1.0),
    )
    learner = built(settings("clip", loss={**LOSSES["clip"][1], "max_log_ratio": 2.0}))
    logprobs = [chosen(learner.model, s) for s in [*near, far]]
    losses = [
        LOSSES["clip"][0](p, torch.tensor(s.logprobs), advantages(s)) for p, s in zip(logprobs, near, strict=False)
    ]
    gap = logprobs[-1] - torch.tensor(far.logprobs)
    assert gap[0] > 2 > gap[1], "or this test shows nothing"
    losses.append(torch.stack([gap[0].detach() * 0 + math.exp(2.0), gap[1].exp()]))
    assert gradient_error(learner, [*near, far], aggregate(losses, "token_mean")) < 1e-5


def test_cut_completions_are_in_no_denominator():
    cut = [replace(s, finish="length") if i % 3 == 0 else s for i, s in enumerate(SAMPLES)]
    whole = [s for s in cut if s.finish == "stop"]
    learner = built(settings("clip", filter_cut=True))
    assert torch.equal(update_gradient(learner, cut), update_gradient(built(settings("clip")), whole))
    lost = sum(len(s.token_ids) for s in cut if s.finish == "length")
    assert learner.metrics["left_out"] == pytest.approx(lost / sum(len(s.token_ids) for s in cut))
    idle = built(settings("clip", filter_cut=True))
    before = weights(idle)
    assert idle.update([replace(s, finish="length") for s in SAMPLES])["left_out"] == 1
    assert equal_weights(weights(idle), before)


# One row whose ratios are 4, 1/4 and 1; one of two tokens whose ratios are 1/8 and 1/2.
RATIOS = ((4.0, 0.25, 1.0), (0.125, 0.5))


def read(ratios, turn=0, advantage=1.0):
    logprobs = tuple(-3.0 + 0.1 * i for i in range(len(ratios)))
    reading = Reading(tuple(p + math.log(r) for p, r in zip(logprobs, ratios, strict=True)))
    return make_sample((1, 2), (3, 4, 5)[: len(ratios)], logprobs, turn=turn, advantage=advantage, reading=reading)


TWO = [read(ratios, turn) for turn, ratios in enumerate(RATIOS)]


@pytest.mark.parametrize(
    ("mismatch", "expected"),
    [
        ({"kind": "tis"}, ((2, 0.25, 1), (0.125, 0.5))),
        ({"kind": "tis", "low": 0.5, "high": 3}, ((3, 0.5, 1), (0.5, 0.5))),
        ({"kind": "tis", "level": "sequence"}, ((1, 1, 1), (0.0625, 0.0625))),
        ({"kind": "tis", "level": "geometric"}, ((1, 1, 1), (0.25, 0.25))),
        ({"kind": "mis"}, ((0, 0.25, 1), (0.125, 0.5))),
        ({"kind": "mis", "level": "sequence", "low": 0.1}, ((1, 1, 1), (0, 0))),
        ({"kind": "icepop"}, ((4, 0, 1), (0, 0.5))),
        ({"kind": "geometric"}, ((4, 0.25, 1), (0, 0))),
        # k3 = r - 1 - log r: 1.614, .636, 0 and 1.204, .193
        ({"kind": "reject", "high": 0.7}, ((0, 1, 1), (0, 1))),
        ({"kind": "reject", "high": 2.0, "span": "sum"}, ((0, 0, 0), (1, 1))),
        ({"kind": "reject", "high": 1.3, "span": "max"}, ((0, 0, 0), (1, 1))),
        ({"kind": "reject", "high": 2, "low": 0.5, "divergence": "k1", "span": "mean"}, ((1, 1, 1), (0, 0))),
        # k2 = (log r)^2 / 2: .961, .961, 0 and 2.162, .240
        ({"kind": "reject", "high": 1.0, "divergence": "k2"}, ((1, 1, 1), (0, 1))),
    ],
)
def test_weights_and_denominators_of_a_mismatch_are_those_by_hand(mismatch, expected):
    for denominator in ("all", "kept"):
        options = Grpo(old="read", fidelity=None, mismatch=MismatchCorrection(**mismatch, denominator=denominator))
        learner: Any = options.build(context())
        rows = learner.objective.rows(TWO)
        by_turn = {row.samples[0].id[1]: row for row in rows}
        left = [sum(w > 0 for w in row) for row in expected]
        for turn_, weights_ in enumerate(expected):
            if denominator == "all" or left[turn_]:
                assert by_turn[turn_].columns["weights"] == pytest.approx(weights_, rel=1e-5)
        totals = count_minibatch_totals(rows)
        assert totals.tokens == (5 if denominator == "all" else sum(left))
        assert totals.samples == (2 if denominator == "all" else sum(map(bool, left)))


@pytest.mark.parametrize(("denominator", "tokens"), [("all", 5), ("kept", 3)])
def test_rejected_tokens_have_no_gradient_and_stay_in_the_denominator_if_wanted(denominator, tokens):
    mismatch = MismatchCorrection(kind="icepop", denominator=denominator)
    learner = built(Grpo(old="read", fidelity=None, mismatch=mismatch, loss=PpoClipLoss(clip_low=0.9, clip_high=9)))
    weight, total = ((4, 0, 1), (0, 0.5)), 0
    for one, row in zip(TWO, weight, strict=True):
        assert one.reading is not None
        ratio = (chosen(learner.model, one) - torch.tensor(one.reading.logprobs)).exp()
        total = total - (torch.tensor(row) * ratio).sum()
    assert gradient_error(learner, TWO, total / tokens) < 1e-5
    assert learner.metrics["tokens"] == tokens
    assert learner.metrics.get("left_out", 0) == pytest.approx(0 if denominator == "all" else 0.4)
    assert learner.metrics["rejected"] == pytest.approx(0.4 if denominator == "all" else 0)


def test_reinforce_without_a_reading_is_weighted_by_the_policy_itself():
    learner = built(
        Reinforce(fidelity=None, aggregation="token_mean", mismatch=MismatchCorrection(kind="tis", high=1.2))
    )
    losses = []
    for one in SAMPLES:
        logprobs = chosen(learner.model, one)
        ratio = (logprobs.detach() - torch.tensor(one.logprobs)).exp().clamp(max=1.2)
        losses.append(-ratio * advantages(one) * logprobs)
    assert gradient_error(learner, SAMPLES, aggregate(losses, "token_mean")) < 1e-5
    assert 0 < learner.metrics["weight"] < 1.2


def test_bad_rows_that_left_the_policy_are_left_out_and_good_ones_stay():
    learner, losses, left = built(settings("clip", opsm=0.2)), [], 0
    for one in SAMPLES:
        logprobs, a = chosen(learner.model, one), advantages(one)
        gone = float((torch.tensor(one.logprobs) - logprobs.detach()).mean()) > 0.2 and one.advantage.value < 0
        left += gone * len(one.token_ids)
        losses.append(LOSSES["clip"][0](logprobs, torch.tensor(one.logprobs), a) * (not gone))
    assert left, "or this test shows nothing"
    assert gradient_error(learner, SAMPLES, aggregate(losses, "token_mean")) < 1e-5
    assert learner.metrics["rejected"] == pytest.approx(left / sum(len(s.token_ids) for s in SAMPLES))


@pytest.mark.parametrize("estimator", ["k2", "k3", "k3_is", "k1+", "k3+"])
@pytest.mark.parametrize("clamp", [None, 0.05])
def test_sampled_divergences_from_an_anchor_are_those_written_again(estimator, clamp):
    silent = [replace(s, advantage=Advantage(0.0)) for s in SAMPLES]
    anchor = KlAnchor(coefficient=0.7, estimator=estimator, clamp=clamp)
    learner = built(settings("clip", reference=anchor), moved=0.02)
    initial, values, slopes = context().source.model(), [], []
    limit = clamp or math.inf
    for one in silent:
        logprobs = chosen(learner.model, one)
        d = logprobs - chosen(initial, one).detach()
        plain = {"k1": d, "k2": d**2 / 2, "k3": torch.exp(-d) - 1 + d}[estimator[:2]].clamp(-limit, limit)
        if estimator == "k3_is":
            plain = plain * (logprobs - torch.tensor(one.logprobs)).exp()
        values.append(plain.detach())
        slopes.append(d**2 / 2 if estimator.endswith("+") else plain)
    expected = loss_gradient(learner.model, 0.7 * aggregate(slopes, "token_mean"))
    assert distance(update_gradient(learner, silent), expected) < 2e-5
    assert learner.metrics["kl_reference"] == pytest.approx(torch.cat(values).mean().item(), rel=1e-4)


def test_a_reference_of_coefficient_0_is_read_and_in_no_loss():
    learner = built(settings("clip", reference=KlAnchor(coefficient=0), lr=1e-2))
    plain = built(settings("clip", lr=1e-2))
    turns = [turn(s.prompt_ids, s.token_ids) for s in SAMPLES]
    for one in (learner, plain):
        assert "kl_reference" not in one.update(SAMPLES)
    assert equal_weights(weights(learner), weights(plain))
    initial = context().source.model()
    readings = learner.read(turns, frozenset({"logprobs", "reference"}))
    for one, reading in zip(SAMPLES, readings, strict=True):
        assert reading.reference == pytest.approx(chosen(initial, one).tolist(), abs=1e-5)
        assert reading.logprobs == pytest.approx(chosen(learner.model, one).tolist(), abs=1e-5)
        assert reading.reference != pytest.approx(reading.logprobs, abs=1e-3)
    assert learner.settings.computable_reading_fields == {"logprobs", "hidden", "reference"}
    assert "reference" not in plain.settings.computable_reading_fields


def test_a_steered_coefficient_follows_the_measured_divergence():
    learner = built(settings("clip", lr=1e-2, reference=KlAnchor(coefficient=0.5, target=0.01, horizon=100)))
    # The first update measures 0, far under target: down by a fifth of 10 samples in 100.
    first = learner.update(SAMPLES)
    assert first["coefficient_reference"] == pytest.approx(0.5 * (1 - 0.2 * 0.1))
    second = learner.update(SAMPLES)
    assert second["kl_reference"] > 0.012
    assert second["coefficient_reference"] == pytest.approx(first["coefficient_reference"] * (1 + 0.2 * 0.1))
    assert second["loss"] == pytest.approx(
        second["policy_loss"] + first["coefficient_reference"] * second["kl_reference"], rel=1e-4
    )


def test_a_steered_bonus_is_given_while_the_entropy_is_at_or_under_its_target():
    (under, over) = (
        built(settings("clip", entropy=0.2, entropy_control=EntropyControl(target=target, step=0.05)))
        for target in (9.0, 0.5)
    )
    first, second = under.update(SAMPLES), under.update(SAMPLES)
    assert first["loss"] == pytest.approx(first["policy_loss"] - 0.2 * first["entropy"], rel=1e-4)
    assert first["coefficient_entropy"] == pytest.approx(0.25)
    assert second["loss"] == pytest.approx(second["policy_loss"] - 0.25 * second["entropy"], rel=1e-4)
    first, second = over.update(SAMPLES), over.update(SAMPLES)
    assert first["coefficient_entropy"] == 0
    assert second["loss"] == pytest.approx(second["policy_loss"], rel=1e-5)


def test_steered_coefficients_resume_exactly():
    options = settings(
        "clip",
        lr=1e-2,
        reference=KlAnchor(coefficient=0.5, target=0.01, horizon=20),
        proximal=KlAnchor(coefficient=0.1, refresh=2, estimator="k2"),
        entropy=0.01,
        entropy_control=EntropyControl(target=3.67, step=0.01),
    )
    learner, other = options.build(context()), options.build(context())
    batches = [make_samples(SamplePlan(), seed=seed) for seed in range(6)]
    for batch in batches[:3]:
        learner.update(batch)
    other.load_state_dict(learner.state_dict())
    for batch in batches[3:]:
        assert learner.update(batch) == other.update(batch)
    assert equal_weights(weights(learner), weights(other))


@KINDS
def test_what_is_not_finite_is_named_and_never_learnt_from(kind):
    bad = [
        replace(SAMPLES[3], advantage=Advantage(math.nan)),
        make_sample((1,), (2, 3), (-math.inf, -1.0), turn=3),
        make_sample((1,), (2, 3), (-300.0, -300.0), turn=3, advantage=-1.0),
    ]
    named = []
    for one in bad:
        learner = built(settings(kind))
        before = weights(learner)
        try:
            metrics = learner.update([*SAMPLES[:3], one])
        except NonFiniteError as error:
            named.append(error.samples)
        else:
            assert one is bad[2], "only ratios can be bounded"
            assert all(map(math.isfinite, (metrics["loss"], metrics["grad_norm"])))
            continue
        assert equal_weights(weights(learner), before)
    bounded = kind in ("dual", "cispo", "sapo", "reinforce")
    assert named == [(("episode", 3),)] * (2 if bounded else 3)


def test_a_mismatch_that_is_no_number_is_named_and_not_rejected():
    one = replace(TWO[1], reading=Reading((-math.inf, -1.0)))
    learner = built(Grpo(old="read", fidelity=None, mismatch=MismatchCorrection(kind="icepop", denominator="kept")))
    with pytest.raises(NonFiniteError) as error:
        learner.update([TWO[0], one])
    assert error.value.samples == (one.id,)
