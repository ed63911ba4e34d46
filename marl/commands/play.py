"""`marl play`: a game in the terminal, with a person or random moves in its seats."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from rich.console import Console

from marl.config import nearest
from marl.engines.scripted import Human, Random
from marl.graph import Trajectory, write_trajectories
from marl.metrics.summaries import summarize
from marl.protocols import RoleConfig
from marl.rollout.casting import Cast
from marl.rollout.simulator import Table
from marl.runs.run_folder import RunFolder
from marl.scenario.load import ScenarioError
from marl.scenario.schema import Scenario
from marl.seeds import seed_of
from marl.training.run import engines, lay, rule_bound, sources, use_threads
from marl.types import Deal

_PERSON = "person"
_ALL_SHOWN = 3


def table_for(what: Scenario | Path, *, random: bool) -> tuple[Scenario, Table]:
    """A scenario's game with its policies as they start out, a run's as they ended, or with random players."""
    if random:
        scenario = RunFolder(what).scenario() if isinstance(what, Path) else what
        players = dict.fromkeys(scenario.policies, Random().build(None))
        return scenario, lay(scenario, players | rule_bound(scenario.policies))
    return _restored(what) if isinstance(what, Path) else (what, _untrained(what))


def play(scenario: Scenario, table: Table, *, seat: str | None, episodes: int, out: Path | None) -> None:
    """Play episodes, show them, and write them if asked.

    Raises:
        ScenarioError: if `seat`, the person's, is no seat of the game.
    """
    console = Console()
    if seat is not None:
        table = _with_person(scenario, table, seat)
    seats = {agent: _PERSON if agent == seat else role for agent, role in scenario.seats.items()}
    names = [f"play.{i}" for i in range(episodes)]
    played = table.play([Deal(n, n, seed_of(table.cast.seed, n), seats, "eval") for n in names])
    _show(console, played)
    if out is not None:
        write_trajectories(out, played)
        console.print(f"{out}: {len(played)} episodes", markup=False)


def _restored(folder: Path) -> tuple[Scenario, Table]:
    from marl.training.restore import restore

    return restore(folder)


def _untrained(scenario: Scenario) -> Table:
    use_threads(scenario.schedule.threads)
    policies = {name: policy.model_copy(update={"learner": None}) for name, policy in scenario.policies.items()}
    return lay(scenario, engines(policies, sources(scenario, policies)))


def _with_person(scenario: Scenario, table: Table, seat: str) -> Table:
    if seat not in scenario.seats:
        raise ScenarioError(f"--as {seat}: no such seat; {nearest(seat, scenario.seats)}")
    role: RoleConfig = scenario.roles[scenario.seats[seat]].model_copy(update={"policy": _PERSON})
    cast = Cast({**table.cast.roles, _PERSON: role}, table.cast.seed)
    return Table(scenario.game, cast, {**table.engines, _PERSON: Human().build(None)}, table.deadline_s)


def _show(console: Console, played: Sequence[Trajectory]) -> None:
    for trajectory in played[:_ALL_SHOWN]:
        console.print(f"episode {trajectory.id}", markup=False)
        for turn in trajectory.turns:
            asked = turn.request.messages[-1].content
            said = turn.action or f"no legal move in {turn.completion.text!r}"
            console.print(f"  {turn.agent} ({turn.role})  {asked}\n    -> {said}", markup=False, highlight=False)
        console.print(f"  returns {dict(trajectory.returns)}", markup=False, highlight=False)
    if len(played) > _ALL_SHOWN:
        turns = fmean(len(t.turns) for t in played)
        console.print(f"{len(played)} episodes, {turns:.2f} turns each", markup=False)
        for name, value in summarize(played).items():
            console.print(f"  {name:<40} {value:.4f}", markup=False)
