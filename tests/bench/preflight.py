"""The estimate of `marl check --device cpu` against the memory that runs really take, in several settings.

    python tests/bench/preflight.py --model FOLDER [--out FILE] [--only NAME] [--device cuda]

Each setting plays one step and learns from it twice in a process of its own, with a model of some 135M parameters such
as SmolLM2-135M-Instruct. `process_gb`: what that process holds when it has done the same with a tiny model, so that all
libraries are there. `measured_gb`: greatest resident set of a stage (of `learn`, the second time, when there are
moments), less that; `save` writes the state of a checkpoint; `play` comes before there are moments, which the estimate
counts always. `estimated_gb`: what the preflight says of that stage, from the scenario and the model's shapes alone,
but for the length of answers: the mean of those sampled, where `marl check` takes the longest that is allowed.
`ratio`: estimated over measured, at the stage that takes most and at each. Settings that were looked at while the
estimate was corrected are in `looked_at`; the others were measured when it was done.
On a GPU the greatest memory of torch's tensors is taken, of which nothing is subtracted.
The C library gives blocks from 128 KiB on back at once (`MALLOC_MMAP_THRESHOLD_`), so gaps between them do not count.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from _bench import ROOT, parser, report

STAGES = ("play", "learn", "save")
GRPO = {"kind": "grpo", "lr": 1e-5, "micro_tokens": 512, "fidelity": None}
PPO = {**GRPO, "kind": "ppo"}
GAE = {"assign": {"kind": "gae"}, "baseline": {"kind": "whiten"}}


def adapter(**base: Any) -> dict[str, Any]:
    """A LoRA adapter of rank 16 on the model."""
    return {"kind": "adapter", "base": base, "rank": 16}


SETTINGS: dict[str, dict[str, Any]] = {
    "full_float32": {},
    "full_bfloat16": {"model": {"dtype": "bfloat16"}},
    "lora": {"lora": True},
    "lora_bfloat16": {"lora": True, "model": {"dtype": "bfloat16"}},
    "lora_checkpointing": {"lora": True, "learner": {**GRPO, "gradient_checkpointing": True, "micro_tokens": 1024}},
    "lora_long": {"lora": True, "learner": {**GRPO, "micro_tokens": 1024}, "tokens": 64},
    "ppo_lora": {"lora": True, "learner": PPO, "credit": GAE},
    "ppo_full": {"learner": PPO, "credit": GAE},
    "three_adapters": {"lora": True, "roles": ("planner", "solver", "critic")},
}


LOOKED_AT = (
    "full_float32",
    "full_bfloat16",
    "lora",
    "lora_bfloat16",
    "lora_checkpointing",
    "lora_long",
    "ppo_lora",
    "three_adapters",
)
TINY = {"kind": "tiny", "vocabulary": "bytes", "context": 4096}


def scenario(model: dict[str, Any], setting: dict[str, Any]) -> dict[str, Any]:
    """The scenario of a setting: a team that works on sums, with this model."""
    names = setting.get("roles", ("solver",))
    kinds = {"planner": "planner", "solver": "solver", "critic": "solver"}
    base = {**model, **setting.get("model", {})}
    held = adapter(**base) if setting.get("lora") else base
    learner = setting.get("learner", GRPO)
    heard = [{"role": name, "hears": [*names[:index]]} for index, name in enumerate(names)]
    answers = {"examples": ["{{ answer }}", "{{ wrong[0] }}"]}
    stages = [{**stage, **answers} for stage in heard]
    sampling = {"max_tokens": setting.get("tokens", 24)}
    return {
        "game": {
            "kind": "team",
            "task": {"kind": "arithmetic"},
            "stages": [*stages, {"role": "verifier", "verifies": "solver", "scores": ["correct"]}],
            "rewards": {name: {"correct": "solver.correct"} for name in names},
        },
        "roles": {name: {"kind": kinds[name], "policy": name, "sampling": sampling} for name in names}
        | {"verifier": {"kind": "verifier", "policy": "checker"}},
        "policies": {name: {"model": held, "learner": learner} for name in names}
        | {"checker": {"engine": {"kind": "verifiers", "checks": {"correct": {"kind": "numeric"}}}}},
        "credit": setting.get("credit", {}),
        "schedule": {"steps": 2, "groups": 3, "group_size": 4, "threads": 1},
    }


def measured(settings: dict[str, Any], small: dict[str, Any]) -> dict[str, Any]:
    """GB of each stage of a run, beyond what the process holds after the `small` one; the mean tokens of an answer."""
    _played(small)
    gc.collect()
    before = _held()
    peaks, answer = _played(settings)
    held = {stage: (peak - before) / 1e9 for stage, peak in peaks.items()}
    return {"process_gb": before / 1e9, "measured_gb": held, "answer_tokens": answer}


def _played(settings: dict[str, Any]) -> tuple[dict[str, float], float]:
    """Play, learn and save; return the greatest resident set of each stage, and the mean tokens of an answer."""
    from marl.core.state import save_state
    from marl.scenario.load import validate
    from marl.training.build import build
    from marl.training.samples import collect_samples

    peaks: dict[str, float] = {}
    run = build(validate(settings))
    with _peak(peaks, "play"):
        trajectories = run.experience.gather(0, run.deals, run.simulator)
    readings = run.read(trajectories)
    samples = collect_samples(trajectories, run.assign_credit(trajectories, readings), run.scenario.roles, readings)
    for version in range(2):
        with _peak(peaks, "learn"):
            run.update(samples)
        for name in samples:
            run.schedule_publication(name, version + 1)
        run.publish()
    with _peak(peaks, "save"), tempfile.TemporaryDirectory() as folder:
        save_state(Path(folder), run.state_dict())
    answers = [
        len(turn.completion.token_ids) for each in trajectories for turn in each.turns if turn.completion.token_ids
    ]
    return peaks, fmean(answers)


@contextmanager
def _peak(peaks: dict[str, float], stage: str) -> Iterator[None]:
    """Note the greatest resident set while this context lasts, in bytes."""
    Path("/proc/self/clear_refs").write_text("5")  # proc(5): resets the greatest resident set
    if on_gpu := torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()
    yield
    peaks[stage] = float(torch.cuda.max_memory_allocated()) if on_gpu else _status("VmHWM")


def _held() -> float:
    """Return the memory that is held now, in bytes."""
    return float(torch.cuda.memory_allocated()) if torch.cuda.is_initialized() else _status("VmRSS")


def _status(name: str) -> float:
    """Return a figure of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024.0 * next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def estimated(settings: dict[str, Any], answer: float) -> dict[str, float]:
    """GB of each stage, from settings, shapes, and the mean tokens of an answer."""
    from marl.evaluation.dry_run import play_dry_run
    from marl.memory.estimate import estimate_memory, measure_model_sizes_and_workloads
    from marl.scenario.load import validate

    run = play_dry_run(validate(settings))
    sizes = measure_model_sizes_and_workloads(run)
    work = {role: replace(load, max_completion_tokens=round(answer)) for role, load in sizes.workloads.items()}
    needed = estimate_memory(run.scenario, replace(sizes, workloads=work))
    return {stage: needed.peak_bytes([stage]) / 1e9 for stage in STAGES}


