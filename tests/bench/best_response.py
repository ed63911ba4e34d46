"""How much of the exact gain a trained best response reaches: `marl best-response` on a game that can be walked whole.

    python tests/bench/best_response.py [--scenario FILE] [--steps 400] [--trained 100] [--seeds 0 1 2] [--out FILE]

The frozen player is `untrained` (as the scenario begins: near uniform play) or `trained`: what self-play has become
after `--trained` steps at a higher learning rate, which is weakly trained. In each seat a learner plays `--steps` steps
of 128 episodes against it.
`gain` is what the learner earns more than the frozen player does in that seat, and `exact_gain` what a best response
does, both worked out from move probabilities; `share` is their ratio over both seats together, which is the share of
NashConv that the lower bound reaches.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from _bench import ROOT, parser, report, silent

from marl.commands.best_response import BestResponseTraining
from marl.commands.eval.exploitability import tabulate_strategy
from marl.evaluation.game_tree import best_response_return, expected_returns
from marl.runs.run_folder import RunFolder
from marl.scenario.load import load
from marl.training.session import NewOrResumedRunStart, train_with_monitors

FAST = ("lr=5.0e-3", "lr_end=5.0e-4")
EPISODES = ("schedule.groups=64", "schedule.group_size=2")


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
    played = response.measure_best_response_gains(1000, seed)
    bound = {end: played[f"best_response/nashconv{end}"] for end in ("_low", "", "_high")}
    return {"share": gain / exact, "nashconv": exact, "reached": gain, "played": bound, "seats": seats}


def main() -> None:
    """Measure both players with every seed."""
    line = parser(__doc__)
    line.add_argument("--scenario", type=Path, default=ROOT / "scenarios" / "kuhn_self_play.yaml")
    line.add_argument("--steps", type=int, default=400)
    line.add_argument("--trained", type=int, default=100)
    line.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    given = line.parse_args()
    with tempfile.TemporaryDirectory() as temporary, silent():
        folder = Path(temporary)
        fast = [f"policies.actor.learner.{setting}" for setting in FAST]
        run = load(given.scenario, [*fast, *EPISODES, f"schedule.steps={given.trained}", "evaluate.every=1000"])
        train_with_monitors(run, folder / "trained", NewOrResumedRunStart())
        targets = {"untrained": str(given.scenario), "trained": str(folder / "trained")}
        figures = {
            name: {str(seed): measured(target, folder / f"{name}-{seed}", given.steps, seed) for seed in given.seeds}
            for name, target in targets.items()
        }
    settings = {"scenario": given.scenario.name, "steps": given.steps, "trained": given.trained}
    report(figures, given.out, seeds=given.seeds, **settings)


if __name__ == "__main__":
    main()
