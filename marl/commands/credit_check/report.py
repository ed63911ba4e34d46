"""Results of `marl credit-check` as text, as tables for a README, and as JSON with the conditions of measurement."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

from marl.commands.credit_check.known_answers import KnownAnswer
from marl.commands.credit_check.measure import RECOVERED, SPREAD, MethodResult
from marl.commands.credit_check.methods import CheckPlan, CheckResults

Lines = Sequence[Sequence[str]]
_RECOVERED_WORDS = {True: "yes", False: "NO", None: "-"}
_LEGEND = (
    "Under each task: Pearson / Spearman correlation of mean credit with the exact sequential advantage. Bias and "
    "variance are relative to the standard deviation of the method's own estimand, mean over tasks."
)
_TASK_HEADING = (
    *("method", "recovered", "own r", "spread", "exact r", "rank r", "bias", "rmse", "variance"),
    *("answers/turn", "tokens/turn"),
)
_COLUMNS = "own = with its own exact estimand, exact = with the exact sequential advantage Q(h, a) - V(h)"


def text(results: CheckResults) -> str:
    """Format the results for a terminal."""
    parts = ["Known answers", _answers(results.answers, aligned)] if results.answers else []
    for task, rows in groupby(results.methods, key=lambda row: row.task):
        lines = []
        for row in rows:
            correlations = (row.own_pearson, row.own_spread, row.pearson, row.spearman)
            figures = (*correlations, row.bias, row.error, row.variance, row.generations, row.tokens)
            lines.append([row.method, _RECOVERED_WORDS[row.recovered], *map(_figure, figures)])
        parts += [f"{task}: {_COLUMNS}", aligned(_TASK_HEADING, lines)]
    return "\n\n".join([*parts, summary(results)])


def markdown(results: CheckResults) -> str:
    """Return Markdown tables for a README: known answers, and one row for each method."""
    parts = [_answers(results.answers, piped)] if results.answers else []
    parts += [_LEGEND] if results.methods else []
    return "\n\n".join([*parts, method_table(results.methods), summary(results)])


def summary(results: CheckResults) -> str:
    """Return the numbers of recovered answers and estimands, and the names of the others."""
    missed: list[str] = []
    answers = estimands = tested = 0
    for answer in results.answers:
        if answer.recovered:
            answers += 1
        else:
            missed.append(f"{answer.case} ({answer.method})")
    for row in results.methods:
        # Rows without a verdict are neither recovered nor missed.
        if row.recovered is None:
            continue
        tested += 1
        if row.recovered:
            estimands += 1
        else:
            missed.append(f"{row.method} on {row.task}")
    lines = [
        f"{answers} of {len(results.answers)} known answers and {estimands} of {tested} estimands recovered "
        f"(correlation >= {RECOVERED} where the estimand's spread is >= {SPREAD})"
    ]
    if missed:
        lines.append(f"not recovered: {'; '.join(missed)}")
    return "\n".join(lines)


def write(path: Path, results: CheckResults, plan: CheckPlan, command: str) -> None:
    """Write all results as JSON, with command, commit, seeds and machine."""
    # Linux only; `platform` knows the architecture alone.
    cpu_file = Path("/proc/cpuinfo")
    lines = cpu_file.read_text().splitlines() if cpu_file.exists() else []
    cpus = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    report = {
        "command": command,
        "commit": _commit(),
        "seeds": list(plan.seeds),
        "machine": {
            **{"cpu": cpus[0] if cpus else platform.machine(), "cores": os.cpu_count()},
            "load": [round(load, 2) for load in os.getloadavg()],
            **{"python": platform.python_version(), "torch": version("torch")},
        },
        "settings": {"samples": plan.samples, "seed": plan.seed, "tasks": [task.name for task in plan.tasks]},
        "figures": {
            "known_answers": [_renamed(answer) | {"recovered": answer.recovered} for answer in results.answers],
            "methods": [_renamed(row) for row in results.methods],
        },
    }
    path.write_text(json.dumps(report, indent=1) + "\n")


def _renamed(row: KnownAnswer | MethodResult) -> dict[str, Any]:
    """Return the fields of `row`, two of them renamed to the keys of result files."""
    keys = {"computed": "found", "own_pearson": "own"}
    return {keys.get(name, name): value for name, value in asdict(row).items()}


def aligned(heading: Sequence[str], lines: Lines) -> str:
    """Return a table in text: the first column is aligned left, all others right."""
    widths = [max(map(len, column)) for column in zip(heading, *lines, strict=True)]
    rule = ["-" * width for width in widths]
    table = []
    for cells in (heading, rule, *lines):
        line = cells[0].ljust(widths[0])
        for cell, width in zip(cells[1:], widths[1:], strict=True):
            line += "  " + cell.rjust(width)
        table.append(line.rstrip())
    return "\n".join(table)


def piped(heading: Sequence[str], lines: Lines) -> str:
    """Return a table in Markdown."""
    rows = [heading, ["---"] * len(heading), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _answers(answers: Sequence[KnownAnswer], table: Callable[[Sequence[str], Lines], str]) -> str:
    lines = []
    for answer in answers:
        line = [answer.case, answer.method, _RECOVERED_WORDS[answer.recovered]]
        for numbers in (answer.expected, answer.computed):
            shown = [f"{number:.4g}" for number in numbers]
            # Equal numbers are shown once.
            line.append(shown[0] if len(set(shown)) == 1 else ", ".join(shown))
        lines.append(line)
    return table(["case", "method", "recovered", "expected", "found"], lines)


def method_table(rows: Sequence[MethodResult]) -> str:
    """Return a row for each method: Pearson / Spearman correlation with the exact advantage on each task."""
    tasks = list(dict.fromkeys(row.task for row in rows))
    by_method: dict[str, dict[str, MethodResult]] = {}
    for row in rows:
        by_method.setdefault(row.method, {})[row.task] = row
    lines = []
    for name, by_task in by_method.items():
        cells = []
        for task in tasks:
            row = by_task.get(task)
            cells.append("-" if row is None else f"{_figure(row.pearson)} / {_figure(row.spearman)}")
        results = list(by_task.values())
        verdicts = [row.recovered for row in results if row.recovered is not None]
        missed = [f"{row.task} {_figure(row.own_pearson)}" for row in results if row.recovered is False]
        recovered = f"{sum(verdicts)} of {len(verdicts)}" if verdicts else "-"
        if missed:
            recovered += f" (not {', '.join(missed)})"
        lines.append([f"`{name}`", recovered, *cells, *_relative(results)])
    heading = ["method", "own estimand recovered", *tasks, "bias", "variance"]
    return piped([*heading, "extra answers a turn", "extra tokens a turn"], lines)


def _relative(rows: Sequence[MethodResult]) -> list[str]:
    """Return bias and variance relative to the estimand's spread (mean over tasks with enough), then the costs."""
    biases: list[float] = []
    variances: list[float] = []
    for row in rows:
        # Dividing by a spread near zero would let one task decide the mean.
        if row.own_spread is not None and row.own_spread >= SPREAD:
            biases.append(abs(row.bias or 0.0) / row.own_spread)
            variances.append(row.variance / row.own_spread**2)
    bias, variance = (fmean(values) if values else None for values in (biases, variances))
    answers, tokens = fmean(row.generations for row in rows), fmean(row.tokens for row in rows)
    return [*map(_figure, (bias, variance, answers, tokens))]


def _figure(value: float | None) -> str:
    # Rounding a small negative number would print "-0.00".
    return "-" if value is None else f"{value:.2f}".replace("-0.00", "0.00")


def _commit() -> str:
    """Return the checked-out commit, with a "+" if sources have uncommitted changes, or "unknown" without git."""
    git = ["git", "-C", str(Path(__file__).parent)]
    head = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=False)
    if head.returncode:
        return "unknown"
    changed = subprocess.run([*git, "status", "--porcelain", "--", ":/*.py"], capture_output=True, check=True)
    return head.stdout.strip() + "+" * bool(changed.stdout)
