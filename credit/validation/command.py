"""The command `marl credit-check`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer


def credit_check(
    quick: Annotated[bool, typer.Option("--quick", help="Two tasks and one seed: for CI.")] = False,
    task: Annotated[list[str] | None, typer.Option(help="Which tasks; default: all.")] = None,
    method: Annotated[list[str] | None, typer.Option(help="Which methods; default: all, and known answers.")] = None,
    seed: Annotated[int, typer.Option(help="Of play and of what methods draw.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Write all figures here, as JSON.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the README's tables.")] = False,
) -> None:
    """Check every credit rule against known answers and against exact values of small games."""
    from credit.validation import report
    from credit.validation.check import QUICK, CheckPlan, check, chosen_tasks
    from credit.validation.measure import TASKS

    names = task or (QUICK if quick else [each.name for each in TASKS])
    seeds = range(seed, seed + (1 if quick else 5))
    plan = CheckPlan(chosen_tasks(names), tuple(method or ()), seed=seed, seeds=seeds)
    results = check(plan, lambda doing: typer.echo(doing, err=True))
    typer.echo(report.markdown(results) if markdown else report.text(results))
    if out is not None:
        report.write(out, results, plan, shlex.join(["marl", *sys.argv[1:]]))
