"""The gate between sampler and learner, against faults that are really made."""

import copy
import json
import pickle
import re
from dataclasses import replace
from typing import Any

import pytest
import torch

from marl.core.config import Sampling
from marl.core.errors import NonFiniteError, SamplerLogprobMismatchError
from marl.core.types import Sample
from marl.trainers.imitation.settings import Sft
from marl.trainers.optim.settings import FidelityCheck
from marl.trainers.policy_gradient.settings import Grpo
from marl.training.restore import rerun_failed_update
from tests.support.learning_samples import (
    SamplePlan,
    TinySource,
    context,
    equal_weights,
    make_sample,
    make_samples,
    turn,
    unpadded_logprobs,
    weights,
)
from tests.support.run_processes import metric_lines as logged
from tests.support.solver_critic_game import policies, quiz_scenario, train_in_process

TEXTS = [((1, 5 + i, 9), (11, 3 + i, 20, 7, 30, 2)) for i in range(6)]
WHOLE = Sampling()


def logprobs(model: Any, prompt: tuple[int, ...], answer: tuple[int, ...], sampling: Sampling) -> tuple[float, ...]:
    """Return the numbers of a sampler with this model, from one unpadded pass."""
    logits, ids = unpadded_logprobs(model, prompt, answer).float() / sampling.temperature, torch.tensor(answer)[:, None]
    probabilities = logits.softmax(-1)
    if sampling.top_k:
        least = logits.topk(sampling.top_k).values[:, -1:]
        sampled_token = torch.zeros_like(logits, dtype=torch.bool).scatter(1, ids, True)
        probabilities = torch.where((logits >= least) | sampled_token, probabilities, 0.0)
    chosen = probabilities.gather(1, ids)[:, 0] / probabilities.sum(1)
    return tuple(chosen.log().tolist())


def sampled(
    learner: Any, model: Any, actual: Sampling = WHOLE, stated: Sampling | None = None, **more: Any
) -> list[Sample]:
    """Return samples read by the learner, as if `model` had sampled them with `actual` settings."""
    stated = stated or actual
    samples = [
        make_sample(prompt, words, logprobs(model, prompt, words, actual), turn=i, sampling=stated, **more)
        for i, (prompt, words) in enumerate(TEXTS)
    ]
    read = learner.read([turn(*text, stated) for text in TEXTS])
    return [replace(one, reading=reading) for one, reading in zip(samples, read, strict=True)]


def stopped(learner: Any, samples: list[Sample]) -> SamplerLogprobMismatchError:
    before = weights(learner)
    with pytest.raises(SamplerLogprobMismatchError) as error:
        learner.update(samples)
    assert equal_weights(weights(learner), before)
    assert learner.updates == 0
    return error.value


def noisy(model: Any, much: float) -> Any:
    other = copy.deepcopy(model)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(much * torch.randn_like(parameter))
    return other


@pytest.mark.parametrize("sampling", [WHOLE, Sampling(temperature=0.7), Sampling(temperature=1.3, top_k=8)])
def test_a_sampler_with_the_same_weights_is_faithful_however_it_samples(sampling):
    learner: Any = Grpo(truncated="recompute").build(context())
    metrics = learner.update(sampled(learner, learner.model, sampling))
    assert metrics["fidelity_max"] < 1e-5
    assert metrics["fidelity_mean"] <= metrics["fidelity_max"]
    assert metrics["fidelity_ratio"] == pytest.approx(1, abs=1e-5)


def test_figures_are_those_of_the_differences_by_hand():
    learner: Any = Grpo(fidelity=FidelityCheck(max=9)).build(context())
    first, second = sampled(learner, learner.model)[:2]
    off = (-0.5, 0.25, 0, 0, 0, 0)
    assert first.reading is not None
    moved = replace(first, logprobs=tuple(p + d for p, d in zip(first.reading.logprobs, off, strict=True)))
    metrics = learner.update([moved, second])
    assert metrics["fidelity_max"] == pytest.approx(0.5)
    assert metrics["fidelity_mean"] == pytest.approx(0.75 / 12, abs=1e-6)
    assert metrics["fidelity_ratio"] == pytest.approx((10 + 1.6487213 + 0.7788008) / 12, abs=1e-5)


