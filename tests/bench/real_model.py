"""Whole steps and peak memory of `train` against TRL's `GRPOTrainer` on a real pretrained model with a LoRA adapter.

    python tests/bench/real_model.py [--model DIR] [--out FILE] [--dtype float32 bfloat16] [--repeats 1] [--steps 2]
        [--threads 2] [--device cuda] [--prompts 8] [--answers 8] [--tokens 24] [--profile]

DIR is a Hugging Face folder of an instruct model with a chat template, by default SmolLM2 where `make real` puts it;
without it nothing is measured. As it stands it takes six minutes on two quiet cores. A single-turn game: sums of two
digits, paid by the share of digits in the answer. Each step samples 8 answers of at most 24 tokens to each of 8 chat
prompts and makes one AdamW step of GRPO (clip 0.2, no KL, advantages divided by the group's spread) on an adapter of
rank 16 on all linear layers but the head.

Both sides have the same weights, lengths and type, and take all 64 samples in one micro-batch. TRL samples with
`generate` and is freed of what costs time and changes nothing: gradient checkpointing (its default), logging, saving,
evaluation, progress bars. In bfloat16 it runs under autocast, as is its default. Ours runs as `marl train` does, with
console, metrics and event files, but without checkpoints. Every repetition is a process of its own, and the two sides
take turns. `seconds` are of a step, the median of all after the first, which on our side also holds the comparison of
sampler and learner; `peak_gib` is the greatest resident set of the process, torch and all. `products` says which share
of the learner's time its matrix products would take at the rate of one product of the model's shape, measured beside.
On a GPU `peak_gib` is the greatest memory that torch reserved there instead, and `--prompts`, `--answers` and
`--tokens` give it more to do. `--profile` shows where our time goes. Wall time counts on a quiet machine; on a busy one
look at CPU time.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from _bench import parser, report, silent, spread
from train_vs_trl import quiet

import marl
from marl.core.types import Metrics
from marl.games.base import IllegalMoveHandling, NextAgent, TextGame, TextGameConfig
from marl.host.paths import cache_folder
from marl.scenario.load import validate

RANK, LR = 16, 1e-5
WORK = {"prompts": 8, "answers": 8, "tokens": 24}
"""Prompts of a step, answers to each, and tokens of an answer at most."""
TARGETS = {"speed": 4.0, "memory": 0.6}


def question(rng: random.Random) -> str:
    """Return a sum."""
    return f"What is {rng.randrange(10)} plus {rng.randrange(10)}? Answer with the number only."


def reward(text: str) -> float:
    """Return the share of digits."""
    return len(re.findall(r"\d", text)) / max(len(text), 1)


class Sums(TextGame):
    """One agent is asked for a sum and answers once."""

    name = "sums"

    def start_new_game(self, rng: random.Random, options: Mapping[str, Any]) -> NextAgent:
        self.question = question(rng)
        return self.seats[0]

    def describe_observation(self, agent: str) -> str:
        return self.question

    def information_state(self, agent: str) -> str:
        return self.question

    def start_state_key(self) -> str:
        return self.question

    def apply_action(self, action: str) -> Mapping[str, float]:
        return {self.seats[0]: reward(action)}


class SumsConfig(TextGameConfig):
    kind: str = "real_model:SumsConfig"

    def build(self) -> Sums:
        return Sums(("writer",), IllegalMoveHandling())


class Clock:
    """Wall and CPU seconds of steps, and tokens of their samples."""

    def __init__(self) -> None:
        self.marks: list[tuple[float, float]] = []
        self.tokens: list[float] = []
        self.stages: list[dict[str, float]] = []

    def mark(self) -> None:
        self.marks.append((time.perf_counter(), time.process_time()))

    def step(self, done: int, metrics: Metrics) -> None:
        """Ours; step 0 is the row before the first one."""
        self.mark()
        if done:
            self.tokens.append(metrics["policy/actor/tokens"] / metrics["policy/actor/samples"])
            self.stages.append({k.removeprefix("time/"): v for k, v in metrics.items() if k.startswith("time/")})

    def figures(self) -> dict[str, Any]:
        """Return the figures of all steps after the first."""
        pairs = list(zip(self.marks[1:], self.marks[2:], strict=False))
        wall, cpu = ([after[i] - before[i] for before, after in pairs] for i in (0, 1))
        on_gpu = torch.cuda.is_initialized()
        peak = torch.cuda.max_memory_reserved() / 2**30 if on_gpu else _resident_gib()
        kept = self.stages[1:]
        stages = {name: median(stage[name] for stage in kept) for name in kept[0]} if kept else {}
        return {"wall": wall, "cpu": cpu, "peak_gib": peak, "tokens": fmean(self.tokens), "stages": stages}


def _resident_gib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def ours(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    base = {"kind": "pretrained", "path": str(options.model), "dtype": options.dtype[0], "device": options.device}
    learner = {"kind": "grpo", "lr": LR, "aggregation": "seq_mean_token_mean", "max_norm": 1.0}
    scenario = {
        "game": {"kind": "real_model:SumsConfig"},
        "seats": {"writer": "writer"},
        "roles": {
            "writer": {"kind": "train_vs_trl:Writer", "policy": "actor", "sampling": {"max_tokens": options.tokens}}
        },
        "policies": {
            "actor": {"model": {"kind": "adapter", "base": base, "rank": RANK, "alpha": 2 * RANK}, "learner": learner}
        },
        "schedule": {
            "steps": options.steps + 1,
            "groups": options.prompts,
            "group_size": options.answers,
            "seed": options.seed,
            "threads": options.threads,
        },
        "checkpoint": {"every": 10**6, "trajectories": 0.0},
    }
    clock = Clock()
    marl.train(validate(scenario), folder, on_step=clock.step)
    return clock.figures()


def theirs(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl.trainer.grpo_trainer import GRPOTrainer

    clock, rng = Clock(), random.Random(options.seed)

    class Marks(TrainerCallback):
        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            if not clock.marks:
                clock.mark()

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            clock.mark()

    def judge(completions: Sequence[Any], completion_ids: Sequence[Sequence[int]], **_: Any) -> list[float]:
        clock.tokens.append(fmean(map(len, completion_ids)))
        return [reward(messages[0]["content"]) for messages in completions]

    asked = [question(rng) for _ in range(options.prompts * (options.steps + 1))]
    prompts = [{"prompt": [{"role": "user", "content": each}]} for each in asked]
    reward_function: Any = judge
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(options.model, dtype=options.dtype[0]),
        processing_class=AutoTokenizer.from_pretrained(options.model), reward_funcs=reward_function,
        peft_config=LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules="all-linear", task_type="CAUSAL_LM"),
        args=settings(options, folder), train_dataset=Dataset.from_list(prompts), callbacks=[Marks()],
    )  # fmt: skip
    trainer.train()
    return clock.figures()


def settings(options: argparse.Namespace, folder: Path) -> Any:
    """As fast as TRL goes here."""
    from trl.trainer.grpo_config import GRPOConfig

    return GRPOConfig(
        output_dir=str(folder), max_steps=options.steps + 1, seed=options.seed, use_cpu=options.device == "cpu",
        bf16=options.dtype == ["bfloat16"], report_to="none", logging_strategy="no", save_strategy="no",
        disable_tqdm=True, dataloader_num_workers=0, dataloader_pin_memory=False, gradient_checkpointing=False,
        disable_dropout=True, use_vllm=options.side == "trl_vllm", vllm_mode="colocate",
        per_device_train_batch_size=samples(options),
        gradient_accumulation_steps=1, steps_per_generation=1, num_generations=options.answers, num_iterations=1,
        max_completion_length=options.tokens, temperature=1.0, top_p=1.0, top_k=0, beta=0.0, epsilon=0.2,
        loss_type="grpo", scale_rewards="group", learning_rate=LR, lr_scheduler_type="constant", weight_decay=0.0,
        max_grad_norm=1.0,
    )  # fmt: skip


def samples(options: argparse.Namespace) -> int:
    """Return the answers of a step."""
    return options.prompts * options.answers


SIDES = {"ours": ours, "trl": theirs, "trl_vllm": theirs}
"""`trl_vllm`: TRL with vLLM in its own process, which `tests/bench/gpu.py` measures."""


def child(options: argparse.Namespace) -> None:
    """Measure one repetition of one side in this process."""
    quiet()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder, silent():
        found = SIDES[options.side](options, Path(folder) / "run")
    print(json.dumps(found))


def run(options: argparse.Namespace, side: str, dtype: str, seed: int) -> dict[str, Any]:
    """Return what a child process measured."""
    arguments = [f"--{name}={getattr(options, name)}" for name in ("model", "steps", "threads", "device", *WORK)]
    done = subprocess.run(
        [sys.executable, __file__, *arguments, "--side", side, "--dtype", dtype, "--seed", str(seed)],
        env=os.environ | {"OMP_NUM_THREADS": str(options.threads)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{side}:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def compared(options: argparse.Namespace, dtype: str) -> dict[str, Any]:
    """Return the figures of both sides, and their ratios."""
    found: dict[str, list[dict[str, Any]]] = {"ours": [], "trl": []}
    for seed in range(options.repeats):
        for side, runs in found.items():
            runs.append(run(options, side, dtype, seed))
    figures: dict[str, Any] = {}
    for side, runs in found.items():
        seconds = {clock: spread([s for each in runs for s in each[clock]], 2) for clock in ("wall", "cpu")}
        figures[side] = {
            "seconds": seconds,
            "samples_per_s": round(samples(options) / seconds["wall"]["median"], 2),
            "peak_gib": round(max(each["peak_gib"] for each in runs), 2),
            "tokens_per_sample": round(fmean(each["tokens"] for each in runs), 1),
        }
    pairs = list(zip(found["ours"], found["trl"], strict=True))
    for clock in ("wall", "cpu"):
        figures[f"speed_{clock}"] = spread([median(t[clock]) / median(o[clock]) for o, t in pairs], 2)
    figures["memory"] = round(figures["ours"]["peak_gib"] / figures["trl"]["peak_gib"], 2)
    stages = [each["stages"] for each in found["ours"]]
    figures["ours"]["stages_s"] = {name: round(median(s[name] for s in stages), 2) for name in stages[0]}
    learn_s, tokens = figures["ours"]["stages_s"]["learn"], figures["ours"]["tokens_per_sample"]
    figures["products"] = products(options, getattr(torch, dtype), learn_s, tokens)
    return figures


def products(options: argparse.Namespace, dtype: torch.dtype, learn_s: float, tokens: float) -> dict[str, float]:
    """Return the rate of a product, and the share of `learn_s` that products take at that rate.

    A distinct token costs 2 operations a weight forwards and 2 backwards, since the weights are frozen; so does the
    head at completion tokens.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(options.model)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    head = config.vocab_size * config.hidden_size
    body = sum(p.numel() for p in model.parameters()) - head * (1 if config.tie_word_embeddings else 2)
    answered = samples(options) * tokens
    flops = 4.0 * body * (options.prompts * 40 + answered) + 4.0 * head * answered
    torch.set_num_threads(options.threads)
    shapes = (8192 if options.device == "cuda" else 1024, config.intermediate_size)
    x, weight = (torch.randn(n, config.hidden_size, dtype=dtype, device=options.device) for n in shapes)
    times = []
    for _ in range(20):
        started = time.perf_counter()
        # Its first element waits for the GPU.
        float(torch.nn.functional.linear(x, weight)[0, 0])
        times.append(time.perf_counter() - started)
    rate = 2.0 * x.numel() * len(weight) / min(times)
    return {"tflops": round(rate / 1e12, 2), "share_of_learn": round(flops / rate / learn_s, 3)}


