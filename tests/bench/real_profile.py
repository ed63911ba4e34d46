"""Where the CPU time of sampling and learning goes on a real pretrained model with a LoRA adapter.

    python tests/bench/real_profile.py [--model DIR] [--out FILE] [--dtype float32 bfloat16]

DIR as for `real_model.py`. 32 answers of 16 tokens to 8 chat prompts: reading 32 distinct prompts, one step of decoding
them, and one update of GRPO on them (rank 16 on all linear layers but the head). One thread; every operator's time is
that thread's CPU time, so that other work on the machine matters little. `tflops` is what matrix products with the
model's weights would need (2 operations a weight and distinct token forwards, as many backwards, none for prompts in
the head) over all of the time; `peak_tflops` is that of one product, 1024 x hidden x intermediate, in the same process.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from _bench import parser, report
from torch.utils._python_dispatch import TorchDispatchMode
from train_vs_trl import quiet

from marl.core.config import Sampling
from marl.core.types import Advantage, Message, Request, Sample
from marl.engines.transformers.engine import TransformersEngine
from marl.engines.transformers.settings import Transformers
from marl.host.paths import cache_folder
from marl.models.adapter import Adapter, AdapterSource
from marl.models.pretrained import Pretrained, PretrainedSource
from marl.protocols import LearnerBuildArguments
from marl.trainers.forward import token_outputs
from marl.trainers.policy_gradient.settings import Grpo

RANK, ROWS, PROMPTS, TOKENS = 16, 32, 8, 16
PRODUCTS = ("mm", "addmm", "linear", "matmul", "bmm")


class CpuTime(TorchDispatchMode):
    """Adds up the CPU time of this thread in torch's operators, by what they are for."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.vocabulary, self.in_head = vocabulary, False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        started = time.thread_time()
        output = func(*args, **(kwargs or {}))
        self.seconds[self._purpose(func, [a for a in args if isinstance(a, torch.Tensor)])] += (
            time.thread_time() - started
        )
        return output

    def _purpose(self, func: Any, tensors: list[torch.Tensor]) -> str:
        name, sizes = func.overloadpacket.__name__.rstrip("_"), {size for t in tensors for size in t.shape}
        if self.in_head or self.vocabulary in sizes:
            return "head and distributions over the vocabulary"
        if name in PRODUCTS:
            return "products of the adapter" if RANK in sizes else "products with frozen weights"
        if "attention" in name:
            return "attention"
        if name in ("_to_copy", "to", "clone", "cat", "copy", "index_put", "index_copy"):
            return "copies and conversions"
        return "optimizer" if "adam" in name or "foreach" in name or "norm" in name else "norms, positions, gates, sums"


@contextmanager
def marked_head(timed: CpuTime) -> Iterator[None]:
    """Let all that the learner computes of last hidden states count as the head's."""
    plain = token_outputs._outputs_with_stored_gradients

    def marked(*args: Any) -> Any:
        timed.in_head = True
        outputs = plain(*args)
        timed.in_head = False
        return outputs

    token_outputs._outputs_with_stored_gradients = marked
    try:
        yield
    finally:
        token_outputs._outputs_with_stored_gradients = plain


def timed(task: Callable[[], object], vocabulary: int, flops: float) -> dict[str, float]:
    """Return CPU seconds, the rate, and the share of each purpose of a task."""
    mode, started = CpuTime(vocabulary), time.thread_time()
    with marked_head(mode), mode:
        task()
    whole = time.thread_time() - started
    by_time = sorted(mode.seconds.items(), key=lambda item: -item[1])
    shares = {name: round(seconds / whole, 3) for name, seconds in by_time}
    return {"cpu_s": round(whole, 2), "tflops": round(flops / whole / 1e12, 3), **shares} | {
        "Python": round(1 - sum(mode.seconds.values()) / whole, 3)
    }


def question(number: int) -> tuple[Message, ...]:
    return Message("system", "Say the number and nothing else."), Message("user", f"What is 7 plus {number}?")


