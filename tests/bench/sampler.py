"""Our sampler against `model.generate` on the same model and work, in tokens per second.

    python tests/bench/sampler.py [--out FILE] [--repeats 5] [--threads 1]

The model has 1.6M parameters (Qwen3 shape: hidden 192, 4 layers, byte vocabulary), float32. Both sides sample at
temperature 1 without truncation and never stop early. Repetitions are interleaved; the figures are medians over CPU
seconds of this process, which other work on the machine disturbs less than wall time (with one thread they are equal
on an idle machine).
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _bench import parser, report

from marl.core.config import Sampling
from marl.core.types import Completion, Message, Request
from marl.engines.transformers.engine import TransformersEngine
from marl.engines.transformers.policy_weights import FullWeights
from marl.engines.transformers.settings import Transformers
from marl.models.tiny import Tiny
from marl.models.tiny_build import build_tiny_model

SETTINGS = Tiny(
    architecture="qwen3", hidden=192, layers=4, heads=6, kv_heads=3, head_dim=32, intermediate=512,
    vocabulary="bytes", context=2048,
)  # fmt: skip


@dataclass(frozen=True)
class Work:
    """Prompts with the number of tokens to say after each."""

    prompts: list[str]
    lengths: list[int]
    slots: int


def text(rng: np.random.Generator, letters: int) -> str:
    return "".join(chr(97 + index) for index in rng.integers(0, 26, letters))


def works(rng: np.random.Generator) -> dict[str, Work]:
    """The three comparisons."""
    shared = [prompt for prompt in (text(rng, 255) for _ in range(8)) for _ in range(8)]
    spread = np.exp(rng.uniform(np.log(16), np.log(128), 192)).astype(int).tolist()
    return {
        "equal_lengths": Work([text(rng, 63) for _ in range(64)], [64] * 64, 64),
        "shared_prompts": Work(shared, [32] * 64, 64),
        "spread_lengths": Work([text(rng, 31) for _ in range(192)], spread, 32),
    }


def ours(sampler: TransformersEngine, work: Work) -> None:
    """All requests are handed over at once."""
    for ticket, (prompt, length) in enumerate(zip(work.prompts, work.lengths, strict=True)):
        request = Request("actor", (Message("user", prompt),), Sampling(max_tokens=length), seed=ticket)
        sampler.submit(ticket, request)
    said = 0
    waiting = len(work.prompts)
    while waiting:
        for _, answer in sampler.step(0):
            waiting -= 1
            assert isinstance(answer, Completion)
            said += len(answer.token_ids)
    assert said == sum(work.lengths)


def theirs(model: Any, tokenizer: Any, work: Work) -> None:
    """Batches of as many rows as we have slots; a batch runs to its longest completion."""
    ids = [tokenizer(prompt + "<assistant>", add_special_tokens=False).input_ids for prompt in work.prompts]
    for start in range(0, len(ids), work.slots):
        rows = slice(start, start + work.slots)
        batch = torch.tensor(ids[rows])
        longest = max(work.lengths[rows])
        said = model.generate(
            input_ids=batch, attention_mask=torch.ones_like(batch), do_sample=True, temperature=1.0, top_k=0,
            top_p=1.0, max_new_tokens=longest, min_new_tokens=longest, pad_token_id=0,
        )  # fmt: skip
        assert said.shape == (batch.shape[0], batch.shape[1] + longest)


def seconds(task: Callable[[], None]) -> float:
    start = time.process_time()
    task()
    return time.process_time() - start


def measured(folder: Path, repeats: int) -> dict[str, dict[str, float]]:
    checkpoint = SETTINGS.source("actor", folder)
    model, tokenizer = checkpoint.model(), checkpoint.tokenizer()
    # Nothing may end early on either side.
    model.generation_config.eos_token_id = None
    figures: dict[str, dict[str, float]] = {}
    for name, work in works(np.random.default_rng(0)).items():
        sampler = TransformersEngine(FullWeights(model, checkpoint), tokenizer, Transformers(slots=work.slots))
        sampler._ends_E = np.array([], np.int64)
        times = [(seconds(lambda: ours(sampler, work)), seconds(lambda: theirs(model, tokenizer, work)))  # noqa: B023
                 for _ in range(repeats + 1)][1:]  # fmt: skip
        our_s, their_s = (statistics.median(column) for column in zip(*times, strict=True))
        tokens = sum(work.lengths)
        figures[name] = {
            "ours_tokens_per_s": round(tokens / our_s, 1),
            "generate_tokens_per_s": round(tokens / their_s, 1),
            "ratio": round(statistics.median(their / our for our, their in times), 3),
            "ratio_min": round(min(their / our for our, their in times), 3),
            "ratio_max": round(max(their / our for our, their in times), 3),
        }
    return figures


def main() -> None:
    line = parser(__doc__)
    line.add_argument("--repeats", type=int, default=5)
    line.add_argument("--threads", type=int, default=1)
    options = line.parse_args()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as beside:
        folder = Path(beside) / "model"
        count = build_tiny_model(SETTINGS, folder, ())
        figures = measured(folder, options.repeats)
    settings = {"parameters": count, "threads": options.threads, "repeats": options.repeats}
    report(figures, options.out, seeds=[0], **settings)


if __name__ == "__main__":
    main()
