"""Peak memory and time of an update at a large vocabulary: distributions a few tokens at a time against all at once.

    python tests/bench/memory.py [--out FILE] [--vocabulary 150000] [--hidden 64] [--rows 16] [--tokens 128]
        [--device cpu] [--dtype float32]

Each variant runs in a process of its own: GRPO on `rows` completions of `tokens` tokens with a prompt of 16, in one
micro-batch, alone and with a frozen reference (exact KL). `peak_gib`: of the whole process after two updates, torch
included (on a CPU the greatest resident set, on a GPU what torch's allocator held at most); `update_gib`: of that, what
was not there before the first update. `ratio`: all at once over a few at a time, of `peak_gib` and of `update_gib`.
`seconds`: of the second update.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from _bench import parser, report

LEARNERS: dict[str, dict[str, Any]] = {
    "alone": {},
    "with_reference": {"reference": {"coefficient": 0.1, "estimator": "exact"}},
}
VARIANTS = {"few_at_a_time": False, "all_at_once": True}


def main() -> None:
    options = _options()
    if options.variant:
        print(json.dumps(measured(options)))
        return
    figures: dict[str, Any] = {}
    for learner in LEARNERS:
        runs = {variant: _run(learner, variant) for variant in VARIANTS}
        few, whole = runs["few_at_a_time"], runs["all_at_once"]
        ratio = {name: round(whole[name] / few[name], 2) for name in ("peak_gib", "update_gib", "seconds")}
        figures[learner] = {**runs, "ratio": ratio}
    settings = {k: v for k, v in vars(options).items() if k not in ("out", "variant", "learner")}
    report(figures, options.out, seeds=[0], **settings)


def measured(options: argparse.Namespace) -> dict[str, float]:
    """One variant, in this process."""
    import torch

    from marl.trainers.forward import token_outputs as vocabulary

    torch.set_num_threads(2)
    if VARIANTS[options.variant]:
        vocabulary.MAX_LOGIT_ENTRIES = 1 << 62
    learner = _learner(options)
    rng = random.Random(0)
    samples = [_sample(options, rng, number) for number in range(options.rows)]
    before = _now(options.device)
    took = 0.0
    for _ in range(2):
        started = time.perf_counter()
        learner.update(samples)
        took = time.perf_counter() - started
    peak = _peak(options.device)
    return {"peak_gib": round(peak, 3), "update_gib": round(peak - before, 3), "seconds": round(took, 2)}


def _learner(options: argparse.Namespace) -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from marl.protocols import LearnerBuildArguments
    from marl.trainers.policy_gradient.settings import Grpo

    class Source:
        def model(self) -> Any:
            torch.manual_seed(0)
            sizes = {"vocab_size": options.vocabulary, "hidden_size": options.hidden, "num_hidden_layers": 2}
            heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 3 * options.hidden}
            config = LlamaConfig(**sizes, **heads, max_position_embeddings=4096, tie_word_embeddings=True)
            return LlamaForCausalLM(config).to(options.device, getattr(torch, options.dtype))

    settings = Grpo.model_validate({"kind": "grpo", "micro_tokens": 1 << 20, **LEARNERS[options.learner]})
    return settings.build(LearnerBuildArguments("actor", Source(), steps=10, seed=0))  # type: ignore[arg-type]  # no tokenizer is needed


def _sample(options: argparse.Namespace, rng: random.Random, number: int) -> Any:
    from marl.core.config import Sampling
    from marl.core.types import Advantage, Sample

    def words(many: int) -> tuple[int, ...]:
        return tuple(rng.randrange(options.vocabulary) for _ in range(many))

    facts = {"agent": "player_0", "role": "solver", "group": "g", "nth": 0, "end": "no", "versions": (0, 0)}
    value, logprobs = rng.gauss(0, 1), (-11.9,) * options.tokens
    return Sample(id=("e", number), prompt_ids=words(16), token_ids=words(options.tokens), logprobs=logprobs,
                  sampling=Sampling(), earned=value, advantage=Advantage(value), **facts)  # fmt: skip


def _run(learner: str, variant: str) -> dict[str, float]:
    command = [sys.executable, *sys.argv, "--variant", variant, "--learner", learner]
    said = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    return json.loads(said.stdout.splitlines()[-1])


def _now(device: str) -> float:
    if device == "cuda":
        import torch

        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated() / 2**30
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**30


def _peak(device: str) -> float:
    if device == "cuda":
        import torch

        return torch.cuda.max_memory_allocated() / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def _options() -> argparse.Namespace:
    made = parser(__doc__)
    for name, default in (("vocabulary", 150_000), ("hidden", 64), ("rows", 16), ("tokens", 128)):
        made.add_argument(f"--{name}", type=int, default=default)
    made.add_argument("--device", default="cpu")
    made.add_argument("--dtype", default="float32")
    made.add_argument("--variant", choices=VARIANTS, help=argparse.SUPPRESS)
    made.add_argument("--learner", choices=LEARNERS, default="alone", help=argparse.SUPPRESS)
    return made.parse_args()


if __name__ == "__main__":
    main()
