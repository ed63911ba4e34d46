"""How long training and sampling pause when a LoRA adapter of a model of 135M parameters is published on a cluster.

    python tests/bench/adapter_publication.py [--ranks 8,16] [--updates 150] [--out FILE]

The model has the shape of SmolLM2-135M and random weights (float32); the adapter is on all linear layers. The steps are
those of a run with `cluster:`: the learner's tensors are packed and stored in Ray's object store (`hand_over_ms`: until
the run goes on), and a simulator reads them from there and copies them into its engine (`engine_ms`: while nothing is
sampled). Both are done in this process. Wall time of each update after five more, and its CPU time of this process with
one thread: median, least and greatest. The first 50 updates or so are slower (12 ms for rank 8), because the object
store then uses memory for the first time.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gpu
import ray
import torch
from _bench import parser, report, spread

from marl.cluster.gpu_weights import WeightBufferPool
from marl.cluster.weight_transfer import PublishedWeights, receive_weights
from marl.engines.transformers.settings import Transformers
from marl.models.adapter import Adapter, AdapterSource
from marl.models.pretrained import Pretrained, PretrainedSource
from marl.protocols import LearnerBuildArguments
from marl.trainers.policy_gradient.settings import Grpo

BEFORE = 5
"""Updates before anything is measured."""


def publication(base: Path, rank: int, updates: int) -> dict[str, Any]:
    """Return the pauses of so many publications of an adapter of this rank."""
    source = AdapterSource(
        "actor", Adapter(base=Pretrained(path=str(base)), rank=rank), PretrainedSource("actor", str(base))
    )
    learner: Any = Grpo().build(LearnerBuildArguments("actor", source, 1, 0))
    engine: Any = Transformers(slots=8).build_shared({"actor": source})
    times: dict[str, list[float]] = {name: [] for name in ("hand_over_ms", "hand_over_cpu", "engine_ms", "engine_cpu")}
    stored_bytes = 0
    for version in range(1, BEFORE + updates + 1):
        published, wall, cpu = timed(lambda: PublishedWeights(learner.publish(), WeightBufferPool(), ray.put))
        times["hand_over_ms"].append(wall)
        times["hand_over_cpu"].append(cpu)
        stored_bytes = published.stored_bytes

        _, wall, cpu = timed(partial(load, engine, published.weights_payload_for(()), version))
        times["engine_ms"].append(wall)
        times["engine_cpu"].append(cpu)
    figures = {name: spread(values[BEFORE:], 2) for name, values in times.items()}
    return {"parameters": stored_bytes // 4, "stored_bytes": stored_bytes, **figures}


def load(engine: Any, payload: Any, version: int) -> None:
    """Read published weights, and copy them into the engine."""
    engine.load_weights("actor", receive_weights(payload, ray.get), version)


def timed(task: Callable[[], Any]) -> tuple[Any, float, float]:
    """Return the result of `task`, its wall time and its CPU time, in milliseconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = task()
    return result, 1e3 * (time.perf_counter() - wall), 1e3 * (time.process_time() - cpu)


def main() -> None:
    line = parser(__doc__)
    line.add_argument("--ranks", default="8,16")
    line.add_argument("--updates", type=int, default=150)
    options = line.parse_args()
    torch.set_num_threads(1)
    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        base = gpu.saved(gpu.RandomWeights("0.1B", "cpu"), Path(folder) / "model")
        for rank in map(int, options.ranks.split(",")):
            figures[f"rank {rank}"] = publication(base, rank, options.updates)
    ray.shutdown()
    report(figures, options.out, seeds=[0], updates=options.updates, ray=ray.__version__)


if __name__ == "__main__":
    main()
