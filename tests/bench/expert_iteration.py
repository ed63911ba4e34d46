"""Expert iteration against plain self-play on tic-tac-toe: at equal tokens and at equal CPU time.

    python tests/bench/expert_iteration.py [--seeds 0 1 2] [--steps 30] [--self-play-steps 200]
        [--equal-tokens-steps 30] [--games 1000] [--out FILE]

Arms: `expert_iteration` (scenarios/tic_tac_toe_search.yaml), `self_play` (tic_tac_toe_self_play.yaml), whose steps are
chosen so that it takes as much CPU time, and `self_play_equal_tokens`, whose steps are chosen so that it samples and
scores as many tokens. Each arm's learning rate falls over its own steps. CPU seconds are those of the whole process
from the first step on, without warm-up and evaluation; tokens are those of training, scored ones included. Draws and
losses are against minimax, seats balanced, by the policy alone, with 95 % intervals. Runs that are whole are not
trained again: delete runs/expert_iteration/ to do so.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from _bench import ROOT, parser, report, silent

import marl
from marl.commands.simulators import untrained_simulator
from marl.runs.run_folder import RunFolder
from tests.support.evaluated_runs import evaluate_run

RUNS = ROOT / "runs" / "expert_iteration"
SCENARIOS = {
    "expert_iteration": "tic_tac_toe_search",
    "self_play": "tic_tac_toe_self_play",
    "self_play_equal_tokens": "tic_tac_toe_self_play",
}
OPPONENTS = {"minimax": ("draw", "loss"), "random": ("win",)}


def trained(arm: str, seed: int, steps: int) -> Path:
    """Return the folder of an arm's run, with the CPU seconds that it took in `cpu_seconds.json`."""
    quiet = ["evaluate.against={}", "checkpoint.trajectories=0", f"checkpoint.every={steps}"]
    overrides = [f"schedule.seed={seed}", f"schedule.steps={steps}", *quiet]
    scenario = marl.load(ROOT / "scenarios" / f"{SCENARIOS[arm]}.yaml", overrides)
    folder = RUNS / f"{arm}_{seed}"
    seconds = folder / "cpu_seconds.json"
    if seconds.is_file() and RunFolder(folder).scenario() == scenario:
        return folder
    with silent():
        untrained_simulator(scenario)  # the warm-up, which all arms have in common, is cached
        began = time.process_time()
        if not marl.train(scenario, folder, overwrite=True):
            raise KeyboardInterrupt
    seconds.write_text(json.dumps(time.process_time() - began))
    return folder


def figures_of(arm: str, seed: int, steps: int, games: int) -> dict[str, Any]:
    """Return what an arm took, and how its policy plays."""
    folder = trained(arm, seed, steps)
    *_, last = RunFolder(folder).rows()
    seconds = json.loads((folder / "cpu_seconds.json").read_text())
    figures: dict[str, Any] = {"arm": arm, "seed": seed, "steps": steps}
    figures |= {"cpu_seconds": round(seconds, 1), "tokens": last["step/tokens"]}
    for opponent, kinds in OPPONENTS.items() if games else ():
        measured = evaluate_run(folder, opponent, games, None)
        names = [f"{opponent}/{kind}{bound}" for kind in kinds for bound in ("", "_low", "_high")]
        figures |= {name: round(measured[f"eval/{name}"], 4) for name in names}
    return figures


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options.add_argument("--steps", type=int, default=30)
    options.add_argument("--self-play-steps", type=int, default=200)
    options.add_argument("--equal-tokens-steps", type=int, default=30)
    options.add_argument("--games", type=int, default=1000)
    options.add_argument("--arms", nargs="+", choices=[*SCENARIOS], default=[*SCENARIOS])
    chosen = options.parse_args()
    of_arm = dict(zip(SCENARIOS, (chosen.steps, chosen.self_play_steps, chosen.equal_tokens_steps), strict=True))
    steps = {arm: of_arm[arm] for arm in chosen.arms}
    runs = [figures_of(arm, seed, many, chosen.games) for seed in chosen.seeds for arm, many in steps.items()]
    report({"runs": runs}, chosen.out, seeds=chosen.seeds, games=chosen.games)


if __name__ == "__main__":
    main()
