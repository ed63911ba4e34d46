"""What the critic of `sage_curriculum.yaml` says, and the best that it could say from what it sees.

    python tests/bench/sage_critic.py [--seeds 4 5 6] [--rounds 2] [--out FILE]

Needs the runs that `learning.py sage_curriculum` leaves in runs/learning/. Before and after training, the team plays
its held-out problems ROUNDS times. A row is a plan with its critic's score (0 if unreadable) and its solver's outcome.
Reported are Brier skills against the best constant: of the critic, of the best forecast that knows whether the plan's
ones are right, which is all that the critic's calculator decides, and of the best one that knows whether the whole plan
is right. The best forecast is each class's share of successes in the same rows. Besides, the mean score of plans by
their ones, and by how much the answer to the best-scored plan is right more often than the mean answer. Intervals are
95 % percentiles of 2,000 bootstrap samples of problems.
"""

from __future__ import annotations

from itertools import starmap
from typing import NamedTuple

import numpy as np
from _bench import ROOT, parser, report

from marl.commands.simulators import untrained_simulator
from marl.core.graph import Trajectory
from marl.core.types import Turn
from marl.evaluation.held_out import held_out_deals
from marl.games.tasks.arithmetic import ArithmeticProblem, spell_number
from marl.rollout.simulator import RolloutSimulator
from marl.scenario.schema import Scenario
from marl.training.restore import restore_simulator

RUNS = ROOT / "runs" / "learning"
PROBLEMS, SAMPLES = 300, 2000
"""Number of held-out problems, and of bootstrap samples."""


class Forecast(NamedTuple):
    """A critic's score of one plan, and what came of the plan."""

    score: float
    outcome: float
    """1 if the solver's answer is right, otherwise 0."""
    ones_right: bool
    plan_right: bool


def ones_of(plan: str) -> str:
    """Return the words of a plan's first sum, which is at most 18: `10 2` of `10 2 100 20`, and `10` of `10 20`."""
    words = plan.split()
    two = words[:1] == ["10"] and len(words) > 1 and len(words[1]) == 1 and words[1] in "123456789"
    return " ".join(words[: 1 + two])


def forecasts(episode: Trajectory) -> list[Forecast]:
    """Return the forecasts of one episode, in the planners' order."""
    problem = ArithmeticProblem([int(number) for number in episode.start.split("+")], ["+"])
    steps = [spell_number(step, "expanded") for step in problem.intermediate_results]
    answer = spell_number(problem.value, "expanded")
    turns = {role: [turn for turn in episode.turns if turn.role == role] for role in ("planner", "critic", "solver")}

    def forecast(planner: Turn, critic: Turn, solver: Turn) -> Forecast:
        plan, score = planner.action or "", float(critic.action or 0)
        return Forecast(score, float(solver.action == answer), ones_of(plan) == steps[0], plan == " ".join(steps))

    return list(starmap(forecast, zip(*turns.values(), strict=True)))


def play(scenario: Scenario, simulator: RolloutSimulator, rounds: int) -> np.ndarray:
    """Return forecasts as an array (problems, rounds, plans, fields of `Forecast`)."""
    episodes = [simulator.play(held_out_deals(scenario, seed, PROBLEMS)) for seed in range(rounds)]
    return np.array([[forecasts(episode) for episode in same_problem] for same_problem in zip(*episodes, strict=True)])


def skill(rows: np.ndarray, known: int | None = None) -> float:
    """Return the Brier skill of the scores in `rows`, or of the best forecast that knows the field number `known`."""
    score, outcome = rows[..., 0].ravel(), rows[..., 1].ravel()
    if known is not None:
        right = rows[..., known].ravel() > 0
        for members in (right, ~right):
            score = np.where(members, outcome[members].mean() if members.any() else 0.0, score)
    return 1 - float(np.mean((score - outcome) ** 2)) / float(outcome.var())


def gain_of_choice(rows: np.ndarray) -> float:
    """Return the success of the answer to the best-scored plan (the first of equals) minus the mean success."""
    best = rows[..., 0].argmax(axis=-1)[..., None]
    return float(np.take_along_axis(rows[..., 1], best, axis=-1).mean() - rows[..., 1].mean())


def measure(seed: int, rounds: int) -> dict[str, float]:
    """Return the figures of one run, before (`start`) and after (`end`) training."""
    scenario, trained = restore_simulator(RUNS / f"sage_curriculum_{seed}")
    played = {"start": play(scenario, untrained_simulator(scenario), rounds), "end": play(scenario, trained, rounds)}
    random = np.random.default_rng(0)
    problems = len(played["start"])
    samples = [random.integers(problems, size=problems) for _ in range(SAMPLES)]
    figures: dict[str, float] = {"seed": seed, "rows": float(np.prod(played["start"].shape[:3]))}
    # The same problems are drawn before and after, so differences are of pairs.
    drawn_skills: dict[str, np.ndarray] = {}
    for when, rows in played.items():
        drawn_skills[when] = np.array([skill(rows[sample]) for sample in samples])
        figures |= with_interval(f"critic/skill/{when}", skill(rows), drawn_skills[when])
        drawn_gains = np.array([gain_of_choice(rows[sample]) for sample in samples])
        figures |= with_interval(f"critic/choice/{when}", gain_of_choice(rows), drawn_gains)
        figures[f"critic/best_skill_from_ones/{when}"] = round(skill(rows, Forecast._fields.index("ones_right")), 4)
        figures[f"critic/best_skill_from_plan/{when}"] = round(skill(rows, Forecast._fields.index("plan_right")), 4)
        for name, members in (("right", rows[..., 2] > 0), ("wrong", rows[..., 2] == 0)):
            figures[f"critic/score_of_{name}_ones/{when}"] = round(float(rows[..., 0][members].mean()), 4)
            figures[f"critic/success_of_{name}_ones/{when}"] = round(float(rows[..., 1][members].mean()), 4)
    gain = figures["critic/skill/end"] - figures["critic/skill/start"]
    return figures | with_interval("critic/skill/gain", gain, drawn_skills["end"] - drawn_skills["start"])


def with_interval(name: str, value: float, samples: np.ndarray) -> dict[str, float]:
    """Return a figure and the bounds of its 95 % interval, for the name `critic/skill/end` under
    `critic/skill_low/end` and `critic/skill_high/end`."""
    scope, _, when = name.rpartition("/")
    low, high = (float(bound) for bound in np.percentile(samples, (2.5, 97.5)))
    return {name: round(value, 4), f"{scope}_low/{when}": round(low, 4), f"{scope}_high/{when}": round(high, 4)}


def main() -> None:
    line = parser(__doc__)
    line.add_argument("--seeds", type=int, nargs="+", default=[4, 5, 6])
    line.add_argument("--rounds", type=int, default=2, help="how often each held-out problem is played")
    given = line.parse_args()
    runs = [measure(seed, given.rounds) for seed in given.seeds]
    report({"runs": runs}, given.out, seeds=given.seeds, rounds=given.rounds)


if __name__ == "__main__":
    main()
