"""The command `marl credit-check`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer


def credit_check(
    quick: Annotated[bool, typer.Option("--quick", help="Two tasks and one seed: for CI.")] = False,
    task: Annotated[list[str] | None, typer.Option(help="Task to run; repeat it. Default: all.")] = None,
    method: Annotated[
        list[str] | None, typer.Option(help="Method to check; repeat it. Default: all methods and known answers.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of play and of the random numbers of methods.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Write the results to this file, as JSON.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the README's tables.")] = False,
) -> None:
    """Check every credit rule against known answers and against exact values of small games."""
    # `marl --help` imports this module as an entry point, so imports that take seconds stay inside the function.
    from marl.commands.credit_check import methods, report

    names = task or (methods.QUICK if quick else [settings.name for settings in methods.CreditCheckPlan().tasks])
    seeds = range(seed, seed + (1 if quick else 5))
    plan = methods.CreditCheckPlan(methods.find_credit_check_tasks(names), tuple(method or ()), seed=seed, seeds=seeds)
    results = methods.run_credit_check(plan, lambda stage: typer.echo(stage, err=True))
    typer.echo(report.results_as_markdown(results) if markdown else report.results_as_text(results))
    if out is not None:
        report.write_results(out, results, plan, shlex.join(["marl", *sys.argv[1:]]))
