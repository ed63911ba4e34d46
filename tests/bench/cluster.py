"""Episodes per second of 1 to 16 simulators on Ray against ideal, the driver's cost with up to 1,000, and publication.

    python tests/bench/cluster.py [--simulators 1,2,4,8,16] [--episodes 16] [--mean-s 1.0] [--steps 3] [--sizes 1M,...]
    python tests/bench/cluster.py --simulators "" --sizes "" [--driver 64,256,1000] [--driver-steps 8]

Simulators are processes of a Ray cluster on this machine, as of any run with `cluster:`. Their engines answer after a
wait that is drawn from the request's seed, and use no processor, as if each had an accelerator of its own; what they
return is as large as the real thing (600 tokens of prompt and 200 of answer, with log-probabilities, a turn). The game
is Nim, the credit `flow` on the graph of turns; all is recorded on disk. The learner publishes its weights (1M) after
every step, and learns nothing: learners in processes of their own are no work of the driver.

Each simulator plays as many episodes a step, whatever their number (weak scaling). `ideal_s` is how long the longest
dialogue of a step waits for its engines, computed from the seeds: no cluster can be faster. `efficiency` is that over
the whole step, with everything that the driver does in it; `play_efficiency` over the play alone. The first step, in
which processes start, does not count. `driver_cpu_s`: processor time of the driver, all of its threads.

Driver: 64, 256 and 1,000 simulators play 1,600 episodes a step at about 160 per second, by engines that wait 1 s in
the mean. So many processes do not fit on one machine: the simulators are threads of four Ray actors, each with the
engine and the calls of a simulator's process. The driver's side is the real one: it makes the same calls of Ray, one
pending for each simulator, and gets the same replies. `ratio` is its cost per episode over that with the first number.

Publication: seconds until the driver goes on (`hand_over_s`), and until all simulators sample with the new weights.
"""

from __future__ import annotations

import os
import pickle
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import ray
import torch
from _bench import parser, report, silent
from _driver_cost import driver_cost
from _simulated import WIDTH, SimulatedEngine

import marl
from marl.cluster.placement import open_placement
from marl.core.graph import Trajectory, compressed_trajectory_line
from marl.core.types import Metrics
from marl.rollout.base import FinishedEpisode
from marl.runs.run_folder import RunFolder
from marl.scenario.load import validate
from marl.scenario.schema import Scenario
from marl.training.build import build

SIZES = {"2M": 2, "15M": 14, "135M": 128}
"""Name -> matrices of 1024 by 1024 numbers of four bytes. An adapter is as small as the first."""
_DRIVER_EPISODES = 1600
"""Episodes of a step in the measurement of the driver."""
_ADAPTER = 64 * WIDTH
"""Numbers in the weights of each simulator in the measurement of the driver: 1,000 of them are on one machine."""
STAGES = ("play", "read", "credit", "learn", "publish", "record")


class Load(NamedTuple):
    """What all simulators of a run play together."""

    episodes: int
    """Number of episodes of a step."""
    steps: int
    """Number of steps that count."""
    mean_s: float
    """Mean wait for an engine's answer, in seconds."""


