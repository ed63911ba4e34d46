"""Tokens per second of our sampler, of vLLM through our engine, of bare vLLM and of `generate`, on the same work.

    python tests/bench/rollout.py [--out FILE] [--repeats 3] [--sizes 1.7M,15M] [--model FOLDER] [--part 1.0]

Models have the shape of Qwen3, a byte vocabulary, float32 and made-up weights; `--model` adds a real one. All sides
sample at temperature 1 and never stop early; all but `generate` return log-probabilities. Bare vLLM samples all
completions of a prompt as one request without seeds of their own. Repetitions are interleaved; figures are medians over
CPU seconds of this process with one thread, which other work on the machine disturbs less than wall time. `lock_step`
is our vLLM engine when it waits for each batch's longest completion before the next batch. `--part` scales the number
of prompts.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch._dynamo
from _bench import parser, report

from marl.config import Sampling
from marl.engines.transformers.settings import Transformers
from marl.engines.vllm.settings import VLLM
from marl.models.pretrained import Pretrained, PretrainedSource
from marl.models.tiny import Tiny
from marl.models.tiny_build import build_tiny
from marl.types import Message, Request

SHAPES = {
    "1.7M": {"hidden": 192, "layers": 4, "heads": 6, "kv_heads": 3, "head_dim": 32, "intermediate": 512},
    "15M": {"hidden": 384, "layers": 8, "heads": 6, "kv_heads": 3, "head_dim": 64, "intermediate": 1152},
}
ROWS, CACHE_MIB = 256, 1024
Ids = tuple[int, ...]


@dataclass(frozen=True)
class RolloutWork:
    """Prompts, the completions of each, and their tokens."""

    prompts: list[Ids]
    samples: int
    lengths: list[int]
    rows: int = ROWS
    """Completions that are decoded at once."""
    turns: int = 1
    """Each further turn continues the last one's prompt and completion with 30 tokens."""

    @property
    def jobs(self) -> list[tuple[Ids, int]]:
        """Prompt and length of each completion."""
        pairs = zip(self.prompts, self.lengths, strict=True)
        return [(ids, length) for ids, length in pairs for _ in range(self.samples)]

    @property
    def tokens(self) -> int:
        return sum(self.lengths) * self.samples * self.turns


def works(rng: np.random.Generator, part: float) -> dict[str, RolloutWork]:
    def prompts(count: int, low: int, high: int) -> list[Ids]:
        return [
            tuple(rng.integers(4, 250, rng.integers(low, high)).tolist()) for _ in range(max(1, round(count * part)))
        ]

    short, long, few, episodes = prompts(64, 20, 60), prompts(64, 180, 220), prompts(64, 20, 60), prompts(32, 60, 61)
    spread = np.exp(rng.uniform(np.log(16), np.log(128), len(few))).astype(int).tolist()
    return {
        "64x8x32": RolloutWork(short, 8, [32] * len(short)),
        "spread_16_to_128": RolloutWork(few, 4, spread, rows=32),
        "prompts_of_200": RolloutWork(long, 8, [16] * len(long)),
        "five_turns": RolloutWork(episodes, 1, [16] * len(episodes), turns=5),
    }


class ThroughEngine:
    """One of our engines, asked as the simulator does it: a turn's next request as soon as its answer is there."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.tickets = 0

    def __call__(self, work: RolloutWork, *, lock_step: bool = False) -> None:
        jobs = [
            (ids, length) for ids, length in zip(work.prompts, work.lengths, strict=True) for _ in range(work.samples)
        ]
        size = work.rows if lock_step else len(jobs)
        done = sum(self._play(jobs[start : start + size], work.turns) for start in range(0, len(jobs), size))
        assert done == work.tokens

    def _play(self, jobs: Sequence[tuple[Ids, int]], turns: int) -> int:
        left: dict[int, tuple[int, int]] = {}
        for ids, length in jobs:
            self._ask(ids, length, left, turns)
        said = 0
        while left:
            for ticket, answer in self.engine.step(0):
                length, more = left.pop(ticket)
                said += len(answer.token_ids)
                if more > 1:
                    self._ask((*answer.prompt_ids, *answer.token_ids, *range(10, 40)), length, left, more - 1)
        return said

    def _ask(self, ids: Ids, length: int, left: dict[int, tuple[int, int]], turns: int) -> None:
        self.tickets += 1
        left[self.tickets] = length, turns
        request = Request("actor", (Message("user", ""),), Sampling(max_tokens=length), self.tickets, continues=ids)
        self.engine.submit(self.tickets, request)


def bare(engine: Any, work: RolloutWork) -> None:
    """vLLM's own engine, as its class `LLM` uses it."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    texts, said, salt = list(work.prompts), 0, f"bare {time.monotonic_ns()}"
    for turn in range(work.turns):
        for index, (ids, length) in enumerate(zip(texts, work.lengths, strict=True)):
            params = SamplingParams(
                n=work.samples, max_tokens=length, logprobs=0, ignore_eos=True, detokenize=False, flat_logprobs=True,
                output_kind=RequestOutputKind.FINAL_ONLY,
            )  # fmt: skip
            prompt = {"prompt_token_ids": list(ids), "cache_salt": salt}
            engine.add_request(f"{turn}.{index}", prompt, params)
        while engine.has_unfinished_requests():
            for output in engine.step():
                said += sum(len(each.token_ids) for each in output.outputs)
                index = int(output.request_id.split(".")[1])
                texts[index] = (*texts[index], *output.outputs[0].token_ids, *range(10, 40))
    assert said == work.tokens


