"""CPU time of attention, forward and backward, of factors in bfloat16: by SDPA in that type, and in float32.

    python tests/bench/wide_attention.py [--out FILE] [--repeats 15]

Heads of SmolLM2-135M (9 of queries, 3 of keys, 64 wide) in three layouts of 64 answers of 24 tokens to 8 prompts of 44:
prompts alone, answers behind copied keys of their prompts, and each prompt packed with its answers. One thread; the
ways take turns, and milliseconds are the least of `--repeats`, since other work on the machine only adds to them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from _bench import parser, report
from torch import Tensor
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from trainers.forward.wide_attention import WideAttention

HEADS, SHARED, WIDTH = 9, 3, 64
LAYOUTS = {"prompts": (8, 44, 44, False), "answers behind prompts": (64, 23, 67, True), "packed": (8, 228, 228, True)}
"""Layout -> sequences, queries, keys, and whether there is a mask."""
MODULE: Any = SimpleNamespace(num_key_value_groups=HEADS // SHARED, is_causal=True)


def by_sdpa(factors: list[Tensor], mask: Tensor | None) -> Tensor:
    return sdpa_attention_forward(MODULE, *factors, mask, scaling=WIDTH**-0.5)[0]


def in_float32(factors: list[Tensor], mask: Tensor | None) -> Tensor:
    output: Any = WideAttention.apply(*factors, mask, WIDTH**-0.5)
    return output.transpose(1, 2).contiguous()


def milliseconds(way: Callable[..., Tensor], factors: list[Tensor], mask: Tensor | None) -> float:
    """Return the CPU time of one forward and backward pass."""
    started = time.thread_time()
    output = way(factors, mask)
    torch.autograd.grad(output, factors, torch.ones_like(output))
    return 1000 * (time.thread_time() - started)


def measured(layout: str, repeats: int) -> dict[str, float]:
    """Return milliseconds of both ways and their ratio."""
    sequences, queries, keys, masked = LAYOUTS[layout]
    sizes = [(HEADS, queries), (SHARED, keys), (SHARED, keys)]
    drawn = [torch.randn(sequences, tokens, heads, WIDTH).bfloat16() for heads, tokens in sizes]
    factors = [each.transpose(1, 2).requires_grad_() for each in drawn]  # as layers make them
    hidden = torch.ones(queries, keys, dtype=torch.bool).triu(keys - queries + 1)
    lowest = torch.finfo(torch.bfloat16).min
    mask = torch.zeros(sequences, 1, queries, keys, dtype=torch.bfloat16).masked_fill_(hidden, lowest)
    ways = {"bfloat16_ms": by_sdpa, "float32_ms": in_float32}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats + 1):
        for name, way in ways.items():
            times[name].append(milliseconds(way, factors, mask if masked else None))
    least = {name: round(min(found[1:]), 2) for name, found in times.items()}
    return least | {"ratio": round(least["bfloat16_ms"] / least["float32_ms"], 2)}


def main() -> None:
    line = parser(__doc__)
    line.add_argument("--repeats", type=int, default=15)
    options = line.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    figures = {layout: measured(layout, options.repeats) for layout in LAYOUTS}
    report(figures, options.out, seeds=[0], repeats=options.repeats, threads=1)


if __name__ == "__main__":
    main()
