"""`marl play`: a game in the terminal, with a person or random moves in its seats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle, islice
from pathlib import Path
from statistics import fmean

from rich.console import Console

from marl.commands.simulators import random_players, untrained_policies
from marl.config import nearest
from marl.engines.scripted import Human
from marl.graph import Trajectory, write_trajectories
from marl.metrics.summaries import summarize
from marl.protocols import RoleConfig
from marl.rollout.casting import RoleCasting
from marl.rollout.simulator import RolloutSimulator
from marl.runs.run_folder import RunFolder
from marl.scenario.load import ScenarioError
from marl.scenario.schema import Scenario
from marl.seeds import seed_of
from marl.training.restore import restore
from marl.types import Deal
from marl.view.console import show
from marl.view.dialogue import Selection, dialogue

_PERSON = "person"
_ALL_SHOWN = 3
"""Number of episodes that are shown in full."""


def simulator_for(scenario: Scenario | Path, *, random: bool) -> tuple[Scenario, RolloutSimulator]:
    """Return a scenario's game with its policies as they start out, a run's as they ended, or with random players."""
    if random:
        chosen = RunFolder(scenario).scenario() if isinstance(scenario, Path) else scenario
        return chosen, random_players(chosen)
    return restore(scenario) if isinstance(scenario, Path) else (scenario, untrained_policies(scenario))


def with_game(scenario: Scenario, name: str | None) -> Scenario:
    """Return the scenario with one of its several games alone; with all of them if no name is given.

    Raises:
        ScenarioError: if there is no such game.
    """
    if name is None:
        return scenario
    if name not in scenario.games:
        have = nearest(name, scenario.games) if scenario.games else "this scenario has one game, without a name"
        raise ScenarioError(f"--game {name}: no such game; {have}")
    return scenario.model_copy(update={"games": {name: scenario.games[name]}})


def play(
    scenario: Scenario,
    simulator: RolloutSimulator,
    *,
    seat: str | None,
    episodes: int,
    out: Path | None,
    seed: int | None = None,
) -> None:
    """Play episodes, show them, and write them if asked; `seed` decides deals and answers (default: the scenario's).

    Several games are played in turn.

    Raises:
        ScenarioError: if `seat`, the person's, is no seat of the only game that is played.
    """
    console, views = Console(), scenario.by_game()
    if seed is not None:
        simulator = simulator.variant(RoleCasting(simulator.casting.roles, seed))
    if seat is not None:
        simulator = _with_person(views, simulator, seat)
    played = simulator.play(list(islice(_deals(views, simulator.casting.seed, seat), episodes)))
    _show(console, played)
    if out is not None:
        write_trajectories(out, played)
        show(console, f"{out}: {len(played)} episodes")


def _deals(views: Mapping[str, Scenario], seed: int, seat: str | None) -> Iterator[Deal]:
    """Yield deals of each game in turn, with a person in `seat`."""
    for i, (game, view) in enumerate(cycle(views.items())):
        seats = {agent: _PERSON if agent == seat else role for agent, role in view.seats.items()}
        name = f"play.{i}"
        yield Deal(name, name, seed_of(seed, name), seats, "eval", game=game)


def _with_person(views: Mapping[str, Scenario], simulator: RolloutSimulator, seat: str) -> RolloutSimulator:
    if len(views) > 1:
        raise ScenarioError(f"--as {seat}: in which of {', '.join(views)}? Name it: --game NAME")
    scenario = next(iter(views.values()))
    if seat not in scenario.seats:
        raise ScenarioError(f"--as {seat}: no such seat; {nearest(seat, scenario.seats)}")
    role: RoleConfig = scenario.roles[scenario.seats[seat]].model_copy(update={"policy": _PERSON})
    casting = RoleCasting({**simulator.casting.roles, _PERSON: role}, simulator.casting.seed)
    return simulator.variant(casting, {_PERSON: Human().build(None)})


def _show(console: Console, played: Sequence[Trajectory]) -> None:
    for trajectory in played[:_ALL_SHOWN]:
        for line in dialogue(trajectory, Selection(), {}):
            console.print(line, soft_wrap=True)
    if len(played) > _ALL_SHOWN:
        turns = fmean(len(t.turns) for t in played)
        show(console, f"{len(played)} episodes, {turns:.2f} turns each")
        for name, value in summarize(played).items():
            show(console, f"  {name:<40} {value:.4f}")
