"""`marl view` and `marl report`: runs as a page in the browser."""

from __future__ import annotations

import shlex
import webbrowser
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from marl.commands.terminal import echo
from marl.core.plugins import known_kinds
from marl.credit_stage.records import RecomputedCredit
from marl.runs.run_folder import RunFolder
from marl.runs.symlinks import path_without_symlinks
from marl.scenario.load import ScenarioError
from marl.scenario.schema import Scenario
from marl.training.recompute_credit import CreditRecomputation
from marl.training.replaced_credit import reason_credit_rules_need_weights, scenario_with_credit_rule
from marl.view.page.credit_rules import CreditRuleChoice, CreditRuleChoices
from marl.view.page.page_data import PageApi
from marl.view.page.report import write_report
from marl.view.page.server import DEFAULT_PORT, PageServer

app = typer.Typer()
_Runs = Annotated[list[Path], typer.Argument(help="Runs, or folders that hold runs.", show_default=False)]


class OfflineCreditRecomputation:
    """Assigns credit to recorded steps again, by rules that need no weights."""

    def __init__(self) -> None:
        # Only registered kinds are offered, because a request over HTTP must not import anything else.
        self.assigns: Sequence[str] = known_kinds("credit")
        self.baselines: Sequence[str] = known_kinds("baselines")

    def credit_rule_choices(self, run: Path, assign_kind: str) -> CreditRuleChoices:
        """Return the kinds of `assign` and `baseline`, some with a reason for which they cannot be used on `run`.

        Each baseline is combined with `assign_kind` ("": the run's own `assign`).

        Raises:
            ScenarioError: if the run's scenario cannot be loaded.
        """
        scenario = RunFolder(run).scenario()
        assigns = tuple(_rule_choice(scenario, run, kind, kind) for kind in self.assigns)
        baselines = tuple(_rule_choice(scenario, run, kind, f"{assign_kind}/{kind}") for kind in self.baselines)
        own = scenario.credit
        return CreditRuleChoices(own.assign.kind, own.baseline.kind, assigns, baselines)

    def recompute(self, run: Path, step: int, rule: str) -> RecomputedCredit:
        """Return the credit that `rule` (`ASSIGN`, `/BASELINE` or `ASSIGN/BASELINE`) assigns to a recorded step.

        Raises:
            ScenarioError: if the rule does not fit the scenario, or needs weights.
        """

        # Credit of a rule without weights is recomputed without `run`, the property that would load the weights.
        class WeightlessRecomputation(CreditRecomputation):
            @cached_property
            def run(self) -> NoReturn:
                command = _credit_shell_command(run, rule, step)
                raise ScenarioError(f"{rule} needs weights, to play on or to read: {command}")

        return WeightlessRecomputation(run, step)(rule)


def _rule_choice(scenario: Scenario, run: Path, kind: str, rule: str) -> CreditRuleChoice:
    """Return `kind`, with the reason if the credit rule `rule` of this kind cannot be used on `run` without weights."""
    try:
        replaced = scenario_with_credit_rule(scenario, rule)
    except ScenarioError as error:
        # The error's first line names the option `--with`; the page shows only its last line, the problem itself.
        return CreditRuleChoice(kind, str(error).splitlines()[-1].strip(), "")
    if replaced is scenario:
        return CreditRuleChoice(kind, "", "")
    reason = reason_credit_rules_need_weights(replaced)
    return CreditRuleChoice(kind, f"{reason}, which needs weights" if reason else "", _credit_shell_command(run, rule))


def _credit_shell_command(run: Path, rule: str, step: int | None = None) -> str:
    """Return the command that computes the credit of a recorded step by `rule`, with the run's weights."""
    words = ["marl", "credit", str(run), *(["--step", str(step)] if step else []), "--with", rule]
    return shlex.join(words)


@app.command(name="view")
def serve_web_view(
    runs: _Runs,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help=f"Port on this machine; default: {DEFAULT_PORT} if it is free; 0: any."),
    ] = None,
    browser: Annotated[bool, typer.Option(help="Open the page in the browser.")] = True,
) -> None:
    """Show runs in the browser: curves, episode graphs, credit of turns. Live and read-only.

    A folder of runs, such as runs/, stands for all runs in it, also for those that begin later.
    """
    data = PageApi(runs, OfflineCreditRecomputation())
    try:
        page_server = PageServer(data, DEFAULT_PORT if port is None else port)
    except OSError as error:
        if port is not None:
            raise ScenarioError(f"--port {port}: {error.strerror}; 0 takes any free one") from error
        page_server = PageServer(data)  # the default port is taken by another page or program
    with page_server as server:
        echo(f"{server.url}  (Ctrl-C ends it)")
        if browser:
            webbrowser.open(server.url)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            echo("")


@app.command(name="report")
def write_html_report(
    runs: _Runs,
    out: Annotated[Path | None, typer.Option(help="HTML file; default: report.html in the first run.")] = None,
    episodes: Annotated[int, typer.Option(min=0, help="Maximum number of episodes of each run in the page.")] = 24,
) -> None:
    """Write the page of runs as one HTML file that works offline and without a server."""
    file = out or path_without_symlinks(runs[0], "report.html")
    size = write_report(PageApi(runs), file, episodes)
    echo(f"{file}: {size / 1e6:.2f} MB")
