"""Leagues: what they reach where self-play goes round in circles, whom the last policy beats, and what a pool costs.

    python tests/bench/league.py cycles|kuhn|tic_tac_toe|memory [--seeds 0 1 2] [--budget 1] [--jobs 1]
        [--modes fictitious psro] [--resume] [--out FILE] [a.b=c]

`cycles`: a rock-paper-scissors by plain self-play, by fictitious play (all members of the pool alike) and by PSRO, with
the same learner. Exact NashConv of the newest policy over the second half of the run, and at its end of the mixtures of
the pool: each member alike, and the equilibrium of the payoffs that the run itself has recorded. The curves are drawn
to a file beside FILE.

`kuhn`: the same figures of the scenarios kuhn_fictitious_play and kuhn_psro.

`tic_tac_toe`: the scenario tic_tac_toe_league; then its last policy plays 200 games against each member of its pool.

`memory`: peak memory of a process in which a model of some 30 MB meets 200 earlier weights, over that of one that meets
only itself, in sizes of the model.

Runs go to runs/league/. `--budget 0.1` does a tenth of the steps.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any

import learning
from _bench import ROOT, parser, report

import marl
from marl.engines.transformers.settings import Transformers
from marl.evaluation.evaluate import OpponentPlayers, move_probabilities, play_match, win_draw_loss_metrics
from marl.evaluation.game_tree import GameTree, Strategy, build_game_tree, nash_conv
from marl.evaluation.mixtures import mix_strategies
from marl.experience.league.matchmaking import psro_probabilities, uniform_opponent_probabilities
from marl.experience.league.results import MeanPayoffTable
from marl.models.pretrained import PretrainedSource
from marl.rollout.casting import RoleRequestBuilder
from marl.runs import checkpoint
from marl.runs.run_folder import RunFolder
from marl.scenario.schema import Scenario
from marl.training.build import build
from marl.training.loop import TrainingLoop
from marl.training.placement import simulator_from_engines
from marl.training.restore import restore_simulator

RUNS = ROOT / "runs" / "league"
MODES = {
    "self_play": "{opponents: {self: 1}, every: 15}",
    "fictitious": "{opponents: {pool: 1}, by: uniform, every: 15}",
    "psro": "{opponents: {pool: 1}, by: psro, every: 15}",
}
POKER = {"fictitious": "kuhn_fictitious_play", "psro": "kuhn_psro"}
"""Mode -> scenario in which Kuhn poker is played that way."""
GAMES = 200
POOL = 200


def engine_of(folder: Path) -> Any:
    """Return an engine with the weights of a member of the pool."""
    settings: Any = Transformers
    return settings().build(PretrainedSource("actor", str(folder)))


def members(run: Path) -> list[Path]:
    """Return the folders of all members of a run's pool, oldest first."""
    return sorted(path for path in (run / "league" / "actor").iterdir() if path.name.isdigit())


# --- cycles ----------------------------------------------------------------------------------------------------------


def strategies(scenario: Scenario, tree: GameTree, folders: Sequence[Path]) -> list[Strategy]:
    """Return how each member of the pool plays in all situations of the game, exactly."""
    found: list[Strategy] = []
    for folder in folders:
        simulator = simulator_from_engines(scenario, {"actor": engine_of(folder)})
        found.append(dict(zip(tree.requests, move_probabilities(simulator, [*tree.requests.values()]), strict=True)))
    return found


def payoffs(run: Path) -> MeanPayoffTable:
    """Return what members of the pool have won from each other, as the run knows it at its end."""
    known, folder = MeanPayoffTable(), RunFolder(run)
    known.load_state_dict(
        checkpoint.read_checkpoint(folder.checkpoints, folder.latest_checkpoint()[0])[1]["experience"]["payoffs"]
    )
    return known


def measured(mode: str, scenario: Scenario, run: Path, resume: bool) -> dict[str, Any]:
    """Train one mode; return NashConv of what it has learnt, with curves."""
    learning.whole_run(scenario, run, resume=resume)
    rows, steps = list(RunFolder(run).rows()), scenario.schedule.steps
    last = [(row["step"], row["eval/nashconv"]) for row in rows if "eval/nashconv" in row]
    tree = build_game_tree(scenario.game, RoleRequestBuilder(scenario.roles, scenario.schedule.seed), scenario.seats)
    folders = [folder for folder in members(run) if int(folder.name) < steps]  # the newest has played nobody
    played, names = strategies(scenario, tree, folders), [f"actor@{folder.name}" for folder in folders]
    curves = {"last": last, "average": [], "nash": []}
    for many in range(1, len(folders) + 1):
        curves["average"].append(
            (int(folders[many - 1].name), mixed(tree, played[:many], uniform_opponent_probabilities(many)))
        )
        if mode == "psro":
            weights = psro_probabilities(payoffs(run).payoff_matrix(names[:many]))
            curves["nash"].append((int(folders[many - 1].name), mixed(tree, played[:many], weights)))
    late = [value for step, value in last if step > steps / 2]
    figures = {"last": fmean(late), "last_max": max(late), "average": curves["average"][-1][1]}
    figures |= {"nash": curves["nash"][-1][1]} if mode == "psro" else {}
    masses = [row["eval/legal_mass"] for row in rows if "eval/legal_mass" in row and row["step"] > steps / 2]
    return figures | {"legal_mass": min(masses), "tokens": rows[-1]["step/tokens"], "curves": curves, "steps": steps}


