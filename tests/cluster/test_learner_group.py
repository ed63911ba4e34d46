"""Learners in processes of their own on a real Ray cluster, against one in this process."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from marl.cluster.learner_group import LearnerProcessResourcesAndDeadlines, LearnerRestartNotice, MultiProcessLearner
from marl.cluster.learner_worker import LearnerProcessSettings
from marl.core.errors import NonFiniteError
from marl.protocols import DataParallel
from marl.trainers.policy_gradient.settings import Grpo
from tests.support.data_parallel_processes import Float64Source
from tests.support.learning_samples import SamplePlan, context, make_sample, make_samples, turn
from tests.support.ray_clusters import local_cluster

pytestmark = [pytest.mark.slow, pytest.mark.one_in(2), pytest.mark.xdist_group("ray")]

SETTINGS = Grpo(lr=1e-3, minibatches=2)


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with local_cluster(8):
        torch.set_num_threads(1)
        yield


def group(size: int = 2, way: DataParallel = "ddp", policy: str = "actor", **provision: Any) -> MultiProcessLearner:
    place = replace(context(source=Float64Source()), policy=policy)
    limits = {"deadline_s": 20.0, "start_s": 300.0, **provision}
    return MultiProcessLearner(
        LearnerProcessSettings(SETTINGS, place, size, way, 1, 300.0), LearnerProcessResourcesAndDeadlines(**limits)
    )


def alone() -> Any:
    return SETTINGS.build(context(source=Float64Source()))


def learn(learner: Any, first: int, steps: int) -> None:
    for step in range(first, first + steps):
        learner.update(make_samples(SamplePlan(count=20), seed=step))


def gap(one: Any, other: Any) -> float:
    ours, theirs = dict(one.publish()), dict(other.publish())
    assert ours.keys() == theirs.keys()
    return max(float((ours[name] - theirs[name]).abs().max()) for name in theirs)


def process(learner: MultiProcessLearner, rank: int) -> int:
    return int(learner.process_activities()[rank].place.rpartition(" ")[2])


def test_a_group_learns_reads_saves_and_fails_as_one_learner(tmp_path: Path) -> None:
    ours, theirs = group(), alone()
    learn(ours, 0, 3)
    learn(theirs, 0, 3)
    assert gap(ours, theirs) < 1e-12
    turns = [turn((1, 2, n), (3, 4)) for n in range(5)]
    read = [reading.logprobs for reading in theirs.read(turns)]
    assert [reading.logprobs for reading in ours.read(turns, frozenset({"logprobs"}))] == [
        pytest.approx(logprobs, rel=1e-9) for logprobs in read
    ]
    with pytest.raises(NonFiniteError, match="policy 'actor'") as error:
        ours.update([*make_samples(SamplePlan()), make_sample((1,), (2,), (-float("inf"),), turn=99)])
    assert error.value.samples == (("episode", 99),)
    ours.save(tmp_path)
    stored, published = load_file(tmp_path / "model.safetensors"), dict(ours.publish())
    assert all(torch.equal(stored[name], published[name]) for name in published)
    ours.close()


def test_figures_of_tokens_come_from_all_processes_of_a_group() -> None:
    ours, theirs, samples = group(), alone(), make_samples(SamplePlan(count=20))
    for learner in (ours, theirs):
        learner.token_figures = {}
        learner.update(samples)
    gathered, expected = ours.token_figures, theirs.token_figures
    ours.close()
    assert gathered is not None
    assert gathered.keys() == {one.id for one in samples}
    for name, figures in gathered.items():
        assert figures.logprobs == pytest.approx(expected[name].logprobs, abs=1e-9)
        assert figures.entropy == pytest.approx(expected[name].entropy, abs=1e-9)


def test_a_run_goes_on_with_another_number_of_processes_in_another_way() -> None:
    first, theirs = group(2, "fsdp"), alone()
    learn(first, 0, 2)
    second, third = alone(), group(1)
    second.load_state_dict(first.state_dict())
    third.load_state_dict(first.state_dict())
    first.close()
    for learner in (second, third):
        learn(learner, 2, 2)
    learn(theirs, 0, 4)
    assert gap(third, second) == 0.0  # one process computes as this one does, to the last bit
    assert gap(second, theirs) < 1e-12
    third.close()


def test_with_shards_a_lost_process_is_replaced_and_the_run_holds_no_share() -> None:
    ours, theirs = group(3, "fsdp", deadline_s=6.0), group(3, "fsdp")
    learn(theirs, 0, 3)
    learn(ours, 0, 1)
    for step, rank in enumerate((2, 0), 1):
        os.kill(process(ours, rank), signal.SIGKILL)
        with pytest.warns(LearnerRestartNotice, match=f"policy 'actor': process {rank} of 3 has died, in 'update'"):
            learn(ours, step, 1)
    assert gap(ours, theirs) == 0.0
    sizes = [sum(tensor.nbytes for tensor in share.tensors.values()) for share in ours.state_dict().shares()]
    assert max(sizes) < 0.4 * sum(sizes)
    ours.close()
    theirs.close()


def test_processes_that_die_or_hang_are_named_within_the_deadline_and_replaced_and_the_update_repeated() -> None:
    ours, theirs = group(deadline_s=6.0), group()
    learn(theirs, 0, 4)
    learn(ours, 0, 1)
    hangs = "has given no sign of life for 6 s, in 'update'"
    faults = [(1, signal.SIGKILL, "has died, in 'update'"), (0, signal.SIGSTOP, hangs), (1, signal.SIGSTOP, hangs)]
    for step, (rank, number, what) in enumerate(faults, 1):
        os.kill(process(ours, rank), number)
        with pytest.warns(LearnerRestartNotice, match=f"policy 'actor': process {rank} of 2 {what}"):
            learn(ours, step, 1)
    assert gap(ours, theirs) == 0.0
    assert ours.restarts == len(faults)
    ours.close()
    theirs.close()
