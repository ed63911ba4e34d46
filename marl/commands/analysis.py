"""Commands that explain, draw and compare recorded runs: `marl why`, `plot`, `compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from marl.commands.terminal import RunPath, echo
from marl.view.credit_explanation import explain_advantage
from marl.view.curve_data import PictureStyle
from marl.view.curves import plot_curves
from marl.view.run_comparison import compare_runs

app = typer.Typer()
_Runs = Annotated[list[Path], typer.Argument(help="Runs to compare.", show_default=False)]


@app.command(name="why")
def explain_turn_advantage(
    run: RunPath,
    turn: Annotated[str, typer.Argument(help="EPISODE:INDEX, such as 000040.0.1:2", show_default=False)],
) -> None:
    """Explain the advantage of a recorded turn: rewards, assign, peers, tokens. Read-only."""
    echo(explain_advantage(run, turn))


@app.command(name="plot")
def plot_metrics(
    runs: _Runs,
    metric: Annotated[
        list[str] | None, typer.Option(help="Metric to draw; repeat it. Default: success, returns, losses, ...")
    ] = None,
    by: Annotated[Literal["role"] | None, typer.Option(help="A panel for each metric, a line for each role.")] = None,
    band: Annotated[
        Literal["seeds"] | None, typer.Option(help="Draw runs that differ only in their seeds as one line with a band.")
    ] = None,
    style: Annotated[
        PictureStyle, typer.Option(help="paper: vectors as wide as one or two columns, in small Times.")
    ] = "screen",
    out: Annotated[
        Path | None, typer.Option(help=".png, .svg, .pdf; default: curves.png (paper: curves.pdf) in the first run.")
    ] = None,
) -> None:
    """Draw learning curves of one or more runs."""
    echo(plot_curves(runs, metric or [], out, by, band, style))


@app.command(name="compare")
def print_run_comparison(
    runs: _Runs,
    metric: Annotated[
        list[str] | None, typer.Option(help="Metric to print; repeat it. Default: success, exact figures, returns.")
    ] = None,
) -> None:
    """Print the settings in which runs differ, and their final figures with intervals."""
    echo(compare_runs(runs, metric or ()))