def mixed(tree: GameTree, played: Sequence[Strategy], weights: Sequence[float]) -> float:
    """Return NashConv of a mixture."""
    return nash_conv(tree, mix_strategies(tree, played, weights))


def cycles(seed: int, given: Namespace) -> dict[str, Any]:
    """Return the figures of all modes on rock-paper-scissors."""
    figures: dict[str, Any] = {"seed": seed}
    for mode in given.modes or MODES:
        changes = [f"experience.players.player={MODES[mode]}", *given.overrides]
        figures |= one_mode(mode, planned("rps_league", seed, given.budget, changes), given.resume)
    return figures


def kuhn(seed: int, given: Namespace) -> dict[str, Any]:
    """Return the figures of the leagues on Kuhn poker."""
    figures: dict[str, Any] = {"seed": seed}
    for mode in given.modes or POKER:
        figures |= one_mode(mode, planned(POKER[mode], seed, given.budget, given.overrides), given.resume)
    return figures


def planned(name: str, seed: int, budget: float, changes: list[str]) -> Scenario:
    """Return a scenario with a seed and a share of its steps."""
    file = ROOT / "scenarios" / f"{name}.yaml"
    steps = max(30, round(marl.load(file).schedule.steps * budget))
    return marl.load(file, [*changes, f"schedule.steps={steps}", f"schedule.seed={seed}"])


def one_mode(mode: str, scenario: Scenario, resume: bool) -> dict[str, Any]:
    """Train a mode; return its figures under its name."""
    run = RUNS / f"{scenario.game.kind}_{mode}_{scenario.schedule.seed}"
    found = measured(mode, scenario, run, resume)
    return {"steps": found.pop("steps"), **{f"{mode}/{name}": _rounded(value) for name, value in found.items()}}


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: [[step, round(each, 4)] for step, each in curve] for name, curve in value.items()}
    return round(value, 4)


def draw(runs: Sequence[dict[str, Any]], file: Path) -> None:
    """Draw NashConv against steps: the newest policy of each mode, and mixtures of the pool."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    modes = [mode for mode in MODES if f"{mode}/curves" in runs[0]]
    figure, ((*axes,),) = pyplot.subplots(1, len(modes), figsize=(4 * len(modes), 3.4), sharey=True, squeeze=False)
    colours = {"last": "tab:red", "average": "tab:blue", "nash": "tab:green"}
    labels = {"last": "newest policy", "average": "average of the pool", "nash": "equilibrium of the pool"}
    for axis, mode in zip(axes, modes, strict=True):
        for number, run in enumerate(runs):
            for name, curve in run[f"{mode}/curves"].items():
                if curve:
                    label = labels[name] if number == 0 else None
                    axis.plot(*zip(*curve, strict=True), color=colours[name], alpha=0.7, label=label)
        axis.set_title(mode.replace("_", "-") if mode != "psro" else "PSRO")
        axis.set_xlabel("step")
    axes[0].set_ylabel("NashConv")
    axes[-1].legend(frameon=False)
    figure.tight_layout()
    figure.savefig(file, dpi=90)


# --- tic-tac-toe -----------------------------------------------------------------------------------------------------


def tic_tac_toe(seed: int, given: Namespace) -> dict[str, Any]:
    """Train the league; return its usual figures, and the last policy's score against each member of its pool."""
    figures = learning.learn("tic_tac_toe_league", seed, given.budget, given.overrides, resume=given.resume)
    run = learning.RUNS / f"tic_tac_toe_league_{seed}"
    scenario, simulator = restore_simulator(run)
    roles, both = dict.fromkeys(scenario.seats, scenario.roles["opponent"]), dict.fromkeys(scenario.seats, "player")
    measured = scenario.model_copy(update={"seats": both})
    against = {}
    for folder in members(run):
        opponents = OpponentPlayers(roles, {"actor": engine_of(folder)})
        results = play_match(measured, simulator, opponents, episodes=GAMES, seed=seed)
        found = win_draw_loss_metrics([value for returns in results.returns.values() for value in returns])
        against[folder.name] = [round(found[name], 3) for name in ("mean_low", "mean", "mean_high")]
    means = [mean for _, mean, _ in against.values()]
    figures |= {"members": len(against), "against/least": min(means), "against/mean": round(fmean(means), 4)}
    return figures | {"against/worse": sum(high < 0 for _, _, high in against.values()), "against": against}


