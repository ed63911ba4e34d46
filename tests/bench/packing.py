"""One update's forward and backward passes in several layouts of the same texts: measured and predicted ratios.

    python tests/bench/packing.py [--sizes 0.1M 15M 100M] [--repeats 5] [--out FILE]

Texts of ragged lengths, padded against packed; and groups of 8 with prompts 8 times as long as completions, packed
against prefixes shared. Times are CPU seconds of one thread, laying out included; repeats take turns. `flops` is the
ratio that the packer predicts, `of_predicted` the measured ratio in parts of it (aim: 0.8), and `expected` the ratio of
times that it chooses the layout by.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from _bench import parser, report, spread
from transformers import AutoModelForCausalLM, Qwen3Config

from marl.trainers.batching.batches import collate
from marl.trainers.batching.planner import BatchPlan, BatchPlanner
from marl.trainers.batching.rows import BatchRow
from marl.trainers.forward.token_outputs import token_outputs

VOCABULARY = 512
MICRO_TOKENS = 32768


@dataclass(frozen=True)
class Size:
    """A model and how much it reads: for large ones less, so that the whole takes minutes."""

    hidden: int
    layers: int
    texts: int
    longest: int


SIZES = {"0.1M": Size(64, 2, 32, 256), "15M": Size(384, 8, 16, 256), "100M": Size(768, 14, 8, 128)}


def model_of(size: Size) -> Any:
    torch.manual_seed(0)
    heads = max(1, size.hidden // 64) if size.hidden > 64 else 2
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=size.hidden,
        num_hidden_layers=size.layers,
        intermediate_size=3 * size.hidden,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=size.hidden // heads,
    )
    return AutoModelForCausalLM.from_config(config).train()


def ragged(size: Size, rng: random.Random) -> list[BatchRow]:
    """Prompts of one length, completions of up to so many tokens."""
    rows = []
    for _ in range(size.texts):
        many = rng.randint(8, size.longest)
        rows.append(BatchRow(_words(rng, 16), _words(rng, many)))
    return rows


def groups(size: Size, rng: random.Random) -> list[BatchRow]:
    """Groups of 8, prompt : completion = 8 : 1."""
    answer = size.longest // 8
    prompts = [_words(rng, 8 * answer) for _ in range(size.texts // 8)]
    return [BatchRow(prompt, _words(rng, answer)) for prompt in prompts for _ in range(8)]


def _words(rng: random.Random, many: int) -> tuple[int, ...]:
    return tuple(rng.choices(range(VOCABULARY), k=many))


def compare(
    planner: BatchPlanner, model: Any, rows: list[BatchRow], names: tuple[str, str], repeats: int
) -> dict[str, Any]:
    """How many times faster the second layout is than the first."""
    makers: list[Callable[[], BatchPlan]] = [_maker(planner, rows, name) for name in names]
    slow, fast = (make() for make in makers)
    for make in makers:
        _update(model, make)
    pairs = [[_update(model, make) for make in makers] for _ in range(repeats)]
    measured, predicted = median(a / b for a, b in pairs), slow.flops / fast.flops
    return {
        "ratio": round(measured, 2),
        "flops": round(predicted, 2),
        "of_predicted": round(measured / predicted, 2),
        "expected": round(slow.cost / fast.cost, 2),
        "chosen": planner.fastest_plan(rows).layout,
        "seconds": {name: spread(list(times)) for name, times in zip(names, zip(*pairs, strict=True), strict=True)},
        "laying_out": round(_spent(makers[1]), 4),
    }


def _maker(planner: BatchPlanner, rows: list[BatchRow], name: str) -> Callable[[], BatchPlan]:
    return lambda: planner.padded_plan(rows) if name == "padded" else planner.packed_plan(rows, name)


def _spent(task: Callable[[], object]) -> float:
    started = time.process_time()
    task()
    return time.process_time() - started


def _update(model: Any, make: Callable[[], BatchPlan]) -> float:
    def passes() -> None:
        for chunk, layout in make().batches:
            batch = collate(chunk, torch.device("cpu"), layout)
            token_outputs(model, batch).logprobs_BT.sum().backward()

    model.zero_grad()
    return _spent(passes)


def main() -> None:
    command = parser(__doc__)
    command.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    command.add_argument("--repeats", type=int, default=5)
    asked = command.parse_args()
    torch.set_num_threads(1)
    figures: dict[str, Any] = {}
    for name in asked.sizes:
        size = SIZES[name]
        model = model_of(size)
        planner = BatchPlanner(model, MICRO_TOKENS, "auto")
        figures[name] = {
            "parameters": sum(p.numel() for p in model.parameters()),
            "ragged": compare(planner, model, ragged(size, random.Random(0)), ("padded", "packed"), asked.repeats),
            "groups": compare(planner, model, groups(size, random.Random(0)), ("packed", "shared"), asked.repeats),
        }
    report(figures, asked.out, seeds=[0], micro_tokens=MICRO_TOKENS, repeats=asked.repeats, threads=1)


if __name__ == "__main__":
    main()
