"""One GPU in one command: decoding, a GRPO step against TRL, utilization of the update, and predictions of memory.

    python tests/bench/gpu.py [--out FILE] [--device cuda] [--minutes 9] [--sections decode step update memory]

Random weights in the shapes of SmolLM2-135M, Qwen3-0.6B, Qwen2.5-1.5B and Qwen3-4B (bfloat16), and a tokenizer of
bytes, so nothing is loaded from a network. Each measurement is a process of its own; one that fails is reported as
`error`, one for which no time is left as `left out`, and the others go on.

`decode`: 256 sequences are sampled at once. `ms_per_token`: median wall time of a step, which samples one token of
every sequence, for `cache: static` (CUDA graphs), `cache: dynamic`, and `generate` of Transformers. `first_s`: the
first run, in which graphs are captured. `logprob_difference`: greatest difference of a sampled token's log-probability
from that of one plain forward pass over its text.
`step`: seconds of whole steps of `marl train` and of TRL's `GRPOTrainer` with `generate`, and with vLLM in its process
where that is installed (`tests/bench/real_model.py` says how they are made equal).
`update`: GRPO on groups of 8 ragged texts of random tokens, `packing: packed`. `mfu` is the metric `policy/POLICY/mfu`,
with and without recomputation of layers, which it does not count.
`memory`: estimate over measured peak of torch's tensors (`tests/bench/preflight.py`), for two sizes and for adapters.

On a processor (`--device cpu`) shapes and numbers of texts are tiny: this shows that all of it runs, not how fast.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from copy import deepcopy
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import learner as learner_bench
import preflight
import real_model
import torch
from _bench import parser, report
from train_vs_trl import quiet
from transformers import AutoModelForCausalLM, LlamaConfig, PretrainedConfig, Qwen2Config, Qwen3Config

from marl.core.config import Sampling
from marl.core.types import Completion, Message, Request
from marl.engines.transformers.engine import TransformersEngine
from marl.engines.transformers.policy_weights import FullWeights
from marl.engines.transformers.settings import Transformers
from marl.models.half_precision import convert_to_mixed_precision
from marl.models.tiny_build import make_tiny_tokenizer
from marl.protocols import LearnerBuildArguments
from marl.trainers.policy_gradient.settings import Grpo

ENDS: dict[str, Any] = {"eos_token_id": 1, "bos_token_id": 1, "pad_token_id": 0, "tie_word_embeddings": True}
SHAPES: dict[str, PretrainedConfig] = {
    "tiny": LlamaConfig(vocab_size=259, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=4096, **ENDS),
    "0.1B": LlamaConfig(vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30,
                        num_attention_heads=9, num_key_value_heads=3, max_position_embeddings=8192, **ENDS),
    "0.6B": Qwen3Config(vocab_size=151936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, head_dim=128,
                        num_attention_heads=16, num_key_value_heads=8, max_position_embeddings=8192, **ENDS),
    "1.5B": Qwen2Config(vocab_size=151936, hidden_size=1536, intermediate_size=8960, num_hidden_layers=28,
                        num_attention_heads=12, num_key_value_heads=2, max_position_embeddings=8192, **ENDS),
    "4B": Qwen3Config(vocab_size=151936, hidden_size=2560, intermediate_size=9728, num_hidden_layers=36, head_dim=128,
                      num_attention_heads=32, num_key_value_heads=8, max_position_embeddings=8192, **ENDS),
}  # fmt: skip
TARGETS = {"ms_per_token of 0.1B, static": 6.0, "step: trl": 4.0, "step: trl_vllm": 1.5, "mfu of 1.5B": 0.4}


@dataclass(frozen=True)
class Work:
    """How much is measured on a device."""

    measurements: dict[str, list[tuple[str, ...]]]
    """Section -> the arguments of each measurement, the most important ones first."""
    sequences: int
    tokens: int
    """Tokens of a sampled answer."""
    steps: tuple[int, int]
    """Prompts of a step, and answers to each."""
    update: tuple[int, int]
    """Groups of an update, and the tokens of a prompt, of a completion at most."""


WORKS = {
    "cuda": Work(
        {
            "decode": [("0.1B", "static"), ("0.1B", "dynamic"), ("0.1B", "generate"), ("0.6B", "static"),
                       ("1.5B", "static"), ("4B", "static")],
            "step": [("0.1B", "ours"), ("0.1B", "trl"), ("0.1B", "trl_vllm")],
            "update": [("1.5B", "saved"), ("1.5B", "recomputed"), ("0.6B", "saved")],
            "memory": [("0.1B", "three_adapters"), ("0.1B", "full_bfloat16"), ("0.6B", "full_bfloat16"),
                       ("0.6B", "lora_bfloat16")],
        },
        sequences=256, tokens=64, steps=(16, 16), update=(4, 1024),
    ),
    "cpu": Work(
        {
            "decode": [("tiny", "static"), ("tiny", "dynamic"), ("tiny", "generate")],
            "step": [("tiny", "ours"), ("tiny", "trl")],
            "update": [("tiny", "saved"), ("tiny", "recomputed")],
            "memory": [("tiny", "three_adapters")],
        },
        sequences=8, tokens=12, steps=(2, 4), update=(1, 32),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class RandomWeights:
    """Random weights in one of the shapes, as a source of an engine or a learner."""

    shape: str
    device: str

    path, dtype, adapter = "", "bfloat16", None

    def model(self) -> Any:
        return convert_to_mixed_precision(self.plain_model())

    def plain_model(self) -> Any:
        """Return the model as Transformers computes it."""
        torch.manual_seed(0)
        dtype = torch.float32 if self.device == "cpu" else torch.bfloat16
        with torch.device(self.device):
            return AutoModelForCausalLM.from_config(deepcopy(SHAPES[self.shape]), dtype=dtype).eval()

    def tokenizer(self) -> Any:
        return make_tiny_tokenizer("bytes")


def decode(shape: str, way: str, device: str) -> dict[str, Any]:
    """Return the time of one token of all sequences."""
    work, source = WORKS[device], RandomWeights(shape, device)
    # Prompts of one length and no ends, so that all rows are decoded from the first step to the last.
    prompts = [f"{number:04d}" * 32 for number in range(work.sequences)]
    if way == "generate":
        model: Any = source.plain_model()
        texts = source.tokenizer()(prompts, add_special_tokens=False).input_ids
        ids = torch.tensor(texts, device=device)
        length: dict[str, Any] = {"max_new_tokens": work.tokens, "min_new_tokens": work.tokens}
        seconds = []
        for _ in range(2):
            started = time.perf_counter()
            model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=True, top_k=0, **length).cpu()
            seconds.append(time.perf_counter() - started)
        return {"ms_per_token": round(1e3 * seconds[1] / work.tokens, 2), "first_s": round(seconds[0], 2)}
    settings = Transformers(slots=work.sequences, cache="static" if way == "static" else "dynamic")
    sampler = TransformersEngine(FullWeights(source.model(), source), source.tokenizer(), settings)
    sampler._ends_E = sampler._ends_E[:0]
    first_s, _ = sampled(sampler, prompts, work.tokens)
    _, found = sampled(sampler, prompts, work.tokens)
    return {
        "ms_per_token": round(1e3 * median(found["steps"][1:]), 2),
        "reading_prompts_s": round(found["steps"][0], 3),
        "first_s": round(first_s, 2),
        "logprob_difference": plain_difference(sampler, found["completion"]),
        "gpu_gib": round(torch.cuda.max_memory_reserved() / 2**30, 2) if device == "cuda" else None,
    }


def sampled(sampler: TransformersEngine, prompts: list[str], tokens: int) -> tuple[float, dict[str, Any]]:
    """Sample an answer to each prompt; return the wall time of all, and of each step, with one completion."""
    for ticket, prompt in enumerate(prompts):
        sampler.submit(ticket, Request("actor", (Message("user", prompt),), Sampling(max_tokens=tokens), seed=ticket))
    steps: list[float] = []
    completions: list[Completion] = []
    while len(completions) < len(prompts):
        started = time.perf_counter()
        answers = sampler.step(0)
        steps.append(time.perf_counter() - started)
        completions += [answer for _, answer in answers if isinstance(answer, Completion)]
    return sum(steps), {"steps": steps, "completion": completions[0]}


@torch.inference_mode()
def plain_difference(sampler: TransformersEngine, completion: Completion) -> float:
    """Return the greatest difference of the completion's log-probabilities from those of one plain forward pass."""
    model = sampler.network.model
    ids = torch.tensor([completion.prompt_ids + completion.token_ids], device=model.device)
    logits = model(input_ids=ids, use_cache=False).logits[0, len(completion.prompt_ids) - 1 : -1].float()
    plain = logits.log_softmax(-1).gather(1, ids[0, len(completion.prompt_ids) :, None])[:, 0]
    return float((plain - torch.tensor(completion.logprobs, device=model.device)).abs().max())


