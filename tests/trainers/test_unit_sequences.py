"""An agent's turns of an episode as one sequence: against verl's functions on one long masked row, and by hand."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from marl.core.types import Advantage, Reading, Sample
from marl.trainers.batching.batches import collate
from marl.trainers.batching.rows import count_minibatch_totals, group_by_agent_episode
from marl.trainers.batching.unit_sequences import UnitSequenceConverter
from marl.trainers.policy_gradient.loss_settings import GspoTokenLoss, PpoClipLoss
from marl.trainers.policy_gradient.options import MismatchCorrection
from marl.trainers.policy_gradient.settings import Grpo, Ppo
from tests.support.learning_samples import SamplePlan, distance, first_step, make_samples
from tests.support.reference_policy_gradients import advantages, built, chosen, loss_gradient, update_gradient

core = pytest.importorskip("verl.trainer.ppo.core_algos")
ActorConfig = pytest.importorskip("verl.workers.config").ActorConfig
correction = pytest.importorskip("verl.trainer.ppo.rollout_corr_helper")

HOLE = 3
"""Tokens of others between two turns of a row; they do not count."""
CLIP = (0.1, 0.15)


def episodes(sizes: Sequence[int] = (3, 1, 2), seed: int = 0, **plan: Any) -> list[Sample]:
    """Return samples of so many turns in each episode, which are not in order, with readings near the sampler's."""
    many = sum(sizes)
    drawn = make_samples(SamplePlan(**{"distinct": many, "count": many, "noise": 0.3, **plan}), seed=seed)
    rng = random.Random(seed)
    names = [(f"e{number}", turn) for number, turns in enumerate(sizes) for turn in range(turns)]
    samples = [
        replace(s, id=name, nth=name[1], reading=Reading(tuple(p + rng.gauss(0, 0.3) for p in s.logprobs)))
        for s, name in zip(drawn, names, strict=True)
    ]
    return rng.sample(samples, len(samples))


def settings(**more: Any) -> Grpo:
    return Grpo.model_validate({"unit": "episode", "fidelity": None, **more})


def rows_of(samples: Sequence[Sample], values: Sequence[Tensor]) -> Tensor:
    """Return [U, T]: each episode's values, with a hole after each of its turns."""
    by_id = {sample.id: value for sample, value in zip(samples, values, strict=True)}
    hole = torch.zeros(HOLE)
    whole = [torch.cat([x for s in each for x in (by_id[s.id], hole)]) for each in group_by_agent_episode(samples)]
    return torch.nn.utils.rnn.pad_sequence(whole, batch_first=True)


def verls(name: str, model: Any, samples: Sequence[Sample], mode: str, weights: Tensor | None = None) -> Tensor:
    """Return verl's loss of the episodes as long rows, with log-probabilities of `model`."""
    read = weights is not None
    old = [torch.tensor(s.reading.logprobs if read and s.reading else s.logprobs) for s in samples]
    columns = [
        rows_of(samples, values)
        for values in (
            old,
            [chosen(model, s) for s in samples],
            [advantages(s) for s in samples],
            [torch.ones(len(s.token_ids)) for s in samples],
        )
    ]
    clip = {"clip_ratio_low": CLIP[0], "clip_ratio_high": CLIP[1], "clip_ratio_c": 1e9}
    config = ActorConfig(strategy="fsdp", rollout_n=1, use_dynamic_bsz=True, **clip)
    bits = {"loss_agg_mode": mode.replace("_", "-"), "config": config, "rollout_is_weights": weights}
    return core.get_policy_loss_fn(name)(*columns, **bits)[0]


@pytest.mark.parametrize("mode", ["seq_mean_token_mean", "seq_mean_token_sum", "token_mean"])
def test_gspo_of_whole_episodes_is_verls_of_the_masked_trajectories(mode: str) -> None:
    samples = episodes()
    learner = built(settings(loss=GspoTokenLoss(clip_low=CLIP[0], clip_high=CLIP[1]), aggregation=mode))
    expected = loss_gradient(learner.model, verls("gspo", learner.model, samples, mode))
    assert distance(update_gradient(learner, samples), expected) < 1e-5
    apart = update_gradient(built(settings(loss="gspo_token", aggregation=mode, unit="turn")), samples)
    assert distance(apart, expected) > 0.01, "or this test shows nothing"


