"""Results of `marl credit-check` as text, as tables for a README, and as JSON with the conditions of measurement."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

from marl.commands.credit_check.known_answers import ExpectedAndComputedCredit
from marl.commands.credit_check.measure import RECOVERED, SPREAD, CreditMethodResult
from marl.commands.credit_check.methods import CreditCheckPlan, CreditCheckResults

Lines = Sequence[Sequence[str]]
"""Rows of a table: the texts of their cells."""
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
_ANSWER_HEADING = ("case", "method", "recovered", "expected", "found")


def results_as_text(results: CreditCheckResults) -> str:
    """Return the results of `marl credit-check` as plain text: one table for each task."""
    sections = []
    if results.answers:
        sections += ["Known answers", _aligned_table(_ANSWER_HEADING, _known_answer_rows(results.answers))]
    for task, rows in groupby(results.methods, key=lambda row: row.task):
        lines = []
        for row in rows:
            correlations = (row.own_pearson, row.own_spread, row.pearson, row.spearman)
            figures = (*correlations, row.bias, row.error, row.variance, row.generations, row.tokens)
            lines.append([row.method, _RECOVERED_WORDS[row.recovered], *map(_format_number, figures)])
        sections += [f"{task}: {_COLUMNS}", _aligned_table(_TASK_HEADING, lines)]
    return "\n\n".join([*sections, recovered_answers_summary(results)])


def results_as_markdown(results: CreditCheckResults) -> str:
    """Return Markdown tables for a README: known answers, and one row for each method."""
    sections = [_markdown_table(_ANSWER_HEADING, _known_answer_rows(results.answers))] if results.answers else []
    sections += [_LEGEND] if results.methods else []
    return "\n\n".join([*sections, method_markdown_table(results.methods), recovered_answers_summary(results)])


def recovered_answers_summary(results: CreditCheckResults) -> str:
    """Return a text with the numbers of recovered known answers and estimands, and the names of all others."""
    missed = [f"{answer.case} ({answer.method})" for answer in results.answers if not answer.recovered]
    answers = len(results.answers) - len(missed)
    missed += [f"{row.method} on {row.task}" for row in results.methods if row.recovered is False]
    # Methods without a verdict (None) count neither as recovered nor as missed.
    verdicts = Counter(row.recovered for row in results.methods)
    lines = [
        f"{answers} of {len(results.answers)} known answers and {verdicts[True]} of {verdicts[True] + verdicts[False]} "
        f"estimands recovered (correlation >= {RECOVERED} where the estimand's spread is >= {SPREAD})"
    ]
    if missed:
        lines.append(f"not recovered: {'; '.join(missed)}")
    return "\n".join(lines)


def write_results(path: Path, results: CreditCheckResults, plan: CreditCheckPlan, command: str) -> None:
    """Write all results to `path` as JSON, with command, commit ("unknown" without git), seeds and machine."""
    # Only Linux names the CPU's model in a file; `platform` knows the architecture alone.
    cpu_file = Path("/proc/cpuinfo")
    cpu = re.search(r"^model name\s*:(.*)$", cpu_file.read_text() if cpu_file.exists() else "", re.MULTILINE)
    git, commit = ["git", "-C", str(Path(__file__).parent)], "unknown"
    head = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=False)
    if not head.returncode:
        changed = subprocess.run([*git, "status", "--porcelain", "--", ":/*.py"], capture_output=True, check=True)
        # A "+" after the commit means that source files had uncommitted changes.
        commit = head.stdout.strip() + "+" * bool(changed.stdout)
    report = {
        "command": command,
        "commit": commit,
        "seeds": list(plan.seeds),
        "machine": {
            **{"cpu": cpu[1].strip() if cpu else platform.machine(), "cores": os.cpu_count()},
            "load": [round(load, 2) for load in os.getloadavg()],
            **{"python": platform.python_version(), "torch": version("torch")},
        },
        "settings": {"samples": plan.samples, "seed": plan.seed, "tasks": [task.name for task in plan.tasks]},
        "figures": {
            "known_answers": [_json_fields(answer) | {"recovered": answer.recovered} for answer in results.answers],
            "methods": [*map(_json_fields, results.methods)],
        },
    }
    path.write_text(json.dumps(report, indent=1) + "\n")


def _json_fields(row: ExpectedAndComputedCredit | CreditMethodResult) -> dict[str, Any]:
    """Return the fields of `row` as JSON data, two of them under another key than the field's name."""
    keys = {"computed": "found", "own_pearson": "own"}
    return {keys.get(name, name): value for name, value in asdict(row).items()}


