"""Populations on three games with cycles: which way to choose opponents leaves the best mixture, at equal episodes?

    python tests/bench/populations.py [--seeds 0 1 2] [--steps 96] [--games cycle_3 ...] [--modes psro ...] [--out FILE]

Games: cycles of three and five moves with unequal stakes, and a disc game (Balduzzi et al. 2019, arXiv 1901.08106).
Each game is learned by self-play, fictitious play, PSRO, rectified PSRO, PSRO with alpha-Rank and anytime PSRO, with
the model and learner of rps_league; a member joins the pool after every sixth update. NeuPL is one model with the same
settings, but a larger step size, whose prompts name six members; they learn all at once, after a member that plays at
random. Methods with matches for payoffs train fewer steps, as these matches count as episodes.

Figures, all exact NashConv: the newest policy, the uniform mixture of the pool's members, the run's own mixture
(`RUN@meta`, by what the run itself has measured), the equilibrium of the members' exact payoffs (each agent's own), and
the least exploitable mixture of the members (population exploitability, arXiv 2306.16884). The latter two need a game
that is small enough, and the last says how good a pool is, whoever mixes it. Runs go to runs/populations/.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import permutations, product
from math import cos, pi, sin
from pathlib import Path
from typing import Any

import learning
from _bench import ROOT, parser, report
from league import members, strategies

import marl
from marl.commands.eval.exploitability import tabulate_strategy
from marl.commands.eval.players import read_roster
from marl.core.zero_sum import nash_equilibrium
from marl.evaluation.exploitability import meta_nash_exploitability, uniform_mixture_exploitability
from marl.evaluation.game_tree import GameTree, Strategy, build_game_tree, expected_returns, nash_conv
from marl.evaluation.mixtures import mix_strategies
from marl.rollout.casting import RoleRequestBuilder
from marl.runs.populations import read_population
from marl.runs.run_folder import RunFolder
from marl.scenario.load import validate
from marl.scenario.schema import Scenario

EVERY, MATCHES = 6, 8
"""Updates between two members of the pool, and episodes between two members for their payoff."""
BY_PAYOFFS = ("psro", "rectified", "alpha_rank")
"""Modes in which members of the pool play each other."""
MODES = {
    "self_play": f"{{opponents: {{self: 1}}, every: {EVERY}}}",
    "fictitious": f"{{opponents: {{pool: 1}}, by: uniform, every: {EVERY}}}",
    **{rule: f"{{opponents: {{pool: 1}}, by: {rule}, every: {EVERY}}}" for rule in (*BY_PAYOFFS, "anytime")},
}
"""Way to choose opponents -> settings of a league's player."""
ONE_MODEL = {"neupl": "psro", "neupl_rectified": "rectified"}
"""NeuPL's way to choose opponents -> rule of its interaction graph."""
MEMBERS, STEP_SIZE = 6, 1.0e-2
"""Number of NeuPL's members that learn, and the learner's step size: of those tried on seed 9, the best in cycle_5."""
REMEASURED = 12
"""Steps between two measurements of the payoffs of NeuPL's members."""


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
    """Return the scenario of a run; its steps are fewer by its matches between members."""
    if mode in ONE_MODEL:
        return one_model(game, mode, seed, steps)
    payoffs = GAMES[game]
    settings = {"kind": "repeated_matrix", "table": [[[value, -value] for value in row] for row in payoffs]}
    base = marl.load(ROOT / "scenarios" / "rps_league.yaml").schedule
    if mode in BY_PAYOFFS:
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


def one_model(game: str, mode: str, seed: int, steps: int) -> Scenario:
    """Return the scenario of a run of NeuPL, whose episodes, with its matches, are those of self-play."""
    league = planned(game, "self_play", seed, steps)
    names = [f"member_{number}" for number in range(1, MEMBERS + 1)]
    roles: dict[str, Any] = {"uniform": {"kind": "player", "policy": "uniform"}}
    for name in names:
        prompt = f"{name} {{{{ observation }}}}"
        roles[name] = {"kind": "player", "policy": "actor", "prompt": prompt, "sampling": {"max_tokens": 6}}
    matches = MATCHES * len(names) * (len(names) + 1) // 2
    size = league.schedule.groups * league.schedule.group_size
    # Every measurement begins a block of at most `REMEASURED` steps.
    episodes, trained = steps * size, 0
    while episodes >= size + matches * (trained % REMEASURED == 0):
        episodes -= size + matches * (trained % REMEASURED == 0)
        trained += 1
    experience = {"kind": "neupl", "members": [*roles], "by": ONE_MODEL[mode]}
    policies = league.model_dump(mode="json", include={"policies"})["policies"]
    data = league.model_dump(mode="json", exclude={"roles", "seats", "experience", "policies"})
    data["schedule"] |= {"steps": trained, "rotate_seats": False}
    policies["actor"]["learner"]["lr"] = STEP_SIZE
    return validate(
        data
        | {
            "seats": dict.fromkeys(league.seats, names[-1]),
            "roles": roles,
            "policies": policies | {"uniform": {"engine": {"kind": "random"}}},
            "experience": experience | {"every": REMEASURED, "matches": MATCHES},
        }
    )