@pytest.mark.parametrize("mode", ["seq_mean_token_mean", "seq_mean_token_sum"])
def test_means_over_episodes_are_verls_of_the_masked_trajectories(mode: str) -> None:
    samples = episodes()
    learner = built(settings(aggregation=mode, loss=PpoClipLoss(clip_low=CLIP[0], clip_high=CLIP[1])))
    expected = loss_gradient(learner.model, verls("vanilla", learner.model, samples, mode))
    assert distance(update_gradient(learner, samples), expected) < 1e-5


@pytest.mark.parametrize(("kind", "bounds"), [("tis", (0.0, 1.2)), ("mis", (0.5, 1.5))])
def test_sequence_weights_of_whole_episodes_are_verls(kind: str, bounds: tuple[float, float]) -> None:
    samples = episodes()
    gaps = [torch.tensor(s.reading.logprobs) - torch.tensor(s.logprobs) for s in samples if s.reading]
    mask = rows_of(samples, [torch.ones(len(s.token_ids)) for s in samples])
    threshold = bounds[1] if kind == "tis" else f"{bounds[0]}_{bounds[1]}"
    weights, _ = correction.compute_rollout_correction_weights(rows_of(samples, gaps), mask, "sequence", threshold)
    assert len(weights[mask > 0].unique()) > 1
    mismatch = MismatchCorrection.model_validate(
        {"kind": kind, "level": "sequence", "low": bounds[0], "high": bounds[1]}
    )
    learner = built(settings(old="read", mismatch=mismatch, loss=PpoClipLoss(clip_low=CLIP[0], clip_high=CLIP[1])))
    expected = loss_gradient(learner.model, verls("vanilla", learner.model, samples, "token_mean", weights))
    assert distance(update_gradient(learner, samples), expected) < 1e-5


WHOLE = {
    "gspo": {"loss": "gspo"},
    "sequence product": {"loss": "rloo"},
    "gmpo": {"loss": "gmpo"},
    "off-policy mask": {"opsm": 0.01},
    "geometric mean": {"old": "read", "mismatch": {"kind": "geometric", "low": 0.9, "high": 1.1}},
    "rejection": {"mismatch": {"kind": "reject", "span": "sum", "high": 0.5}},
    "kept": {"old": "read", "mismatch": {"kind": "reject", "span": "mean", "high": 0.05, "denominator": "kept"}},
}


@pytest.mark.parametrize("name", WHOLE)
def test_an_episode_of_several_turns_has_the_loss_of_one_row_that_holds_all_its_tokens(name: str) -> None:
    """A model of which every token has the same log-probability wherever it stands lets one row hold the turns."""
    samples = episodes()

    def joined(each: Sequence[Sample]) -> Sample:
        readings = [one.reading.logprobs for one in each if one.reading]
        return replace(
            each[0],
            token_ids=sum((one.token_ids for one in each), ()),
            logprobs=sum((one.logprobs for one in each), ()),
            advantage=replace(each[0].advantage, tokens=tuple(x for one in each for x in advantages(one).tolist())),
            reading=Reading(sum(readings, ())),
        )

    def learnt(samples: Sequence[Sample], unit: str) -> tuple[float, ...]:
        learner = built(settings(**{"aggregation": "seq_mean_token_mean", **WHOLE[name], "unit": unit}))
        with torch.no_grad():  # nothing but the norm before the head, so the place of a token does not matter
            learner.model.model.embed_tokens.weight.fill_(0.5)
            for layer in learner.model.model.layers:
                layer.self_attn.o_proj.weight.zero_()
                layer.mlp.down_proj.weight.zero_()
        metrics, gradients = first_step(learner, samples)
        return metrics["loss"], *gradients["lm_head.weight"].flatten().tolist()

    rows = [joined(each) for each in group_by_agent_episode(samples)]
    assert learnt(samples, "episode") == pytest.approx(learnt(rows, "turn"), rel=1e-4, abs=1e-6)
    assert learnt(samples, "turn") != pytest.approx(learnt(rows, "turn"), rel=1e-2, abs=1e-4), "or it shows nothing"


