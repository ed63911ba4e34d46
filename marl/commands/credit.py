"""`marl credit`: assign credit to the recorded episodes of a run again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from marl.commands.command_group import DefaultCommandGroup
from marl.commands.terminal import echo
from marl.training.recompute_credit import CreditRecomputation
from marl.view.credit_table import (
    check_table_suffix,
    credit_agreement_table,
    credit_summary_by_agent,
    write_credit_table,
)

app = typer.Typer(
    cls=DefaultCommandGroup,
    no_args_is_help=True,
    help="Assign credit to a run's recorded episodes again, by other rules, and compare rules.\n\n`marl credit RUN` is "
    "`marl credit judge RUN`.",
)
_RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.", show_default=False)]
_Step = Annotated[int | None, typer.Option(min=1, help="Recorded step; default: the newest.")]
_RULE = "A kind (shapley), two (flow/role_average), YAML ({kind: flow, decay: .5}) or a full `credit:` section"
_RULES = f"{_RULE}; two or more, or one to compare with the run's own."


@app.command(name="judge")
def assign_credit(
    run: _RunPath,
    rule: Annotated[str | None, typer.Option("--with", help=f"{_RULE}; default: the run's own.")] = None,
    step: _Step = None,
    out: Annotated[Path | None, typer.Option(help="Write the credit of every turn here (.jsonl or .csv).")] = None,
) -> None:
    """Assign credit to a recorded step, and print it by role and agent. The default subcommand."""
    if out is not None:
        check_table_suffix(out)
    recomputation = CreditRecomputation(run, step)
    credit = recomputation(rule)
    episodes = recomputation.trajectories
    title = f"{run}: step {recomputation.step}, {len(episodes)} episodes"
    echo("\n".join([title, *recomputation.notes, "", credit_summary_by_agent(credit, episodes)]))
    if out is not None:
        echo(f"{out}: {write_credit_table(out, credit, episodes)} turns")


@app.command(name="compare")
def compare_rules(
    run: _RunPath,
    rules: Annotated[list[str], typer.Option("--with", help=_RULES, show_default=False)],
    step: _Step = None,
) -> None:
    """Print the agreement of rules on a recorded step, by role, and the cost of each rule."""
    recomputation = CreditRecomputation(run, step)
    # None stands for the run's own rule, with which a single rule is compared.
    assignments = [recomputation(rule) for rule in ([None, *rules] if len(rules) == 1 else rules)]
    title = f"{run}: step {recomputation.step}, {len(recomputation.trajectories)} episodes"
    table = credit_agreement_table(assignments, recomputation.trajectories)
    echo("\n".join([title, *recomputation.notes, "", table]))
