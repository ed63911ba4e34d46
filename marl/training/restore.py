"""`marl eval`: a trained run, measured."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from marl.evaluation.evaluate import LEGAL_MASS, Opponents, counts, figures, match, positions
from marl.evaluation.game_tree import grow
from marl.evaluation.held_out import HeldOut
from marl.rollout.simulator import Table
from marl.runs.best_checkpoint import Best
from marl.runs.run_folder import RunFolder
from marl.scenario.load import ScenarioError
from marl.scenario.schema import PolicyConfig, Scenario
from marl.training.run import engines, lay, sources, use_threads
from marl.types import Metrics


def best_step(folder: Path) -> int:
    """The step at which the run was best, by its `evaluate.keep_best`.

    Raises:
        ScenarioError: if it says nothing of that, or was best before its first checkpoint.
    """
    home = RunFolder(folder)
    best = Best.of(home.scenario().evaluate, home.rows())
    if not best.step:
        why = "no evaluate.keep_best was measured" if best.step is None else f"{best.figure} was best before training"
        raise ScenarioError(f"{folder}: no best checkpoint: {why}")
    return best.step


def restore(folder: Path, step: int | None = None) -> tuple[Scenario, Table]:
    """A run's scenario, and its game with the weights of one checkpoint (default: the newest whole one).

    Raises:
        ScenarioError: if there is no run or no such checkpoint.
    """
    home = RunFolder(folder)
    scenario = home.scenario()
    newest, _ = home.latest()
    chosen = newest if step is None else step
    saved = home.checkpoints / f"{chosen:06d}" / "policies"
    if not chosen or not saved.is_dir():
        have = ", ".join(p.name for p in sorted(home.checkpoints.glob("0*"))) or "none"
        raise ScenarioError(f"{folder}: no checkpoint of step {chosen}; there are: {have}")
    use_threads(scenario.schedule.threads)
    policies = {name: _frozen(policy, saved / name) for name, policy in scenario.policies.items()}
    return scenario, lay(scenario, engines(policies, sources(scenario, policies)))


def _frozen(policy: PolicyConfig, folder: Path) -> PolicyConfig:
    """The policy as it is in a checkpoint; one that never learnt is as it always was."""
    if policy.learner is None or policy.model is None:
        return policy
    if not policy.learner.speaks:
        return policy.model_copy(update={"learner": None})
    return policy.model_copy(update={"model": policy.model.saved(folder), "learner": None})


def measure(folder: Path, against: str | None, episodes: int, step: int | None) -> Metrics:
    """Exact figures where the game allows them, play on held-out starts where it has any, and against `against` (an
    opponent's name or a run)."""
    scenario, table = restore(folder, step)
    game, cast, seats = scenario.game, table.cast, scenario.seats
    tree = grow(game, cast, seats) if game.starts() is not None else None
    metrics = figures(tree, positions(game, cast, seats), table)
    if game.held_out(1):
        metrics |= HeldOut(scenario, table, episodes, greedy=scenario.evaluate.greedy)()
    if against is not None:
        opponents = _opponents(scenario, against)
        metrics |= match(scenario, table, opponents, (episodes, 0)).metrics(f"eval/{Path(against).name}")
    return metrics


def _opponents(scenario: Scenario, name: str) -> Opponents:
    if name in {"random", *scenario.game.opponents()} or not Path(name).is_dir():
        return Opponents.scripted(scenario, name)
    other, table = restore(Path(name))
    if other.game != scenario.game:
        raise ScenarioError(f"--against {name}: it plays {other.game!r}, not {scenario.game!r}")
    return Opponents({agent: other.roles[role] for agent, role in other.seats.items()}, table.engines)


def render(metrics: Mapping[str, float]) -> str:
    """Figures as lines; intervals beside what they belong to, and a warning where an exact figure does not count."""
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
