"""Results of a credit check: as text, as a table for a README, as JSON with what it was measured on."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

from credit.validation.check import CheckPlan, CheckResults
from credit.validation.known_answers import KnownAnswer
from credit.validation.measure import RECOVERED, SPREAD, MethodResult

Lines = Sequence[Sequence[str]]
_RECOVERED_WORDS = {True: "yes", False: "NO", None: "-"}
_LEGEND = (
    "Under each task: Pearson / Spearman correlation of mean credit with the exact sequential advantage. Bias and "
    "variance are relative to the standard deviation of the method's own estimand, mean over tasks."
)
_COLUMNS = "own = with its own exact estimand, exact = with the exact sequential advantage Q(h, a) - V(h)"


def text(results: CheckResults) -> str:
    """Return everything, for a terminal."""
    parts = ["Known answers", _answers(results.answers, aligned)] if results.answers else []
    for task, rows in groupby(results.methods, key=lambda row: row.task):
        parts += [f"{task}: {_COLUMNS}", _task_table(list(rows))]
    return "\n\n".join([*parts, summary(results)])


def markdown(results: CheckResults) -> str:
    """Return tables for a README: known answers, and one line for each method."""
    parts = [_answers(results.answers, piped)] if results.answers else []
    parts += [_LEGEND] if results.methods else []
    return "\n\n".join([*parts, method_table(results.methods), summary(results)])


def summary(results: CheckResults) -> str:
    """Return how many answers and estimands were recovered, and which were not."""
    judged = [row for row in results.methods if row.recovered is not None]
    missed = [f"{answer.case} ({answer.method})" for answer in results.answers if not answer.recovered]
    missed += [f"{row.method} on {row.task}" for row in judged if not row.recovered]
    answers, estimands = sum(answer.recovered for answer in results.answers), sum(bool(row.recovered) for row in judged)
    lines = [
        f"{answers} of {len(results.answers)} known answers and {estimands} of {len(judged)} estimands recovered "
        f"(correlation >= {RECOVERED} where the estimand's spread is >= {SPREAD})"
    ]
    return "\n".join([*lines, f"not recovered: {'; '.join(missed)}"] if missed else lines)


def write(path: Path, results: CheckResults, plan: CheckPlan, command: str) -> None:
    """Write everything as JSON, with the commit, the command and the machine."""
    report = {
        "command": command,
        "commit": _commit(),
        "seeds": list(plan.seeds),
        "machine": _machine(),
        "settings": {"samples": plan.samples, "seed": plan.seed, "tasks": [task.name for task in plan.tasks]},
        "figures": {
            "known_answers": [_renamed(answer) | {"recovered": answer.recovered} for answer in results.answers],
            "methods": [_renamed(row) for row in results.methods],
        },
    }
    path.write_text(json.dumps(report, indent=1) + "\n")


def _renamed(row: KnownAnswer | MethodResult) -> dict[str, Any]:
    """Return the fields under the keys that result files have had from the first."""
    keys = {"computed": "found", "own_pearson": "own"}
    return {keys.get(name, name): value for name, value in asdict(row).items()}


def aligned(heading: Sequence[str], lines: Lines) -> str:
    """Return columns of equal width; the first to the left, all others to the right."""
    widths = [max(map(len, column)) for column in zip(heading, *lines, strict=True)]

    def line(cells: Sequence[str]) -> str:
        padded = [cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True)]
        return "  ".join([cells[0].ljust(widths[0]), *padded]).rstrip()

    return "\n".join([line(heading), line(["-" * width for width in widths]), *map(line, lines)])


def piped(heading: Sequence[str], lines: Lines) -> str:
    """Return a Markdown table."""
    rows = [heading, ["---"] * len(heading), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _answers(answers: Sequence[KnownAnswer], table: Callable[[Sequence[str], Lines], str]) -> str:
    lines = [
        [a.case, a.method, _RECOVERED_WORDS[a.recovered], _numbers(a.expected), _numbers(a.computed)] for a in answers
    ]
    return table(["case", "method", "recovered", "expected", "found"], lines)


def _task_table(rows: Sequence[MethodResult]) -> str:
    heading = ["method", "recovered", "own r", "spread", "exact r", "rank r", "bias", "rmse", "variance"]
    lines = [
        [
            *(row.method, _RECOVERED_WORDS[row.recovered]),
            *map(_figure, (row.own_pearson, row.own_spread, row.pearson, row.spearman)),
            *map(_figure, (row.bias, row.error, row.variance, row.generations, row.tokens)),
        ]
        for row in rows
    ]
    return aligned([*heading, "answers/turn", "tokens/turn"], lines)


def method_table(rows: Sequence[MethodResult]) -> str:
    """Return a line for each method, with Pearson / Spearman with the exact advantage under each task."""
    tasks = list(dict.fromkeys(row.task for row in rows))
    by_method: dict[str, dict[str, MethodResult]] = {}
    for row in rows:
        by_method.setdefault(row.method, {})[row.task] = row
    lines = []
    for name, by_task in by_method.items():
        results = list(by_task.values())
        pairs = [f"{_figure(row.pearson)} / {_figure(row.spearman)}" for row in results]
        correlations = dict(zip(by_task, pairs, strict=True))
        cells = [correlations.get(task, "-") for task in tasks]
        lines.append([f"`{name}`", _recovered(results), *cells, *_relative(results)])
    heading = ["method", "own estimand recovered", *tasks, "bias", "variance"]
    return piped([*heading, "extra answers a turn", "extra tokens a turn"], lines)


def _recovered(rows: Sequence[MethodResult]) -> str:
    judged = [row for row in rows if row.recovered is not None]
    missed = [f"{row.task} {_figure(row.own_pearson)}" for row in judged if not row.recovered]
    if not judged:
        return "-"
    return f"{len(judged) - len(missed)} of {len(judged)}" + (f" (not {', '.join(missed)})" if missed else "")


def _relative(rows: Sequence[MethodResult]) -> list[str]:
    """Return bias and variance in units of the estimand's spread, mean over tasks where it has one; then the costs."""
    wide = [(row, row.own_spread) for row in rows if row.own_spread is not None and row.own_spread >= SPREAD]
    bias = fmean(abs(row.bias or 0.0) / spread for row, spread in wide) if wide else None
    variance = fmean(row.variance / spread**2 for row, spread in wide) if wide else None
    costs = fmean(row.generations for row in rows), fmean(row.tokens for row in rows)
    return [_figure(bias), _figure(variance), *map(_figure, costs)]


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}".replace("-0.00", "0.00")


def _numbers(values: Sequence[float]) -> str:
    """Return all numbers, or one for all if they are equal."""
    shown = [f"{value:.4g}" for value in values]
    return shown[0] if len(set(shown)) == 1 else ", ".join(shown)


def _commit() -> str:
    """Return the checked-out commit of this package, with a `+` if sources are changed; "unknown" without git."""
    git = ["git", "-C", str(Path(__file__).parent)]
    head = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=False)
    if head.returncode:
        return "unknown"
    changed = subprocess.run([*git, "status", "--porcelain", "--", ":/*.py"], capture_output=True, check=True)
    return head.stdout.strip() + "+" * bool(changed.stdout)


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
