"""What a credit check found: as text, as a table for a README, as JSON with what it was measured on."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

from credit.validation.check import Checked, Plan
from credit.validation.measure import RECOVERED, SPREAD, Row
from credit.validation.tables import Fact

_JUDGED = {True: "yes", False: "NO", None: "-"}
Lines = Sequence[Sequence[str]]


def text(found: Checked) -> str:
    """Everything, for a terminal."""
    parts = ["Known answers", _facts(found.facts, aligned)] if found.facts else []
    for task, rows in groupby(found.rows, key=lambda row: row.task):
        parts += [f"{task}: {_EXPLAINED}", _of_task(list(rows))]
    return "\n\n".join([*parts, summary(found)])


def markdown(found: Checked) -> str:
    """Tables for a README: known answers, and one line for each method."""
    parts = [_facts(found.facts, piped)] if found.facts else []
    parts += [_LEGEND] if found.rows else []
    return "\n\n".join([*parts, _methods(found.rows), summary(found)])


def summary(found: Checked) -> str:
    """How many answers and estimands were recovered, and which were not."""
    judged = [row for row in found.rows if row.recovered is not None]
    missed = [f"{fact.case} ({fact.method})" for fact in found.facts if not fact.recovered]
    missed += [f"{row.method} on {row.task}" for row in judged if not row.recovered]
    right = sum(fact.recovered for fact in found.facts), sum(bool(row.recovered) for row in judged)
    return "\n".join(
        [
            f"{right[0]} of {len(found.facts)} known answers and {right[1]} of {len(judged)} estimands recovered "
            f"(correlation >= {RECOVERED} where the estimand's spread is >= {SPREAD})",
            *([f"not recovered: {'; '.join(missed)}"] if missed else []),
        ]
    )


def write(path: Path, found: Checked, plan: Plan, command: str) -> None:
    """Write everything as JSON, with the commit, the command and the machine."""
    report = {
        "command": command,
        "commit": _commit(),
        "seeds": list(plan.seeds),
        "machine": _machine(),
        "settings": {"samples": plan.samples, "seed": plan.seed, "tasks": [task.name for task in plan.tasks]},
        "figures": {
            "known_answers": [asdict(fact) | {"recovered": fact.recovered} for fact in found.facts],
            "methods": [asdict(row) for row in found.rows],
        },
    }
    path.write_text(json.dumps(report, indent=1) + "\n")


# --- tables -------------------------------------------------------------------------------------------------------


def aligned(heading: Sequence[str], lines: Lines) -> str:
    """Columns of equal width; the first to the left, all others to the right."""
    widths = [max(map(len, column)) for column in zip(heading, *lines, strict=True)]

    def line(cells: Sequence[str]) -> str:
        padded = [cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True)]
        return "  ".join([cells[0].ljust(widths[0]), *padded]).rstrip()

    return "\n".join([line(heading), line(["-" * width for width in widths]), *map(line, lines)])


def piped(heading: Sequence[str], lines: Lines) -> str:
    """Markdown."""
    rows = [heading, ["---"] * len(heading), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _facts(facts: Sequence[Fact], table: Any) -> str:
    lines = [[f.case, f.method, _JUDGED[f.recovered], _numbers(f.expected), _numbers(f.found)] for f in facts]
    return table(["case", "method", "recovered", "expected", "found"], lines)


_LEGEND = (
    "Under each task: Pearson / Spearman correlation of mean credit with the exact sequential advantage. Bias and "
    "variance are relative to the standard deviation of the method's own estimand, mean over tasks."
)
_EXPLAINED = "own = with its own exact estimand, exact = with the exact sequential advantage Q(h, a) - V(h)"


def _of_task(rows: Sequence[Row]) -> str:
    heading = ["method", "recovered", "own r", "spread", "exact r", "rank r", "bias", "rmse", "variance"]
    lines = [
        [
            *(row.method, _JUDGED[row.recovered]),
            *map(_figure, (row.own, row.own_spread, row.pearson, row.spearman)),
            *map(_figure, (row.bias, row.error, row.variance, row.generations, row.tokens)),
        ]
        for row in rows
    ]
    return aligned([*heading, "answers/turn", "tokens/turn"], lines)


def _methods(rows: Sequence[Row]) -> str:
    """A line for each method: how it did on all tasks. Under a task: Pearson / Spearman with the exact advantage."""
    tasks = list(dict.fromkeys(row.task for row in rows))
    by_method: dict[str, dict[str, Row]] = {}
    for row in rows:
        by_method.setdefault(row.method, {})[row.task] = row
    heading = ["method", "own estimand recovered", *tasks, "bias", "variance"]
    lines = [
        [
            *(f"`{name}`", _recovered(list(own.values()))),
            *(
                f"{_figure(own[task].pearson)} / {_figure(own[task].spearman)}" if task in own else "-"
                for task in tasks
            ),
            *_relative(list(own.values())),
        ]
        for name, own in by_method.items()
    ]
    return piped([*heading, "extra answers a turn", "extra tokens a turn"], lines)


def _recovered(rows: Sequence[Row]) -> str:
    judged = [row for row in rows if row.recovered is not None]
    missed = [f"{row.task} {_figure(row.own)}" for row in judged if not row.recovered]
    if not judged:
        return "-"
    return f"{len(judged) - len(missed)} of {len(judged)}" + (f" (not {', '.join(missed)})" if missed else "")


def _relative(rows: Sequence[Row]) -> list[str]:
    """Bias and variance in units of the estimand's spread, mean over the tasks where it has one; what was spent."""
    wide = [row for row in rows if row.own_spread is not None and row.own_spread >= SPREAD]
    bias = fmean(abs(row.bias or 0.0) / (row.own_spread or 1.0) for row in wide) if wide else None
    variance = fmean(row.variance / (row.own_spread or 1.0) ** 2 for row in wide) if wide else None
    spent = fmean(row.generations for row in rows), fmean(row.tokens for row in rows)
    return [_figure(bias), _figure(variance), *map(_figure, spent)]


def _both(row: Row) -> str:
    return f"{_figure(row.pearson)} / {_figure(row.spearman)}"


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}".replace("-0.00", "0.00")


def _numbers(values: Sequence[float]) -> str:
    """All of them, or one for all if they are equal."""
    shown = [f"{value:.4g}" for value in values]
    return shown[0] if len(set(shown)) == 1 else ", ".join(shown)


# --- where it was measured ----------------------------------------------------------------------------------------


def _commit() -> str:
    """The checked-out commit of this package, with a `+` if sources are changed; "unknown" without git."""
    where = ["git", "-C", str(Path(__file__).parent)]
    found = subprocess.run([*where, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=False)
    if found.returncode:
        return "unknown"
    changed = subprocess.run([*where, "status", "--porcelain", "--", ":/*.py"], capture_output=True, check=True)
    return found.stdout.strip() + "+" * bool(changed.stdout)


def _machine() -> Mapping[str, Any]:
    cpus = Path("/proc/cpuinfo")
    lines = cpus.read_text().splitlines() if cpus.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": names[0] if names else platform.machine(),
        "cores": os.cpu_count(),
        "load": [round(load, 2) for load in os.getloadavg()],
        "python": platform.python_version(),
        "torch": version("torch"),
    }
