"""An update of ours against one of TRL's `GRPOTrainer` on identical samples: tokens per second, and peak memory.

    python tests/bench/learner.py [--out FILE] [--sizes 0.1M 15M 100M] [--repeats 3] [--threads 1] [--device cpu]
        [--shapes equal ragged dialogues] [--ways ours padded packed]

Random weights (Qwen3). Samples are groups of 8 completions of one prompt with given advantages and log-probabilities;
both sides compute one GRPO update: forward, backward, AdamW (clip 0.2, no KL, token-mean). `equal`: all prompts and all
completions have one length. `ragged`: completions are log-uniform between 1/16 of the longest and the longest, as those
of reasoning models are. `dialogues`: each completion is a dialogue of 10 calls of tools. Its 11 answers and 10 results
have between a quarter of `longest` and `longest` tokens, and only answers are learned from. Ours has a sample for each
answer, whose prompt is all before it; TRL has one row, in which `tool_mask` hides the results. Micro-batches hold as
many padded tokens on either side. TRL is freed of what costs time and
changes nothing (gradient checkpointing, logging, saving) and uses its fused head; its samples are handed to it in place
of generation, in the form in which it makes them. Every measurement is a process of its own: memory is the growth of
its peak over what it held before its first update; time the median of its updates after that one. The two sides take
turns. Ours is also run `padded`, `packed` and without chunks, to show what each does.

On a GPU (`--device cuda --sizes 0.5B 1.5B`) it computes in bfloat16 and reports MFU: useful operations only, 6 a
parameter and token plus attention, no padding, no recomputation, over the device's peak.
"""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from _bench import parser, report, silent, spread
from transformers import AutoModelForCausalLM, Qwen3Config

from marl.core.config import Sampling
from marl.core.types import Advantage, Sample
from marl.protocols import LearnerBuildArguments
from marl.trainers.optim.peak_flops import peak_bfloat16_flops
from marl.trainers.policy_gradient.settings import Grpo

GROUP, CALLS = 8, 10


