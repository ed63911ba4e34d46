"""What a scenario of the real model learns, seed by seed, with its curve and ten dialogues before and after.

    make real && python tests/bench/real_learning.py smollm2_team|smollm2_solver_only|smollm2_two_readers
        |smollm2_two_readers_alone [--seeds 0 1 2] [--add] [--budget 1] [--out FILE] [--picture FILE] [a.b=c]

The dialogues are the first ten of the held-out problems, not chosen; seed by seed the same. With several roles that
learn, what each is worth is measured by `marl eval --without ROLE` on the first 30. Runs go to runs/learning/.
"""

from __future__ import annotations

import json
from operator import itemgetter
from pathlib import Path
from typing import Any

from _bench import parser, report
from learning import RUNS, learn, scenario

from marl.commands.eval.evaluate import EvaluatedPolicies, policies_of_run
from marl.commands.eval.without_role import measure_without_role
from marl.commands.simulators import untrained_simulator
from marl.core.graph import Trajectory
from marl.evaluation.held_out import HeldOutEvaluator
from marl.rollout.simulator import RolloutSimulator
from marl.runs.run_folder import RunFolder
from marl.scenario.schema import Scenario
from marl.view.curves import plot_curves
from marl.view.verifier_scores import question_and_right_answer

TASKS = ("smollm2_team", "smollm2_solver_only", "smollm2_two_readers", "smollm2_two_readers_alone")
DIALOGUES = 10
WITHOUT = 30
"""Held-out episodes that are played with and without a role."""
CURVES = ("eval/held_out/success", "eval/held_out/solver", "eval/held_out/planner", "episode/measure/success")


def dialogue(trajectory: Trajectory) -> dict[str, Any]:
    """Return the question, its answer, what each model says in its turns, and the game's measures (1: right)."""
    question, answer = question_and_right_answer(trajectory)
    turns: dict[str, str] = {}
    for turn in trajectory.turns:
        if turn.completion.token_ids:
            earlier = f"{turns[turn.agent]} / " if turn.agent in turns else ""
            turns[turn.agent] = earlier + turn.completion.text
    return {"question": question, "answer": answer, "turns": turns, "measures": dict(trajectory.findings.measures)}


def dialogues(of: Scenario, simulator: RolloutSimulator) -> list[dict[str, Any]]:
    """Return the first held-out episodes, played with the seeds of the run's evaluations."""
    held_out = HeldOutEvaluator(of, simulator, DIALOGUES)
    held_out()
    return [dialogue(trajectory) for trajectory in held_out.episodes_of_last_call]


def curve(run: Path) -> dict[str, dict[int, float]]:
    """Return metric -> step -> value."""
    rows = list(RunFolder(run).rows())
    return {name: {row["step"]: round(row[name], 4) for row in rows if name in row} for name in CURVES}


def worth(policies: EvaluatedPolicies) -> dict[str, float]:
    """Return what each role that learns is worth, on the same held-out starts with and without it, with intervals."""
    found: dict[str, float] = {}
    roles = [name for name, role in policies.scenario.roles.items() if policies.scenario.policies[role.policy].learner]
    for role in roles if len(roles) > 1 else ():
        metrics = measure_without_role(policies, role, WITHOUT)
        found |= {name: value for name, value in metrics.items() if name.startswith(("eval/worth/", "eval/without/"))}
    return {name.removeprefix("eval/"): round(value, 4) for name, value in found.items()}


def measured(task: str, seed: int, budget: float, overrides: list[str]) -> dict[str, Any]:
    """Train one seed; return its figures, curves and dialogues after it."""
    figures = learn(task, seed, budget, overrides)
    run = RUNS / f"{task}_{seed}"
    policies = policies_of_run(run, (), None, best=False)
    figures |= {"curves": curve(run), "after": dialogues(policies.scenario, policies.load_simulator())}
    return figures | worth(policies)


def main() -> None:
    line = parser(__doc__)
    line.add_argument("task", choices=TASKS)
    line.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    line.add_argument("--budget", type=float, default=1.0)
    line.add_argument("--add", action="store_true", help="keep the runs of other seeds that the result file has")
    line.add_argument("--picture", type=Path, help="draw the curves here")
    line.add_argument("overrides", nargs="*")
    given = line.parse_intermixed_args()
    runs = [measured(given.task, seed, given.budget, given.overrides) for seed in given.seeds]
    first = scenario(given.task, given.seeds[0], given.budget, given.overrides)
    before = dialogues(first, untrained_simulator(first))
    if given.picture:
        plot_curves([RUNS / f"{given.task}_{seed}" for seed in given.seeds], CURVES[:1], given.picture)
    if given.add and given.out.exists():
        runs += [run for run in json.loads(given.out.read_text())["figures"]["runs"] if run["seed"] not in given.seeds]
    runs.sort(key=itemgetter("seed"))
    figures = {"runs": runs, "before": before}
    report(figures, given.out, seeds=[run["seed"] for run in runs], scenario=given.task, budget=given.budget)


if __name__ == "__main__":
    main()
