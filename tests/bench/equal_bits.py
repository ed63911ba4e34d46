"""Train every shipped scenario for three steps; record metrics and checksums of weights, to compare two commits.

    python tests/bench/equal_bits.py record CHECKOUT FOLDER [--only NAME …]
    python tests/bench/equal_bits.py compare OLDER_FOLDER NEWER_FOLDER [--out FILE]

`record` plays with the code of CHECKOUT (this environment's libraries), one thread a run, and writes FOLDER/NAME.json.
Times, idle shares and sizes of messages are left out, as they differ from run to run. Scenarios that need a model or
package which this machine lacks are recorded as skipped, with the last line that they printed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from _bench import report

STEPS = 3
LATER_STEPS = {"r_zero": 7, "recipes/iterative_dpo": 8}
"""Numbers of steps of scenarios in which a policy is first updated after step 3."""
VOLATILE = ("time/", "crc32", "cluster/", "queue/wait_s")
RENAMED = {"tree/courses": "tree/rollouts"}
"""Metric's name in the older commit -> its name today."""
RECORDINGS = {
    "random_nim": ["scenarios/nim_self_play.yaml"],
    "random_kuhn": ["scenarios/kuhn_self_play.yaml"],
    "legal_kuhn": ["scenarios/real/smollm2_self_play_1_format.yaml", "experience=rollouts"],
}
"""Recorded random play that some scenarios learn from -> the scenario that plays it."""
CHAINS = (
    ["nim_self_play", "recipes/distillation"],
    [f"recipes/distillation_team_{step}" for step in ("1_team", "2_into_one", "3_into_team")],
    ["recipes/rlhf_1_sft", "recipes/rlhf_2_reward", "recipes/rlhf_3_ppo"],
    ["real/smollm2_1_sft", "real/smollm2_2_dpo", "real/smollm2_3_grpo"],
    ["real/smollm2_distillation_1_teacher", "real/smollm2_distillation_2_student"],
    ["real/smollm2_self_play_1_format", "real/smollm2_self_play_2_reward"],
)
"""Scenarios that start from the run of the one before."""
SLOWEST_S = 3600
"""Longest time of one command."""


def scenario_names(scenarios: Path) -> list[str]:
    files = [path for path in scenarios.rglob("*.yaml") if path.parent.name != "suites"]
    return sorted(str(path.relative_to(scenarios).with_suffix("")) for path in files)


def marl(checkout: Path, folder: Path, *words: object) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "marl", *map(str, words)]
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SLOWEST_S,
        check=False,
    )


def result_of(run: Path) -> dict[str, Any]:
    """Return a run's metrics without times, and a checksum of each file of weights in its last checkpoint."""
    rows = []
    for line in (run / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        rows.append({k: v for k, v in row.items() if not k.startswith(VOLATILE) and not k.endswith(("/idle", "_s"))})
    last = max((run / "checkpoints").iterdir())
    weights = {}
    for file in sorted((last / "policies").rglob("*.safetensors")):
        weights[str(file.relative_to(last))] = hashlib.sha256(file.read_bytes()).hexdigest()
    return {"metrics": rows, "weights": weights}


def train(checkout: Path, folder: Path, name: str, out: Path) -> None:
    run = folder / "runs" / Path(name).name
    file = f"scenarios/{name}.yaml"
    target = out / f"{name.replace('/', '__')}.json"
    if target.exists():
        return  # a recording that was broken off goes on
    steps = LATER_STEPS.get(name, STEPS)
    done = marl(checkout, folder, "train", file, f"schedule.steps={steps}", "--out", run, "--overwrite", "--trust")
    if done.returncode == 0:
        result = result_of(run)
    else:
        checked = marl(checkout, folder, "check", file, "--quick", "--trust")
        last_line = (done.stdout.strip().splitlines() or [""])[-1]
        result = {"skipped": last_line[:300], "check": checked.returncode}
    target.write_text(json.dumps(result, indent=1))
    print(name, "ok" if "metrics" in result else result, flush=True)


def record(checkout: Path, out: Path, only: list[str]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    folder = out / "work"
    shutil.copytree(checkout / "scenarios", folder / "scenarios", dirs_exist_ok=True)
    for name, words in RECORDINGS.items():
        target = f"runs/{name}.jsonl.zst"
        if not only and not (folder / target).exists():
            marl(checkout, folder, "play", *words, "--random", "--episodes", 400, "--out", target)
    names = only or scenario_names(folder / "scenarios")
    chained = {name for chain in CHAINS for name in chain}
    works = [[name] for name in names if name not in chained]
    works += [[name for name in chain if name in names] for chain in CHAINS]

    def train_in_order(chain: list[str]) -> None:
        for name in chain:
            train(checkout, folder, name, out)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(train_in_order, works))


def difference(one: dict[str, Any], other: dict[str, Any]) -> str:
    """Return an empty string if two results are equal to the last bit, else the first difference in words.

    `one` is the result of the older commit.
    """
    if "skipped" in one or "skipped" in other:
        return f"skipped: {one.get('skipped')} / {other.get('skipped')}; check {one.get('check')}, {other.get('check')}"
    for step, (row, other_row) in enumerate(zip(one["metrics"], other["metrics"], strict=True), start=1):
        old = {RENAMED.get(name, name): value for name, value in row.items()}
        new = {RENAMED.get(name, name): value for name, value in other_row.items()}
        if missing := old.keys() - new.keys():
            return f"step {step}: no metrics {sorted(map(str, missing))[:6]} any more"
        # Later features add metrics of their own (`role/ROLE/spoof`); those of the older commit must all be there.
        differing = [name for name in old if old[name] != new[name]]
        if differing:
            return (
                f"step {step}: {differing[0]} {old[differing[0]]} / {new[differing[0]]} and {len(differing) - 1} more"
            )
    return "" if one["weights"] == other["weights"] else "weights"


def compare(one: Path, other: Path, out: Path | None) -> int:
    results = {}
    for file in sorted(one.glob("*.json")):
        twin = other / file.name
        if twin.exists():
            results[file.stem] = difference(json.loads(file.read_text()), json.loads(twin.read_text())) or "equal"
        else:
            results[file.stem] = "not recorded in the other folder"
    for name, result in results.items():
        if result != "equal":
            print(f"{name}: {result}")
    equal = sum(result == "equal" for result in results.values())
    report({"scenarios": len(results), "equal": equal, "results": results}, out, seeds=[0], steps=STEPS)
    return 0 if all(result == "equal" or result.startswith("skipped") for result in results.values()) else 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record")
    recording.add_argument("checkout", type=Path)
    recording.add_argument("folder", type=Path)
    recording.add_argument("--only", nargs="*", default=[])
    comparing = commands.add_parser("compare")
    comparing.add_argument("folder", type=Path)
    comparing.add_argument("other", type=Path)
    comparing.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.command == "record":
        record(options.checkout.resolve(), options.folder.resolve(), options.only)
    else:
        sys.exit(compare(options.folder, options.other, options.out))


if __name__ == "__main__":
    main()
