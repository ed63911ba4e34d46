"""How long `marl check` takes, process start included: ten runs of the real command. Target: under 0.7 s.

python tests/bench/check.py [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parent.parent.parent
RUNS = 10


def once(scenario: Path) -> tuple[float, float]:
    """Seconds by the clock and of the CPU."""
    before, started = os.times(), time.perf_counter()
    subprocess.run([sys.executable, "-m", "marl", "check", scenario], check=True, capture_output=True, cwd=ROOT)
    wall, after = time.perf_counter() - started, os.times()
    return wall, after.children_user + after.children_system - before.children_user - before.children_system


def measure(scenario: Path) -> dict[str, object]:
    """Minimum and median; the minimum is what the machine can do when nothing else runs."""
    walls, cpus = zip(*(once(scenario) for _ in range(RUNS)), strict=True)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=ROOT, check=False)
    return {
        "command": "python tests/bench/check.py",
        "commit": commit.stdout.strip(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "load": round(os.getloadavg()[0], 2),
        "scenario": scenario.name,
        "runs": RUNS,
        "wall_s": {"min": round(min(walls), 3), "median": round(median(walls), 3)},
        "cpu_s": {"min": round(min(cpus), 3), "median": round(median(cpus), 3)},
        "target_s": 0.7,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenario", type=Path, default=ROOT / "scenarios" / "kuhn_self_play.yaml")
    parser.add_argument("--out", type=Path, help="write the JSON here, too")
    arguments = parser.parse_args()
    text = json.dumps(measure(arguments.scenario), indent=1)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
