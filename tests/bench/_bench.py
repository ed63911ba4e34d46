"""What the measurements here share: their command line, a stopwatch, and a report that says where it comes from."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_LOAD = os.getloadavg()
"""When the measurement began, so that a figure from a busy machine can be told."""


def parser(description: str | None) -> argparse.ArgumentParser:
    """A command line with `--out FILE`; `description` is the script's docstring."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--out", type=Path, help="write the report here as well")
    return made


def seconds(task: Callable[[], object]) -> float:
    """Wall time of one call."""
    started = time.perf_counter()
    task()
    return time.perf_counter() - started


def spread(values: Sequence[float], digits: int = 3) -> dict[str, float]:
    """Median, least and greatest."""
    figures = {"median": statistics.median(values), "min": min(values), "max": max(values)}
    return {name: round(value, digits) for name, value in figures.items()}


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Keep progress off standard output, which is for the report."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield


def report(figures: Mapping[str, Any], out: Path | None, *, seeds: Sequence[int], **settings: Any) -> None:
    """Print one JSON object, and write it to `out`."""
    said = {
        "command": shlex.join(["python", os.path.relpath(sys.argv[0], ROOT), *sys.argv[1:]]),
        "commit": commit(),
        "seeds": list(seeds),
        "machine": machine(),
        "settings": settings,
        "figures": dict(figures),
    }
    text = json.dumps(said, indent=2)
    print(text)
    if out is not None:
        out.write_text(text + "\n")


def commit() -> str:
    """The checked-out commit, with a `+` if files that a figure may depend on are changed."""
    where = ["git", "-C", str(ROOT)]
    found = subprocess.run([*where, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=False)
    if found.returncode:
        return "unknown"
    changed = subprocess.run([*where, "status", "--porcelain", "--", "*.py", "*.yaml"], capture_output=True, check=True)
    return found.stdout.strip() + "+" * bool(changed.stdout)


def machine() -> dict[str, Any]:
    """What the figures were taken on."""
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "load_before": [round(load, 2) for load in _LOAD],
        "python": platform.python_version(),
        "torch": version("torch"),
        "transformers": version("transformers"),
    }


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