@pytest.mark.parametrize(
    ("actual", "stated", "words"),
    [
        (Sampling(temperature=0.7), WHOLE, "of temperature 0.7 .*sampled with temperature 1"),
        (WHOLE, Sampling(temperature=0.6), "of temperature 1 .*sampled with temperature 0.6"),
        (WHOLE, Sampling(temperature=1, top_k=5), "of temperature 1 .*sampled with temperature 1, top_k 5"),
        (Sampling(top_k=10), WHOLE, "of temperature 1, top_k 10 "),
    ],
)
def test_sampling_that_was_not_accounted_for_is_found(actual, stated, words):
    learner: Any = Grpo(truncated="recompute").build(context())
    error = stopped(learner, sampled(learner, learner.model, actual, stated))
    assert re.search(f"the sampling settings: .*{words}", error.cause), error.cause


def test_other_weights_are_found_and_the_worst_turn_and_figures_are_told():
    learner: Any = Grpo().build(context())
    samples: Any = sampled(learner, noisy(learner.model, 0.1))
    error = stopped(learner, samples)
    assert error.cause.startswith("other weights")
    gaps = [max(abs(a - b) for a, b in zip(s.logprobs, s.reading.logprobs, strict=True)) for s in samples]
    assert error.gap.worst == ("episode", gaps.index(max(gaps)))
    assert error.gap.max == pytest.approx(max(gaps))
    for words in ("policy 'actor'", f"turn {gaps.index(max(gaps))}", f"{max(gaps):.2g} nats", "allows max 0.0001"):
        assert words in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_versions_tell_of_weights_that_never_arrived_or_come_from_elsewhere():
    learner: Any = Grpo(fidelity=FidelityCheck(every=1), lr=1e-2).build(context())
    first = sampled(learner, learner.model, versions=(0, 0))
    old = copy.deepcopy(learner.model)
    learner.update(first)
    with pytest.raises(SamplerLogprobMismatchError, match="stale weights: the sampler is still at version 0"):
        learner.update(sampled(learner, old, versions=(0, 0)))
    assert "fidelity_max" in learner.update(sampled(learner, learner.model, versions=(1, 1)))
    other: Any = Grpo().build(context())
    assert (
        "version 7, but this learner has made no update"
        in stopped(other, sampled(other, noisy(other.model, 0.01), versions=(7, 7))).cause
    )


def test_turns_of_older_weights_are_not_compared():
    learner: Any = Grpo(fidelity=FidelityCheck(every=1)).build(context())
    learner.update(sampled(learner, learner.model, versions=(2, 2)))
    fresh = sampled(learner, learner.model, versions=(3, 3))
    older = sampled(learner, noisy(learner.model, 0.1), versions=(2, 2))
    between = sampled(learner, noisy(learner.model, 0.1), versions=(2, 3))
    assert learner.update([*fresh, *older, *between])["fidelity_max"] < 1e-5


def test_a_sampler_in_half_precision_is_found_and_a_learner_in_half_precision_is_given_more_room():
    learner: Any = Grpo().build(context())
    coarse = copy.deepcopy(learner.model).to(torch.bfloat16)
    assert stopped(learner, sampled(learner, coarse)).cause.startswith("precision: bfloat16")

    class Half(TinySource):
        def model(self) -> Any:
            return super().model().to(torch.bfloat16)

    half = Grpo().build(replace(context(), source=Half()))
    metrics = half.update(sampled(half, TinySource().model()))
    assert 1e-4 < metrics["fidelity_max"] < 0.3
    assert 0 < metrics["fidelity_mean"] < 0.03
    other = Grpo().build(replace(context(), source=Half()))
    assert stopped(other, sampled(other, noisy(TinySource().model(), 0.05))).cause.startswith("other weights")


def test_dropout_in_the_sampler_is_found():
    learner: Any = Grpo().build(context(attention_dropout=0.3))
    other = copy.deepcopy(learner.model).train()
    assert stopped(learner, sampled(learner, other)).cause.startswith("dropout")


