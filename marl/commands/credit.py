"""`marl credit`: judge the recorded episodes of a run again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from marl.text import for_terminal

if TYPE_CHECKING:
    from marl.training.rejudge import Rejudge

_DEFAULT = "judge"


class _WithDefault(TyperGroup):
    """A group of commands whose first words may leave out the command `judge`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, *ctx.help_option_names):
            args = [_DEFAULT, *args]
        return super().parse_args(ctx, args)


credit = typer.Typer(
    cls=_WithDefault,
    no_args_is_help=True,
    help="Judge a run's recorded play again: marl credit RUN --with RULE, marl credit compare RUN --with A --with B.",
)
_RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.", show_default=False)]
_Step = Annotated[int | None, typer.Option(min=1, help="Which recorded step; default: the newest.")]
_RULE = "A kind (shapley), two (flow/role_average), YAML ({kind: flow, decay: .5}) or all that stands under `credit:`"
_RULES = f"{_RULE}; two or more, or one to compare with the run's own."


@credit.command(_DEFAULT)
def judge(
    run: _RunPath,
    rule: Annotated[str | None, typer.Option("--with", help=f"{_RULE}; default: the run's own.")] = None,
    step: _Step = None,
    out: Annotated[Path | None, typer.Option(help="Write every turn's credit here (.jsonl or .csv).")] = None,
) -> None:
    """Judge a recorded step, and print credit by role and agent. The command when none is named."""
    from marl.training.rejudge import Rejudge
    from marl.view.credit_table import check_format, credit_table, write_credit

    if out is not None:
        check_format(out)
    recorded = Rejudge(run, step)
    judged = recorded(rule)
    _say("\n".join([_title(run, recorded), *recorded.notes, "", credit_table(judged, recorded.trajectories)]))
    if out is not None:
        _say(f"{out}: {write_credit(out, judged, recorded.trajectories)} turns")


@credit.command()
def compare(
    run: _RunPath,
    rules: Annotated[list[str], typer.Option("--with", help=_RULES, show_default=False)],
    step: _Step = None,
) -> None:
    """Print how far rules agree on a recorded step, by role, and what each cost."""
    from marl.training.rejudge import Rejudge
    from marl.view.credit_table import comparison_table

    recorded = Rejudge(run, step)
    judged = [recorded(rule) for rule in ([None, *rules] if len(rules) == 1 else rules)]
    _say("\n".join([_title(run, recorded), *recorded.notes, "", comparison_table(judged, recorded.trajectories)]))


def _say(text: str) -> None:
    typer.echo(for_terminal(text))


def _title(run: Path, recorded: Rejudge) -> str:
    return f"{run}: step {recorded.step}, {len(recorded.trajectories)} episodes"
