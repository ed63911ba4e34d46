"""Our `train` against TRL's `GRPOTrainer`: samples per second on the same model, prompts, lengths and loss.

    python tests/bench/train_vs_trl.py [--out FILE] [--repeats 3] [--steps 6] [--warm-up 2] [--threads 2]
        [--profile]

A single-turn game: a prompt of 64 characters is answered with 32 tokens, and the share of the letter e in the answer is
the reward. The model is a Qwen3 of 1.6M parameters (hidden 192, 4 layers, a token a byte) that never says its end
token. Each step samples 8 completions of each of 16 prompts and makes one AdamW step of GRPO (clip 0.2, no KL,
advantages divided by the group's spread), in float32.

TRL samples with `generate`, in one batch, and is freed of what costs time and changes nothing: gradient checkpointing
(its default), logging, saving, evaluation, progress bars. Ours runs as `marl train` does, with its console, metrics
and event files, but without checkpoints and recorded trajectories. Repetitions are interleaved; each starts from the
same weights, and its figure is the mean over its steps after the warm-up. Wall time counts on a quiet machine; on a
busy one, where threads wait for each other, CPU time with `--threads 1` says more. `--profile` shows where our time
goes.
"""

from __future__ import annotations

import cProfile
import logging
import os
import pstats
import random
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from _bench import parser, report, silent, spread
from transformers import AutoModelForCausalLM, AutoTokenizer

import marl
from marl.core.types import Metrics
from marl.games.base import IllegalMoveHandling, NextAgent, TextGame, TextGameConfig
from marl.models.tiny import Tiny
from marl.models.tiny_build import build_tiny_model
from marl.roles.base import BaseRole
from marl.scenario.load import validate
from marl.scenario.schema import Scenario

MODEL = Tiny(
    architecture="qwen3", hidden=192, layers=4, heads=6, kv_heads=3, head_dim=32, intermediate=512, vocabulary="bytes",
)  # fmt: skip
PROMPTS, COMPLETIONS, TOKENS, LETTERS = 16, 8, 32, 64
SAMPLES = PROMPTS * COMPLETIONS
LR = 1e-4


def prompt(seed: int | None = None, rng: random.Random | None = None) -> str:
    """Something to read, always of the same length."""
    letters = (rng or random.Random(seed)).choices("abcdefghijklmnopqrstuvwxyz ", k=LETTERS)
    return "".join(letters)


def reward(text: str) -> float:
    """The share of the letter e."""
    return text.count("e") / max(len(text), 1)


class Answer(TextGame):
    """One agent reads a prompt and answers once."""

    name = "answer"

    def start_new_game(self, rng: random.Random, options: Mapping[str, Any]) -> NextAgent:
        self.prompt = prompt(rng=rng)
        return self.seats[0]

    def describe_observation(self, agent: str) -> str:
        return self.prompt

    def information_state(self, agent: str) -> str:
        return self.prompt

    def start_state_key(self) -> str:
        return self.prompt

    def apply_action(self, action: str) -> Mapping[str, float]:
        return {self.seats[0]: reward(action)}


class AnswerConfig(TextGameConfig):
    kind: str = f"{__name__}:AnswerConfig"

    def build(self) -> Answer:
        return Answer(("writer",), IllegalMoveHandling())


class Writer(BaseRole):
    """Whatever it says is its move."""

    kind: str = f"{__name__}:Writer"

    def parse(self, text: str, legal: tuple[str, ...] | None) -> str | None:
        return text or None


@dataclass
class Watch:
    """Follows one repetition: wall and CPU clock after each step, tokens and rewards of its samples."""

    marks: list[tuple[float, float]] = field(default_factory=list)
    tokens: list[float] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    stages: list[dict[str, float]] = field(default_factory=list)

    def mark(self) -> None:
        self.marks.append((time.perf_counter(), time.process_time()))

    def step(self, done: int, metrics: Metrics) -> None:
        """Ours; step 0 is the row before the first one."""
        self.mark()
        if done:
            self.rewards.append(metrics["episode/return/writer"])
            self.tokens.append(metrics["policy/actor/tokens"] / metrics["policy/actor/samples"])
            self.stages.append({k.removeprefix("time/"): v for k, v in metrics.items() if k.startswith("time/")})

    def judge(self, completions: Sequence[Any], completion_ids: Sequence[Sequence[int]], **_: Any) -> list[float]:
        """TRL's reward function."""
        self.tokens.append(sum(map(len, completion_ids)) / len(completion_ids))
        said = [reward(messages[0]["content"]) for messages in completions]
        self.rewards.append(statistics.fmean(said))
        return said

    def samples_per_s(self, steps: int) -> tuple[float, float]:
        """Over the last `steps` steps, by wall and by CPU clock."""
        wall, cpu = (last - first for first, last in zip(self.marks[-1 - steps], self.marks[-1], strict=True))
        return steps * SAMPLES / wall, steps * SAMPLES / cpu


def make_model(folder: Path) -> int:
    """The model with its end token out of reach; returns the number of parameters.

    All tokens' embeddings begin with the same number, which no layer adds to, so every last hidden state begins with a
    positive one. The end token's embedding (also its row of the head) begins with a large negative one.
    """
    count = build_tiny_model(MODEL, folder, ())
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    embeddings: Any = model.get_input_embeddings().weight
    with torch.no_grad():
        embeddings[:, 0] = 1.0
        embeddings[tokenizer.eos_token_id, 0] = -100.0
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight[0] = layer.mlp.down_proj.weight[0] = 0.0
    model.save_pretrained(folder)
    return count