def profiled(options: argparse.Namespace) -> None:
    """Print torch's operators by their own time, on standard error."""
    on_gpu = options.device == "cuda"
    kinds = [torch.profiler.ProfilerActivity.CPU, *[torch.profiler.ProfilerActivity.CUDA] * on_gpu]
    with torch.profiler.profile(activities=kinds) as traced:
        child(options)
    for sort in ("self_cpu_time_total", *["self_cuda_time_total"] * on_gpu):
        print(traced.key_averages().table(sort_by=sort, row_limit=40), file=sys.stderr)


def main() -> None:
    line = parser(__doc__)
    line.add_argument("--model", type=Path, default=cache_folder() / "real" / "SmolLM2-135M-Instruct")
    line.add_argument("--dtype", nargs="+", choices=["float32", "bfloat16"], default=["float32", "bfloat16"])
    line.add_argument("--repeats", type=int, default=1)
    line.add_argument("--steps", type=int, default=2, help="steps after the first, which is not measured")
    line.add_argument("--threads", type=int, default=2)
    line.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    for name, number in WORK.items():
        line.add_argument(f"--{name}", type=int, default=number)
    line.add_argument("--profile", action="store_true")
    line.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    line.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    options = line.parse_args()
    if not options.model.is_dir():
        print(f"no model in {options.model}: `make real` prepares it; nothing measured", file=sys.stderr)
    elif options.profile:
        options.side = options.side or "ours"
        profiled(options)
    elif options.side:
        child(options)
    else:
        work = {name: getattr(options, name) for name in WORK} | {"rank": RANK, "lr": LR}
        settings = {"model": options.model.name, "threads": options.threads, "device": options.device}
        figures = {"target": TARGETS} | {dtype: compared(options, dtype) for dtype in options.dtype}
        report(figures, options.out, seeds=range(options.repeats), steps=options.steps, **settings, **work)


if __name__ == "__main__":
    main()
