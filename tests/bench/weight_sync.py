"""CPU time and memory of new weights in vLLM: of all of a model's, and of eight adapters on one base.

    python tests/bench/weight_sync.py [--out FILE] [--sizes 1.7M,15M] [--updates 100]

Models are those of `rollout.py`. `cpu_ms`: CPU milliseconds of this process with one thread for one update of one
policy, its tensors handed over as a learner publishes them: median, least and greatest. `rss_mib`: MiB by which the
resident memory grew over all updates, after ten more that are not counted; `files`: by how many open files. Of eight
adapters (rank 16 on all projections) each update is of one, in turn.
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import torch
from _bench import parser, report, spread
from rollout import SHAPES
from torch import Tensor

from marl.engines.vllm.settings import VLLM
from marl.models.adapter import Adapter, AdapterSource
from marl.models.lora import adapter_tensors
from marl.models.pretrained import Pretrained, PretrainedSource
from marl.models.tiny import Tiny
from marl.models.tiny_build import build_tiny_model

ENGINE = VLLM(kv_cache_mib=64, max_context=256, max_sequences=8)
BEFORE = 10
"""Updates before anything is measured."""
ADAPTERS = 8


def measured(update: Callable[[int], None], updates: int) -> dict[str, Any]:
    """Return figures of so many updates; `update` is given the number of each, from 1 on."""
    for version in range(1, BEFORE + 1):
        update(version)
    gc.collect()
    process, times = psutil.Process(), []
    files, held = process.num_fds(), process.memory_info().rss
    for version in range(BEFORE + 1, BEFORE + 1 + updates):
        start = time.process_time()
        update(version)
        times.append(1000 * (time.process_time() - start))
    gc.collect()
    grown = (process.memory_info().rss - held) / 2**20
    return {"cpu_ms": spread(times, 1), "rss_mib": round(grown, 1), "files": process.num_fds() - files}


def whole_model(source: PretrainedSource, updates: int) -> dict[str, Any]:
    """Replace all weights again and again."""
    engine: Any = ENGINE.build(source)
    weights = dict(source.model().named_parameters())
    figures = measured(lambda version: engine.load_weights("actor", _scaled(weights, version), version), updates)
    engine.close()
    return figures


def eight_adapters(source: PretrainedSource, updates: int) -> dict[str, Any]:
    """Replace one of eight adapters after the other."""
    settings = Adapter(base=Pretrained(path=source.path), rank=16)
    sources = {f"role{number}": AdapterSource(f"role{number}", settings, source) for number in range(ADAPTERS)}
    engine: Any = ENGINE.build_shared(sources)
    names = list(sources)
    weights = adapter_tensors(sources[names[0]].model())

    def update(version: int) -> None:
        engine.load_weights(names[version % ADAPTERS], _scaled(weights, version), version)

    figures = measured(update, updates)
    engine.close()
    return figures


@torch.no_grad()
def _scaled(weights: Mapping[str, Tensor], version: int) -> Any:
    return [(name, tensor * (1 + 1e-3 * version)) for name, tensor in weights.items()]


def main() -> None:
    line = parser(__doc__)
    line.add_argument("--sizes", default=",".join(SHAPES))
    line.add_argument("--updates", type=int, default=100)
    options = line.parse_args()
    torch.set_num_threads(1)
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as beside:
        for size in options.sizes.split(","):
            tiny = Tiny(architecture="qwen3", vocabulary="bytes", context=2048, **SHAPES[size])
            build_tiny_model(tiny, Path(beside) / size, ())
            source = tiny.source("actor", Path(beside) / size)
            figures[size] = {
                "all_weights": whole_model(source, options.updates),
                f"one_of_{ADAPTERS}_adapters": eight_adapters(source, options.updates),
            }
    report(figures, options.out, seeds=[0], updates=options.updates)


if __name__ == "__main__":
    main()
