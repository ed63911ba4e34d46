"""`marl view` and `marl report`: runs as a page in the browser."""

from __future__ import annotations

import webbrowser
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from marl.commands.terminal import echo
from marl.parts import names
from marl.scenario.load import ScenarioError

if TYPE_CHECKING:
    from marl.judging.records import StepRecord
    from marl.training.run import Run

app = typer.Typer()
_Runs = Annotated[list[Path], typer.Argument(help="Folders of runs.", show_default=False)]


class OfflineRules:
    """Credit rules that judge recorded steps again without loading weights."""

    def __init__(self) -> None:
        # Installed parts alone: what is asked for over HTTP must import nothing else.
        self.assigns: Sequence[str] = names("credit")
        self.baselines: Sequence[str] = names("baselines")

    def judge(self, run: Path, step: int, rule: str) -> StepRecord:
        """Return the judgement of a recorded step by a rule, `ASSIGN` or `ASSIGN/BASELINE`.

        Raises:
            ScenarioError: if the rule does not fit the scenario, or needs weights.
        """
        from marl.training.rejudge import Rejudge

        class Offline(Rejudge):
            @cached_property
            def run(self) -> Run:
                raise ScenarioError(f"{rule} needs weights, to play on or to read: marl credit {run} --with {rule}")

        return Offline(run, step)(rule).record


@app.command()
def view(
    runs: _Runs,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of this machine alone; 0: any free one.")] = 0,
    browser: Annotated[bool, typer.Option(help="Open the page in the browser.")] = True,
) -> None:
    """Show runs in the browser: curves, episodes as graphs, the credit of each turn. Live while training; read-only."""
    from marl.view.page.page_data import PageData
    from marl.view.page.server import PageServer

    data = PageData(runs, OfflineRules())
    try:
        served = PageServer(data, port)
    except OSError as error:
        raise ScenarioError(f"--port {port}: {error.strerror}; 0 takes any free one") from error
    with served as server:
        echo(f"{server.url}  (Ctrl-C ends it)")
        if browser:
            webbrowser.open(server.url)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            echo("")


@app.command()
def report(
    runs: _Runs,
    out: Annotated[Path | None, typer.Option(help="HTML file; default: report.html in the first run.")] = None,
    episodes: Annotated[int, typer.Option(min=0, help="Most episodes of each run that it holds.")] = 24,
) -> None:
    """Write the page of runs as one HTML file, which needs no server and loads nothing from anywhere."""
    from marl.runs.links import expect_no_link
    from marl.view.page.page_data import PageData
    from marl.view.page.report import write_report

    data = PageData(runs)
    file = out or expect_no_link(runs[0], "report.html")
    echo(f"{file}: {write_report(data, file, episodes) / 1e6:.2f} MB")
