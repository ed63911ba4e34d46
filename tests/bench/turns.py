"""What the framework itself costs per turn: games, roles, graph, credit and batching, without any model.

    python tests/bench/turns.py [RUN] [--out FILE] [--steps 20] [--turns 100000]

`kuhn`: CPU microseconds per turn of 256 episodes a step, played by an engine that answers at once; the engine's own
time is subtracted. `calls`: calls of Python's and of C functions per turn in such a step, a count without noise.
`linear`: the same of play + record + outcome + flow + collect, at a tenth of `--turns` and at all
of them, in one long episode and in episodes of 10 turns; the ratio of the two is 1 if time is linear. With the folder
of a real run, also the share of its steps that this cost makes up.
"""

from __future__ import annotations

import gc
import json
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from _bench import parser, report

from marl.core.graph import Trajectory, write_trajectories
from marl.core.seeds import hash_to_seed
from marl.core.types import Completion, CompletionFailure, Deal, Request, Ticket
from marl.credit.assign.reward_rules import AgentReturnAssign, RewardFlowAssign
from marl.credit_stage.stage import CreditStage, StepCredit
from marl.games.base import FinalRewards, IllegalMoveHandling, NextAgent, TextGame, TextGameConfig
from marl.games.kuhn_poker import KuhnPokerConfig
from marl.host.garbage_collection import collect_garbage_of_step, tune_garbage_collection
from marl.metrics.trajectory_metrics import summarize_trajectories
from marl.protocols import Evidence, GameConfig, WeightlessEngine
from marl.roles.answering import PlayerRole
from marl.rollout.casting import RoleRequestBuilder
from marl.rollout.simulator import RolloutSimulator
from marl.scenario.schema import CreditConfig
from marl.training.samples import collect_samples

R = TypeVar("R")
AGENTS = ("player_0", "player_1")
ROLES = {"player": PlayerRole(policy="actor")}


class Metronome(TextGame):
    """Two agents take turns, so many times, and are paid every time."""

    name = "metronome"
    reset_options = ("turns",)

    def start_new_game(self, rng: random.Random, options: Mapping[str, Any]) -> NextAgent:
        self.left = options["turns"]
        return AGENTS[0]

    def describe_observation(self, agent: str) -> str:
        return "tick or tock"

    def information_state(self, agent: str) -> str:
        return ""

    def start_state_key(self) -> str:
        return ""

    def apply_action(self, action: str) -> NextAgent | FinalRewards:
        self.left -= 1
        mover = self.agent_selection
        if not self.left:
            return {mover: 1.0}
        self.add_rewards({mover: 1.0})
        return AGENTS[mover == AGENTS[0]]


class MetronomeConfig(TextGameConfig):
    kind: str = "metronome"

    def build(self) -> Metronome:
        return Metronome(AGENTS, IllegalMoveHandling(), ("tick", "tock"))


class Instant(WeightlessEngine):
    """Says a legal move picked by the request's seed, in tokens that mean nothing; keeps its own time."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._submitted: list[tuple[Ticket, Request]] = []

    def submit(self, ticket: Ticket, request: Request) -> None:
        self._submitted.append((ticket, request))

    def step(self, wait_s: float) -> list[tuple[Ticket, Completion | CompletionFailure]]:
        # The clock is read once a batch: reading the CPU time takes microseconds on some machines.
        started = time.process_time()
        submitted, self._submitted = self._submitted, []
        answers: list[tuple[Ticket, Completion | CompletionFailure]] = []
        for ticket, request in submitted:
            texts = list((request.options or {}).values())
            said = Completion(texts[request.seed % len(texts)], (1, 2, 3), (4, 5), (-0.5, -0.1), "stop")
            answers.append((ticket, said))
        self.seconds += time.process_time() - started
        return answers

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        raise AssertionError("nothing is ever cancelled here")

    def load_weights(self, policy: str, weights: Any, version: int) -> None:
        raise AssertionError("nothing is ever learnt here")


def table(game: GameConfig, engine: Instant) -> RolloutSimulator:
    # The long episodes of `linear` have more turns than a run allows by default.
    return RolloutSimulator(game, RoleRequestBuilder(ROLES, 0), {"actor": engine}, max_turns=10**9)


def kuhn(steps: int) -> dict[str, float]:
    """Medians over steps."""
    engine = Instant()
    laid = table(KuhnPokerConfig(), engine)
    judge = CreditStage(CreditConfig.model_validate({"baseline": {"kind": "group", "std": False}}))
    stages: dict[str, list[float]] = {"play": [], "judge": [], "collect": [], "summarize": [], "free": []}
    for step in range(steps + 1):
        deals = _kuhn_deals(step)
        engine.seconds = 0.0
        marks = [time.process_time()]
        trajectories = laid.play(deals)
        marks.append(time.process_time())
        judgement = judge(Evidence(trajectories, "kuhn_poker"))
        marks.append(time.process_time())
        samples = collect_samples(trajectories, judgement, ROLES, {})
        marks.append(time.process_time())
        summarize_trajectories(trajectories)
        marks.append(time.process_time())
        turns = len(samples["actor"])
        del trajectories, judgement, samples
        collect_garbage_of_step()
        marks.append(time.process_time())
        spent = [b - a for a, b in pairwise(marks)]
        spent[0] -= engine.seconds
        for stage, seconds in zip(stages.values(), spent, strict=True):
            stage.append(seconds / turns * 1e6)
    medians = {name: round(statistics.median(values[1:]), 2) for name, values in stages.items()}
    totals = [sum(step) for step in zip(*stages.values(), strict=True)][1:]
    return medians | {"us_per_turn": round(statistics.median(totals), 2), "worst_us_per_turn": round(max(totals), 2)}


def calls_per_turn() -> dict[str, dict[str, float]]:
    """Calls of functions written in Python and in C in one step of Kuhn, without the engine's own."""
    laid = table(KuhnPokerConfig(), Instant())
    judge = CreditStage(CreditConfig.model_validate({"baseline": {"kind": "group", "std": False}}))
    counts: Counter[str] = Counter()
    own = Instant.submit.__code__, Instant.step.__code__

    def count_call(frame: FrameType, event: str, _: object) -> None:
        if frame.f_code not in own:
            counts[event] += 1

    figures: dict[str, dict[str, float]] = {}

    def counted(stage: str, call: Callable[[], R]) -> R:
        counts.clear()
        sys.setprofile(count_call)
        try:
            return call()
        finally:
            sys.setprofile(None)
            figures[stage] = {"python": counts["call"], "c": counts["c_call"]}

    trajectories: list[Trajectory] = []
    for step in range(2):  # the first fills the caches
        deals = _kuhn_deals(step)
        trajectories = counted("play", partial(laid.play, deals))
        judgement = counted("judge", partial(judge, Evidence(trajectories, "kuhn_poker")))
        counted("collect", partial(collect_samples, trajectories, judgement, ROLES, {}))
        counted("summarize", partial(summarize_trajectories, trajectories))
    turns = sum(len(trajectory.turns) for trajectory in trajectories)
    return {stage: {kind: round(count / turns, 1) for kind, count in kinds.items()} for stage, kinds in figures.items()}