@torch.no_grad()
def generate(model: Any, work: RolloutWork) -> None:
    """Batches of as many rows as others decode at once; a batch runs to its longest completion."""
    jobs = work.jobs
    for start in range(0, len(jobs), work.rows):
        batch = jobs[start : start + work.rows]
        longest, width = max(length for _, length in batch), max(len(ids) for ids, _ in batch)
        ids = torch.tensor([[0] * (width - len(ids)) + list(ids) for ids, _ in batch])
        for _ in range(work.turns):
            more = {"max_new_tokens": longest, "min_new_tokens": longest, "pad_token_id": 0, "top_k": 0, "top_p": 1.0}
            said = model.generate(input_ids=ids, attention_mask=(ids > 0).long(), do_sample=True, **more)
            ids = torch.cat([said, torch.arange(10, 40).expand(len(said), 30)], 1)


def uncompiled(task: Callable[[], None]) -> None:
    """Run vLLM as our engine does on a processor."""
    with torch._dynamo.config.patch(disable=True):
        task()


def seconds(task: Callable[[], None]) -> float:
    start = time.process_time()
    task()
    return time.process_time() - start


def measured(source: PretrainedSource, part: float, repeats: int) -> dict[str, dict[str, float]]:
    model, figures = source.model(), dict[str, dict[str, float]]()
    model.generation_config.eos_token_id = None  # nothing may end early on any side
    for name, work in works(np.random.default_rng(0), part).items():
        hosted: Any = VLLM(max_sequences=work.rows, kv_cache_mib=CACHE_MIB, max_context=1024).build(source)
        sampler: Any = Transformers(slots=work.rows, max_context=1024).build(source)
        hosted._ends, hosted.chat_tokenizer.ends, sampler._ends_E = [], frozenset(), np.array([], np.int64)
        ours, vllm = ThroughEngine(sampler), ThroughEngine(hosted)
        sides: dict[str, Callable[[], None]] = {
            "transformers": lambda: ours(work),  # noqa: B023
            "vllm": lambda: vllm(work),  # noqa: B023
            "lock_step": lambda: vllm(work, lock_step=True),  # noqa: B023
            "bare_vllm": lambda: uncompiled(lambda: bare(hosted.core._engine, work)),  # noqa: B023
            "generate": lambda: generate(model, work),  # noqa: B023
        }
        times: dict[str, list[float]] = {side: [] for side in sides}
        for _ in range(repeats + 1):
            for side, task in sides.items():
                times[side].append(seconds(task))
                hosted.end_step()
        rates = {side: round(work.tokens / statistics.median(each[1:]), 1) for side, each in times.items()}
        figures[name] = rates | {
            "vllm_to_bare": round(rates["vllm"] / rates["bare_vllm"], 3),
            "vllm_to_lock_step": round(rates["vllm"] / rates["lock_step"], 3),
            "vllm_to_transformers": round(rates["vllm"] / rates["transformers"], 3),
        }
        hosted.close()
    return figures


def main() -> None:
    line = parser(__doc__)
    line.add_argument("--repeats", type=int, default=3)
    line.add_argument("--sizes", default="1.7M,15M")
    line.add_argument("--model", help="a Hugging Face folder")
    line.add_argument("--part", type=float, default=1.0)
    options = line.parse_args()
    torch.set_num_threads(1)
    figures = {}
    with tempfile.TemporaryDirectory() as beside:
        for size in filter(None, options.sizes.split(",")):
            tiny = Tiny(architecture="qwen3", vocabulary="bytes", context=2048, **SHAPES[size])
            build_tiny(tiny, Path(beside) / size, ())
            figures[size] = measured(tiny.source("actor", Path(beside) / size), options.part, options.repeats)
    if options.model:
        source = Pretrained(path=options.model).source("actor", options.model)
        figures[Path(options.model).name] = measured(source, options.part, options.repeats)
    report(figures, options.out, seeds=[0], repeats=options.repeats, part=options.part)


if __name__ == "__main__":
    main()
