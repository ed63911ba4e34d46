"""Which alarms ring, at which step, and the curve that each of them watches.

    python tests/bench/alarms.py made [--seeds 11 12 13] [--only KIND ...] [--out FILE]
    python tests/bench/alarms.py shipped [--seeds 11] [--seconds 8] [--only SCENARIO ...] [--out FILE]

`made`: for each kind of alarm a run with a fault that the alarm is for. `shipped`: the
first steps of every scenario directly in scenarios/, as many as fit into `--seconds` of CPU time after the first step;
evaluations are left out. No setting was tuned on these seeds.

`step` is the first step in which an alarm holds, `steps` the number of such steps. `curve` holds the watched metric
from `BEFORE` steps before that step to `AFTER` steps after it (`return_fell`: the mean over ten steps; `proxy`: the
metric that falls, evaluation by evaluation).
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar, NamedTuple

from _bench import ROOT, parser, report, silent

import marl
from marl.core.types import Advantage, Credit, Metrics, Verdict, VerifierCase
from marl.credit.assign.reward_rules import AgentReturnAssign
from marl.metrics.alarms import is_alarm_metric, watched_metric
from marl.protocols import AssignConfig, Evidence, VerifierConfig
from marl.runs.run_folder import RunFolder
from marl.scenario.alarms import AlarmKind
from marl.scenario.load import ScenarioError
from marl.scenario.schema import Scenario

BEFORE, AFTER = 8, 4
RETURN_STEPS = 10
"""Number of steps over which the alarm `return_fell` takes the mean return."""


class Silent(AssignConfig):
    """Credits no turn: a credit rule with a fault."""

    kind: str = "silent"

    def __call__(self, evidence: Evidence) -> Credit:
        return {}


class WrongSign(AgentReturnAssign):
    """Credits the opposite of what was paid: a credit rule with a fault."""

    kind: str = "wrong_sign"

    def __call__(self, evidence: Evidence) -> Credit:
        credit = super().__call__(evidence)
        return {turn: replace(advantage, value=-advantage.value) for turn, advantage in credit.items()}


class PaysTokens(AssignConfig):
    """Credits each token of a turn with the same amount: a rule that is easily gamed."""

    kind: str = "pays_tokens"
    amount: float

    def __call__(self, evidence: Evidence) -> Credit:
        turns = evidence.turns().items()
        return {turn_id: Advantage(self.amount * len(turn.completion.token_ids)) for turn_id, turn in turns}


class PaysRepetition(AssignConfig):
    """Credits a turn with the number of its tokens plus twice the number of those that equal the one before.

    The rule is easily gamed.
    """

    kind: str = "pays_repetition"

    def __call__(self, evidence: Evidence) -> Credit:
        credit: Credit = {}
        for turn_id, turn in evidence.turns().items():
            tokens = turn.completion.token_ids
            repeated = sum([first == second for first, second in pairwise(tokens)])
            credit[turn_id] = Advantage(float(len(tokens) + 2 * repeated))
        return credit


class Flaky(VerifierConfig):
    """Compares texts, and fails at every 40th call in a process: a check whose code has a fault."""

    kind: str = "flaky"
    calls: ClassVar[Iterator[int]] = count(1)

    def __call__(self, case: VerifierCase) -> Verdict:
        if next(self.calls) % 40 == 0:
            raise RuntimeError("this check has a fault")
        return Verdict(float(case.answer == case.problem.answer))


class Fault(NamedTuple):
    """A run with a fault that some kinds of alarms are for."""

    kinds: tuple[AlarmKind, ...]
    scenario: str
    words: str
    """The fault, in words."""
    overrides: tuple[str, ...]


_SMALL = ("hidden=32", "layers=1", "warm_up.steps=100", "warm_up.lr=1.0e-2")
FAULTS = (
    Fault(
        ("unreadable", "entropy"),
        "nim_self_play",
        "a model that has never seen the format of a move",
        ("policies.actor.model.warm_up=null", "policies.actor.model.vocabulary=bytes", "schedule.steps=8"),
    ),
    Fault(("cut",), "nim_self_play", "max_tokens of 2", ("roles.player.sampling.max_tokens=2", "schedule.steps=8")),
    Fault(
        ("constant",),
        "kuhn_frozen_opponent",
        "a learning rate that rises to 100 times the shipped one within 40 updates",
        ("policies.student.learner.lr=0.2", "policies.student.learner.warm_up=40", "schedule.steps=40"),
    ),
    Fault(
        ("return_fell",),
        "kuhn_frozen_opponent",
        "a credit rule with the wrong sign",
        ("credit.assign={kind: 'alarms:WrongSign'}", "schedule.steps=40"),
    ),
    Fault(
        ("reward",),
        "critic_verdict",
        "the critic is paid 1 whatever it says",
        (
            *("game.rewards.critic.verdict=1", "schedule.steps=8", "schedule.groups=4"),
            *("policies.solver.model.warm_up=null", "policies.critic.model.warm_up=null"),
        ),
    ),
    Fault(
        ("credit", "samples"),
        "nim_self_play",
        "a credit rule that credits no turn",
        ("credit.assign={kind: 'alarms:Silent'}", "schedule.steps=8"),
    ),
    Fault(
        ("faulty",),
        "critic_verdict",
        "a check that fails at every 40th call",
        (
            "policies.checker.engine.checks.correct={kind: 'alarms:Flaky'}",
            *("policies.solver.model.warm_up=null", "policies.critic.model.warm_up=null", "schedule.steps=12"),
        ),
    ),
    Fault(
        ("kl",),
        "nim_self_play",
        "a learning rate 50 times too high, four minibatches, and a strong pull back to the first policy",
        (
            *("policies.actor.learner.lr=0.1", "policies.actor.learner.lr_end=null"),
            *("policies.actor.learner.schedule=constant", "policies.actor.learner.minibatches=4"),
            *("policies.actor.learner.magnet={coefficient: 5.0}", "schedule.steps=12"),
        ),
    ),
    Fault(
        ("proxy",),
        "critic_verdict",
        "the critic is paid for saying yes: its yes rises, its right verdicts fall",
        (
            "game.rewards.critic.verdict=own.readable * own.score",
            "alarms.proxy=[{rises: eval/held_out/says_yes, falls: eval/held_out/verdict}]",
            *("evaluate.every=3", "evaluate.held_out=60", "schedule.groups=8", "schedule.steps=30"),
            *("policies.solver.model.warm_up=null", "policies.critic.model.warm_up.steps=50"),
        ),
    ),
    Fault(
        ("constant",),
        "communication",
        "talk costs four times as much: all choose silence, while the answers of the same role vary",
        (
            "game.cost=2.0",
            "schedule.steps=40",
            "schedule.groups=6",
            *(f"policies.actor.model.{change}" for change in _SMALL),
        ),
    ),
    Fault(
        ("repeated",),
        "dapo",
        "a credit rule that pays for short answers, and a learning rate 5 times too high",
        (
            *("credit.assign={kind: 'alarms:PaysTokens', amount: -1}", "policies.solver.learner.lr=0.005"),
            *("roles.solver.sampling.max_tokens=48", "schedule.groups=4", "schedule.steps=30"),
        ),
    ),
    Fault(
        ("length",),
        "dapo",
        "a credit rule that pays for long answers, and room for them",
        (
            *("credit.assign={kind: 'alarms:PaysTokens', amount: 1}", "roles.solver.sampling.max_tokens=48"),
            # The first steps, to which lengths are compared, must not change the policy much.
            *("policies.solver.learner.lr=0.005", "policies.solver.learner.warm_up=30"),
            *("policies.solver.learner.schedule=constant", "schedule.groups=4", "schedule.steps=60"),
        ),
    ),
    Fault(
        ("distinct",),
        "dapo",
        "a credit rule that pays for repeated tokens, and room for long answers",
        (
            *("credit.assign={kind: 'alarms:PaysRepetition'}", "roles.solver.sampling.max_tokens=48"),
            # As above.
            *("policies.solver.learner.lr=0.005", "policies.solver.learner.warm_up=30"),
            *("policies.solver.learner.schedule=constant", "schedule.groups=4", "schedule.steps=60"),
        ),
    ),
)


class _OutOfTimeError(Exception):
    """Ends a run whose CPU time is used up."""


def rings(rows: Sequence[dict[str, Any]], falls: str = "") -> dict[str, dict[str, Any]]:
    """Return the name of each alarm that rang -> `step`, `steps` and `curve`, in the order of the first steps.

    Args:
        rows: rows of a run's metrics, with `step`.
        falls: metric that an alarm `proxy` watches.
    """
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        for name in row:
            if is_alarm_metric(name) and row[name]:
                entry = found.setdefault(name, {"step": row["step"], "steps": 0})
                entry["steps"] += 1
    for name, entry in found.items():
        scope, _, subject_and_kind = name.rpartition("alarm/")
        subject, kind = subject_and_kind.rsplit("/", 1)
        values = _values(rows, falls if kind == "proxy" else scope + watched_metric(subject, kind))
        if kind == "return_fell":
            values = _ten_step_means(values)
        near = [value for step, value in values if entry["step"] - BEFORE <= step <= entry["step"] + AFTER]
        entry["curve"] = [round(value, 3) for value in near]
    return found


def _values(rows: Sequence[dict[str, Any]], metric: str) -> list[tuple[int, float]]:
    return [(row["step"], row[metric]) for row in rows if metric in row]


def _ten_step_means(values: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Return (step, mean of the values of this step and the nine before it)."""
    ends = range(RETURN_STEPS, len(values) + 1)
    return [(values[end - 1][0], fmean(value for _, value in values[end - RETURN_STEPS : end])) for end in ends]


