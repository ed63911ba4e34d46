"""How much of the exact gain a trained best response reaches: `marl best-response` on a game that can be walked whole.

    python tests/bench/best_response.py [--scenario FILE] [--steps 400] [--trained 100] [--search EPISODES]
        [--seeds 0 1 2] [--out FILE]

The frozen player is `untrained` (as the scenario begins: near uniform play) or `trained`: what self-play has become
after `--trained` steps at a higher learning rate, which is weakly trained. In each seat a learner plays `--steps` steps
of 128 episodes against it, or with `--search` a tree search plays that many episodes.
`gain` is what the learner earns more than the frozen player does in that seat, and `exact_gain` what a best response
does, both worked out from move probabilities; `share` is their ratio over both seats together, which is the share of
NashConv that the lower bound reaches.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from _bench import ROOT, parser, report, silent

from marl.commands.best_response import BestResponseTraining
from marl.commands.eval.exploitability import tabulate_strategy
from marl.commands.eval.players import read_roster
from marl.evaluation.game_tree import best_response_return, expected_returns
from marl.runs.run_folder import RunFolder
from marl.scenario.load import load
from marl.training.session import NewOrResumedRunStart, train_with_monitors

FAST = ("lr=5.0e-3", "lr_end=5.0e-4")
EPISODES = ("schedule.groups=64", "schedule.group_size=2")


def searched(target: str, folder: Path, episodes: int, seed: int) -> dict[str, Any]:
    """Search for a best response in each seat, and compare what it gains with what an exact one does."""
    response = BestResponseTraining.from_target(target, folder, policy=None, seats=(), game=None)
    began = time.process_time()
    responders = response.search(episodes, seed)
    seconds = time.process_time() - began
    tree, strategy = tabulate_strategy(response.frozen.scenario, response.frozen.entrants[0])
    own, seats = expected_returns(tree, strategy), {}
    for seat, player in responders.items():
        # The table plays the seat; everything else is the frozen player's.
        _, table = tabulate_strategy(
            response.frozen.scenario, replace(player, roles=dict.fromkeys(tree.agents, player.roles[seat]))
        )
        mixed = {state: table[state] if state.agent == seat else moves for state, moves in strategy.items()}
        exact = best_response_return(tree, strategy, seat) - own[seat]
        seats[seat] = {"gain": expected_returns(tree, mixed)[seat] - own[seat], "exact_gain": exact}
    gain, exact = (sum(each[name] for each in seats.values()) for name in ("gain", "exact_gain"))
    figures = {"share": gain / exact, "nashconv": exact, "reached": gain, "seats": seats}
    return {**figures, "search_cpu_seconds": round(seconds, 1)}


def measured(target: str, folder: Path, steps: int, seed: int) -> dict[str, Any]:
    """Train a learner in each seat, and compare what it gains with what a best response does."""
    response = BestResponseTraining.from_target(target, folder, policy=None, seats=(), game=None)
    for seat in response.seats:
        responder_scenario = response.responder_scenario(seat, steps, seed, EPISODES)
        train_with_monitors(responder_scenario, response.folder / seat, NewOrResumedRunStart("auto"))
    tree, strategy = tabulate_strategy(response.frozen.scenario, response.frozen.entrants[0])
    own = expected_returns(tree, strategy)
    seats = {}
    for seat in response.seats:
        last = [row for row in RunFolder(folder / seat).rows() if f"eval/value/{seat}" in row][-1]
        exact = best_response_return(tree, strategy, seat) - own[seat]
        seats[seat] = {"gain": last[f"eval/value/{seat}"] - own[seat], "exact_gain": exact}
    gain, exact = (sum(each[name] for each in seats.values()) for name in ("gain", "exact_gain"))
    responders = {seat: read_roster([str(folder / seat)]).entrants[0] for seat in response.seats}
    played = response.measure_best_response_gains(responders, 1000, seed)
    bound = {end: played[f"best_response/nashconv{end}"] for end in ("_low", "", "_high")}
    return {"share": gain / exact, "nashconv": exact, "reached": gain, "played": bound, "seats": seats}


def main() -> None:
    """Measure both players with every seed."""
    line = parser(__doc__)
    line.add_argument("--scenario", type=Path, default=ROOT / "scenarios" / "kuhn_self_play.yaml")
    line.add_argument("--steps", type=int, default=400)
    line.add_argument("--trained", type=int, default=100)
    line.add_argument("--search", type=int)
    line.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    given = line.parse_args()
    with tempfile.TemporaryDirectory() as temporary, silent():
        folder = Path(temporary)
        fast = [f"policies.actor.learner.{setting}" for setting in FAST]
        run = load(given.scenario, [*fast, *EPISODES, f"schedule.steps={given.trained}", "evaluate.every=1000"])
        train_with_monitors(run, folder / "trained", NewOrResumedRunStart())
        targets = {"untrained": str(given.scenario), "trained": str(folder / "trained")}
        find, budget = (searched, given.search) if given.search else (measured, given.steps)
        figures = {
            name: {str(seed): find(target, folder / f"{name}-{seed}", budget, seed) for seed in given.seeds}
            for name, target in targets.items()
        }
    budgets = {"search": given.search} if given.search else {"steps": given.steps}
    settings = {"scenario": given.scenario.name, **budgets, "trained": given.trained}
    report(figures, given.out, seeds=given.seeds, **settings)


if __name__ == "__main__":
    main()
