"""What a scenario learns, seed by seed: one run per seed, measured at its start and its end.

    python tests/bench/learning.py kuhn|nim|tic_tac_toe|TEAM|RECIPE|sft|two_games [--seeds 0 1 2] [--budget 1]
        [--out FILE] [a.b=c]

TEAM is a scenario file with held-out problems, such as team_arithmetic: all its held-out measures are reported. RECIPE
(rlhf, distillation, distillation_team, offline_awr, smollm2_steps, smollm2_poker, smollm2_distillation) is a list of
scenarios, each of which uses the folder of the one before. `sft` imitates the recorded answers of `team_arithmetic`'s
solver from random weights. `two_games` compares two games in one run with each alone. Of what learners say of
themselves, the loss and the accuracies are reported: means over the first and the last twentieth of the steps. Means
over all training steps show how fast a scenario learned (`practice/...`).

Runs go to runs/learning/. `--budget 0.1` does a tenth of the steps (CI does that with one seed).
"""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import time
from functools import partial
from itertools import product
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from typing import Any

from _bench import ROOT, parser, report, silent

import marl
from marl.commands.simulators import untrained_simulator
from marl.core.graph import write_trajectories
from marl.core.seeds import hash_to_seed
from marl.core.statistics import student_t_interval
from marl.core.types import Deal
from marl.evaluation.evaluate import EXACT_METRICS, OpponentPlayers, opponent_engine_settings, play_match
from marl.evaluation.held_out import summarize_episodes
from marl.games.hanabi import HanabiConfig
from marl.metrics.trajectory_metrics import metric_names_in_all_games
from marl.models.tiny import Tiny
from marl.protocols import Engine, ImitationWarmUp
from marl.rollout.simulator import RolloutSimulator
from marl.runs.run_folder import RunFolder
from marl.scenario.games import game_shares
from marl.scenario.load import validate
from marl.scenario.schema import Scenario
from marl.training.placement import simulator_from_engines
from marl.training.restore import restore_simulator
from marl.training.warm_up import random_play, random_play_texts, warm_up_scenario_data
from tests.support.evaluated_runs import evaluate_run