# --- memory ----------------------------------------------------------------------------------------------------------


def memory(budget: float) -> dict[str, Any]:
    """Return the sizes of models by which meeting one member, and meeting 200, raise the peak of a process."""
    peaks = {}
    for arm in ("self", "one", "all"):
        command = [sys.executable, __file__, "memory", "--arm", arm, "--budget", str(budget)]
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ)
        peaks[arm] = [float(number) for number in done.stdout.split()[-3:]]
    size, before = peaks["self"][1], peaks["self"][0]
    return {
        "model_mb": round(size / 1e6, 1),
        "peak_mb": {arm: round(peak / 1e6, 1) for arm, (peak, _, _) in peaks.items()},
        "models": {arm: round((peak - before) / size, 2) for arm, (peak, _, _) in peaks.items() if arm != "self"},
        "loads": {arm: loads for arm, (_, _, loads) in peaks.items()},
    }


def one_arm(arm: str, budget: float) -> None:
    """Play and learn with a pool; print the process's peak and the model's size in bytes, and the number of loads."""
    run, many = RUNS / f"memory_{arm}", {"self": 1, "one": 1, "all": POOL}[arm]
    shutil.rmtree(run, ignore_errors=True)
    opponents = "{self: 1}" if arm == "self" else "{pool: 1}"
    scenario = marl.load(
        ROOT / "scenarios" / "rps_league.yaml",
        [
            f"experience.players.player={{opponents: {opponents}, by: uniform, every: null}}",
            "experience.resident=1",
            "policies.actor.model={kind: tiny, hidden: 384, layers: 5, heads: 6, warm_up: null}",
            "schedule.groups=4",
            "schedule.group_size=2",
            f"schedule.steps={max(2, round(budget * many / 4))}",
            "evaluate.nashconv=false",
            "checkpoint.every=1000000",
            "alarms=null",
        ],
    )
    folder = RunFolder(run)
    folder.create(scenario)
    training = TrainingLoop(build(scenario), folder, [])
    actor: Any = training.run.learners["actor"]
    for version in range(many):
        copy = run / "league" / "actor" / f"{version:06d}"
        if version == 0:
            actor.save(copy)
        else:  # equal weights under many names: a load does not know
            copy.mkdir()
            for file in (copy.parent / "000000").iterdir():
                os.link(file, copy / file.name)
    state = training.run.experience.state_dict()
    training.run.experience.load_state_dict({**state, "taken": {"actor": [*range(many)]}})
    loads = 0.0
    for _ in range(scenario.schedule.steps):
        training.step()
        loads += training.run.experience.metrics()["league/loads"]
    size = sum(file.stat().st_size for file in (run / "league" / "actor" / "000000").glob("*.safetensors"))
    shutil.rmtree(run)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, size, loads)


def main() -> None:
    line = parser(__doc__)
    line.add_argument("task", choices=["cycles", "kuhn", "tic_tac_toe", "memory"])
    line.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    line.add_argument("--budget", type=float, default=1.0)
    line.add_argument("--jobs", type=int, default=1, help="seeds at the same time")
    line.add_argument("--modes", nargs="+", choices=MODES, help="of `cycles` and `kuhn`: these alone")
    line.add_argument("--resume", action="store_true", help="go on with runs that an interrupted measurement has left")
    line.add_argument("--arm", choices=["self", "one", "all"], help="of `memory`: this process measures itself")
    line.add_argument("overrides", nargs="*")
    given = line.parse_intermixed_args()
    started = time.perf_counter()
    if given.arm:
        one_arm(given.arm, given.budget)
    elif given.task == "memory":
        report(memory(given.budget), given.out, seeds=[0], pool=POOL, budget=given.budget)
    else:
        task = {"cycles": cycles, "kuhn": kuhn, "tic_tac_toe": tic_tac_toe}[given.task]
        with ProcessPoolExecutor(given.jobs, get_context("spawn")) as pool:
            runs = [*pool.map(partial(task, given=given), given.seeds)]
        if given.task in ("cycles", "kuhn") and given.out:
            draw(runs, given.out.with_suffix(".png"))
        seconds = round(time.perf_counter() - started)
        report({"runs": runs}, given.out, seeds=given.seeds, budget=given.budget, seconds=seconds)


if __name__ == "__main__":
    main()
