"""Commands that measure, play and draw: `marl eval`, `play`, `why`, `plot`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from marl.commands.terminal import Overrides, RunPath, echo
from marl.scenario.load import ScenarioError, load

app = typer.Typer()


@app.command(name="eval")
def evaluate(
    run: RunPath,
    against: Annotated[str | None, typer.Option(help="random, what the game exports (nash, ...), or a run.")] = None,
    episodes: Annotated[int, typer.Option(min=1, help="How many to play.")] = 1000,
    step: Annotated[int | None, typer.Option(help="Which checkpoint; default: the newest.")] = None,
    best: Annotated[bool, typer.Option("--best", help="The best one, by the scenario's evaluate.keep_best.")] = False,
) -> None:
    """Measure a trained run: on held-out starts, against opponents, and exactly where the game allows it."""
    from marl.commands.evaluate import measure, render
    from marl.training.restore import best_step

    if best and step is not None:
        raise ScenarioError(f"--step {step} names a checkpoint and --best another one: give one of them")
    echo(render(measure(run, against, episodes, best_step(run) if best else step)))


@app.command(name="play")
def play_game(
    scenario: Annotated[Path, typer.Argument(help="A scenario (YAML) or a run's folder.", show_default=False)],
    overrides: Overrides = None,
    seat: Annotated[str | None, typer.Option("--as", help="The seat that you play; policies play the others.")] = None,
    random: Annotated[bool, typer.Option(help="Every seat plays uniformly random legal moves.")] = False,
    episodes: Annotated[int, typer.Option(min=1)] = 1,
    out: Annotated[Path | None, typer.Option(help="Write the episodes here (.jsonl.zst).")] = None,
) -> None:
    """Play a game in the terminal, against a scenario's policies, a trained run's or random moves."""
    from marl.commands.play import play, simulator_for

    if scenario.is_dir() and overrides:
        raise ScenarioError(f"{scenario} is a run, which is played as it is: leave {overrides[0]!r} out")
    chosen = None if scenario.is_dir() else load(scenario, overrides or ())
    play(*simulator_for(chosen or scenario, random=random), seat=seat, episodes=episodes, out=out)


@app.command()
def why(
    run: RunPath,
    turn: Annotated[str, typer.Argument(help="EPISODE:INDEX, such as 000039.0.1:2", show_default=False)],
) -> None:
    """Explain why a recorded turn got its advantage: rewards, assign, peers, tokens. Reads the run's folder only."""
    from marl.view.why import why as explain_turn

    echo(explain_turn(run, turn))


@app.command()
def plot(
    runs: Annotated[list[Path], typer.Argument(help="Runs to compare.", show_default=False)],
    metric: Annotated[list[str] | None, typer.Option(help="Which; default: the run's evaluations.")] = None,
    out: Annotated[Path | None, typer.Option(help="PNG; default: curves.png in the first run.")] = None,
) -> None:
    """Draw learning curves of one or more runs."""
    from marl.view.curves import plot as draw

    echo(draw(runs, metric or [], out))
