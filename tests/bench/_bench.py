"""Shared by all measurements: command line, stopwatch, and a report that holds its own command, commit and machine."""

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

ROOT = Path(__file__).resolve().parents[2]
_LOAD = os.getloadavg()
"""Load when the measurement began, which shows whether other work disturbed it."""


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return a command line with `--out FILE`; `description` is the script's docstring."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--out", type=Path, help="write the report here as well")
    return made


def seconds(task: Callable[[], object]) -> float:
    """Return the wall time of one call, in seconds."""
    started = time.perf_counter()
    task()
    return time.perf_counter() - started


def spread(values: Sequence[float], digits: int = 3) -> dict[str, float]:
    """Return median, least and greatest value."""
    figures = {"median": statistics.median(values), "min": min(values), "max": max(values)}
    return {name: round(value, digits) for name, value in figures.items()}


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Keep progress off standard output, which is for the report."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield


def report(figures: Mapping[str, Any], out: Path | None, *, seeds: Sequence[int], **settings: Any) -> None:
    """Print one JSON object, and write it to `out`."""
    record = {
        "command": command(),
        "commit": commit(),
        "changed": changed_files(),
        "seeds": list(seeds),
        "machine": machine(),
        "settings": settings,
        "figures": dict(figures),
    }
    text = json.dumps(record, indent=2)
    print(text)
    if out is not None:
        out.write_text(text + "\n")


def command() -> str:
    """Return the command that measured this, with paths that hold on any machine: relative to the checkout."""
    return shlex.join(["python", *map(_relative, [os.path.abspath(sys.argv[0]), *sys.argv[1:]])])


def _relative(argument: str) -> str:
    """Return an absolute path relative to the checkout, or without its folder if it lies elsewhere."""
    path = Path(argument)
    if not path.is_absolute():
        return argument
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name


def commit() -> str:
    """Return the checked-out commit, with a `+` if files that a figure may depend on are changed."""
    git = ["git", "-C", str(ROOT)]
    head = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=False)
    if head.returncode:
        return "unknown"
    return head.stdout.strip() + "+" * bool(changed_files())


def changed_files() -> list[str]:
    """Return the uncommitted files that a figure may depend on. A result with such files may not be committed."""
    git = ["git", "-C", str(ROOT), "status", "--porcelain", "--", "*.py", "*.yaml"]
    lines = subprocess.run(git, capture_output=True, text=True, check=False).stdout.splitlines()
    return [line[3:] for line in lines]


def machine() -> dict[str, Any]:
    """Return the hardware and the versions that the figures were taken on; it names no host."""
    return {
        "cpu": _cpu(),
        **_gpu(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "load_before": [round(load, 2) for load in _LOAD],
        "python": platform.python_version(),
        "torch": version("torch"),
        "transformers": version("transformers"),
    }


def _gpu() -> dict[str, str]:
    """Return the name of the GPU, if there is one."""
    import torch

    return {"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
