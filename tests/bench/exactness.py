"""Trains every scenario twice with one seed, and once more with a SIGKILL in the middle and `--resume auto`.

    python tests/bench/exactness.py [SCENARIO ...] [--steps 6] [--overrides a.b=c ...] [--out FILE]

SCENARIO is a file's name such as sage or recipes/rlhf_1_sft; default: all. The three runs are compared to the last
bit: rows of metrics.jsonl without times, weights and states of all checkpoints, recorded episodes and credit records.
`--steps 0` does all steps of a file. The figures say, for each scenario, which files and how many rows differ. They are
written after each scenario; those of others that FILE holds from the same commit stay, so that it can be done in parts.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import yaml
from _bench import ROOT, commit, parser, report

SCENARIOS = ROOT / "scenarios"
RUNS = ROOT / "runs" / "exactness"
MARL = Path(sys.executable).with_name("marl")
FIRST = {"recipes/distillation": ("nim_self_play",),
         "recipes/distillation_team_2_into_one": ("recipes/distillation_team_1_team",),
         "recipes/distillation_team_3_into_team": tuple(
             f"recipes/distillation_team_{step}" for step in ("1_team", "2_into_one")),
         "recipes/rlhf_2_reward": ("recipes/rlhf_1_sft",),
         "recipes/rlhf_3_ppo": ("recipes/rlhf_1_sft", "recipes/rlhf_2_reward")}  # fmt: skip
"""Scenario -> those whose runs it starts from."""
FEWEST = {"r_zero": 8, "recipes/iterative_dpo": 8}
"""Scenario -> steps before all of its policies have learned."""
RECORDED = ("recipes/offline_awr",)
"""Scenarios that need recordings, which no scenario's run leaves where they look; left out unless they are named."""
_CLOCK = ("manifest.json",)
"""Files that count the bytes of metrics.jsonl, and so the digits of its times."""


def main() -> None:
    line = parser(__doc__)
    line.add_argument("scenarios", nargs="*", metavar="SCENARIO")
    line.add_argument("--steps", type=int, default=6)
    line.add_argument("--overrides", nargs="*", default=[], metavar="a.b=c")
    given = line.parse_args()
    known = [str(file.relative_to(SCENARIOS).with_suffix("")) for file in sorted(_files())]
    names = given.scenarios or [name for name in known if name not in RECORDED]
    compared = partial(compare, steps=given.steps, overrides=given.overrides)
    figures = _of_this_commit(given.out)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for done in as_completed([pool.submit(lambda name: (name, compared(name)), name) for name in names]):
            figures |= [done.result()]
            summary = {"equal": _equal(figures), "of": len(figures), "scenarios": dict(sorted(figures.items()))}
            report(summary, given.out, seeds=[0], steps=given.steps)
    sys.exit(_equal(figures) < len(figures))


def _equal(figures: dict[str, Any]) -> int:
    """Return the number of scenarios of which nothing differs."""
    return sum(not any(found["twice"] + found["resumed"]) for found in figures.values())


def _of_this_commit(file: Path | None) -> dict[str, Any]:
    """Return the figures of scenarios that an earlier call has written."""
    if file is None or not file.exists() or (record := json.loads(file.read_text()))["commit"] != commit():
        return {}
    return record["figures"]["scenarios"]


def _files() -> list[Path]:
    return [*SCENARIOS.glob("*.yaml"), *SCENARIOS.glob("recipes/*.yaml")]


def compare(name: str, *, steps: int, overrides: list[str]) -> dict[str, Any]:
    """Return the number of turns, and what differs between two runs, and between a run and one that was killed."""
    home = RUNS / name.replace("/", "_")
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    for earlier in FIRST.get(name, ()):
        _train(home, earlier, Path("runs") / Path(earlier).name, _settings(earlier, 0, []))
    settings = _settings(name, steps, overrides)
    seconds = {run: _train(home, name, Path(run), settings) for run in ("once", "again")}
    rows = _rows(home / "once")
    kills = _killed(home, name, settings, rows[-1]["step"], seconds["again"])
    return {
        "steps": rows[-1]["step"],
        "turns": int(sum(row.get("episode/turns", 0) * row.get("episode/count", 0) for row in rows)),
        "killed_at_step": kills,
        "twice": differences(home / "once", home / "again"),
        "resumed": differences(home / "once", home / "killed"),
    }


def _settings(name: str, steps: int, overrides: list[str]) -> list[str]:
    """Return overrides: few steps, each recorded, with an evaluation and two checkpoints on the way."""
    scenario = yaml.safe_load((SCENARIOS / f"{name}.yaml").read_text())
    all_steps, held_out = scenario["schedule"]["steps"], scenario.get("evaluate", {}).get("held_out", 0)
    steps = min(max(steps, FEWEST.get(name, 1)), all_steps) if steps else all_steps
    few = [f"schedule.steps={steps}", f"checkpoint.every={max(1, steps // 3)}", "checkpoint.trajectories=1"]
    few += [f"evaluate.every={max(1, steps // 2)}"]
    if held_out:
        few += [f"evaluate.held_out={min(40, held_out)}"]
    return [*few, *overrides]


def _train(home: Path, name: str, run: Path, settings: list[str]) -> float:
    started = time.perf_counter()
    process = _begin(home, name, run, settings)
    if process.wait() != 0:
        raise SystemExit(f"{name}: {(home / 'log').read_text()[-2000:]}")
    return time.perf_counter() - started


def _begin(home: Path, name: str, run: Path, settings: list[str]) -> subprocess.Popen[bytes]:
    command = [str(MARL), "train", "--trust", str(SCENARIOS / f"{name}.yaml"), *settings, "--out", str(run)]
    with (home / "log").open("ab") as log:
        return subprocess.Popen([*command, "--resume", "auto"], cwd=home, stdout=log, stderr=log)


def _killed(home: Path, name: str, settings: list[str], steps: int, seconds: float) -> list[int]:
    """Train once more, with a SIGKILL somewhere in the middle; return the last step that was done by then."""
    rng, run = random.Random(name), home / "killed"
    for _ in range(20):
        process, rows = _begin(home, name, run, settings), rng.randint(2, max(steps, 2))
        while process.poll() is None and len(_rows(run)) < rows:
            time.sleep(0.02)
        time.sleep(rng.uniform(0, 0.5 * seconds / steps))
        process.kill()
        if process.wait() == -9 and (done := [row["step"] for row in _rows(run)])[-1] < steps:
            _train(home, name, run, settings)
            return done[-1:]
        shutil.rmtree(run)
    return []


def _rows(run: Path) -> list[dict[str, Any]]:
    file = run / "metrics.jsonl"
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    rows = [json.loads(line) for line in lines if line.endswith("\n")]
    return [{key: value for key, value in row.items() if not key.startswith(("time/", "crc32"))} for row in rows]


def differences(one: Path, other: Path) -> list[str]:
    """Return what differs: `N rows`, and the names of files."""
    rows, others = _rows(one), _rows(other)
    unequal = abs(len(rows) - len(others)) + sum(a != b for a, b in zip(rows, others, strict=False))
    files, others_files = _digests(one), _digests(other)
    names = sorted(name for name in files | others_files if files.get(name) != others_files.get(name))
    return [f"{unequal} rows"] * bool(unequal) + names


def _digests(run: Path) -> dict[str, str]:
    folders = ("checkpoints", "trajectories", "credit")
    files = [file for folder in folders for file in (run / folder).rglob("*") if file.is_file()]
    return {
        str(file.relative_to(run)): sha256(file.read_bytes()).hexdigest() for file in files if file.name not in _CLOCK
    }


if __name__ == "__main__":
    main()