def rows_of_run(checked: Scenario, seconds: float = math.inf) -> list[dict[str, Any]]:
    """Train until the end, or for `seconds` of CPU time after the first step; return the rows of the steps."""
    started: list[float] = []

    def on_step(step: int, metrics: Metrics) -> None:
        started.append(time.process_time())
        if started[-1] - started[0] > seconds:
            raise _OutOfTimeError

    with tempfile.TemporaryDirectory() as folder:
        with silent(), suppress(_OutOfTimeError):
            marl.train(checked, Path(folder), on_step=on_step)
        return [row for row in RunFolder(Path(folder)).rows() if row["step"]]


def made(fault: Fault, seed: int) -> dict[str, Any]:
    """Make the run of a fault; return its alarms."""
    changes = [f"schedule.seed={seed}", "checkpoint.trajectories=0", *fault.overrides]
    if "proxy" not in fault.kinds:
        changes.append("evaluate={}")
    checked = marl.load(ROOT / "scenarios" / f"{fault.scenario}.yaml", changes)
    pairs = checked.alarms.proxy if checked.alarms else ()
    found = rings(rows_of_run(checked), pairs[0].falls if pairs else "")
    steps = checked.schedule.steps
    return {
        "kinds": fault.kinds,
        "scenario": fault.scenario,
        "fault": fault.words,
        "seed": seed,
        "steps": steps,
        "rang": found,
    }