def step(shape: str, side: str, device: str) -> dict[str, Any]:
    """Return the seconds of a whole step of one side."""
    if side == "trl_vllm" and find_spec("vllm") is None:
        return {"left out": "vllm is not installed"}
    work = WORKS[device]
    with tempfile.TemporaryDirectory() as folder:
        model = saved(RandomWeights(shape, device), Path(folder) / "model")
        dtype = "float32" if device == "cpu" else "bfloat16"
        options = argparse.Namespace(model=model, steps=2, threads=torch.get_num_threads(), device=device,
                                     prompts=work.steps[0], answers=work.steps[1], tokens=work.tokens)  # fmt: skip
        found = real_model.run(options, side, dtype, 0)
    return {"seconds": round(median(found["wall"]), 3), "peak_gib": round(found["peak_gib"], 2), **found["stages"]}


def saved(source: RandomWeights, folder: Path) -> Path:
    """Write the model and its tokenizer to `folder`, and free it."""
    source.plain_model().save_pretrained(folder)
    source.tokenizer().save_pretrained(folder)
    gc.collect()
    if source.device == "cuda":
        torch.cuda.empty_cache()
    return folder


def update(shape: str, layers: str, device: str) -> dict[str, Any]:
    """Return seconds and utilization of an update on packed texts."""
    groups, longest = WORKS[device].update
    size = learner_bench.Size(0, 0, SHAPES[shape].vocab_size, groups, longest, longest, micro_rows=4)
    samples = learner_bench.samples(size, "ragged")
    settings = Grpo(lr=1e-5, packing="packed", micro_tokens=size.micro_rows * 2 * longest, fidelity=None,
                    gradient_checkpointing=layers == "recomputed")  # fmt: skip
    built: Any = settings.build(LearnerBuildArguments("actor", RandomWeights(shape, device), 100, 0))
    flops = built._planner.update_flops(built.objective.rows(samples))
    seconds: list[float] = []
    metrics: dict[str, float] = {}
    for _ in range(4):
        started = learner_bench.clock(device)
        metrics = dict(built.update(samples))
        seconds.append(learner_bench.clock(device) - started)
    tokens = sum(len(sample.prompt_ids) + len(sample.token_ids) for sample in samples)
    return {
        "seconds": round(median(seconds[1:]), 3),
        "first_s": round(seconds[0], 2),
        "tokens": tokens,
        "tflops": round(flops / median(seconds[1:]) / 1e12, 3),
        "mfu": metrics.get("mfu"),
        "gpu_gib": metrics.get("memory_gib"),
    }


