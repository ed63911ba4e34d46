"""What a scenario learns, seed by seed: one run per seed, measured at its start and its end.

    python tests/bench/learning.py kuhn|nim|tic_tac_toe|TEAM [--seeds 0 1 2] [--budget 1.0] [--out FILE] [a.b=c ...]

TEAM is a scenario file with held-out problems, such as team_arithmetic: all its held-out measures are reported.

Runs go to runs/learning/. `--budget 0.1` does a tenth of the steps (CI does that with one seed).
"""

from __future__ import annotations

import time
from pathlib import Path
from statistics import fmean
from typing import Any

from _bench import ROOT, parser, report, silent

import marl
from marl.folder import RunFolder
from marl.measure import measure
from marl.scenario import Scenario

GAMES_OF = {
    "kuhn": "kuhn_self_play",
    "nim": "nim_self_play",
    "tic_tac_toe": "tic_tac_toe_self_play",
    "pspo_nim": "pspo_nim",
}
TEAMS = (
    *("team_arithmetic", "train_solver_only", "train_solver_only_adapters", "train_solver_only_shared", "ppo_team"),
    *(
        "sage",
        "r_zero",
        "debate",
        "solver_critic",
        "code_team",
        "critic_verdict",
        "tree_sampling",
        "carry_chain",
        "dapo",
    ),
    *("dpo_pairs", "sft_best"),
)
TASKS = GAMES_OF | {name: name for name in TEAMS}
GAMES = 1000
BEFORE = ("eval/random/win", "eval/minimax/draw")
RUNS = ROOT / "runs" / "learning"


def scenario(task: str, seed: int, budget: float, overrides: list[str]) -> Scenario:
    """The scenario file with a seed, and with a share of its steps."""
    file = ROOT / "scenarios" / f"{TASKS[task]}.yaml"
    steps = round(marl.load(file, overrides).schedule.steps * budget)
    return marl.load(file, [*overrides, f"schedule.seed={seed}", f"schedule.steps={steps}"])


def exact(name: str, rows: list[dict[str, Any]]) -> dict[str, float]:
    """An exact figure before training, and the mean of its evaluations from 90 % of the steps on."""
    curve = [(row["step"], row[name]) for row in rows if name in row]
    last = rows[-1]["step"]
    mass = fmean(row["eval/legal_mass"] for row in rows if "eval/legal_mass" in row and row["step"] >= 0.9 * last)
    return {"start": curve[0][1], "end": fmean(v for s, v in curve if s >= 0.9 * last), "legal_mass": mass}


def played(run: Path, task: str) -> dict[str, float]:
    """1,000 games against each opponent, seats balanced, with 95 % intervals."""
    wanted = {"random": ("win", "draw", "loss"), "minimax": ("draw", "loss")} if task == "tic_tac_toe" else {}
    figures: dict[str, float] = {}
    for opponent, kinds in wanted.items():
        found = measure(run, opponent, GAMES, None)
        for kind in kinds:
            names = (kind, f"{kind}_low", f"{kind}_high")
            figures |= {f"{opponent}/{name}": found[f"eval/{opponent}/{name}"] for name in names}
    return figures


def held_out(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Measures on held-out problems before training and at the end, with 95 % intervals, and steps with an alarm."""
    measured = [row for row in rows if "eval/held_out/episodes" in row]
    names = [name for name in measured[0] if name.startswith("eval/held_out/") and name.count("/") == 2]
    figures = {}
    for when, row in (("start", measured[0]), ("end", measured[-1])):
        figures |= {f"{name.removeprefix('eval/')}/{when}": row[name] for name in names if name in row}
    alarms = {name for row in rows for name in row if name.startswith("alarm/")}
    return figures | {name: sum(row.get(name, 0.0) for row in rows) for name in sorted(alarms)}


def learn(task: str, seed: int, budget: float, overrides: list[str]) -> dict[str, Any]:
    """Train one seed and measure it."""
    run = RUNS / f"{task}_{seed}"
    checked = scenario(task, seed, budget, overrides)
    started = time.perf_counter()
    with silent():
        marl.train(checked, run, overwrite=True)
    figures: dict[str, Any] = {"seed": seed, "steps": checked.schedule.steps}
    figures["seconds"] = round(time.perf_counter() - started, 1)
    rows = list(RunFolder(run).rows())
    for name in ("eval/nashconv", "eval/optimal"):
        if name in rows[0]:
            figures |= {f"{name}/{key}": round(value, 4) for key, value in exact(name, rows).items()}
    if "eval/held_out/episodes" in rows[0]:
        figures |= {name: round(value, 4) for name, value in held_out(rows).items()}
    before = {f"before/{key[5:]}": value for key, value in rows[0].items() if key in BEFORE}
    return figures | {key: round(value, 4) for key, value in (before | played(run, task)).items()}


def main() -> None:
    line = parser(__doc__)
    line.add_argument("task", choices=TASKS)
    line.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    line.add_argument("--budget", type=float, default=1.0)
    line.add_argument("overrides", nargs="*")
    given = line.parse_intermixed_args()
    runs = [learn(given.task, seed, given.budget, given.overrides) for seed in given.seeds]
    report({"runs": runs}, given.out, seeds=given.seeds, scenario=TASKS[given.task], budget=given.budget)


if __name__ == "__main__":
    main()
