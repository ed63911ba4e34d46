"""What credit costs: every closed-form rule on 1,000 episodes of 20 turns, and per turn as steps grow.

    python tests/bench/credit_cost.py [--only PART ...] [--out FILE] [--turns 100000] [--repeat 3]

`assign`: seconds of each rule (`alone`), of the rule with baseline `group` (`with_group`), and of the whole stage with
the reports that go into the metrics (`judge`). `baselines`: seconds of each, on what `outcome` assigned. `linear`:
microseconds per turn at a tenth of `--turns` and at all of them, and their ratio, which is 1 if time is linear; without
Python's garbage collector, which walks all live objects now and then. `edges`: microseconds per edge of the rules that
follow edges, in one episode of 10 to 100,000 turns that each read the three before. All are processor time
of one thread, which on an idle machine is wall time, and medians of `--repeat`.

Rules that play more (shapley, replay, greedy, ...) or fit something (vdn, qmix, coma, own values) are not closed-form.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from _bench import parser, report

from marl.core.config import Sampling
from marl.core.graph import Trajectory
from marl.core.types import Completion, Deal, Message, Reading, Request, Reward, Turn, TurnId
from marl.credit_stage.stage import CreditStage
from marl.protocols import Evidence
from marl.scenario.schema import CreditConfig, CreditRule

SEATS = {"planner": "planner", "solver": "solver", "critic": "critic", "verifier": "verifier"}
TEAM = [["planner", "solver", "critic"]]
TOKENS, LENGTH, GROUP = 16, 20, 8
HIERARCHY = {"kind": "marl.credit.assign.hierarchical:HierarchicalAssign"}
PROCESS = {"kind": "marl.credit.assign.process:Process", "rewards": ["step"], "discount": 0.9}
GAE, CHAIN, GRAPH = (
    "marl.credit.assign.gae:PerAgentGae",
    "marl.credit.assign.gae:TeamChainGae",
    "marl.credit.assign.graph_gae:GraphGae",
)
ASSIGN: dict[str, dict[str, Any]] = {
    "outcome": {"kind": "marl.credit.assign.reward_rules:AgentReturnAssign"},
    "outcome, to go": {"kind": "marl.credit.assign.reward_rules:AgentReturnAssign", "to_go": True},
    "flow, each alone": {"kind": "marl.credit.assign.reward_rules:RewardFlowAssign"},
    "flow, one team": {"kind": "marl.credit.assign.reward_rules:RewardFlowAssign", "teams": TEAM},
    "uniform": {"kind": "marl.credit.assign.reward_rules:Uniform"},
    "last_speaker": {"kind": "marl.credit.assign.reward_rules:LastSpeaker"},
    "trajectory, copied": HIERARCHY,
    "trajectory, shared": HIERARCHY | {"agents": "equal", "calls": "reads", "discount": 0.9},
    "trajectory, to tokens": HIERARCHY | {"agents": "equal", "calls": "reads", "tokens": "surprise"},
    **{f"process, {form}": PROCESS | {"combine": form} for form in ("sum", "max_abs", "prime_paper")},
    **{f"process, {form}": PROCESS | {"combine": form} for form in ("prime_released", "decoupled")},
    **{f"gae, {level}": {"kind": GAE, "level": level, "lam": 0.95} for level in ("token", "turn", "bi_level")},
    **{f"chain_gae, {level}": {"kind": CHAIN, "level": level, "lam": 0.95} for level in ("token", "turn")},
    **{f"graph_gae, {level}": {"kind": GRAPH, "level": level, "lam": 0.95} for level in ("token", "turn")},
    "graph_gae, equal parts": {"kind": GRAPH, "level": "turn", "lam": 0.95, "share": "equal", "rewards": "paid"},
}
ALONG_EDGES = ("flow, one team", "chain_gae, turn", "graph_gae, turn", "graph_gae, equal parts")
LENGTHS = (10, 100, 1000, 10_000, 100_000)
PEERS, WHITEN = "marl.credit.baselines.group", "marl.credit.baselines.whiten"
BASELINES: dict[str, dict[str, Any]] = {
    "none": {"kind": "marl.credit.baselines.reinforce:NoBaseline"},
    "group": {"kind": "marl.credit.baselines.group:GrpoBaseline"},
    "group, prompt": {"kind": "marl.credit.baselines.group:GrpoBaseline", "like": "prompt"},
    "group, problem": {"kind": "marl.credit.baselines.group:GrpoBaseline", "like": "problem"},
    "rloo": {"kind": "marl.credit.baselines.group:RlooBaseline"},
    "role_average": {"kind": "marl.credit.baselines.reinforce:RoleAverageBaseline"},
    "agent_turn_group": {"kind": f"{PEERS}:AgentTurnGroup"},
    "agent_group": {"kind": f"{PEERS}:AgentGroup"},
    "task_role": {"kind": f"{PEERS}:TaskRoleBaseline"},
    "joint": {"kind": "marl.credit.baselines.group:JointBaseline"},
    "opo": {"kind": "marl.credit.baselines.group:OpoBaseline"},
    "whiten": {"kind": f"{WHITEN}:WhitenBaseline"},
    "whiten, start": {"kind": f"{WHITEN}:WhitenBaseline", "like": "start"},
    "decoupled": {"kind": f"{WHITEN}:GdpoBaseline"},
}


def step(turns: int) -> Evidence:
    """Groups of 8 episodes of 20 turns: plan, solve, criticise, solve, ..., the last one verified; 16 tokens a turn."""
    return read([episode(number) for number in range(turns // LENGTH)])


def read(trajectories: Sequence[Trajectory]) -> Evidence:
    readings: dict[TurnId, Reading] = {}
    for trajectory in trajectories:
        for turn in trajectory.turns:
            said = turn.completion.logprobs
            readings[turn.id] = Reading(said, said)
    return Evidence(trajectories, "bench", readings, rule_based_roles=frozenset({"verifier"}))


def episode(number: int, length: int = LENGTH) -> Trajectory:
    rng, group = random.Random(number), f"g{number // GROUP}"
    trajectory = Trajectory(Deal(f"e{number}", group, 0, SEATS), group)
    agents = ["planner", *["solver", "critic"] * (length // 2 - 1), "verifier"]
    for place, agent in enumerate(agents):
        logprobs = tuple([-rng.random() for _ in range(TOKENS)])
        said = Completion("x", (number // GROUP, place), tuple(range(TOKENS)), logprobs, "stop")
        request = Request("actor", (Message("user", f"{place}"),), Sampling())
        turn = Turn((trajectory.id, place), agent, place // 2, 0, agent, request, said, "x", group)
        trajectory.add(turn, [(trajectory.id, source) for source in range(max(0, place - 3), place)])
        if agent != "verifier":
            trajectory.rewards.append(Reward(agent, rng.random(), turn.id, "step"))
    trajectory.rewards += [Reward(agent, rng.random(), turn.id) for agent in ("solver", "planner", "critic")]
    trajectory.end = "terminated"
    return trajectory


def timed(task: Callable[[], object], repeat: int) -> float:
    """Median seconds of the processor."""
    taken = []
    gc.collect()
    for _ in range(repeat):
        started = time.process_time()
        task()
        taken.append(time.process_time() - started)
    return statistics.median(taken)


def assigning(settings: dict[str, Any], evidence: Evidence, repeat: int) -> dict[str, float]:
    rule = CreditRule.model_validate({"assign": settings})
    assign, baseline = rule.assign.build(), rule.baseline.build()
    earned = assign(evidence)
    alone = timed(lambda: assign(evidence), repeat)
    compared = timed(lambda: baseline(evidence, earned), repeat)
    judge = CreditStage(CreditConfig.model_validate({"assign": settings}))
    whole = timed(lambda: judge(evidence), repeat)
    return {name: round(s, 4) for name, s in (("alone", alone), ("with_group", alone + compared), ("judge", whole))}


def comparing(settings: dict[str, Any], evidence: Evidence) -> Callable[[], object]:
    rule = CreditRule.model_validate({"assign": ASSIGN["outcome"], "baseline": settings})
    assign, baseline = rule.assign.build(), rule.baseline.build()
    named = {
        n: assign(evidence.transform_rewards(lambda t, n=n: t.keep_only_rewards_named(n))) for n in ("step", "outcome")
    }
    told, earned = replace(evidence, earned_by_reward=named), assign(evidence)
    return lambda: baseline(told, earned)


def growing(turns: int, repeat: int) -> dict[str, dict[str, float]]:
    """Microseconds per turn, by how many turns there are."""
    sizes = (turns // 10, turns)
    figures: dict[str, dict[str, float]] = {}
    for size in sizes:
        evidence = step(size)
        tasks = {name: CreditRule.model_validate({"assign": rule}).assign.build() for name, rule in ASSIGN.items()}
        calls: dict[str, Callable[[], object]] = {f"assign {n}": partial(part, evidence) for n, part in tasks.items()}
        calls |= {f"baseline {name}": comparing(settings, evidence) for name, settings in BASELINES.items()}
        gc.disable()
        for name, call in calls.items():
            figures.setdefault(name, {})[str(size)] = round(timed(call, repeat) / size * 1e6, 3)
        gc.enable()
    for row in figures.values():
        row["ratio"] = round(row[str(sizes[1])] / row[str(sizes[0])], 2)
    return figures


def again(task: Callable[[], object], times: int) -> None:
    for _ in range(times):
        task()


def lengthening(repeat: int) -> dict[str, dict[str, float]]:
    """Microseconds per edge, by the number of turns of one episode."""
    figures: dict[str, dict[str, float]] = {}
    for length in LENGTHS:
        whole = episode(0, length)
        evidence, edges = read([whole]), whole.graph.number_of_edges()
        times = max(1, 1000 // length)
        for name in ALONG_EDGES:
            part = CreditRule.model_validate({"assign": ASSIGN[name]}).assign.build()
            taken = timed(partial(again, partial(part, evidence), times), repeat) / times
            figures.setdefault(name, {})[str(length)] = round(taken / edges * 1e6, 3)
    return figures


def every_assign(_: int, repeat: int) -> dict[str, dict[str, float]]:
    evidence = step(1000 * LENGTH)
    return {name: assigning(settings, evidence, repeat) for name, settings in ASSIGN.items()}


def every_baseline(_: int, repeat: int) -> dict[str, float]:
    evidence = step(1000 * LENGTH)
    return {name: round(timed(comparing(rule, evidence), repeat), 4) for name, rule in BASELINES.items()}


PARTS: dict[str, Callable[[int, int], dict[str, Any]]] = {
    "assign": every_assign,
    "baselines": every_baseline,
    "linear": growing,
    "edges": lambda _, repeat: lengthening(repeat),
}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--turns", type=int, default=100_000)
    options.add_argument("--repeat", type=int, default=3)
    options.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    chosen = options.parse_args()
    figures = {part: PARTS[part](chosen.turns, chosen.repeat) for part in chosen.only}
    report(figures, chosen.out, seeds=[0], turns=chosen.turns, repeat=chosen.repeat, tokens_per_turn=TOKENS)


if __name__ == "__main__":
    main()
