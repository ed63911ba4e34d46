"""Populations on three games with cycles: which way to choose opponents leaves the best mixture, at equal episodes?

    python tests/bench/populations.py [--seeds 0 1 2] [--steps 96] [--games cycle_3 ...] [--modes psro ...] [--out FILE]

Games: cycles of three and five moves with unequal stakes, and a disc game (Balduzzi et al. 2019, arXiv 1901.08106).
Each game is learned by self-play, fictitious play and PSRO with the model and learner of rps_league; a member joins the
pool after every sixth update. PSRO trains fewer steps, as its matches for payoffs count as episodes.

Figures, all exact NashConv: the newest policy, the uniform mixture of the pool's members, and the equilibrium of their
exact payoffs (each agent's own). Runs go to runs/populations/.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import product
from math import cos, pi, sin
from pathlib import Path
from typing import Any

import learning
from _bench import ROOT, parser, report
from league import members, strategies

import marl
from marl.evaluation.exploitability import meta_nash_exploitability, uniform_mixture_exploitability
from marl.evaluation.game_tree import build_game_tree, nash_conv
from marl.rollout.casting import RoleRequestBuilder
from marl.runs.run_folder import RunFolder
from marl.scenario.schema import Scenario

EVERY, MATCHES = 6, 8
"""Updates between two members of the pool, and episodes between two members for their payoff."""
MODES = {
    "self_play": f"{{opponents: {{self: 1}}, every: {EVERY}}}",
    "fictitious": f"{{opponents: {{pool: 1}}, by: uniform, every: {EVERY}}}",
    "psro": f"{{opponents: {{pool: 1}}, by: psro, every: {EVERY}}}",
}


def cycle(stakes: Sequence[int]) -> list[list[float]]:
    """Return the row's payoffs of a cycle: move i wins `stakes[i]` from move i + 1, and ties with all others."""
    count = len(stakes)
    payoffs = [[0.0] * count for _ in stakes]
    for move, stake in enumerate(stakes):
        beaten = (move + 1) % count
        payoffs[move][beaten], payoffs[beaten][move] = float(stake), float(-stake)
    return payoffs


def disc(count: int) -> list[list[float]]:
    """Return the row's payoffs of a disc game: cross products of `count` points around 0 with radii from 2 to 1."""
    points: list[tuple[float, float]] = []
    for index in range(count):
        radius, angle = 2 - index / (count - 1), 2 * pi * index / count
        points.append((radius * cos(angle), radius * sin(angle)))
    payoffs = [[0.0] * count for _ in points]
    for row, column in product(range(count), repeat=2):
        (x, y), (other_x, other_y) = points[row], points[column]
        payoffs[row][column] = round(x * other_y - y * other_x, 3)
    return payoffs


GAMES = {"cycle_3": cycle((2, 1, 1)), "cycle_5": cycle((2, 1, 3, 1, 2)), "disc_7": disc(7)}
"""Name of a symmetric zero-sum game -> payoff of the row's move against the column's move."""


def planned(game: str, mode: str, seed: int, steps: int) -> Scenario:
    """Return the scenario of a run; PSRO's steps are fewer by its matches."""
    payoffs = GAMES[game]
    settings = {"kind": "repeated_matrix", "table": [[[value, -value] for value in row] for row in payoffs]}
    base = marl.load(ROOT / "scenarios" / "rps_league.yaml").schedule
    if mode == "psro":
        count = -(-steps // EVERY)
        steps -= -(-MATCHES * count * (count - 1) // 2 // (base.groups * base.group_size))
    changes = [
        f"game={settings}",
        f"experience.players.player={MODES[mode]}",
        f"experience.matches={MATCHES}",
        "policies.actor.learner.lr=3.0e-3",
        f"schedule.steps={steps}",
        f"schedule.seed={seed}",
        f"evaluate.every={EVERY}",
        "alarms=null",
    ]
    return marl.load(ROOT / "scenarios" / "rps_league.yaml", changes)


def measured(game: str, mode: str, seed: int, steps: int) -> dict[str, float]:
    """Train one run; return NashConv of its newest policy and of its pool's mixtures, episodes and CPU time [s]."""
    scenario, run = planned(game, mode, seed, steps), ROOT / "runs" / "populations" / f"{game}_{mode}_{seed}"
    started = time.process_time()
    learning.whole_run(scenario, run)
    rows, last = list(RunFolder(run).rows()), scenario.schedule.steps
    tree = build_game_tree(scenario.game, RoleRequestBuilder(scenario.roles, seed), scenario.seats)
    folders: list[Path] = [folder for folder in members(run) if int(folder.name) < last]
    played = strategies(scenario, tree, folders)
    exact = [row["eval/nashconv"] for row in rows if "eval/nashconv" in row and row["step"] > last / 2]
    episodes = last * scenario.schedule.groups * scenario.schedule.group_size
    return {
        "last": round(sum(exact) / len(exact), 4),
        "pool": round(uniform_mixture_exploitability(tree, played).nashconv, 4),
        "meta": round(meta_nash_exploitability(tree, played).nashconv, 4),
        "best": round(min(nash_conv(tree, strategy) for strategy in played), 4),
        "members": len(played),
        "episodes": episodes + sum(row.get("league/matches", 0.0) for row in rows),
        "legal_mass": round(min(row["eval/legal_mass"] for row in rows if "eval/legal_mass" in row), 4),
        "cpu_s": round(time.process_time() - started, 1),
    }


def main() -> None:
    line = parser(__doc__)
    line.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    line.add_argument("--steps", type=int, default=96)
    line.add_argument("--games", nargs="+", choices=GAMES, default=[*GAMES])
    line.add_argument("--modes", nargs="+", choices=MODES, default=[*MODES])
    given = line.parse_args()
    runs: list[dict[str, Any]] = []
    for seed in given.seeds:
        figures: dict[str, Any] = {"seed": seed}
        for game, mode in product(given.games, given.modes):
            for name, value in measured(game, mode, seed, given.steps).items():
                figures[f"{game}/{mode}/{name}"] = value
        runs.append(figures)
        # Each seed's figures are kept at once, so that an interrupted measurement leaves complete seeds.
        report({"runs": runs}, given.out, seeds=given.seeds[: len(runs)], steps=given.steps)


if __name__ == "__main__":
    main()
