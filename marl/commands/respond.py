"""`marl best-response`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from marl.commands.options import with_options
from marl.commands.terminal import Overrides, echo

app = typer.Typer()


@dataclass(frozen=True, slots=True)
class ResponseOptions:
    """Options of `marl best-response`."""

    steps: Annotated[int, typer.Option(min=1, help="Steps for which each learner is trained.")] = 400
    episodes: Annotated[int, typer.Option(min=2, help="Episodes in which what it gains is measured.")] = 1000
    seat: Annotated[list[str] | None, typer.Option(help="Seat that a learner takes; repeat it. Default: all.")] = None
    policy: Annotated[str | None, typer.Option(help="Policy of the run that speaks in every seat.")] = None
    game: Annotated[str | None, typer.Option(help="Of a scenario with several games: the one that is played.")] = None
    seed: Annotated[int, typer.Option(min=0, help="Of the learners' runs and of the measurement.")] = 0
    out: Annotated[Path | None, typer.Option(help="Folder of their runs; default: TARGET-best-response.")] = None


@app.command(name="best-response")
@with_options(ResponseOptions)
def best_response(
    target: Annotated[str, typer.Argument(help="RUN, RUN@STEP, RUN@best or SCENARIO.yaml.", show_default=False)],
    options: ResponseOptions,
    overrides: Overrides = None,
) -> None:
    """Bound how exploitable a run is: train a learner against it in each seat, and measure what it gains.

    For games that are too large for `marl eval --exploitability`. Each learner's run begins where the frozen policy
    began and goes on if it was interrupted. Overrides change its scenario: policies.responder.model=..., or
    schedule.groups=64.
    """
    from marl.commands.best_response import Response, render_response

    seats, learning = options.seat or [], (options.steps, options.seed, overrides or [])
    response = Response.to(target, options.out, policy=options.policy, seats=seats, game=options.game)
    if not response.train({seat: response.scenario(seat, *learning) for seat in response.seats}):
        raise typer.Exit(130)
    metrics = response.metrics(options.episodes, options.seed)
    echo(render_response(metrics))
    echo(f"{response.write(metrics)}: {len(metrics)} figures")