GAMES_OF = {
    **{"kuhn": "kuhn_self_play", "nim": "nim_self_play", "tic_tac_toe": "tic_tac_toe_self_play"},
    **{"leduc": "leduc_self_play", "liars_dice": "liars_dice_self_play"},
    **{name: name for name in ("pspo_nim", "kuhn_frozen_opponent", "kuhn_two_policies", "taboo")},
    **{name: name for name in ("two_step_q", "tic_tac_toe_q", "tic_tac_toe_league", "tic_tac_toe_search")},
    **{name: name for name in ("biased_rps_self_play", "goofspiel_self_play", "connect_four_self_play")},
    "colonel_blotto": "colonel_blotto_self_play",
    **{name: name for name in ("first_price_auction", "werewolf", "holdem_self_play", "hanabi")},
    **{name: name for name in ("negotiation", "guess_who", "codenames")},
}
TEAMS = (
    *("team_arithmetic", "train_solver_only", "train_solver_only_adapters", "train_solver_only_shared"),
    *(
        "sage",
        "sage_curriculum",
        "r_zero",
        "debate",
        "solver_critic",
        "code_team",
        "critic_verdict",
        "tree_sampling",
        "carry_chain",
        "dapo",
    ),
    *("calculator_team", "paper_scout", "python_team"),
    *("absolute_zero", "best_of_n", "chain", "debate_judged", "fork_join", "mae", "mixture_of_agents"),
    *("ppo_team", "dpo_pairs", "sft_best", "prime", "recipes/iterative_dpo"),
    *("real/smollm2_team", "real/smollm2_solver_only", "real/smollm2_calculator"),
    *("real/smollm2_two_readers", "real/smollm2_two_readers_alone"),
)
TASKS = GAMES_OF | {Path(name).name: name for name in TEAMS}
RECIPES = {
    "rlhf": tuple(f"recipes/rlhf_{step}" for step in ("1_sft", "2_reward", "3_ppo")),
    "smollm2_steps": tuple(f"real/smollm2_{step}" for step in ("1_sft", "2_dpo", "3_grpo")),
    "distillation": ("nim_self_play", "recipes/distillation"),
    "distillation_team": tuple(f"recipes/distillation_team_{step}" for step in ("1_team", "2_into_one", "3_into_team")),
    "smollm2_distillation": tuple(f"real/smollm2_distillation_{step}" for step in ("1_teacher", "2_student")),
    "offline_awr": ("recipes/offline_awr",),
    "smollm2_poker": tuple(f"real/smollm2_self_play_{step}" for step in ("1_format", "2_reward")),
}
RECORDED = {
    "real/smollm2_self_play_1_format": {"experience.path": ("real/smollm2_self_play_1_format", 400)},
    "recipes/offline_awr": {f"experience.games.{game}.path": (f"{game}_self_play", 3000) for game in ("nim", "kuhn")},
}
"""Scenario that learns from recorded random play -> the setting of each file -> scenario of the play, and episodes."""
TAUGHT = {
    "distillation": ("eval/optimal", "eval/optimal/end", 0.01),
    "smollm2_distillation": ("eval/held_out/success", "held_out/success_low/end", 0.0),
}
"""Recipe of a teacher and its student -> the metric in which both are compared, the teacher's figure that sets the
level which both must reach, and how far below this figure the level is."""
GOALS = ("eval/kuhn/nashconv", "eval/nim/optimal")
"""Figure of each game of `two_games`."""
LEARNT = ("loss", "ratio_change", "accuracy", "held_out_accuracy", "prm_loss", "prm_accuracy", "kl_teacher")
GAMES = 1000
BEFORE = ("eval/random/win", "eval/minimax/draw")
RETURNS = ("eval/value/player_0", "eval/value/agent_0", "eval/random/mean")
"""Expected returns that tell how a game's learner does: exact, or in episodes against random play."""
COURSES = {
    "negotiation": (
        *("episode/measure/agreement", "episode/measure/joint_value"),
        *("episode/return/player_0", "episode/return/player_1"),
    ),
    "sage": tuple(f"episode/measure/{name}" for name in ("posed", "difficulty", "success")),
    "sage_curriculum": tuple(f"episode/measure/{name}" for name in ("posed", "target", "size", "success")),
}
"""Task -> metrics of training play that are reported at the start (the first step and the first tenth), at the end, and
at their lowest."""
COMPARED = {
    "first_price_auction": ("nash", ("bid_error", "efficient", "revenue")),
    "hanabi": ("hints", ("score", "lives")),
    "werewolf": ("honest", ("village_win", "votes_for_truth", "village_lies")),
    "codenames": ("topics", ("found_red", "accuracy", "assassin")),
}
"""Task -> a scripted player of its game, and the measures by which the trained policies are compared with it."""
MATCHES = {
    "guess_who": ("entropy", ("win",)),
    "holdem_self_play": ("equity", ("mean",)),
    "connect_four_self_play": ("alpha_beta_2", ("win", "draw")),
}
"""Task -> a scripted player of its game, and the outcomes of matches against this player and against random play."""
RUNS = ROOT / "runs" / "learning"


def scenario(task: str, seed: int, budget: float, overrides: list[str]) -> Scenario:
    """The scenario file with a seed, and with a share of its steps."""
    file = ROOT / "scenarios" / f"{TASKS[task]}.yaml"
    steps = max(1, round(marl.load(file, overrides).schedule.steps * budget))
    return marl.load(file, [*overrides, f"schedule.seed={seed}", f"schedule.steps={steps}"])


def whole_run(checked: Scenario, run: Path, *, resume: bool = False) -> None:
    """Train to the end; with `resume`, go on with what an interrupted measurement has left.

    Raises:
        KeyboardInterrupt: if it was interrupted; half a run is no measurement.
    """
    with silent():
        if not marl.train(checked, run, resume="auto" if resume else None, overwrite=not resume):
            raise KeyboardInterrupt


def exact(name: str, rows: list[dict[str, Any]]) -> dict[str, float]:
    """An exact figure when it is first measured, and the mean of its evaluations from 90 % of the steps on."""
    curve = [(row["step"], row[name]) for row in rows if name in row]
    last = rows[-1]["step"]
    scope = name.rpartition("/")[0]
    legal = f"{scope}/legal_mass" if f"{scope}/legal_mass" in rows[-1] else "eval/legal_mass"
    mass = fmean(row[legal] for row in rows if legal in row and row["step"] >= 0.9 * last)
    return {"start": curve[0][1], "end": fmean(v for s, v in curve if s >= 0.9 * last), "legal_mass": mass}


