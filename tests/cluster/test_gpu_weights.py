"""Weights published to other processes: on one GPU they stay there, elsewhere they go through the object store."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import marl
from marl.cluster.gpu_weights import (
    WeightBufferPool,
    common_device,
    open_shared_weights,
    plan_buffer_layout,
    tensor_views,
)
from marl.cluster.weight_transfer import PublishedWeights, receive_weights
from tests.support.paths import KUHN
from tests.support.ray_clusters import local_cluster

TENSORS = {
    "base": torch.arange(15, dtype=torch.float32).view(3, 5),
    "half": torch.arange(7, dtype=torch.bfloat16),
    "scalar": torch.tensor(3.0, dtype=torch.float64),
    "ids": torch.arange(5),
}
needs_two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="no two GPUs here")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")


def equal(ours: Any, theirs: dict[str, torch.Tensor]) -> bool:
    got = dict(ours)
    return got.keys() == theirs.keys() and all(torch.equal(got[name].cpu(), theirs[name].cpu()) for name in theirs)


def test_tensors_of_any_kind_lie_apart_in_the_same_bytes() -> None:
    layout = plan_buffer_layout(TENSORS)
    memory = torch.zeros(layout[-1].offset + layout[-1].nbytes, dtype=torch.uint8)
    for (_, view), tensor in zip(tensor_views(layout, memory), TENSORS.values(), strict=True):
        view.copy_(tensor)
    assert equal(tensor_views(layout, memory), TENSORS)
    assert all(view.data_ptr() % view.element_size() == 0 for _, view in tensor_views(layout, memory))


def test_without_a_gpu_every_process_gets_the_same_bytes_as_they_were() -> None:
    stored: list[Any] = []
    tensors = {name: tensor.clone() for name, tensor in TENSORS.items()}
    publication = PublishedWeights(
        tensors.items(), WeightBufferPool(), lambda packed: stored.append(packed) or len(stored) - 1
    )
    assert publication.weights_payload_for(["GPU-1"]) == publication.weights_payload_for([]) == 0
    assert publication.stored_bytes == 15 * 4 + 7 * 2 + 8 + 5 * 8
    assert equal(receive_weights(0, stored.__getitem__), TENSORS)
    assert common_device(TENSORS) == torch.device("cpu")
    assert common_device({}) is None


class Reader:
    """A process that reads weights on its GPU."""

    def gpus(self) -> list[str]:
        from marl.cluster.gpu_weights import visible_gpu_uuids

        return visible_gpu_uuids()

    def read(self, handle: Any) -> dict[str, torch.Tensor]:
        return {name: tensor.cpu() for name, tensor in open_shared_weights(handle)}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    # A process that reserves no GPU sees none.
    with local_cluster(4, RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="1") as ray:
        yield ray


@pytest.mark.gpu
@needs_gpu
def test_processes_on_the_gpu_read_what_is_lent_there_and_nothing_else_is_copied(cluster: Any) -> None:
    readers = [cluster.remote(num_cpus=0.5, num_gpus=0.4)(Reader).remote() for _ in range(2)]
    gpus = cluster.get(readers[0].gpus.remote())
    tensors = {name: tensor.cuda() for name, tensor in TENSORS.items()}
    lender, used = WeightBufferPool(), set()
    for version in range(6):
        expected = {name: tensor.clone() for name, tensor in tensors.items()}
        publication = PublishedWeights(tensors.items(), lender, cluster.put)
        for tensor in tensors.values():
            tensor += 1  # the learner goes on
        handles = [publication.weights_payload_for(gpus) for _ in readers]
        used.add(publication.copy.buffer.bytes.data_ptr())  # type: ignore[union-attr]
        for read in cluster.get([reader.read.remote(handle) for reader, handle in zip(readers, handles, strict=True)]):
            assert equal(read.items(), expected), version
        assert publication.stored_bytes == 0
        assert equal(receive_weights(publication.weights_payload_for(["another"]), cluster.get), expected)
        assert publication.stored_bytes > 0
    assert len(used) == 2  # the one that is kept for late readers, and the next


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("gpus", [0.4, 0.0])
def test_a_run_on_a_gpu_publishes_through_ray_what_its_simulators_cannot_read_there(
    cluster: Any, gpus: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARL_CACHE", str(tmp_path / "cache"))
    model = ["policies.actor.model.device=auto", "schedule.steps=20", "evaluate.every=20", "schedule.groups=8"]
    where = ["cluster.simulators=2", "cluster.cpus=0.5", f"cluster.gpus={gpus}", "checkpoint.every=20"]
    assert marl.train(marl.load(KUHN, [*model, *where]), tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    published = [row["cluster/published_bytes"] for row in rows if "cluster/published_bytes" in row]
    assert all((bytes_ == 0) == (gpus > 0) for bytes_ in published[1:])
    assert len(published) >= 19
    assert max(abs(row["policy/actor/kl_sampler"]) for row in rows if "policy/actor/kl_sampler" in row) < 1e-3


@pytest.mark.gpu
@needs_two_gpus
def test_a_simulator_on_another_gpu_receives_weights_by_nccl_and_the_one_on_the_learners_gpu_reads_them_there(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARL_CACHE", str(tmp_path / "cache"))
    model = ["policies.actor.model.device=auto", "schedule.steps=20", "evaluate.every=20", "schedule.groups=8"]
    where = ["cluster.simulators=2", "cluster.cpus=0.5", "cluster.gpus=1", "cluster.weight_transfer=broadcast"]
    assert marl.train(marl.load(KUHN, [*model, *where, "checkpoint.every=20"]), tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    ways = [(row["cluster/broadcast_bytes"], row["cluster/published_bytes"]) for row in rows if "cluster/idle" in row]
    assert all(sent > 0 and not put for sent, put in ways[2:])
    assert max(abs(row["policy/actor/kl_sampler"]) for row in rows if "policy/actor/kl_sampler" in row) < 1e-3
