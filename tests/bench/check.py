"""How long `marl check` takes, process start included: ten runs of the real command. Target: under 0.7 s.

    python tests/bench/check.py [--out FILE]

The least of the wall times is what the command needs; the others also measure what else the machine does.
"""

from __future__ import annotations

import os
import subprocess
import sys

from _bench import ROOT, parser, report, seconds, spread

SCENARIO = "scenarios/kuhn_self_play.yaml"
RUNS = 10
TARGET = 0.7


def check() -> None:
    """The command, in a process of its own."""
    subprocess.run([sys.executable, "-m", "marl", "check", SCENARIO], check=True, capture_output=True, cwd=ROOT)


def cpu_seconds() -> float:
    """What finished child processes have used so far."""
    times = os.times()
    return times.children_user + times.children_system


def main() -> None:
    out = parser(__doc__).parse_args().out
    walls, cpus = [], []
    for _ in range(RUNS):
        before = cpu_seconds()
        walls.append(seconds(check))
        cpus.append(cpu_seconds() - before)
    figures = {"wall_s": spread(walls), "cpu_s": spread(cpus), "met": min(walls) < TARGET}
    report(figures, out, seeds=[], scenario=SCENARIO, runs=RUNS, target_s=TARGET)


if __name__ == "__main__":
    main()
