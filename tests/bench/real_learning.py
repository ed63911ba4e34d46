"""What a scenario of the real model learns, seed by seed, with its curve and ten dialogues before and after.

    make real && python tests/bench/real_learning.py smollm2_team|smollm2_solver_only [--seeds 0 1 2] [--budget 1]
        [--out FILE] [--picture FILE] [a.b=c]

The dialogues are the first ten of the held-out problems, not chosen; seed by seed the same. Runs go to runs/learning/.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from _bench import parser, report
from learning import RUNS, learn, scenario

from marl.commands.eval.evaluate import policies_of_run
from marl.commands.simulators import untrained_simulator
from marl.core.graph import Trajectory
from marl.evaluation.held_out import HeldOutEvaluator
from marl.rollout.simulator import RolloutSimulator
from marl.runs.run_folder import RunFolder
from marl.scenario.schema import Scenario
from marl.view.curves import plot_curves
from marl.view.verifier_scores import question_and_right_answer

TASKS = ("smollm2_team", "smollm2_solver_only")
DIALOGUES = 10
CURVES = ("eval/held_out/success", "eval/held_out/solver", "eval/held_out/planner", "episode/measure/success")


def dialogue(trajectory: Trajectory) -> dict[str, Any]:
    """Return the question, its answer, what each model's turn says, and the game's measures (1: right)."""
    question, answer = question_and_right_answer(trajectory)
    turns = {turn.agent: turn.completion.text for turn in trajectory.turns if turn.completion.token_ids}
    return {"question": question, "answer": answer, "turns": turns, "measures": dict(trajectory.findings.measures)}


def dialogues(of: Scenario, simulator: RolloutSimulator) -> list[dict[str, Any]]:
    """Return the first held-out episodes, played with the seeds of the run's evaluations."""
    held_out = HeldOutEvaluator(of, simulator, of.evaluate.held_out or DIALOGUES)
    held_out()
    return [dialogue(trajectory) for trajectory in held_out.episodes_of_last_call[:DIALOGUES]]


def curve(run: Path) -> dict[str, dict[int, float]]:
    """Return metric -> step -> value."""
    rows = list(RunFolder(run).rows())
    return {name: {row["step"]: round(row[name], 4) for row in rows if name in row} for name in CURVES}


def measured(task: str, seed: int, budget: float, overrides: list[str]) -> dict[str, Any]:
    """Train one seed; return its figures, curves and dialogues after it."""
    figures = learn(task, seed, budget, overrides)
    run = RUNS / f"{task}_{seed}"
    policies = policies_of_run(run, (), None, best=False)
    return figures | {"curves": curve(run), "after": dialogues(policies.scenario, policies.load_simulator())}


def main() -> None:
    line = parser(__doc__)
    line.add_argument("task", choices=TASKS)
    line.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    line.add_argument("--budget", type=float, default=1.0)
    line.add_argument("--picture", type=Path, help="draw the curves here")
    line.add_argument("overrides", nargs="*")
    given = line.parse_intermixed_args()
    runs = [measured(given.task, seed, given.budget, given.overrides) for seed in given.seeds]
    first = scenario(given.task, given.seeds[0], given.budget, given.overrides)
    before = dialogues(first, untrained_simulator(first))
    if given.picture:
        plot_curves([RUNS / f"{given.task}_{seed}" for seed in given.seeds], CURVES[:1], given.picture)
    report({"runs": runs, "before": before}, given.out, seeds=given.seeds, scenario=given.task, budget=given.budget)


if __name__ == "__main__":
    main()