def scenario(simulators: int, load: Load, parameters: int = WIDTH**2) -> Scenario:
    """Return a run of Nim whose simulators wait; `parameters`: numbers in its weights."""
    policy = {
        "model": {"kind": "_simulated:SimulatedModel", "parameters": parameters},
        "engine": {"kind": "_simulated:SimulatedEngine", "mean_s": load.mean_s},
        "learner": {"kind": "_simulated:NoUpdate"},
    }
    return validate(
        {
            "game": {"kind": "nim"},
            "seats": {"player_0": "player", "player_1": "player"},
            "roles": {"player": {"kind": "player", "policy": "actor", "sampling": {"max_tokens": 256}}},
            "policies": {"actor": policy},
            "credit": {"assign": {"kind": "flow"}, "baseline": {"kind": "group"}},
            "schedule": {"steps": load.steps + 1, "groups": load.episodes // 4, "group_size": 4},
            "checkpoint": {"every": 1000},
            "cluster": {"simulators": simulators, "cpus": 0.1},
        },
        "bench",
    )


def waited(episode: Trajectory, engine: SimulatedEngine) -> float:
    """Return for how long an episode waits for its engine: its turns follow one another."""
    return sum(engine.wait_s(turn.request.seed) for turn in episode.turns)


def scaled(simulators: int, options: Any) -> dict[str, Any]:
    """Return the figures of a run with so many simulators."""
    rows: list[Metrics] = []
    cpu = [time.process_time()]

    def note(step: int, metrics: Metrics) -> None:
        rows.append(metrics)
        cpu.append(time.process_time())

    made = scenario(simulators, Load(simulators * options.episodes, options.steps, options.mean_s))
    with tempfile.TemporaryDirectory() as folder, silent():
        assert marl.train(made, Path(folder) / "run", on_step=note)
        home = RunFolder(Path(folder) / "run")
        steps = [home.load_trajectories(step) for step in range(2, options.steps + 2)]
    engine = made.policies["actor"].engine
    assert isinstance(engine, SimulatedEngine)
    ideal = [max(waited(episode, engine) for episode in step) for step in steps]
    timed, episodes = rows[-len(steps) :], sum(map(len, steps))
    spent = {name: sum(row[f"time/{name}"] for row in timed) for name in STAGES}
    whole = sum(spent.values())
    return {
        "episodes": episodes,
        "turns_each": round(sum(len(e.turns) for step in steps for e in step) / episodes, 2),
        "ideal_s": round(sum(ideal), 2),
        "step_s": round(whole, 3),
        "play_s": round(spent["play"], 3),
        "efficiency": round(sum(ideal) / whole, 4),
        "play_efficiency": round(sum(ideal) / spent["play"], 4),
        "episodes_per_s": round(episodes / whole, 2),
        **{f"{name}_ms_per_episode": round(1e3 * spent[name] / episodes, 3) for name in STAGES[1:]},
        "driver_cpu_ms_per_episode": round(1e3 * (cpu[-1] - cpu[-1 - len(steps)]) / episodes, 3),
        "driver_cpu_share": round((cpu[-1] - cpu[-1 - len(steps)]) / whole, 4),
        "bytes_per_episode": wire_bytes(steps[-1]),
        "simulators_idle": round(statistics.fmean(row["cluster/idle"] for row in timed), 4),
    }


def wire_bytes(episodes: Sequence[Trajectory]) -> int:
    """Return the bytes of an episode as Ray sends it, on average over batches of eight."""
    batches = [episodes[n : n + 8] for n in range(0, len(episodes), 8)]
    return round(sum(len(pickle.dumps([(0, _as_sent(e)) for e in b], 5)) for b in batches) / len(episodes))


def _as_sent(episode: Trajectory) -> FinishedEpisode:
    """Return an episode with its line of the trajectory file, as a simulator sends it."""
    return FinishedEpisode(episode, compressed_line=compressed_trajectory_line(episode))


def published(matrices: int, simulators: int, options: Any, repeats: int = 3) -> dict[str, Any]:
    """Return how long new weights of this size take."""
    load = Load(simulators * options.episodes, options.steps, options.mean_s)
    made = scenario(simulators, load, matrices * WIDTH**2)
    with open_placement(made) as placement:
        run = build(made, placement)
        run.simulator.take_step_metrics()  # all have come up
        times: list[tuple[float, float]] = []
        figures: Metrics = {}
        for version in range(1, repeats + 2):
            began = time.perf_counter()
            run.schedule_publication("actor", version)
            run.publish()
            handed = time.perf_counter()
            figures = run.simulator.take_step_metrics()
            times.append((handed - began, time.perf_counter() - began))
    handed_over, sampled = (statistics.median(each) for each in zip(*times[1:], strict=True))
    return {
        "simulators": simulators,
        "stored_bytes": int(figures["cluster/published_bytes"]),
        "hand_over_s": round(handed_over, 4),
        "until_sampled_s": round(sampled, 4),
    }


def main() -> None:
    line = parser(__doc__)
    line.add_argument("--simulators", default="1,2,4,8,16")
    line.add_argument("--episodes", type=int, default=16, help="of each simulator in a step")
    line.add_argument("--mean-s", type=float, default=1.0, help="mean wait for an engine's answer")
    line.add_argument("--steps", type=int, default=3)
    line.add_argument("--sizes", default=",".join(SIZES))
    line.add_argument("--driver", default="64,256,1000", help="numbers of simulators in shared processes")
    line.add_argument("--driver-steps", type=int, default=8)
    options = line.parse_args()
    torch.set_num_threads(1)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))  # processes of Ray import the engine, too
    os.environ.setdefault("RAY_worker_niceness", "0")  # of 15, they would wait for whatever else runs on this machine
    figures: dict[str, Any] = {"simulators": {}, "publication": {}, "driver": {}}
    for count in map(int, filter(None, options.simulators.split(","))):
        figures["simulators"][count] = scaled(count, options)
        print(count, figures["simulators"][count], file=sys.stderr)
    for size in filter(None, options.sizes.split(",")):
        figures["publication"][size] = [published(SIZES[size], count, options) for count in (1, 2)]
        print(size, figures["publication"][size], file=sys.stderr)
    for count in map(int, filter(None, options.driver.split(","))):
        load = Load(_DRIVER_EPISODES, options.driver_steps, mean_s=1.0)
        figures["driver"][count] = driver_cost(scenario(count, load, _ADAPTER), load.episodes)
        print(count, figures["driver"][count], file=sys.stderr)
    costs = {count: run["driver_cpu_ms_per_episode"] for count, run in figures["driver"].items()}
    figures["driver_ratio"] = {count: round(cost / next(iter(costs.values())), 2) for count, cost in costs.items()}
    settings = {name: dict(vars(options))[name] for name in ("episodes", "mean_s", "steps", "driver_steps")}
    settings["ray"] = ray.__version__
    report(figures, options.out, seeds=[0], **settings)


if __name__ == "__main__":
    main()