def compared(model: dict[str, Any], setting: dict[str, Any]) -> dict[str, Any]:
    """Both figures of each stage, and their ratio there and at the stage that takes most."""
    settings = scenario(model, setting)
    found = _measured_apart([settings, scenario({**TINY, "device": model["device"]}, setting)])
    peaks, answer = found["measured_gb"], found["answer_tokens"]
    guess = estimated(settings, answer)
    # What is saved from a GPU is copied to the processor.
    stages = STAGES if model["device"] == "cpu" else STAGES[:2]
    guess, peaks = ({stage: each[stage] for stage in stages} for each in (guess, peaks))
    ratios = {stage: round(guess[stage] / peaks[stage], 3) for stage in stages}
    shown = {"estimated_gb": guess, "measured_gb": peaks}
    figures = {name: {stage: round(value, 3) for stage, value in each.items()} for name, each in shown.items()}
    return {
        "answer_tokens": round(answer, 1),
        "process_gb": round(found["process_gb"], 3),
        **figures,
        "ratio": {"peak": round(max(guess.values()) / max(peaks.values()), 3), **ratios},
    }


def _measured_apart(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what `measured` does in a process of its own."""
    command = [sys.executable, __file__, "--child"]
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(1 << 17), "OMP_NUM_THREADS": "1"}
    child = subprocess.run(
        command, input=json.dumps(runs), capture_output=True, text=True, check=False, cwd=ROOT, env=environment
    )
    if child.returncode:
        raise SystemExit(child.stderr)
    found: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
    return found


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--model", type=Path, help="a Hugging Face folder")
    made.add_argument("--only", nargs="*", default=list(SETTINGS), choices=SETTINGS, help="settings to measure")
    made.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    made.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = made.parse_args()
    if options.child:
        print(json.dumps(measured(*json.load(sys.stdin))))
        return
    if options.model is None:
        made.error("--model is missing: the folder of a language model")
    model = {"kind": "pretrained", "path": str(options.model.absolute()), "device": options.device}
    figures = {name: compared(model, SETTINGS[name]) for name in options.only}
    looked_at = LOOKED_AT if options.device == "cpu" else ()
    report(figures, options.out, seeds=[0], model=options.model.name, settings=options.only, looked_at=looked_at)


if __name__ == "__main__":
    main()
