"""`marl play`: play a game in the terminal, with a person, policies or random moves in its seats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from statistics import fmean
from typing import Annotated

import typer
from rich.console import Console

from marl.commands.options import with_options
from marl.commands.simulators import random_simulator, untrained_simulator
from marl.commands.terminal import Overrides, ScenarioOrRun, is_run_folder
from marl.core.config import choices_hint
from marl.core.graph import write_trajectories
from marl.core.seeds import seed_of
from marl.core.types import Deal
from marl.engines.scripted import Human
from marl.metrics.trajectory_metrics import summarize
from marl.protocols import RoleConfig
from marl.rollout.casting import RoleCasting
from marl.rollout.simulator import RolloutSimulator
from marl.runs.run_folder import RunFolder
from marl.scenario.load import ScenarioError, load
from marl.scenario.schema import Scenario
from marl.training.restore import restore_simulator
from marl.view.console import print_literally
from marl.view.dialogue import DialogueSelection, episode_lines

app = typer.Typer()
_PERSON = "person"
_MAX_SHOWN = 3
"""Maximum number of episodes that are shown in full."""


@dataclass(frozen=True)
class PlayOptions:
    """Options of `marl play`."""

    game: Annotated[str | None, typer.Option(help="Game of a scenario with several; default: each in turn.")] = None
    seat: Annotated[str | None, typer.Option("--as", help="The seat that you play; policies play the others.")] = None
    random: Annotated[bool, typer.Option(help="Every seat plays uniformly random legal moves.")] = False
    episodes: Annotated[int, typer.Option(min=1)] = 1
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of deals and answers; default: the scenario's.")] = None
    out: Annotated[Path | None, typer.Option(help="Write the episodes here (.jsonl.zst).")] = None


@app.command(name="play")
@with_options(PlayOptions)
def play_game(scenario: ScenarioOrRun, options: PlayOptions, overrides: Overrides = None) -> None:
    """Play a game in the terminal, against a scenario's policies, a trained run's or random moves."""
    is_run = is_run_folder(scenario)
    if is_run and overrides:
        raise ScenarioError(f"{scenario} is a run, which is played as it is: leave {overrides[0]!r} out")
    source = scenario if is_run else load(scenario, overrides or (), to_train=False, random_play=options.random)
    settings, simulator = simulator_for(source, random=options.random)
    if options.game is not None:
        name, games = options.game, settings.games
        if name not in games:
            hint = choices_hint(name, games) if games else "this scenario has one game, without a name"
            raise ScenarioError(f"--game {name}: no such game; {hint}")
        settings = settings.model_copy(update={"games": {name: games[name]}})
    play(settings, simulator, seat=options.seat, episodes=options.episodes, out=options.out, seed=options.seed)


def simulator_for(scenario: Scenario | Path, *, random: bool) -> tuple[Scenario, RolloutSimulator]:
    """Return a scenario and its simulator: with random players, a run's latest policies, or untrained policies.

    `scenario` is the folder of a run if it is a path.
    """
    if random:
        # Random players need no weights: a run's checkpoints may be missing.
        settings = RunFolder(scenario).scenario() if isinstance(scenario, Path) else scenario
        return settings, random_simulator(settings)
    return restore_simulator(scenario) if isinstance(scenario, Path) else (scenario, untrained_simulator(scenario))


def play(
    scenario: Scenario,
    simulator: RolloutSimulator,
    *,
    seat: str | None,
    episodes: int,
    out: Path | None,
    seed: int | None = None,
) -> None:
    """Play episodes and show them, several games in turn.

    Args:
        seat: seat of the person at the terminal, or None.
        out: file for the episodes, or None.
        seed: seed of deals and answers (default: the scenario's).

    Raises:
        ScenarioError: if `seat` is no seat of the game, or there are several games.
    """
    views = scenario.by_game()
    # The seed is that of the casting, which gives requests their random numbers; deals use the same one below.
    if seed is not None:
        simulator = simulator.variant(RoleCasting(simulator.casting.roles, seed))
    if seat is not None:
        simulator = _with_person(views, simulator, seat)
    deals = []
    for index, (game, view) in zip(range(episodes), cycle(views.items()), strict=False):
        seats = {agent: _PERSON if agent == seat else role for agent, role in view.seats.items()}
        name = f"play.{index}"
        deals.append(Deal(name, name, seed_of(simulator.casting.seed, name), seats, "eval", game=game))
    trajectories = simulator.play(deals)
    console = Console()
    for trajectory in trajectories[:_MAX_SHOWN]:
        for line in episode_lines(trajectory, DialogueSelection(), {}):
            console.print(line, soft_wrap=True)
    if len(trajectories) > _MAX_SHOWN:
        turns = fmean(len(trajectory.turns) for trajectory in trajectories)
        print_literally(console, f"{len(trajectories)} episodes, {turns:.2f} turns each")
        for name, value in summarize(trajectories).items():
            print_literally(console, f"  {name:<40} {value:.4f}")
    if out is not None:
        write_trajectories(out, trajectories)
        print_literally(console, f"{out}: {len(trajectories)} episodes")


def _with_person(views: Mapping[str, Scenario], simulator: RolloutSimulator, seat: str) -> RolloutSimulator:
    """Return `simulator` with one more role, which reads the answers of `seat` from the terminal."""
    if len(views) > 1:
        raise ScenarioError(f"--as {seat}: in which of {', '.join(views)}? Name it: --game NAME")
    scenario = next(iter(views.values()))
    if seat not in scenario.seats:
        raise ScenarioError(f"--as {seat}: no such seat; {choices_hint(seat, scenario.seats)}")
    role: RoleConfig = scenario.roles[scenario.seats[seat]].model_copy(update={"policy": _PERSON})
    casting = RoleCasting({**simulator.casting.roles, _PERSON: role}, simulator.casting.seed)
    return simulator.variant(casting, {_PERSON: Human().build(None)})
