"""What self-play in a game is worth when the game is disguised: recall, or reasoning that follows the rules?

    python tests/bench/disguise.py [--seeds 0 1 2] [--games kuhn nim tic_tac_toe] [--budget 1] [--resume] [--add]
        [--out FILE]

A tiny model learns a game by self-play as in its scenario, but for fewer steps (`--budget 0.1`: a tenth). The same game
with `disguise: 1` is measured beside it and never played: other words, numbers and names, another order of moves, the
same tree. The warm-up imitates random legal play of both, so that the model knows the words and the answers' format of
both. All figures are exact: NashConv of Kuhn poker, and the probability of an optimal move in Nim and tic-tac-toe, over
the legal moves; and the probability of legal moves. Runs go to runs/disguise/; `--resume` goes on with runs that an
interrupted measurement has left, and `--add` keeps the other games of the result file.
"""

from __future__ import annotations

import json
from typing import Any

import yaml
from _bench import ROOT, parser, report
from learning import GAMES_OF, whole_run

from marl.runs.run_folder import RunFolder
from marl.scenario.load import validate
from marl.scenario.schema import Scenario

FIGURES = {"kuhn": "nashconv", "nim": "optimal", "tic_tac_toe": "optimal"}
"""Game -> exact figure of `evaluate`."""
STEPS = {"kuhn": 100, "nim": 100, "tic_tac_toe": 40}
"""Game -> training steps; the scenarios have 2,000, 100 and 450."""
RUNS = ROOT / "runs" / "disguise"


def scenario(game: str, seed: int, budget: float) -> Scenario:
    """Return a game's scenario, with its disguised game measured beside it."""
    data: dict[str, Any] = yaml.safe_load((ROOT / "scenarios" / f"{GAMES_OF[game]}.yaml").read_text())
    plain, seats = data.pop("game"), data.pop("seats")
    measured = {"evaluate": {FIGURES[game]: True}}
    data["games"] = {
        "plain": {"game": plain, "seats": seats, **measured},
        "disguised": {"game": plain | {"disguise": 1}, "seats": seats, "weight": 0, **measured},
    }
    steps = max(1, round(STEPS[game] * budget))
    data["schedule"] |= {"seed": seed, "steps": steps}
    data["evaluate"] = {"every": steps}
    return validate(data, f"{game} beside its disguise")


def measure(game: str, seed: int, budget: float, *, resume: bool = False) -> dict[str, float]:
    """Train one seed, and return the figures of both games before and after."""
    checked, run = scenario(game, seed, budget), RUNS / f"{game}_{seed}"
    whole_run(checked, run, resume=resume)
    rows = [row for row in RunFolder(run).rows() if f"eval/plain/{FIGURES[game]}" in row]
    figures: dict[str, float] = {"seed": seed, "steps": checked.schedule.steps}
    for name in ("plain", "disguised"):
        for figure in (FIGURES[game], "legal_mass"):
            key = f"eval/{name}/{figure}"
            for when, row in (("before", rows[0]), ("after", rows[-1])):
                figures[f"{name}/{figure}/{when}"] = round(row[key], 4)
    return figures


def main() -> None:
    line = parser(__doc__)
    line.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    line.add_argument("--games", nargs="+", choices=list(FIGURES), default=list(FIGURES))
    line.add_argument("--budget", type=float, default=1.0)
    line.add_argument("--resume", action="store_true", help="go on with runs that were interrupted")
    line.add_argument("--add", action="store_true", help="keep the other games of the result file")
    given = line.parse_args()
    figures: dict[str, Any] = json.loads(given.out.read_text())["figures"] if given.add else {}
    for game in given.games:
        runs = [measure(game, seed, given.budget, resume=given.resume) for seed in given.seeds]
        figures[game] = {"runs": runs}
    report(figures, given.out, seeds=given.seeds, budget=given.budget)


if __name__ == "__main__":
    main()
