"""Runs of a program whose processes and connections are lost all the time, beside runs that are left alone.

    python tests/bench/chaos_programs.py [--steps 50] [--faults 100] [--seed 0] [--places here ray] [--out FILE]

A program (`_chaos_agents.py`) asks a planner and a solver, which both learn, in one process (`here`) and on two
simulators of a Ray cluster on loopback (`ray`). Faults are spread over the steps by the seed: half of them SIGKILL and
a sixth SIGSTOP of the program's processes, three SIGKILL of the run (`marl train --resume auto` follows), the others
connections that are reset.

`episodes`: what is on disk against what was dealt. `faulty`: episodes with another number of turns than the program's
two calls, whose texts are not those of one attempt, or whose reported reward was not paid once. `attempts`: attempts
of the program begun and ended, and connections cut, as it wrote them down. `equal`: whether metrics, weights, tensors
of states, trajectories and credit records are those of the run left alone to the last bit, but for the count of sampled
tokens, which includes those of lost attempts. The command fails if an episode is missing, doubled or faulty, or if a
bit differs.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import chaos
import yaml
from _bench import ROOT, parser, report

from marl.core.graph import Trajectory
from marl.protocols.programs import parse_program_answer
from marl.runs.run_folder import RunFolder

RUN_KILLS = 3
PLACES = ("here", "ray")
COUNTS_OF_TOKENS = ("step/tokens", "step/eval_tokens", "state.json")


def scenario(steps: int, place: str) -> dict[str, Any]:
    warm_up = {"steps": 60, "episodes": 128, "batch": 32, "lr": 0.01}
    # One slot: no other request shares a batch, so the order in which calls arrive changes no bit.
    policy = {
        "model": {"kind": "tiny", "hidden": 16, "layers": 1, "warm_up": warm_up},
        "learner": {"kind": "grpo", "lr": 1e-3},
        "engine": {"kind": "transformers", "slots": 1},
    }
    caller = {"kind": "caller", "sampling": {"max_tokens": 8}}
    program = {"kind": "program", "call": "_chaos_agents:main", "folder": str(ROOT / "tests" / "bench")}
    verifiers = {"kind": "verifiers", "checks": {"correct": {"kind": "exact"}}, "workers": 1}
    callers = {
        "planner": {"examples": ["{{ given.steps[0] }}", "{{ wrong[0] }}"]},
        "solver": {"examples": ["{{ answer }}", "{{ wrong[0] }}"]},
    }
    return {
        "game": {
            "kind": "team",
            "task": {"kind": "arithmetic", "numbers": [10, 99], "style": "expanded", "train": 30, "held_out": 15},
            "stages": [
                {"role": "crew", "callers": callers},
                {"role": "verifier", "verifies": "solver", "scores": ["correct"]},
            ],
            "rewards": {
                "planner": {"team": "0.5 * solver.correct"},
                "solver": {"correct": "own.correct", "brief": "0.1 * own.reported.brief"},
            },
            "measures": {"success": "solver.correct", "failed": "crew.failed"},
        },
        "roles": {
            "crew": {"kind": "program", "policy": "crew"},
            "planner": {**caller, "policy": "planner"},
            "solver": {**caller, "policy": "solver", "answer": "bracket"},
            "verifier": {"kind": "verifier", "policy": "checker"},
        },
        "policies": {
            "crew": {"engine": {**program, "workers": 4, "attempts": 10, "timeout_s": 2.0}},
            "planner": policy,
            "solver": {**policy, "model": {**policy["model"], "seed": 1}},
            "checker": {"engine": verifiers},
        },
        "credit": {"baseline": {"kind": "group", "like": "start"}},
        "schedule": {"steps": steps, "groups": 8, "group_size": 4, "threads": 1},
        "evaluate": {"every": 10, "held_out": 15},
        "checkpoint": {"every": 3, "trajectories": 1.0},
    } | ({"cluster": {"simulators": 2, "cpus": 0.25, "start_s": 200.0, "room_s": 60.0}} if place == "ray" else {})


def fault_counts(faults: int, run_kills: int) -> dict[str, int]:
    """Return kind of fault -> number, `faults` in all."""
    counts = {"programs": faults // 2, "stopped_programs": faults // 6, "runs": run_kills}
    return counts | {"connections": faults - sum(counts.values())}


def faulty(run: Path) -> dict[str, int]:
    """Return kind of fault -> number of episodes with it."""
    home, found = RunFolder(run), Counter(dict.fromkeys(FAULTS, 0))
    for step in home.recorded_steps():
        for episode in home.load_trajectories(step):
            found.update([name for name, is_faulty in FAULTS.items() if is_faulty(episode)])
    return dict(found)


def has_other_turns(episode: Trajectory) -> bool:
    return [(turn.agent, turn.nth) for turn in episode.turns if turn.inner] != [("planner", 0), ("solver", 0)]


def mixes_attempts(episode: Trajectory) -> bool:
    """Return True if the solver was not asked with the recorded plan, or its text is not the program's answer."""
    plan, solution, program = (turn.completion for turn in episode.turns[:3])
    answer = parse_program_answer(program.text)
    asked = episode.turns[1].request.messages[-1].content
    is_of_plan = asked.removesuffix("\nsum").endswith(f"units\n{plan.text.strip()}")
    return not is_of_plan or answer is None or answer.answer != solution.text.strip()