def memory(shape: str, setting: str, device: str) -> dict[str, Any]:
    """Return the estimated over the measured memory of a run."""
    with tempfile.TemporaryDirectory() as folder:
        model = saved(RandomWeights(shape, device), Path(folder) / "model")
        loaded = {"kind": "pretrained", "path": str(model), "device": device}
        return preflight.compared(loaded, preflight.SETTINGS[setting])


SECTIONS = {"decode": decode, "step": step, "update": update, "memory": memory}


def measured(section: str, arguments: tuple[str, ...], device: str, seconds_left: float) -> dict[str, Any]:
    """Return what a process of its own measures."""
    if seconds_left < 5:
        return {"left out": "no time was left"}
    command = [sys.executable, __file__, "--device", device, "--child", section, *arguments]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )
    try:
        output, errors = child.communicate(timeout=seconds_left)
    except subprocess.TimeoutExpired:
        # Some measurements have children of their own, which would go on otherwise.
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
        return {"left out": f"not done after {seconds_left:.0f} s, when time was up"}
    return json.loads(output.splitlines()[-1]) if not child.returncode else {"error": errors[-2000:]}


def versions(device: str) -> dict[str, str | None]:
    """Return the versions of the driver and of what is compared."""
    found: dict[str, str | None] = {"cuda": torch.version.cuda}
    for name in ("trl", "peft", "vllm"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    if device == "cuda":
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        found["driver"] = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
    return found


def main() -> None:
    line = parser(__doc__)
    line.add_argument("--device", choices=WORKS, default="cuda")
    line.add_argument("--minutes", type=float, default=9.0, help="measurements that would take longer are left out")
    line.add_argument("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    line.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = line.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        line.error("--device cuda: torch finds no GPU here; choices: cpu, which measures tiny shapes")
    quiet()
    if options.child:
        section, *arguments = options.child
        print(json.dumps(SECTIONS[section](*arguments, options.device)))
        return
    end = time.monotonic() + 60 * options.minutes
    figures: dict[str, Any] = {"targets": TARGETS}
    for section in options.sections:
        figures[section] = {}
        for arguments in WORKS[options.device].measurements[section]:
            left = end - time.monotonic()
            figures[section][", ".join(arguments)] = measured(section, arguments, options.device, left)
    report(figures, options.out, seeds=[0], device=options.device, versions=versions(options.device))


if __name__ == "__main__":
    main()
