"""Which self-play converges with language models: NashConv of the newest and of the average policy against tokens.

    python tests/bench/convergence_models.py [--games kuhn leduc liars_dice] [--methods ...] [--seeds 0] [--budget 1]
        [--add] [--picture FILE] [--out FILE] [a.b=c]

`scenarios/{kuhn,leduc,liars_dice}_self_play.yaml`, shorter and with fewer episodes a step; model, learner and step
size are the same in all runs of a game; only what keeps play from going in circles differs:

- `plain`: nothing
- all others: a KL term to the policy of up to 10 updates ago (`proximal`), without which step sizes as large as these
  make the model certain of a move before it has learnt to tell cards apart; and
- `moving magnet`: KL to a policy that is replaced by the newest twice, after each third of the run (`magnet`)
- `fixed magnet`: KL to the first policy, near uniform, its coefficient falling linearly
- `fixed magnet, root`: the same, coefficient and step size falling as 1 / sqrt(t) (2206.05825)
- `R-NaD`: `credit.assign.rnad`, its reference replaced likewise (2206.15378)
- `fictitious play`: one seat learns against all earlier selves alike (`experience: league`, `by: uniform`), with a
  constant step size and a fixed magnet that falls, so that it can answer anew; half of the tokens are opponents'
- `league`: AlphaStar's roles with the learner of `fixed magnet`. The main player, which is measured, meets itself and
  the pool in half of the episodes; a main exploiter meets the main player, a league exploiter the pool. Exploiters are
  reset when they win 70 % against everybody they meet, or after a sixth of the run

NashConv is exact. The average policy is the mixture of the evaluations in the last half of the run; that of fictitious
play, by its definition, of all. With `--add`, runs that the result file holds are kept and not repeated; it is written
after every run. Runs go to runs/convergence/. `--budget 0.1` does a tenth of the steps.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import learning
import numpy as np
import yaml
from _bench import ROOT, parser, report, silent
from convergence import tabulated

import marl
from marl.evaluation.game_tree import nash_conv
from marl.runs.run_folder import RunFolder
from marl.scenario.schema import Scenario

STEPS = {"kuhn": 600, "leduc": 200, "liars_dice": 300}
"""Game -> steps of a run."""
EPISODES = {"kuhn": (64, 2), "leduc": (48, 2), "liars_dice": (36, 2)}
"""Game -> groups of a step, and episodes of a group."""
EVALUATIONS = 10
THIRD = "a third of the steps"
"""Stands in settings for a third of a run's steps."""
RUNS = ROOT / "runs" / "convergence"
SIXTH = "a sixth of the steps"
"""Stands in settings for a sixth of a run's steps."""
_LEARNER = "policies.actor.learner"
_PROXIMAL = f"{_LEARNER}.proximal={{coefficient: 1.0, refresh: 10}}"
_OPPONENT = (
    "seats={player_0: player, player_1: opponent}",
    "roles.opponent={kind: player, policy: actor, trainable: false, sampling: {max_tokens: 6}}",
    "schedule.rotate_seats=true",
)
_RESET = f"{{win_rate: 0.7, every: {SIXTH}}}"
METHODS: dict[str, tuple[str, ...]] = {
    "plain": (f"{_LEARNER}.magnet=null", f"{_LEARNER}.proximal=null"),
    "moving magnet": (f"{_LEARNER}.magnet={{coefficient: 0.15, refresh: {THIRD}}}", _PROXIMAL),
    "fixed magnet": (f"{_LEARNER}.magnet={{coefficient: 0.1, final: 0.02}}", _PROXIMAL),
    "fixed magnet, root": (
        f"{_LEARNER}.magnet={{coefficient: 0.1, final: 0.02, schedule: inverse_sqrt}}",
        f"{_LEARNER}.schedule=inverse_sqrt",
        _PROXIMAL,
    ),
    "R-NaD": (
        f"{_LEARNER}.magnet=null",
        f"{_LEARNER}.reference={{coefficient: 0, refresh: {THIRD}}}",
        "credit.assign={kind: rnad, eta: 0.15}",
        _PROXIMAL,
    ),
    "fictitious play": (
        f"{_LEARNER}.magnet={{coefficient: 0.2, final: 0.05, schedule: inverse_sqrt}}",
        f"{_LEARNER}.schedule=constant",
        f"{_LEARNER}.lr_end=null",
        "evaluate.average.last=1",
        _PROXIMAL,
        "experience={kind: league, players: {player: {opponents: {pool: 1}, by: uniform, every: 20}}}",
        *_OPPONENT,
    ),
    "league": (
        f"{_LEARNER}.magnet={{coefficient: 0.1, final: 0.02}}",
        _PROXIMAL,
        "experience={kind: league}",
        "experience.players.player={opponents: {self: 0.35, pool: 0.65}, every: 20, share: 2}",
        f"experience.players.main_exploiter={{opponents: {{actor: 1}}, every: 20, reset: {_RESET}}}",
        f"experience.players.league_exploiter={{opponents: {{pool: 1}}, every: 20, reset: {_RESET}}}",
        *_OPPONENT,
    ),
}
"""Method -> what it changes in the scenario."""


