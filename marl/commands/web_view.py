"""`marl view` and `marl report`: runs as a page in the browser."""

from __future__ import annotations

import webbrowser
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated

import typer

from marl.commands.terminal import echo
from marl.core.plugins import known_kinds
from marl.credit_stage.records import CreditRecord
from marl.runs.symlinks import path_without_symlinks
from marl.scenario.load import ScenarioError
from marl.training.recompute_credit import CreditRecomputation
from marl.training.run import Run
from marl.view.page.page_data import PageApi
from marl.view.page.report import write_report
from marl.view.page.server import PageServer

app = typer.Typer()
_Runs = Annotated[list[Path], typer.Argument(help="Folders of runs.", show_default=False)]


class OfflineCredit:
    """Credit rules that assign credit to recorded steps again without loading weights."""

    def __init__(self) -> None:
        # Registered kinds only: a request over HTTP must not import anything else.
        self.assigns: Sequence[str] = known_kinds("credit")
        self.baselines: Sequence[str] = known_kinds("baselines")

    def recompute(self, run: Path, step: int, rule: str) -> CreditRecord:
        """Return the credit record of a recorded step by `rule`, `ASSIGN` or `ASSIGN/BASELINE`.

        Raises:
            ScenarioError: if the rule does not fit the scenario, or needs weights.
        """

        # Rules that need no weights never touch `run`, which loads them.
        class Offline(CreditRecomputation):
            @cached_property
            def run(self) -> Run:
                raise ScenarioError(f"{rule} needs weights, to play on or to read: marl credit {run} --with {rule}")

        return Offline(run, step)(rule).record


@app.command()
def view(
    runs: _Runs,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on this machine; 0: any free one.")] = 0,
    browser: Annotated[bool, typer.Option(help="Open the page in the browser.")] = True,
) -> None:
    """Show runs in the browser: curves, episode graphs, credit of turns. Live and read-only."""
    data = PageApi(runs, OfflineCredit())
    try:
        page_server = PageServer(data, port)
    except OSError as error:
        raise ScenarioError(f"--port {port}: {error.strerror}; 0 takes any free one") from error
    with page_server as server:
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
    episodes: Annotated[int, typer.Option(min=0, help="Maximum number of episodes of each run in the page.")] = 24,
) -> None:
    """Write the page of runs as one HTML file that works offline and without a server."""
    file = out or path_without_symlinks(runs[0], "report.html")
    size = write_report(PageApi(runs), file, episodes)
    echo(f"{file}: {size / 1e6:.2f} MB")