@dataclass(frozen=True)
class Size:
    """A model, and how much it is given to learn from."""

    hidden: int
    layers: int
    vocabulary: int
    groups: int
    prompt: int
    longest: int
    micro_rows: int

    def config(self) -> Qwen3Config:
        heads = max(2, self.hidden // 64)
        return Qwen3Config(
            vocab_size=self.vocabulary, hidden_size=self.hidden, intermediate_size=3 * self.hidden,
            num_hidden_layers=self.layers, num_attention_heads=heads, head_dim=self.hidden // heads,
            num_key_value_heads=1 if heads % 2 else heads // 2, max_position_embeddings=16384, tie_word_embeddings=True,
        )  # fmt: skip


def shaped(name: str, shape: str) -> Size:
    """Return the work of one measurement; a dialogue is so long that a few of them are as much work."""
    size = SIZES[name]
    if shape != "dialogues":
        return size
    longest = (2 * CALLS + 1) * size.longest
    rows = max(1, size.micro_rows * (size.prompt + size.longest) // (size.prompt + longest))
    # TRL's micro-batches must divide the number of dialogues.
    return replace(size, groups=max(1, size.groups // 8), micro_rows=min(GROUP, 1 << rows.bit_length() - 1))


SIZES = {
    "0.1M": Size(64, 2, 256, groups=32, prompt=64, longest=64, micro_rows=256),
    "15M": Size(320, 9, 8192, groups=4, prompt=128, longest=128, micro_rows=32),
    "100M": Size(768, 12, 32000, groups=1, prompt=128, longest=128, micro_rows=8),
    "0.5B": Size(1024, 28, 151936, groups=8, prompt=1024, longest=1024, micro_rows=8),
    "1.5B": Size(1536, 28, 151936, groups=4, prompt=1024, longest=1024, micro_rows=4),
}


def samples(size: Size, shape: str) -> list[Sample]:
    """The same for the same arguments."""
    rng = random.Random(0)

    def words(many: int) -> tuple[int, ...]:
        return tuple(rng.randrange(1, size.vocabulary) for _ in range(many))

    made: list[Sample] = []
    for group in range(size.groups):
        prompt = words(size.prompt)
        for member in range(GROUP):
            many = size.longest
            if shape == "ragged":
                # One of each group is the longest, so that both shapes pad to the same width.
                many = max(1, round(size.longest * 16 ** -(rng.random() if member else 0)))
            turn_count = 1 + CALLS * (shape == "dialogues")
            advantage, before = Advantage(rng.gauss(0, 1)), prompt
            for turn in range(turn_count):
                if turn_count > 1:
                    many = rng.randint(size.longest // 4, size.longest)
                said, logprobs = words(many), (-5.0,) * many
                made.append(
                    Sample(
                        (f"{group}.{member}", turn), "a", "r", str(group), turn, "terminated", before, said, logprobs,
                        Sampling(), (0, 0), 0.0, advantage,
                    )
                )  # fmt: skip
                result = words(rng.randint(size.longest // 4, size.longest)) if turn_count > 1 else ()
                before = (*before, *said, *result)
    return made


def rows_of(given: list[Sample]) -> list[list[Sample]]:
    """Return the samples of each episode, in the order of its turns."""
    rows: dict[str, list[Sample]] = {}
    for sample in given:
        rows.setdefault(sample.id[0], []).append(sample)
    return list(rows.values())


@dataclass(frozen=True)
class Random:
    """A model with random weights, as a source of a learner."""

    size: Size
    device: str

    path, dtype, adapter = "", "float32", None

    def model(self) -> Any:
        torch.manual_seed(0)
        dtype = torch.float32 if self.device == "cpu" else torch.bfloat16
        return AutoModelForCausalLM.from_config(self.size.config(), dtype=dtype).to(self.device)

    def tokenizer(self) -> Any:
        raise NotImplementedError


def reset_peak(device: str) -> float:
    """Bytes held now; what follows is measured from here."""
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
        return float(torch.cuda.memory_allocated())
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def peak(device: str) -> float:
    return float(torch.cuda.max_memory_allocated()) if device != "cpu" else _status("VmHWM")


def _status(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def clock(device: str) -> float:
    """On a CPU its own time, which other programs' work does not lengthen."""
    if device != "cpu":
        torch.cuda.synchronize()
        return time.perf_counter()
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def ours(size: Size, given: list[Sample], how: dict[str, Any], updates: int, device: str) -> dict[str, float]:
    longest = max([len(row[-1].prompt_ids) + len(row[-1].token_ids) for row in rows_of(given)])
    micro_tokens = size.micro_rows * longest
    settings = Grpo(lr=1e-5, micro_tokens=micro_tokens, **how)
    learner = settings.build(LearnerBuildArguments("actor", Random(size, device), 100, 0))
    return measured(lambda: learner.update(given), updates, device)


def measured(update: Any, updates: int, device: str) -> dict[str, float]:
    held, times = reset_peak(device), []
    for _ in range(updates + 1):
        started = clock(device)
        update()
        times.append(clock(device) - started)
    return {"seconds": median(times[1:]), "peak_mib": (peak(device) - held) / 2**20}


def theirs(size: Size, given: list[Sample], updates: int, device: str) -> dict[str, float]:
    from transformers import TrainerCallback

    marks: list[float] = []

    class Clock(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            marks.append(-clock(device))

        def on_step_end(self, *_: Any, **__: Any) -> None:
            marks[-1] += clock(device)

    with tempfile.TemporaryDirectory() as folder, silent():
        trainer = trl_trainer(size, given, Path(folder), updates, device)
        trainer.add_callback(Clock())
        held = reset_peak(device)
        trainer.train()
    return {"seconds": median(marks[1:]), "peak_mib": (peak(device) - held) / 2**20}


def trl_trainer(size: Size, given: list[Sample], folder: Path, updates: int, device: str) -> Any:
    """TRL's trainer with `given` in place of what it would generate."""
    from datasets import Dataset
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    from marl.models.tiny_build import make_tiny_tokenizer

    class Given(GRPOTrainer):
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            return {name: tensor.to(self.accelerator.device) for name, tensor in tensors.items()}

    tensors = padded(given)
    rows, width = tensors["completion_ids"].shape
    pieces = rows // size.micro_rows
    arguments = GRPOConfig(
        output_dir=str(folder), max_steps=updates + 1, use_cpu=device == "cpu", bf16=False, report_to="none",
        logging_strategy="no", save_strategy="no", disable_tqdm=True, dataloader_pin_memory=False,
        gradient_checkpointing=False, disable_dropout=True, per_device_train_batch_size=size.micro_rows,
        gradient_accumulation_steps=pieces, steps_per_generation=pieces, num_generations=GROUP,
        max_completion_length=width, beta=0.0, epsilon=0.2, loss_type="dapo", learning_rate=1e-5,
        lr_scheduler_type="constant", weight_decay=0.0, max_grad_norm=1.0,
    )  # fmt: skip
    return Given(
        model=Random(size, device).model(), processing_class=make_tiny_tokenizer("bytes"), args=arguments,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        train_dataset=Dataset.from_list([{"prompt": str(i)} for i in range(rows * (updates + 1))]),
    )  # fmt: skip


def padded(given: list[Sample]) -> dict[str, torch.Tensor]:
    """As TRL makes them: prompts padded on the left, completions on the right, and results of tools hidden."""
    completions: list[list[int]] = []
    sampled: list[list[int]] = []
    rows = rows_of(given)
    for first, *later in rows:
        ids, mask = list(first.token_ids), [1] * len(first.token_ids)
        for sample in later:
            result = sample.prompt_ids[len(first.prompt_ids) + len(ids) :]
            ids += [*result, *sample.token_ids]
            mask += [0] * len(result) + [1] * len(sample.token_ids)
        completions.append(ids)
        sampled.append(mask)
    width = max(map(len, completions))

    def filled(lists: list[list[int]]) -> torch.Tensor:
        return torch.tensor([[*numbers, *[0] * (width - len(numbers))] for numbers in lists])

    prompts = torch.tensor([row[0].prompt_ids for row in rows])
    return {
        "prompt_ids": prompts, "prompt_mask": torch.ones_like(prompts), "completion_ids": filled(completions),
        "completion_mask": filled([[1] * len(ids) for ids in completions]), "tool_mask": filled(sampled),
        "advantages": torch.tensor([row[0].advantage.value for row in rows]),
        "num_items_in_batch": torch.tensor(sum(map(sum, sampled))),
    }  # fmt: skip


WAYS: dict[str, dict[str, Any]] = {"ours": {}, "padded": {"packing": "padded"}, "packed": {"packing": "packed"}}


def child(name: str, way: str, shape: str, updates: int, device: str) -> None:
    """One measurement, as JSON."""
    size = shaped(name, shape)
    given = samples(size, shape)
    found = theirs(size, given, updates, device) if way == "trl" else ours(size, given, WAYS[way], updates, device)
    print(json.dumps(found))


def measure(options: Any, name: str, way: str, shape: str) -> dict[str, float]:
    """The same in a process of its own."""
    threads = {"OMP_NUM_THREADS": str(options.threads), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    arguments = ["--child", name, way, shape, "--updates", str(options.updates), "--device", options.device]
    done = subprocess.run(
        [sys.executable, __file__, *arguments], env=os.environ | threads, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{name} {way} {shape}:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def compared(options: Any, name: str, shape: str) -> dict[str, Any]:
    """Figures of all ways, and the ratios to TRL's."""
    size = shaped(name, shape)
    given = samples(size, shape)
    tokens = sum(len(row[-1].prompt_ids) + len(row[-1].token_ids) for row in rows_of(given))
    found: dict[str, list[dict[str, float]]] = {way: [] for way in ("trl", *options.ways)}
    for _ in range(options.repeats):
        for way, runs in found.items():
            runs.append(measure(options, name, way, shape))
    figures: dict[str, Any] = {"tokens": tokens}
    for way, runs in found.items():
        speed = spread([tokens / run["seconds"] for run in runs], 0)
        figures[way] = {"tokens_per_s": speed, "peak_mib": round(median(run["peak_mib"] for run in runs), 1)}
    for way in options.ways:
        ratios = [t["seconds"] / o["seconds"] for t, o in zip(found["trl"], found[way], strict=True)]
        memory = [t["peak_mib"] / max(o["peak_mib"], 1) for t, o in zip(found["trl"], found[way], strict=True)]
        figures[f"{way}_to_trl"] = {"speed": spread(ratios), "memory": spread(memory)}
    if options.device != "cpu":
        figures["mfu"] = mfu(size, given, min(run["seconds"] for run in found["ours"]))
    return figures


def mfu(size: Size, given: list[Sample], seconds: float) -> float | None:
    """Useful operations over the device's peak, if that is known: each text whole, whatever is shared."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(size.config())
    weights = sum(p.numel() for p in model.parameters())
    lengths = [len(row[-1].prompt_ids) + len(row[-1].token_ids) for row in rows_of(given)]
    # Scores and values, forward and backward, of the lower triangle: 2 * 2 * 3 / 2.
    attention = sum(6 * size.layers * size.hidden * length**2 for length in lengths)
    peak = peak_bfloat16_flops(torch.cuda.get_device_name())
    return (6 * weights * sum(lengths) + attention) / seconds / peak if peak else None


def main() -> None:
    line = parser(__doc__)
    line.add_argument("--sizes", nargs="+", choices=SIZES, default=["0.1M", "15M", "100M"])
    line.add_argument("--shapes", nargs="+", choices=["equal", "ragged", "dialogues"], default=["equal", "ragged"])
    line.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    line.add_argument("--repeats", type=int, default=3)
    line.add_argument("--updates", type=int, default=2)
    line.add_argument("--threads", type=int, default=1)
    line.add_argument("--device", default="cpu")
    line.add_argument("--child", nargs=3)
    options = line.parse_args()
    if options.child:
        name, way, shape = options.child
        child(name, way, shape, options.updates, options.device)
        return
    figures: dict[str, Any] = {"target": {"equal": 1.5, "ragged": 3.0, "dialogues": 1.5}}
    for name in options.sizes:
        for shape in options.shapes:
            figures[f"{name} {shape}"] = compared(options, name, shape)
    work = {name: vars(SIZES[name]) for name in options.sizes}
    report(figures, options.out, seeds=[0], threads=options.threads, updates=options.updates, work=work)


if __name__ == "__main__":
    main()