def scenario(model: Path, steps: int, seed: int) -> Scenario:
    learner = {"kind": "grpo", "lr": LR, "aggregation": "seq_mean_token_mean", "max_norm": 1.0}
    data = {
        "game": {"kind": f"{__name__}:AnswerConfig"},
        "seats": {"writer": "writer"},
        "roles": {"writer": {"kind": f"{__name__}:Writer", "policy": "actor", "sampling": {"max_tokens": TOKENS}}},
        "policies": {"actor": {"model": str(model), "learner": learner}},
        "schedule": {
            "steps": steps,
            "groups": PROMPTS,
            "group_size": COMPLETIONS,
            "seed": seed,
            "threads": torch.get_num_threads(),
        },
        "checkpoint": {"every": 10**6, "trajectories": 0.0},
    }
    return validate(data)


def ours(model: Path, folder: Path, steps: int, seed: int) -> Watch:
    watch = Watch()
    with silent():
        marl.train(scenario(model, steps, seed), folder, on_step=watch.step)
    return watch


def theirs(model: Path, folder: Path, steps: int, seed: int) -> Watch:
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl.trainer.grpo_trainer import GRPOTrainer

    watch = Watch()

    class Clock(TrainerCallback):
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            watch.mark()

    said = [{"prompt": [{"role": "user", "content": prompt(seed + i)}]} for i in range(PROMPTS * steps)]
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype="float32")
    reward_function: Any = watch.judge
    with silent():
        trainer = GRPOTrainer(
            model=loaded, processing_class=AutoTokenizer.from_pretrained(model), reward_funcs=reward_function,
            args=settings(folder, steps, seed), train_dataset=Dataset.from_list(said), callbacks=[Clock()],
        )  # fmt: skip
        trainer.train()
    return watch


def settings(folder: Path, steps: int, seed: int) -> Any:
    """As fast as TRL goes here."""
    from trl.trainer.grpo_config import GRPOConfig

    return GRPOConfig(
        output_dir=str(folder), max_steps=steps, seed=seed, use_cpu=True, bf16=False, report_to="none",
        logging_strategy="no", save_strategy="no", disable_tqdm=True, dataloader_num_workers=0,
        dataloader_pin_memory=False, gradient_checkpointing=False, disable_dropout=True, use_vllm=False,
        per_device_train_batch_size=SAMPLES, gradient_accumulation_steps=1, steps_per_generation=1,
        num_generations=COMPLETIONS, num_iterations=1, max_completion_length=TOKENS, temperature=1.0, top_p=1.0,
        top_k=0, beta=0.0, epsilon=0.2, loss_type="grpo", scale_rewards="group", learning_rate=LR,
        lr_scheduler_type="constant", weight_decay=0.0, max_grad_norm=1.0,
    )  # fmt: skip


def compared(model: Path, beside: Path, repeats: int, steps: int, warm_up: int) -> dict[str, Any]:
    runs: dict[str, list[Watch]] = {"ours": [], "trl": []}
    for seed in range(repeats):
        for name, train in (("ours", ours), ("trl", theirs)):
            runs[name].append(train(model, beside / f"{name}-{seed}", warm_up + steps, seed))
    stages = [stage for watch in runs["ours"] for stage in watch.stages[warm_up:]]
    figures: dict[str, Any] = {}
    for index, clock in enumerate(("wall", "cpu")):
        rates = {name: [watch.samples_per_s(steps)[index] for watch in watches] for name, watches in runs.items()}
        ratios = [a / b for a, b in zip(rates["ours"], rates["trl"], strict=True)]
        both = {f"{name}_samples_per_s": spread(values, 1) for name, values in rates.items()}
        figures[clock] = both | {"ratio": spread(ratios)}
    for name, watches in runs.items():
        figures[f"{name}_tokens_per_sample"] = statistics.fmean(t for watch in watches for t in watch.tokens)
        figures[f"{name}_last_reward"] = round(statistics.fmean(watch.rewards[-1] for watch in watches), 5)
    figures["ours_ms_per_stage"] = {k: round(statistics.median(s[k] for s in stages) * 1e3, 1) for k in stages[0]}
    return figures


def profiled(model: Path, folder: Path, steps: int) -> None:
    """Python functions by their own time, then torch operators, on standard error."""
    profile = cProfile.Profile()
    profile.runcall(ours, model, folder / "python", steps, 0)
    pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(35)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as traced:
        ours(model, folder / "torch", steps, 0)
    print(traced.key_averages().table(sort_by="self_cpu_time_total", row_limit=30), file=sys.stderr)


def quiet() -> None:
    os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", TRL_EXPERIMENTAL_SILENCE="1")
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--steps", type=int, default=6)
    options.add_argument("--warm-up", type=int, default=2)
    options.add_argument("--profile", action="store_true")
    options.add_argument("--threads", type=int, default=2)
    chosen = options.parse_args()
    quiet()
    torch.set_num_threads(chosen.threads)
    with tempfile.TemporaryDirectory() as folder:
        beside = Path(folder)
        count = make_model(beside / "model")
        if chosen.profile:
            profiled(beside / "model", beside, chosen.steps)
            return
        figures = compared(beside / "model", beside, chosen.repeats, chosen.steps, chosen.warm_up)
    seeds = range(chosen.repeats)
    work = {"prompts": PROMPTS, "completions": COMPLETIONS, "tokens": TOKENS, "steps": chosen.steps}
    report({"target": 2.0} | figures, chosen.out, seeds=seeds, parameters=count, threads=chosen.threads, lr=LR, **work)


if __name__ == "__main__":
    # A plug-in's module must not be the program itself, so the plug-ins of this file are imported like any others.
    from train_vs_trl import main as main_of_module

    main_of_module()