@pytest.mark.parametrize(
    ("read", "words"),
    [
        (lambda prompt: prompt[1:], "without the first token"),
        (lambda prompt: (prompt[0], *prompt), "with the first token twice"),
        (lambda prompt: prompt[:-1], "without the last token"),
    ],
)
def test_another_prompt_than_was_recorded_is_found(read, words):
    learner: Any = Grpo().build(context())
    moved = [
        replace(s, logprobs=logprobs(learner.model, read(s.prompt_ids), s.token_ids, WHOLE))
        for s in sampled(learner, learner.model)
    ]
    assert stopped(learner, moved).cause == f"the prompt or its template: the sampler read it {words}"


def test_log_probabilities_of_the_wrong_token_are_found():
    learner: Any = Grpo().build(context())
    moved = [replace(s, logprobs=(-1.0, *s.logprobs[:-1])) for s in sampled(learner, learner.model)]
    assert "one token later" in stopped(learner, moved).cause


def test_the_first_update_and_every_so_many_are_compared_and_no_other():
    learner: Any = Grpo(fidelity=FidelityCheck(every=3)).build(context())
    needed, compared = [], []
    for _ in range(7):
        needed.append(learner.needed_reading_fields == {"logprobs"})
        compared.append("fidelity_max" in learner.update(sampled(learner, learner.model)))
    assert needed == compared == [True, False, False, True, False, False, True]
    assert (
        Grpo(fidelity=None).build(context()).needed_reading_fields
        == Sft().build(context()).needed_reading_fields
        == frozenset()
    )


def test_samples_that_were_not_read_are_not_compared():
    learner = Grpo().build(context())
    assert "fidelity_max" not in learner.update(make_samples(SamplePlan()))


def test_a_reading_that_is_not_finite_is_named():
    learner: Any = Grpo().build(context())
    first, *rest = sampled(learner, learner.model)
    assert first.reading is not None
    bad = replace(first, reading=replace(first.reading, logprobs=(float("nan"),) * 6))
    with pytest.raises(NonFiniteError, match="the log-probability is not finite") as error:
        learner.update([bad, *rest])
    assert error.value.samples == (first.id,)


def test_what_the_gate_remembers_survives_a_restart():
    built: list[Any] = [Grpo(fidelity=FidelityCheck(every=1), lr=1e-2).build(context()) for _ in range(2)]
    learner, other = built
    old = copy.deepcopy(learner.model)
    learner.update(sampled(learner, learner.model))
    other.load_state_dict(learner.state_dict())
    with pytest.raises(SamplerLogprobMismatchError, match="stale weights"):
        other.update(sampled(other, old))


def faulty(fault: str, **more: Any) -> dict[str, Any]:
    """Return the quiz, where the first policy's engine has a fault."""
    engine = {"kind": "tests.support.faulty_engines:Faulty", "fault": fault}
    first = next(iter(policies()))
    learner = policies()[first]["learner"] | more
    return quiz_scenario(policies=policies(**{first: {"engine": engine, "learner": learner}}))


def test_a_healthy_run_says_how_faithful_it_is(tmp_path):
    train_in_process(tmp_path / "run", faulty("none", fidelity={"every": 2}))
    first = next(iter(policies()))
    differences = [json.loads(line).get(f"policy/{first}/fidelity_max") for line in logged(tmp_path / "run")]
    assert [value is not None for value in differences] == [False, True, False, True, False, True, False]
    assert all(0 < value < 1e-4 for value in differences if value is not None)


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("weights", "other weights, most likely"),
        ("temperature", "those of temperature 0.7 "),
        ("bf16", "precision: bfloat16"),
        ("deaf", "stale weights: the sampler is still at version 0"),
    ],
)
def test_a_run_with_a_damaged_engine_stops_with_the_cause(fault, cause, tmp_path):
    with pytest.raises(SamplerLogprobMismatchError, match=cause):
        train_in_process(tmp_path / "run", faulty(fault, fidelity={"every": 1}))


def test_a_run_whose_engine_says_what_is_no_number_keeps_the_batch(tmp_path):
    with pytest.raises(NonFiniteError, match="not finite") as error:
        train_in_process(tmp_path / "run", faulty("nan"))
    (failed,) = (tmp_path / "run" / "failed" / "000001").iterdir()
    with pytest.raises(NonFiniteError) as again:
        rerun_failed_update(failed)
    assert again.value.samples == error.value.samples