def profiled(options: argparse.Namespace, dtype: Any) -> dict[str, Any]:
    """Return the figures of all three tasks for weights of one type."""
    base = Pretrained(path=str(options.model), dtype=dtype, device="cpu")
    source = AdapterSource(
        "solver", Adapter(base=base, rank=RANK), PretrainedSource("solver", str(options.model), dtype, "cpu")
    )
    learner: Any = Grpo(fidelity=None).build(LearnerBuildArguments("solver", source, 10, 0))
    engine: Any = Transformers().build_shared({"solver": source})
    assert isinstance(engine, TransformersEngine)
    config = learner.model.config
    head = config.vocab_size * config.hidden_size
    body = sum(p.numel() for p in learner.model.parameters() if not p.requires_grad) - head
    sampling = Sampling(max_tokens=TOKENS)
    for ticket in range(ROWS):
        engine.submit(ticket, Request("solver", question(10 + ticket), sampling, seed=ticket))
    prompts = [job.prompt.ids for _, job in engine._queue]
    distinct = len({ids[:end] for ids in prompts for end in range(1, len(ids) + 1)})
    flops = 2.0 * (body * distinct + head * ROWS)
    figures = {"reading prompts": timed(lambda: engine.step(0), config.vocab_size, flops)}
    engine.step(0)
    rows = len(engine._slots.jobs)
    figures["decoding a token"] = timed(lambda: engine.step(0), config.vocab_size, 2.0 * (body + head) * rows)
    samples = drawn(prompts[:PROMPTS])
    texts = [s.prompt_ids + s.token_ids[:-1] for s in samples]
    distinct = len({ids[:end] for ids in texts for end in range(1, len(ids) + 1)})
    learner.update(samples)
    flops = 4.0 * (body * distinct + head * ROWS * TOKENS)
    return figures | {"an update": timed(lambda: learner.update(samples), config.vocab_size, flops)}


def drawn(prompts: list[tuple[int, ...]]) -> list[Sample]:
    """Return samples of random tokens."""
    rng = random.Random(0)
    more: dict[str, Any] = {"agent": "a", "role": "solver", "group": "g", "nth": 0, "end": "no", "versions": (0, 0)}
    return [
        Sample(
            id=("episode", row), prompt_ids=prompts[row % len(prompts)], logprobs=(-9.0,) * TOKENS, earned=0.0,
            token_ids=tuple(rng.randrange(1000, 40000) for _ in range(TOKENS)), sampling=Sampling(),
            advantage=Advantage(rng.gauss(0, 1)), **more,
        )
        for row in range(ROWS)
    ]  # fmt: skip


def peak(dtype: torch.dtype, hidden: int, inner: int) -> float:
    """Return the rate of one product, in TFLOPS of CPU time."""
    x, weight = torch.randn(1024, hidden).to(dtype), torch.randn(inner, hidden).to(dtype)
    seconds = []
    for _ in range(20):
        started = time.thread_time()
        torch.nn.functional.linear(x, weight)
        seconds.append(time.thread_time() - started)
    return round(2.0 * 1024 * hidden * inner / min(seconds) / 1e12, 3)


def main() -> None:
    line = parser(__doc__)
    line.add_argument("--model", type=Path, default=cache_folder() / "real" / "SmolLM2-135M-Instruct")
    line.add_argument("--dtype", nargs="+", choices=["float32", "bfloat16"], default=["float32", "bfloat16"])
    options = line.parse_args()
    if not options.model.is_dir():
        print(f"no model in {options.model}: `make real` prepares it; nothing measured", file=sys.stderr)
        return
    quiet()
    torch.set_num_threads(1)
    figures = {}
    for dtype in options.dtype:
        figures[dtype] = profiled(options, dtype) | {"peak_tflops": peak(getattr(torch, dtype), 576, 1536)}
    report(figures, options.out, seeds=[0], model=options.model.name, rows=ROWS, tokens=TOKENS, rank=RANK, threads=1)


if __name__ == "__main__":
    main()