@pytest.mark.parametrize("loss", ["gspo", "gspo_token", "rloo"])
def test_equal_episodes_merge_and_have_the_gradient_of_those_computed_one_by_one(loss: str) -> None:
    advantage = {"e0": -1.0, "e1": 0.5, "e2": 2.0}
    once = [replace(s, advantage=Advantage(advantage[s.id[0]])) for s in episodes()]
    twice = once + [replace(s, id=(f"again {s.id[0]}", s.id[1])) for s in once if s.id[0] != "e1"]
    learner = built(settings(loss=loss))
    assert len(learner.objective.rows(twice)) == len(once)
    assert (
        distance(update_gradient(learner, twice), update_gradient(built(settings(loss=loss, merge=False)), twice))
        < 1e-6
    )
    changed = [replace(s, token_ids=(1,) * len(s.token_ids)) if s.id == ("again e0", 1) else s for s in twice]
    assert len(learner.objective.rows(changed)) == len(once) + 3, "one other turn parts the whole episodes"


def test_minibatches_and_micro_batches_never_part_an_episode() -> None:
    samples = episodes((2, 3, 1, 4))
    learner = built(settings(loss="gspo", minibatches=3, micro_tokens=1))
    parts = list(learner._minibatches(samples, random.Random(0)))
    places = [{s.id[0] for s in part} for part in parts]
    assert sum(map(len, places)) == 4
    assert set().union(*places) == {"e0", "e1", "e2", "e3"}
    whole = update_gradient(built(settings(loss="gspo")), samples)
    assert distance(update_gradient(built(settings(loss="gspo", micro_tokens=1)), samples), whole) < 1e-6


def test_episodes_of_one_turn_are_learnt_from_as_turns_bit_for_bit() -> None:
    samples = episodes((1,) * 8)
    for more in ({"loss": "ppo_clip"}, {"loss": "gspo", "minibatches": 2}):
        assert torch.equal(
            *(update_gradient(built(settings(**more, unit=unit)), samples) for unit in ("turn", "episode"))
        )


def test_agents_of_one_episode_are_sequences_of_their_own() -> None:
    samples = [replace(s, agent=f"player_{s.id[1] % 2}") for s in episodes((4,))]
    assert sorted(len(each) for each in group_by_agent_episode(samples)) == [2, 2]


def test_a_critic_does_not_part_an_episode_whose_turns_have_other_value_targets() -> None:
    samples = [replace(s, advantage=replace(s.advantage, returns=(float(i),))) for i, s in enumerate(episodes())]
    samples = [replace(s, reading=Reading(s.logprobs, values=(0.0,) * len(s.token_ids))) for s in samples]
    learner = built(Ppo.model_validate({"unit": "episode", "loss": "gspo", "fidelity": None}))
    rows = learner.objective.rows(samples)
    assert sorted(sum(row.unit == unit for row in rows) for unit in {row.unit for row in rows}) == [1, 2, 3]


def test_tokens_come_back_from_their_sequences_where_they_were() -> None:
    learner = built(settings())
    rows = learner.objective.rows(episodes((3, 1, 2)))
    assert count_minibatch_totals(rows).units == 3
    assert count_minibatch_totals(rows).samples == 6
    shuffled = random.Random(1).sample(rows, len(rows))
    batch = collate(shuffled, learner.device)
    sequences, values_BT = UnitSequenceConverter(batch), batch.columns["old"]
    joined = sequences.concatenate_rows_of_units(values_BT)
    assert joined.shape[0] == 3
    assert torch.equal(sequences.split_units_into_rows(joined), values_BT)
    assert sorted(set(sequences.loss_tokens_in_unit_of_each_row().tolist())) == sorted(
        {int((joined[u] != 0).sum()) for u in range(3)}
    )