def shipped(name: str, seed: int, seconds: float) -> dict[str, Any]:
    """Run the first steps of a scenario; return how many, and the alarms that rang."""
    file = ROOT / "scenarios" / f"{name}.yaml"
    try:
        checked = marl.load(file, [f"schedule.seed={seed}", "checkpoint.trajectories=0", "evaluate={}"])
    except (ScenarioError, ImportError) as error:
        return {"scenario": name, "seed": seed, "not_run": str(error).splitlines()[-1]}
    started = time.process_time()
    rows = rows_of_run(checked, seconds)
    figures = {"steps": rows[-1]["step"] if rows else 0, "of": checked.schedule.steps}
    figures["cpu_seconds"] = round(time.process_time() - started, 1)
    return {"scenario": name, "seed": seed, **figures, "rang": rings(rows)}


def main() -> None:
    line = parser(__doc__)
    line.add_argument("what", choices=["made", "shipped"])
    line.add_argument("--seeds", type=int, nargs="+")
    line.add_argument("--seconds", type=float, default=8.0)
    line.add_argument("--only", nargs="+", help="kinds of alarms, or names of scenarios")
    given = line.parse_args()
    if given.what == "made":
        seeds = given.seeds or [11, 12, 13]
        faults = [fault for fault in FAULTS if not given.only or {*given.only} & {*fault.kinds}]
        runs: list[dict[str, Any]] = []
        for fault in faults:
            runs += [made(fault, seed) for seed in seeds]
            # Written after each fault, so that an interrupted measurement keeps the faults before.
            report({"runs": runs}, given.out, seeds=seeds)
        return
    seeds = given.seeds or [11]
    names = given.only or sorted(file.stem for file in (ROOT / "scenarios").glob("*.yaml"))
    listed: list[dict[str, Any]] = []
    for name in names:
        listed += [shipped(name, seed, given.seconds) for seed in seeds]
        # Written after each scenario, so that an interrupted measurement keeps the scenarios before.
        report({"runs": listed}, given.out, seeds=seeds, seconds=given.seconds)


if __name__ == "__main__":
    main()
