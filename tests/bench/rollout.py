"""Tokens per second of our sampler, of vLLM through our engine, of bare vLLM and of `generate`, on the same work.

    python tests/bench/rollout.py [--out FILE] [--sizes 1.7M,15M] [--model FOLDER] [--part 1.0] [--only WORK ...]

Models have the shape of Qwen3, a byte vocabulary, float32 and made-up weights; `--model` adds a real one. All sides
sample at temperature 1 and never stop early; all but `generate` return log-probabilities. Bare vLLM takes equal
completions of a prompt as one request, without seeds of their own. Larger models get fewer prompts (`SIZES`; `--part`
scales them all). Repetitions are interleaved, `generate` has only one; figures are medians over CPU seconds of this
process with one thread, which other work on the machine disturbs less than wall time.

`spread_16_to_128` draws the length of each completion, and decodes as many at once as its `rows` say. `lock_step` is
our vLLM engine, too, but it waits for the longest completion of each batch of `rows` before it is given the next one;
rows that have ended cost nothing, other than in `generate`.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch._dynamo
from _bench import parser, report

from marl.core.config import Sampling
from marl.core.types import Message, Request
from marl.engines.transformers.settings import Transformers
from marl.engines.vllm.settings import VLLM
from marl.models.pretrained import Pretrained, PretrainedSource
from marl.models.tiny import Tiny
from marl.models.tiny_build import build_tiny_model

SHAPES: dict[str, dict[str, Any]] = {
    "1.7M": {"hidden": 192, "layers": 4, "heads": 6, "kv_heads": 3, "head_dim": 32, "intermediate": 512},
    "15M": {"hidden": 384, "layers": 8, "heads": 6, "kv_heads": 3, "head_dim": 64, "intermediate": 1152},
}
ROWS, CACHE_MIB = 256, 1024
Ids = tuple[int, ...]


@dataclass(frozen=True)
class Scale:
    """How much of the work a size is given, and how often."""

    part: float
    """Share of the prompts."""
    spread_part: float
    """Share of the prompts whose completions differ in length."""
    spread_rows: int
    """Completions of those that are decoded at once."""
    repeats: int


SIZES = {"1.7M": Scale(0.5, 1.0, 8, 2), "15M": Scale(1 / 8, 1.0, 8, 1)}
REAL = Scale(1 / 32, 1 / 16, 4, 1)
"""Of a model of 135M parameters."""


WORKS = ["64x8x32", "spread_16_to_128", "prompts_of_200", "five_turns"]


class EqualCompletions(NamedTuple):
    """Completions of a prompt that are equally long."""

    prompt: Ids
    samples: int
    length: int


@dataclass(frozen=True)
class RolloutWork:
    """What is to be said."""

    jobs: list[EqualCompletions]
    rows: int = ROWS
    """Completions that are decoded at once."""
    turns: int = 1
    """Each further turn continues the last one's prompt and completion with 30 tokens."""

    @property
    def each(self) -> list[tuple[Ids, int]]:
        """Prompt and length of each completion."""
        return [(job.prompt, job.length) for job in self.jobs for _ in range(job.samples)]

    @property
    def tokens(self) -> int:
        return sum(length for _, length in self.each) * self.turns

    def short(self) -> RolloutWork:
        """Return a little of this work, before which nothing is measured."""
        return replace(self, jobs=[EqualCompletions(self.jobs[0].prompt, 1, 4)])


def works(rng: np.random.Generator, scale: Scale) -> dict[str, RolloutWork]:
    def prompts(count: float, low: int, high: int) -> list[Ids]:
        lengths = rng.integers(low, high, max(1, round(count)))
        return [tuple(rng.integers(4, 250, length).tolist()) for length in lengths]

    part = scale.part
    short, long, episodes = prompts(64 * part, 20, 60), prompts(64 * part, 180, 220), prompts(32 * part, 60, 61)
    spread = [prompt for prompt in prompts(64 * scale.spread_part, 20, 60) for _ in range(4)]
    lengths = np.exp(rng.uniform(np.log(16), np.log(128), len(spread))).astype(int).tolist()
    each = [EqualCompletions(prompt, 1, length) for prompt, length in zip(spread, lengths, strict=True)]
    return {
        "64x8x32": RolloutWork([EqualCompletions(prompt, 8, 32) for prompt in short]),
        "spread_16_to_128": RolloutWork(each, rows=scale.spread_rows),
        "prompts_of_200": RolloutWork([EqualCompletions(prompt, 8, 16) for prompt in long]),
        "five_turns": RolloutWork([EqualCompletions(prompt, 1, 16) for prompt in episodes], turns=5),
    }