def scenario(game: str, method: str, steps: int, overrides: Sequence[str]) -> Scenario:
    """Return the scenario of a run; a game's scenario, changed."""
    groups, size = EPISODES[game]
    common = [
        f"schedule={{steps: {steps}, groups: {groups}, group_size: {size}, seed: 0, threads: 1}}",
        f"evaluate.every={steps // EVALUATIONS}",
        "evaluate.average={last: 0.5}",
        f"{_LEARNER}.reference=null",
        "credit.assign={kind: outcome}",
        "credit.baseline.like=start",
        f"checkpoint.every={steps}",
    ]
    changes = [*common]
    for change in METHODS[method]:
        changes.append(change.replace(THIRD, str(max(1, steps // 3))).replace(SIXTH, str(max(1, steps // 6))))
    file = ROOT / "scenarios" / f"{game}_self_play.yaml"
    if method == "league":
        changes += exploiters(file, changes)
    return marl.load(file, [*changes, *overrides])


def exploiters(file: Path, changes: Sequence[str]) -> list[str]:
    """Return the changes that add a league's exploiters, with the model and the changed learner of the main player."""
    actor = json.dumps(yaml.safe_load(file.read_text())["policies"]["actor"])
    added: list[str] = []
    for name in ("main_exploiter", "league_exploiter"):
        added += [
            f"policies.{name}={actor}",
            f"roles.{name}={{kind: player, policy: {name}, sampling: {{max_tokens: 6}}}}",
        ]
        for change in changes:
            if change.startswith("policies.actor."):
                added.append(change.replace("policies.actor.", f"policies.{name}."))
    return added


def train(game: str, method: str, steps: int, seed: int, overrides: Sequence[str]) -> dict[str, Any]:
    """Train one run; return its curve, the mean of its last two evaluations and the average policy's NashConv."""
    run, started = RUNS / f"{game}_{method.replace(', ', '_').replace(' ', '_')}_{seed}", time.process_time()
    learning.whole_run(scenario(game, method, steps, [*overrides, f"schedule.seed={seed}"]), run)
    rows = [row for row in RunFolder(run).rows() if "eval/nashconv" in row]
    curve = [[row.get("step/tokens", 0.0), row["eval/nashconv"], row.get("eval/average/nashconv")] for row in rows]
    return {
        "seed": seed,
        "steps": steps,
        "cpu_seconds": round(time.process_time() - started, 1),
        "tokens": curve[-1][0],
        "last": round(fmean(value for _, value, _ in curve[-2:]), 4),
        "average": round(curve[-1][2], 4),
        "legal_mass": round(min(row["eval/legal_mass"] for row in rows), 4),
        "curve": [[tokens, round(newest, 4), average and round(average, 4)] for tokens, newest, average in curve],
    }


def draw(games: Mapping[str, Any], file: Path) -> None:
    """Draw a panel for each game: means over seeds, the newest policy solid and the average one dashed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2 * len(games), 4.2))
    for axis, (game, measured) in zip(figure.subplots(1, len(games), squeeze=False).flat, games.items(), strict=True):
        for number, (method, runs) in enumerate(measured["methods"].items()):
            points = [*zip(*(run["curve"] for run in runs), strict=True)]
            for place, style, label in ((1, "-", method), (2, "--", None)):
                drawn = [each for each in points if all(one[place] is not None for one in each)]
                tokens, values = ([fmean(one[of] for one in each) for each in drawn] for of in (0, place))
                axis.plot([each / 1000 for each in tokens], values, style, color=f"C{number}", label=label)
        axis.axhline(measured["uniform"], color="grey", linewidth=0.8, linestyle=":")
        axis.set(title=game.replace("_", " "), xlabel="thousand tokens", yscale="log")
    figure.axes[0].set_ylabel("NashConv: newest policy, dashed: average")
    figure.axes[-1].legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(file, dpi=90)


def known(out: Path | None) -> dict[str, Any]:
    """Return the figures of a result file; none if it is not there."""
    return json.loads(out.read_text())["figures"] if out and out.exists() else {}


def main() -> None:
    line = parser(__doc__)
    line.add_argument("--games", nargs="+", choices=STEPS, default=list(STEPS))
    line.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    line.add_argument("--seeds", type=int, nargs="+", default=[0])
    line.add_argument("--budget", type=float, default=1.0)
    line.add_argument("--add", action="store_true", help="keep the runs that the result file has")
    line.add_argument("--picture", type=Path, help="draw the curves, means over seeds, as a PNG")
    line.add_argument("overrides", nargs="*")
    given = line.parse_intermixed_args()
    figures: dict[str, Any] = known(given.out) if given.add else {}
    for game, seed, method in product(given.games, given.seeds, given.methods):
        table = figures.setdefault(game, {"uniform": uniform(game), "methods": {}})["methods"]
        runs = table.setdefault(method, [])
        if all(run["seed"] != seed for run in runs):
            steps = max(EVALUATIONS, round(STEPS[game] * given.budget))
            runs.append(train(game, method, steps, seed, given.overrides))
            with silent():
                report(figures, given.out, seeds=given.seeds, budget=given.budget)
    if given.picture:
        draw(figures, given.picture)
    report(figures, given.out, seeds=given.seeds, budget=given.budget)


def uniform(game: str) -> float:
    """Return NashConv of uniformly random play."""
    table = tabulated(game)
    return round(nash_conv(table.tree, table.strategy(table.softmax(np.zeros(table.legal.shape)))), 4)


if __name__ == "__main__":
    main()