def _kuhn_deals(step: int) -> list[Deal]:
    seats: dict[str, str] = dict.fromkeys(AGENTS, "player")
    return [Deal(f"{step}.{i}", f"{step}.{i // 2}", hash_to_seed(step, i // 2), seats) for i in range(256)]


def chain(turns: int, length: int) -> dict[str, float]:
    """Microseconds per turn of `turns` turns in episodes of `length`."""
    engine = Instant()
    laid = table(MetronomeConfig(), engine)
    seats: dict[str, str] = dict.fromkeys(AGENTS, "player")
    deals = [Deal(f"{i}", f"{i}", i, seats, options={"turns": length}) for i in range(turns // length)]
    marks = [time.process_time()]
    trajectories = laid.play(deals)
    marks.append(time.process_time())
    with tempfile.TemporaryDirectory() as folder:
        write_trajectories(Path(folder) / "episodes.jsonl.zst", trajectories)
    marks.append(time.process_time())
    _learn(trajectories)
    marks.append(time.process_time())
    play, record, learn = ((b - a) / turns * 1e6 for a, b in pairwise(marks))
    play -= engine.seconds / turns * 1e6
    figures = {"play": play, "record": record, "credit_and_collect": learn, "us_per_turn": play + record + learn}
    return {name: round(value, 2) for name, value in figures.items()}


def _learn(trajectories: Sequence[Trajectory]) -> None:
    evidence = Evidence(trajectories, "metronome")
    earned = AgentReturnAssign()(evidence)
    AgentReturnAssign(to_go=True)(evidence)
    flow = RewardFlowAssign(teams=(AGENTS,))(evidence)
    samples = collect_samples(trajectories, StepCredit(earned, flow, {}), ROLES, {})
    assert len(samples["actor"]) == len(earned) == len(flow)


def linear(turns: int) -> dict[str, Any]:
    """Python's garbage collector walks all live objects now and then, so that figures without it are given as well."""
    figures: dict[str, Any] = {}
    for name, length in (("one_episode", None), ("episodes_of_10", 10)):
        for collector in (True, False):
            few, many = (collected(collector, n, length or n) for n in (turns // 10, turns))
            ratio = round(many["us_per_turn"] / few["us_per_turn"], 3)
            label = name if collector else f"{name}_without_collector"
            figures[label] = {str(turns // 10): few, str(turns): many, "ratio": ratio}
    return figures


def collected(collector: bool, turns: int, length: int) -> dict[str, float]:
    """The median of three, by their sum."""
    runs = []
    for _ in range(3):
        gc.collect()
        (gc.enable if collector else gc.disable)()
        runs.append(chain(turns, length))
        gc.enable()
    return sorted(runs, key=lambda run: run["us_per_turn"])[1]


def share(run: Path, us_per_turn: float) -> dict[str, float]:
    """How much of a real run's steps this is: turns of a step (from its metrics) times the cost of a turn."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if "time/step" in row]
    turns = statistics.median(row["episode/turns"] * row["episode/count"] for row in rows)
    step = statistics.median(row["time/step"] for row in rows)
    return {
        "turns_per_step": turns,
        "step_ms": round(step * 1e3, 2),
        "share": round(turns * us_per_turn / step / 1e6, 4),
    }


def main() -> None:
    options = parser(__doc__)
    options.add_argument("run", type=Path, nargs="?")
    options.add_argument("--steps", type=int, default=20)
    options.add_argument("--turns", type=int, default=100_000)
    chosen = options.parse_args()
    tune_garbage_collection(serves_programs=False)  # as runs do
    figures: dict[str, Any] = {"kuhn": kuhn(chosen.steps), "calls": calls_per_turn(), "linear": linear(chosen.turns)}
    if chosen.run:
        figures["share_of_step"] = share(chosen.run, figures["kuhn"]["us_per_turn"])
    report(figures, chosen.out, seeds=[0], steps=chosen.steps, episodes_per_step=256, turns=chosen.turns)


if __name__ == "__main__":
    main()
