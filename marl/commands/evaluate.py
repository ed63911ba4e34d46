"""`marl eval`: measure a trained run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from marl.evaluation.evaluate import LEGAL_MASS, Opponents, counts, figures, match, positions
from marl.evaluation.game_tree import grow
from marl.evaluation.held_out import HeldOut
from marl.scenario.load import ScenarioError
from marl.scenario.schema import Scenario
from marl.training.restore import restore
from marl.types import Metrics


def measure(run: Path, against: str | None, episodes: int, step: int | None) -> Metrics:
    """Return exact figures where the game allows them, and figures of play.

    Play is on held-out starts where the game has any, and against `against` (an opponent's name or a run).
    """
    scenario, simulator = restore(run, step)
    game, casting, seats = scenario.game, simulator.casting, scenario.seats
    tree = grow(game, casting, seats) if game.starts() is not None else None
    metrics = figures(tree, positions(game, casting, seats), simulator)
    if game.held_out(1):
        metrics |= HeldOut(scenario, simulator, episodes, greedy=scenario.evaluate.greedy)()
    if against is not None:
        results = match(scenario, simulator, _opponents(scenario, against), episodes=episodes, seed=0)
        metrics |= results.metrics(f"eval/{Path(against).name}")
    return metrics


def _opponents(scenario: Scenario, name: str) -> Opponents:
    if name in {"random", *scenario.game.opponents()} or not Path(name).is_dir():
        return Opponents.scripted(scenario, name)
    other, simulator = restore(Path(name))
    if other.game != scenario.game:
        raise ScenarioError(f"--against {name}: it plays {other.game!r}, not {scenario.game!r}")
    return Opponents({agent: other.roles[role] for agent, role in other.seats.items()}, simulator.engines)


def render(metrics: Mapping[str, float]) -> str:
    """Return figures as lines, with intervals, and a warning where an exact figure does not count."""
    lines = []
    for name, value in metrics.items():
        if name.endswith(("_low", "_high")):
            continue
        low, high = metrics.get(f"{name}_low"), metrics.get(f"{name}_high")
        interval = f"  [{low:.4f}, {high:.4f}]" if low is not None and high is not None else ""
        lines.append(f"{name:<40} {value:10.4f}{interval}")
    if not counts(metrics):
        lines.append(f"exact figures do not count: legal mass {metrics['eval/legal_mass']:.4f} is below {LEGAL_MASS}")
    return "\n".join(lines)