class ThroughEngine:
    """One of our engines, asked as the simulator does it: a turn's next request as soon as its answer is there."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.tickets = 0

    def __call__(self, work: RolloutWork, *, lock_step: bool = False) -> None:
        jobs = work.each
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

    texts, said, salt = [job.prompt for job in work.jobs], 0, f"bare {time.monotonic_ns()}"
    for turn in range(work.turns):
        for index, (ids, job) in enumerate(zip(texts, work.jobs, strict=True)):
            params = SamplingParams(
                n=job.samples, max_tokens=job.length, logprobs=0, ignore_eos=True, detokenize=False,
                flat_logprobs=True, output_kind=RequestOutputKind.FINAL_ONLY,
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
    each = work.each
    for start in range(0, len(each), work.rows):
        batch = each[start : start + work.rows]
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


Samplers = dict[str, Callable[[RolloutWork], None]]


def samplers(hosted: Any, sampler: Any, model: Any, work: RolloutWork) -> Samplers:
    """Return what is compared."""
    ours, vllm = ThroughEngine(sampler), ThroughEngine(hosted)
    made: Samplers = {
        "transformers": ours,
        "vllm": vllm,
        "bare_vllm": lambda task: uncompiled(lambda: bare(hosted.core._engine, task)),
        "generate": lambda task: generate(model, task),
    }
    if len(work.each) > work.rows:
        made["lock_step"] = lambda task: vllm(task, lock_step=True)
    return made


def compare(source: PretrainedSource, model: Any, work: RolloutWork, repeats: int) -> dict[str, float]:
    """Return tokens a second of all sides, and ratios."""
    hosted: Any = VLLM(max_sequences=work.rows, kv_cache_mib=CACHE_MIB, max_context=1024).build(source)
    sampler: Any = Transformers(slots=work.rows, max_context=1024).build(source)
    hosted._ends, hosted.chat_tokenizer.ends, sampler._ends_E = [], frozenset(), np.array([], np.int64)
    compared = samplers(hosted, sampler, model, work)
    times: dict[str, list[float]] = {side: [] for side in compared}
    for task in compared.values():
        task(work.short())
    for repeat in range(repeats):
        for side, task in compared.items():
            if repeat == 0 or side != "generate":
                times[side].append(seconds(lambda: task(work)))  # noqa: B023
            hosted.take_step_metrics()  # nothing of a prompt is remembered
    hosted.close()
    rates = {side: work.tokens / statistics.median(each) for side, each in times.items()}
    ratios = {f"vllm_to_{side}": rates["vllm"] / rate for side, rate in rates.items() if side != "vllm"}
    return {name: round(rate, 1) for name, rate in rates.items()} | {name: round(r, 3) for name, r in ratios.items()}


def measured(source: PretrainedSource, scale: Scale, only: Sequence[str]) -> dict[str, Any]:
    model = source.model()
    model.generation_config.eos_token_id = None  # nothing may end early on any side
    figures: dict[str, Any] = {"scale": asdict(scale)}
    chosen = {name: work for name, work in works(np.random.default_rng(0), scale).items() if name in only}
    for name, work in chosen.items():
        figures[name] = compare(source, model, work, scale.repeats)
        print(name, figures[name], file=sys.stderr)
    return figures


def main() -> None:
    line = parser(__doc__)
    line.add_argument("--sizes", default=",".join(SIZES))
    line.add_argument("--model", help="a Hugging Face folder")
    line.add_argument("--part", type=float, default=1.0)
    line.add_argument("--only", nargs="+", choices=WORKS, default=WORKS, help="works to measure")
    options = line.parse_args()
    torch.set_num_threads(1)

    def scaled(scale: Scale) -> Scale:
        return replace(scale, part=scale.part * options.part, spread_part=scale.spread_part * options.part)

    figures = {}
    with tempfile.TemporaryDirectory() as beside:
        for size in filter(None, options.sizes.split(",")):
            tiny = Tiny(architecture="qwen3", vocabulary="bytes", context=2048, **SHAPES[size])
            build_tiny_model(tiny, Path(beside) / size, ())
            figures[size] = measured(tiny.source("actor", Path(beside) / size), scaled(SIZES[size]), options.only)
    if options.model:
        source = Pretrained(path=options.model).source("actor", options.model)
        figures[Path(options.model).name] = measured(source, scaled(REAL), options.only)
    report(figures, options.out, seeds=[0], part=options.part, works=options.only)


if __name__ == "__main__":
    main()
