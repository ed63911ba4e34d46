"""How long `marl check` takes, process start included: ten runs of the real command, with and without its dry run.

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
TARGETS = {"--quick": 0.7, "": 1.5}
"""Option -> seconds in which it should be done; without an option, random episodes are played."""


def check(option: str) -> None:
    """The command, in a process of its own."""
    command = [sys.executable, "-m", "marl", "check", SCENARIO, *filter(None, [option])]
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT)


def cpu_seconds() -> float:
    """What finished child processes have used so far."""
    times = os.times()
    return times.children_user + times.children_system


def measured(option: str) -> dict[str, object]:
    """Wall and processor time of one form of the command."""
    walls, cpus = [], []
    for _ in range(RUNS):
        before = cpu_seconds()
        walls.append(seconds(lambda: check(option)))
        cpus.append(cpu_seconds() - before)
    return {"wall_s": spread(walls), "cpu_s": spread(cpus), "met": min(walls) < TARGETS[option]}


def main() -> None:
    out = parser(__doc__).parse_args().out
    figures = {"whole" if not option else "quick": measured(option) for option in TARGETS}
    report(figures, out, seeds=[], scenario=SCENARIO, runs=RUNS, targets_s=list(TARGETS.values()))


if __name__ == "__main__":
    main()
