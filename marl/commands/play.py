"""`marl play`: play a game in the terminal, with a person, policies or random moves in its seats."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from statistics import fmean
from typing import Annotated

import typer
from rich.console import Console

from marl.commands.options import with_options
from marl.commands.simulators import simulator_with_random_players, untrained_simulator
from marl.commands.terminal import Overrides, ScenarioOrRun, is_run_folder
from marl.core.config import choices_hint
from marl.core.graph import write_trajectories
from marl.core.seeds import hash_to_seed
from marl.core.types import Deal
from marl.engines.scripted import Human
from marl.metrics.trajectory_metrics import summarize_trajectories
from marl.protocols import GameConfig, RoleConfig
from marl.rollout.casting import RoleRequestBuilder
from marl.rollout.simulator import RolloutSimulator
from marl.runs.run_folder import RunFolder
from marl.scenario.load import ScenarioError, load
from marl.scenario.schema import Scenario
from marl.training.restore import restore_simulator
from marl.view.console import print_literally
from marl.view.dialogue import DialogueSelection, episode_lines

app = typer.Typer()
_PERSON = "person"
"""Name of the role and of the policy of the person at the terminal."""
_MAX_SHOWN = 3
"""Maximum number of episodes that are shown in full."""


@dataclass(frozen=True)
class PlayOptions:
    """Options of `marl play`."""

    game: Annotated[str | None, typer.Option(help="Game of a scenario with several; default: each in turn.")] = None
    seat: Annotated[str | None, typer.Option("--as", help="The seat that you play; policies play the others.")] = None
    random: Annotated[bool, typer.Option(help="Every seat but yours plays uniformly random legal moves.")] = False
    episodes: Annotated[int, typer.Option(min=1, help="Episodes to play.")] = 1
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
    # Options are checked before the weights are loaded, which can take minutes.
    checked = _with_chosen_game(RunFolder(source).scenario() if isinstance(source, Path) else source, options.game)
    if options.seat is not None:
        _require_seat(checked, options.seat)
    settings, simulator = load_scenario_and_simulator(source, random=options.random)
    settings = _with_chosen_game(settings, options.game)
    play_and_print_episodes(
        settings, simulator, seat=options.seat, episodes=options.episodes, out_file=options.out, seed=options.seed
    )


def _with_chosen_game(scenario: Scenario, name: str | None) -> Scenario:
    """Return `scenario` with its game `name` alone, or with all games if `name` is None.

    Raises:
        ScenarioError: if the scenario has no such game.
    """
    if name is None:
        return scenario
    games = scenario.games
    if name not in games:
        hint = choices_hint(name, games) if games else "this scenario has one game, without a name"
        raise ScenarioError(f"--game {name}: no such game; {hint}")
    return scenario.model_copy(update={"games": {name: games[name]}})


def _require_seat(scenario: Scenario, seat: str) -> None:
    """Raise ScenarioError if `seat` is no seat of the scenario's game, or there are several games."""
    views = scenario.scenario_by_game()
    if len(views) > 1:
        raise ScenarioError(f"--as {seat}: in which of {', '.join(views)}? Name it: --game NAME")
    (view,) = views.values()
    if seat not in view.seats:
        raise ScenarioError(f"--as {seat}: no such seat; {choices_hint(seat, view.seats)}")


def load_scenario_and_simulator(scenario: Scenario | Path, *, random: bool) -> tuple[Scenario, RolloutSimulator]:
    """Return a scenario and its simulator: with random players, a run's latest policies, or untrained policies.

    If `scenario` is a path, it is the folder of a run.
    """
    if random:
        # Random players need no weights, so a run without intact checkpoints can be played, too.
        settings = RunFolder(scenario).scenario() if isinstance(scenario, Path) else scenario
        return settings, simulator_with_random_players(settings)
    return restore_simulator(scenario) if isinstance(scenario, Path) else (scenario, untrained_simulator(scenario))


def _print_rules(config: GameConfig, seat: str) -> None:
    """Print the rules of the game for the person at `seat`."""
    game = config.build()
    game.reset(seed=0)
    # An agent that does not move first reads the rules at its first turn; all agents of a game read the same rules.
    rules = game.infos.get(seat, {}).get("rules") or game.infos[game.agent_selection].get("rules", "")
    if rules:
        print_literally(Console(), f"{rules}\n")


def play_and_print_episodes(
    scenario: Scenario,
    simulator: RolloutSimulator,
    *,
    seat: str | None,
    episodes: int,
    out_file: Path | None,
    seed: int | None = None,
) -> None:
    """Play episodes and print them. Several games are played in turn.

    Args:
        scenario: scenario with the games and their seats.
        simulator: simulator of the scenario.
        seat: seat of the person at the terminal, or None if no person plays.
        episodes: number of episodes.
        out_file: file to which the episodes are written, or None.
        seed: seed of deals and answers (default: the scenario's).

    Raises:
        ScenarioError: if `seat` is no seat of the game, or there are several games.
    """
    views = scenario.scenario_by_game()
    # The casting's seed also seeds the random numbers of requests and of the deals below.
    if seed is not None:
        simulator = simulator.variant(RoleRequestBuilder(simulator.casting.roles, seed))
    if seat is not None:
        _require_seat(scenario, seat)
        view = next(iter(views.values()))
        # The person gets a copy of the seat's role with a policy whose answers are typed in the terminal.
        person: RoleConfig = view.roles[view.seats[seat]].model_copy(update={"policy": _PERSON})
        casting = RoleRequestBuilder({**simulator.casting.roles, _PERSON: person}, simulator.casting.seed)
        simulator = simulator.variant(casting, {_PERSON: Human().build(None)})
        model = view.policies[view.roles[view.seats[seat]].policy].model
        # Prompts for tiny models have no rules, others have.
        if model is None or not model.understands_instructions:
            _print_rules(view.game, seat)
    deals = []
    for index, (game, view) in zip(range(episodes), cycle(views.items()), strict=False):
        seats = {agent: _PERSON if agent == seat else role for agent, role in view.seats.items()}
        name = f"play.{index}"
        deals.append(Deal(name, name, hash_to_seed(simulator.casting.seed, name), seats, "eval", game=game))
    simulator.call_notes = {}
    trajectories = simulator.play(deals)
    console = Console()
    for trajectory in trajectories[:_MAX_SHOWN]:
        for line in episode_lines(trajectory, DialogueSelection(), {}, simulator.call_notes):
            console.print(line, soft_wrap=True)
    if len(trajectories) > _MAX_SHOWN:
        turns = fmean(len(trajectory.turns) for trajectory in trajectories)
        print_literally(console, f"{len(trajectories)} episodes, {turns:.2f} turns each")
        for name, value in summarize_trajectories(trajectories).items():
            print_literally(console, f"  {name:<40} {value:.4f}")
    if out_file is not None:
        write_trajectories(out_file, trajectories)
        print_literally(console, f"{out_file}: {len(trajectories)} episodes")