def measured(game: str, mode: str, seed: int, steps: int) -> dict[str, float]:
    """Train one run; return NashConv of its newest policy and of its pool's mixtures, episodes and CPU time [s]."""
    scenario, run = planned(game, mode, seed, steps), ROOT / "runs" / "populations" / f"{game}_{mode}_{seed}"
    started = time.process_time()
    learning.whole_run(scenario, run)
    rows, last = list(RunFolder(run).rows()), scenario.schedule.steps
    tree = build_game_tree(scenario.game, RoleRequestBuilder(scenario.roles, seed), scenario.seats)
    own: dict[str, float] = {}
    if mode in ONE_MODEL:
        roster = read_roster([f"{run}@meta"])
        played = [tabulate_strategy(scenario, entrant)[1] for entrant in roster.entrants]
        shares = [*roster.mixtures[f"{run}@meta"].values()]
        own = {"own": round(nash_conv(tree, mix_strategies(tree, played, shares)), 4)}
    else:
        folders: list[Path] = [folder for folder in members(run) if int(folder.name) < last]
        played = strategies(scenario, tree, folders)
        if mode != "self_play":
            own = {"own": round(nash_conv(tree, own_mixture(tree, run, folders, played)), 4)}
    exact = [row["eval/nashconv"] for row in rows if "eval/nashconv" in row and row["step"] > last / 2]
    episodes = last * scenario.schedule.groups * scenario.schedule.group_size
    return own | {
        "last": round(sum(exact) / len(exact), 4),
        "pool": round(uniform_mixture_exploitability(tree, played).nashconv, 4),
        "meta": round(meta_nash_exploitability(tree, played).nashconv, 4),
        "least": round(least_exploitable(tree, played), 4),
        "members": len(played),
        "episodes": episodes + sum(row.get("league/matches", row.get("neupl/matches", 0.0)) for row in rows),
        "legal_mass": round(min(row["eval/legal_mass"] for row in rows if "eval/legal_mass" in row), 4),
        "cpu_s": round(time.process_time() - started, 1),
    }


def own_mixture(tree: GameTree, run: Path, folders: Sequence[Path], played: Sequence[Strategy]) -> Strategy:
    """Return the mixture `RUN@meta` of the members in `folders`, whose strategies are `played`."""
    weights = {member.folder.name: member.weight for member in read_population(f"{run}@meta")}
    return mix_strategies(tree, played, [weights.get(folder.name, 0.0) for folder in folders])


def least_exploitable(tree: GameTree, played: Sequence[Strategy]) -> float:
    """Return NashConv of the least exploitable mixture of the strategies `played`, one mixture for each agent.

    Each agent moves once, so its opponent's best responses are single moves, and the mixture is a maximin strategy.
    """
    gains = 0.0
    for agent, other in permutations(tree.agents):
        (situation,) = [situation for situation in tree.requests if situation.agent == other]
        payoffs: list[list[float]] = [[] for _ in played]
        for row, strategy in zip(payoffs, played, strict=True):
            for move in tree.requests[situation].options or ():
                joint = {**strategy, situation: {move: 1.0}}
                row.append(expected_returns(tree, joint)[agent])
        gains -= nash_equilibrium(payoffs).value
    return gains


def main() -> None:
    line = parser(__doc__)
    line.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    line.add_argument("--steps", type=int, default=96)
    line.add_argument("--games", nargs="+", choices=GAMES, default=[*GAMES])
    line.add_argument("--modes", nargs="+", choices=[*MODES, *ONE_MODEL], default=[*MODES])
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