def _aligned_table(heading: Sequence[str], lines: Lines) -> str:
    """Return a table as plain text, with the first column aligned left and all others right."""
    widths = [max(map(len, column)) for column in zip(heading, *lines, strict=True)]
    rule = ["-" * width for width in widths]
    table = []
    for cells in (heading, rule, *lines):
        line = cells[0].ljust(widths[0])
        for cell, width in zip(cells[1:], widths[1:], strict=True):
            line += "  " + cell.rjust(width)
        table.append(line.rstrip())
    return "\n".join(table)


def _markdown_table(heading: Sequence[str], lines: Lines) -> str:
    rows = [heading, ["---"] * len(heading), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _known_answer_rows(answers: Sequence[ExpectedAndComputedCredit]) -> Lines:
    """Return the cells of each known answer, in the columns of `_ANSWER_HEADING`."""
    lines = []
    for answer in answers:
        line = [answer.case, answer.method, _RECOVERED_WORDS[answer.recovered]]
        for numbers in (answer.expected, answer.computed):
            shown = [f"{number:.4g}" for number in numbers]
            # If all numbers of a list are equal, one of them is shown.
            line.append(shown[0] if len(set(shown)) == 1 else ", ".join(shown))
        lines.append(line)
    return lines


def method_markdown_table(rows: Sequence[CreditMethodResult]) -> str:
    """Return a Markdown table with one row for each method: correlations on each task, and means over tasks.

    The correlations are those with the exact advantage. Bias and variance are relative to the estimand's spread, and
    tasks with a spread below `SPREAD` do not count for them.
    """
    tasks = list(dict.fromkeys(row.task for row in rows))
    by_method: dict[str, dict[str, CreditMethodResult]] = {}
    for row in rows:
        by_method.setdefault(row.method, {})[row.task] = row
    lines = []
    for name, by_task in by_method.items():
        cells = []
        for task in tasks:
            row = by_task.get(task)
            cells.append("-" if row is None else f"{_format_number(row.pearson)} / {_format_number(row.spearman)}")
        results = list(by_task.values())
        verdicts = Counter(row.recovered for row in results)
        tested = verdicts[True] + verdicts[False]
        recovered = f"{verdicts[True]} of {tested}" if tested else "-"
        if missed := [f"{row.task} {_format_number(row.own_pearson)}" for row in results if row.recovered is False]:
            recovered += f" (not {', '.join(missed)})"
        biases, variances = list[float](), list[float]()
        for row in results:
            # A task whose estimand hardly varies is left out: division by its small spread would decide the mean.
            if row.own_spread is not None and row.own_spread >= SPREAD:
                biases.append(abs(row.bias or 0.0) / row.own_spread)
                variances.append(row.variance / row.own_spread**2)
        bias, variance = fmean(biases) if biases else None, fmean(variances) if variances else None
        answers, tokens = fmean(row.generations for row in results), fmean(row.tokens for row in results)
        lines.append([f"`{name}`", recovered, *cells, *map(_format_number, (bias, variance, answers, tokens))])
    heading = ["method", "own estimand recovered", *tasks, "bias", "variance"]
    return _markdown_table([*heading, "extra answers a turn", "extra tokens a turn"], lines)


def _format_number(number: float | None) -> str:
    # A small negative number would be rounded to "-0.00".
    return "-" if number is None else f"{number:.2f}".replace("-0.00", "0.00")