def is_not_paid_once(episode: Trajectory) -> bool:
    return [reward.value for reward in episode.rewards if reward.name == "brief"] != [0.1]


FAULTS: dict[str, Callable[[Trajectory], bool]] = {
    "other turns": has_other_turns,
    "mixed attempts": mixes_attempts,
    "not paid once": is_not_paid_once,
}


@contextmanager
def processes() -> Iterator[chaos.Processes]:
    """Run in one process."""
    made = chaos.Processes()
    try:
        yield made
    finally:
        made.end()


def measured(steps: int, counts: dict[str, int], seed: int, folder: Path, place: str) -> dict[str, Any]:
    """Return the figures of a run with so many faults of each kind."""
    os.environ |= {"MARL_CACHE": str(folder / "cache"), "CHAOS_LOG": str(folder / "attempts")}
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    file = folder / "scenario.yaml"
    file.write_text(yaml.safe_dump(scenario(steps, place)))
    with chaos.machines() if place == "ray" else processes() as where:
        alone, trial = (chaos.Trial(folder / name, file, where) for name in ("alone", "chaos"))
        alone([], seed)
        (folder / "attempts").write_text("")
        trial(chaos.drawn(counts, steps, seed), seed)
    return {
        "faults": dict(Counter(fault["kind"] for fault in trial.happened)),
        "episodes": chaos.episodes(trial.run, steps),
        "faulty": faulty(trial.run),
        "attempts": dict(Counter((folder / "attempts").read_text().splitlines())),
        "equal": chaos.equal(alone.run, trial.run, COUNTS_OF_TOKENS),
        "success": {"alone": chaos.success_of(alone.run), "chaos": chaos.success_of(trial.run)},
        "seconds": {"alone": round(alone.seconds), "chaos": round(trial.seconds)},
    }


def violations(figures: dict[str, Any]) -> list[str]:
    """Return the names of the figures that are not as they must be."""
    counts = figures["episodes"]
    wrong = [name for name in ("missing", "twice", "of_no_deal", "in_another_step", "steps_twice") if counts[name]]
    wrong += [name for name, number in figures["faulty"].items() if number]
    return wrong + [f"{name} differ" for name, is_equal in figures["equal"].items() if not is_equal]


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--steps", type=int, default=50)
    arguments.add_argument("--faults", type=int, default=100)
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--places", nargs="+", choices=PLACES, default=PLACES)
    arguments.add_argument("--folder", type=Path, help="keep the runs here")
    options = arguments.parse_args()
    figures: dict[str, Any] = {}
    counts = fault_counts(options.faults, RUN_KILLS)
    for place in options.places:
        with tempfile.TemporaryDirectory() as temporary:
            folder = (options.folder or Path(temporary)) / place
            folder.mkdir(parents=True)
            figures[place] = measured(options.steps, counts, options.seed, folder, place)
    report(figures, options.out, seeds=[options.seed], steps=options.steps, faults=options.faults)
    wrong = {place: names for place, found in figures.items() if (names := violations(found))}
    if wrong:
        raise SystemExit(f"not as it must be: {wrong}")


if __name__ == "__main__":
    main()