def exactly(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return `exact` of all exact figures that were measured to the end."""
    figures: dict[str, float] = {}
    for name in metric_names_in_all_games(EXACT_METRICS, rows[-1]):
        figures |= {f"{name}/{key}": value for key, value in exact(name, rows).items()}
    return figures


def played(run: Path, task: str) -> dict[str, float]:
    """1,000 games against each opponent, seats balanced, with 95 % intervals."""
    wanted = {"random": ("win", "draw", "loss"), "minimax": ("draw", "loss")} if task.startswith("tic_tac_toe") else {}
    figures: dict[str, float] = {}
    for opponent, kinds in wanted.items():
        found = evaluate_run(run, opponent, GAMES, None)
        for kind in kinds:
            names = (kind, f"{kind}_low", f"{kind}_high")
            figures |= {f"{opponent}/{name}": found[f"eval/{opponent}/{name}"] for name in names}
    return figures


def compared(run: Path, task: str) -> dict[str, float]:
    """Return measures with 95 % intervals in 1,000 new episodes: before and after training, and of a scripted player.

    The scripted player takes all seats of policies that learn. All three play from the same start states.
    """
    if task not in COMPARED:
        return {}
    player, measures = COMPARED[task]
    checked, simulators = compared_simulators(run, player)
    deals: list[Deal] = []
    for index in range(GAMES):
        name = f"compared.{index}"
        deals.append(Deal(name, name, hash_to_seed(checked.schedule.seed, name), checked.seats, "eval"))
    figures: dict[str, float] = {}
    for who, simulator in simulators.items():
        found = summarize_episodes(simulator.play(deals))
        for measure, bound in product(measures, ("", "_low", "_high")):
            # A measure with the same value in all episodes has no interval.
            figures[f"{measure}{bound}/{who}"] = found.get(f"{measure}{bound}", found[measure])
    if isinstance(checked.game, HanabiConfig) and (optimum := checked.game.optimal_score()) is not None:
        figures["score/optimum"] = optimum
    return figures


def compared_simulators(run: Path, player: str) -> tuple[Scenario, dict[str, RolloutSimulator]]:
    """Return a run's scenario and its simulators with the untrained policies, the trained ones, and a scripted player.

    The scripted player takes all seats of policies that learn.
    """
    checked, trained = restore_simulator(run)
    scripted = opponent_engine_settings(checked.game, player)
    engines: dict[str, Engine] = {}
    for name, policy in checked.policies.items():
        engines[name] = (scripted if policy.learner else policy.engine).build(None)
    simulators = {"start": untrained_simulator(checked), "end": trained}
    return checked, simulators | {player: simulator_from_engines(checked, engines)}


def matches(run: Path, task: str) -> dict[str, float]:
    """Return outcomes with 95 % intervals of 1,000 games each against random play and against a scripted player.

    The policies before and after training and the scripted player play in both seats, from the same start states.
    """
    if task not in MATCHES:
        return {}
    player, outcomes = MATCHES[task]
    checked, simulators = compared_simulators(run, player)
    figures: dict[str, float] = {}
    for opponent, (who, simulator) in product(("random", player), simulators.items()):
        opponents = OpponentPlayers.from_scripted_player(checked, opponent)
        found = play_match(checked, simulator, opponents, episodes=GAMES, seed=0).metrics(opponent)
        for outcome, bound in product(outcomes, ("", "_low", "_high")):
            figures[f"{opponent}/{outcome}{bound}/{who}"] = found[f"{opponent}/{outcome}{bound}"]
    return figures


def returns(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return expected returns before training and at the end."""
    figures = {}
    for name in RETURNS:
        curve = [row[name] for row in rows if name in row]
        figures |= {f"{name}/start": curve[0], f"{name}/end": curve[-1]} if curve else {}
    return figures


def course(task: str, rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return each metric of `COURSES`: first step, means of the first and last tenth, and the last half's minimum.

    The means have 95 % intervals over their steps, by Student's t distribution, unless they are of one step.
    """
    figures: dict[str, float] = {}
    for name in COURSES.get(task, ()):
        curve = [row[name] for row in rows if name in row]
        tenth = max(1, len(curve) // 10)
        first, last = curve[:tenth], curve[-tenth:]
        figures |= {f"{name}/first_tenth": fmean(first)}
        for when, steps in (("first_tenth", first), ("end", last)) if tenth > 1 else ():
            low, _, high = student_t_interval(steps)
            figures |= {f"{name}_low/{when}": low, f"{name}_high/{when}": high}
        figures |= {f"{name}/start": curve[0], f"{name}/end": fmean(last), f"{name}/low": min(curve[len(curve) // 2 :])}
    return figures


def held_out(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Measures on held-out problems before training and at the end, with 95 % intervals, and steps with an alarm."""
    measured = [row for row in rows if "eval/held_out/episodes" in row]
    scoped = [name for name in measured[-1] if name.startswith("eval/held_out/")]
    names = [name for name in scoped if name.count("/") == 2 or name.startswith("eval/held_out/forecast/")]
    figures: dict[str, float] = {}
    for when, row in (("start", measured[0]), ("end", measured[-1])):
        figures |= {f"{name.removeprefix('eval/')}/{when}": row[name] for name in names if name in row}
    alarms = {name for row in rows for name in row if name.startswith("alarm/")}
    return figures | {name: sum(row.get(name, 0.0) for row in rows) for name in sorted(alarms)}


def learnt(rows: list[dict[str, Any]]) -> dict[str, float]:
    """What learners said of themselves at first and at last."""
    names = sorted({n for row in rows for n in row if n.startswith("policy/") and n.rpartition("/")[2] in LEARNT})
    figures = {}
    for name in names:
        told = [row[name] for row in rows if name in row]
        few = max(1, len(told) // 20)
        figures |= {f"{name}/first": fmean(told[:few]), f"{name}/last": fmean(told[-few:])}
    return figures


def practised(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return means over all training steps: of measures, which tell how fast it learned, and of what values explain."""
    wanted = ("episode/measure/", "credit/explained_variance/")
    names = sorted({name for row in rows for name in row if name.startswith(wanted)})
    return {f"practice/{name.partition('/')[2]}": fmean(row[name] for row in rows if name in row) for name in names}


def follow(recipe: str, seed: int, budget: float, overrides: list[str]) -> dict[str, Any]:
    """Train one scenario of a recipe after the other, in a folder of its own."""
    home = RUNS / f"{recipe}_{seed}"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    figures: dict[str, Any] = {"seed": seed}
    with contextlib.chdir(home):
        for file in RECIPES[recipe]:
            name = Path(file).name
            given = [*overrides, *recorded(file, seed)]
            found = one(ROOT / "scenarios" / f"{file}.yaml", Path("runs") / name, (seed, budget), given)
            figures |= {f"{name}/{key}": value for key, value in found.items()}
        if recipe in TAUGHT:
            figures |= tokens_to_the_teacher(recipe, figures)
    return figures


def tokens_to_the_teacher(recipe: str, figures: dict[str, Any]) -> dict[str, float]:
    """Return the sampled tokens after which each run of `recipe` first is at the level that `TAUGHT` sets."""
    metric, of_teacher, margin = TAUGHT[recipe]
    teacher, student = (Path(name).name for name in RECIPES[recipe])
    level = figures[f"{teacher}/{of_teacher}"] - margin
    tokens: dict[str, float] = {}
    for name in (teacher, student):
        rows = RunFolder(Path("runs") / name).rows()
        reached = [row["step/tokens"] for row in rows if row.get(metric, 0.0) >= level]
        tokens[f"{name}/tokens_to_the_teacher"] = reached[0] if reached else math.inf
    return tokens


def recorded(file: str, seed: int) -> list[str]:
    """Record the random play that a scenario learns from, if it does; return the overrides that name the files."""
    overrides: list[str] = []
    for setting, (scenario_of_play, episodes) in RECORDED.get(file, {}).items():
        path = Path(f"random_{Path(scenario_of_play).name}.jsonl.zst").absolute()
        played = marl.load(ROOT / "scenarios" / f"{scenario_of_play}.yaml", ["experience=rollouts"])
        write_trajectories(path, random_play(played, episodes, seed))
        overrides.append(f"{setting}={path}")
    return overrides


def one(file: Path, run: Path, how: tuple[int, float], overrides: list[str]) -> dict[str, Any]:
    """Train one scenario of a recipe and measure it."""
    seed, budget = how
    steps = max(1, round(marl.load(file, overrides).schedule.steps * budget))
    checked = marl.load(file, [*overrides, f"schedule.seed={seed}", f"schedule.steps={steps}"])
    started = time.perf_counter()
    whole_run(checked, run)
    rows = list(RunFolder(run).rows())
    figures = {"steps": steps, "seconds": round(time.perf_counter() - started, 1), "tokens": rows[-1]["step/tokens"]}
    measured = held_out(rows) if "eval/held_out/episodes" in rows[0] else {}
    return figures | {name: round(value, 4) for name, value in (measured | exactly(rows) | learnt(rows)).items()}


def imitate(seed: int, budget: float, overrides: list[str]) -> dict[str, Any]:
    """Supervised fine-tuning from a file of recorded play; a fresh answer for every step, so its loss is held out."""
    team = scenario("team_arithmetic", seed, 1.0, overrides)
    settings = ImitationWarmUp(episodes=16384, steps=round(250 * budget), lr=3e-3, seed=seed)
    tiny = team.policies["solver"].model
    assert isinstance(tiny, Tiny)
    base = tiny.cached_folder(random_play_texts(team, ("solver",), tiny.seed))
    home = RUNS / f"sft_{seed}"
    home.mkdir(parents=True, exist_ok=True)
    write_trajectories(home / "recorded.jsonl.zst", random_play(team, settings.episodes, seed))
    taught = validate(warm_up_scenario_data(team, ("solver",), settings, base, home / "recorded.jsonl.zst"), "sft")
    whole_run(taught, home / "run")
    return {"seed": seed, "steps": settings.steps, **learnt(list(RunFolder(home / "run").rows()))}


def together(seed: int, budget: float, overrides: list[str]) -> dict[str, Any]:
    """Two games in one run, then each alone with as many episodes of its own; the share of its gain that each keeps."""
    file = ROOT / "scenarios" / "two_games.yaml"
    steps = max(1, round(marl.load(file, overrides).schedule.steps * budget))
    both = marl.load(file, [*overrides, f"schedule.seed={seed}", f"schedule.steps={steps}", "evaluate.keep_best=null"])
    data, parts = both.model_dump(mode="json"), game_shares(both.games)
    figures: dict[str, Any] = {"seed": seed, "steps": steps}
    gains: dict[str, list[float]] = {name: [] for name in GOALS}
    for run, part in {"both": 1.0, **parts}.items():
        alone = {"games": {run: data["games"][run]}} if run in parts else {}
        plan = {"schedule": data["schedule"] | {"groups": round(both.schedule.groups * part)}}
        whole_run(validate(data | alone | plan), RUNS / f"two_games_{run}_{seed}")
        rows = list(RunFolder(RUNS / f"two_games_{run}_{seed}").rows())
        for name, curve in {name: [row[name] for row in rows if name in row] for name in GOALS}.items():
            if curve:
                end = fmean(curve[-max(1, len(curve) // 10) :])
                figures |= {f"{run}/{name}/start": round(curve[0], 4), f"{run}/{name}/end": round(end, 4)}
                gains[name].append(abs(end - curve[0]))
    return figures | {f"{name}/kept": round(whole / alone, 4) for name, (whole, alone) in gains.items()}


def learn(task: str, seed: int, budget: float, overrides: list[str], *, resume: bool = False) -> dict[str, Any]:
    """Train one seed and measure it; with `resume`, times are those of what was left to do."""
    run = RUNS / f"{task}_{seed}"
    checked = scenario(task, seed, budget, overrides)
    started, computed = time.perf_counter(), time.process_time()
    whole_run(checked, run, resume=resume)
    figures: dict[str, Any] = {"seed": seed, "steps": checked.schedule.steps}
    figures["seconds"] = round(time.perf_counter() - started, 1)
    figures["cpu_seconds"] = round(time.process_time() - computed, 1)
    rows = list(RunFolder(run).rows())
    figures["tokens"] = rows[-1]["step/tokens"]
    measured = exactly(rows) | (held_out(rows) if "eval/held_out/episodes" in rows[0] else {})
    measured |= returns(rows) | course(task, rows) | learnt(rows) | practised(rows)
    figures |= {name: round(value, 4) for name, value in measured.items()}
    before = {f"before/{key[5:]}": value for key, value in rows[0].items() if key in BEFORE}
    measured = before | played(run, task) | compared(run, task) | matches(run, task)
    return figures | {key: round(value, 4) for key, value in measured.items()}


OTHERS = {name: partial(follow, name) for name in RECIPES} | {"sft": imitate, "two_games": together}


def main() -> None:
    line = parser(__doc__)
    line.add_argument("task", choices=[*TASKS, *OTHERS])
    line.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    line.add_argument("--budget", type=float, default=1.0)
    line.add_argument("--add", action="store_true", help="keep the runs of other seeds that the result file has")
    line.add_argument("overrides", nargs="*")
    given = line.parse_intermixed_args()
    how = OTHERS.get(given.task) or partial(learn, given.task)
    runs = [how(seed, given.budget, given.overrides) for seed in given.seeds]
    if given.add and given.out.exists():
        runs += [run for run in json.loads(given.out.read_text())["figures"]["runs"] if run["seed"] not in given.seeds]
    runs.sort(key=itemgetter("seed"))
    named = TASKS.get(given.task, given.task)
    report({"runs": runs}, given.out, seeds=[run["seed"] for run in runs], scenario=named, budget=given.budget)


if __name__ == "__main__":
    main()
