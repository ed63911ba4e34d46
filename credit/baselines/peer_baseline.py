"""Comparison of turns with their peers in the same step, as most baselines make it."""

from __future__ import annotations

import math
import sys
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from itertools import chain
from statistics import fmean, pstdev, stdev
from typing import ClassVar, Literal, NamedTuple

from marl.core.graph import Trajectory
from marl.core.types import Advantage, Credit, Metrics, Turn, TurnId, hashable_prompt
from marl.protocols import BaselineConfig, Evidence, PeerGroups, SharedProperty

# Metrics of this module (name | unit | meaning), which `tests/bench/figures.py` copies into marl/README.md.
METRICS = """
credit/groups | groups | groups of peers that were compared
credit/degenerate_groups | share of groups | groups in which nothing differs, so that all advantages are 0
"""

ROUNDING = 1e-12
"""Relative difference below which numbers are equal."""


class ComparisonUnit(NamedTuple):
    """Turns that are compared as one number, such as an agent's turns in one episode."""

    mean_earned: float
    """Mean credit of the unit's turns: the number that is compared."""
    turns: Sequence[TurnId]
    """Turns of the unit; a turn that several forks share is listed once."""
    tokens: int
    """Number of completion tokens of the unit's turns."""


ComparisonUnits = Sequence[ComparisonUnit]
"""Group of units that are compared with one another."""
Key = Callable[[Trajectory, Turn], Hashable]
"""Function from an episode and one of its turns to a key: turns with equal keys belong together."""
BaselineFn = Callable[[ComparisonUnits], float | Mapping[TurnId, float]]
"""Function from a group to the number to subtract: one for all turns, or turn -> number; a turn without a number has no
peers."""


@dataclass(frozen=True, slots=True)
class PeerComparison:
    """Result of comparing the turns of a step with their peers."""

    credit: Credit
    """Advantages of the compared turns."""
    zeroed: Set[TurnId]
    """Turns whose advantage is exactly 0, because they have no peers or all units of their group earned the same."""
    metrics: Metrics
    """`credit/groups`, and `credit/degenerate_groups`, the share of groups whose units all earned the same."""


@dataclass(frozen=True, slots=True)
class PeerFormula:
    """Formula of a baseline: advantage = (earned - centre) * scale.

    The same formula applies to the credit of a turn's tokens. Value targets stay unchanged. Turns without peers, and
    turns in groups whose units all earned the same, get exactly 0.
    """

    centre: BaselineFn
    """Computes the number to subtract from each turn of a group."""
    scale: bool | Literal["batch", "population"] = False
    """Divisor of the differences. True: std + epsilon of the group, ddof 1; `batch`: std + epsilon of all units of the
    step; `population`: max(std, epsilon) of the group, ddof 0; False: no division."""
    epsilon: float = 0.0
    """Number that keeps the divisor above 0, added to std or used as the minimum of std."""
    equal: Literal["units", "turns"] = "units"
    """Condition for advantages of 0 in a group: all its units earned the same, or all its turns earned the same."""

    def compare_with_peers(self, groups: Sequence[ComparisonUnits], earned: Credit) -> PeerComparison:
        """Return the advantages of all turns in `groups`, computed from their credit `earned`."""
        step_std = 0.0
        if self.scale == "batch":
            numbers = list(chain.from_iterable(map(mean_credit_per_unit, groups)))
            step_std = stdev(numbers) if len(numbers) > 1 and all(map(math.isfinite, numbers)) else 0.0
        credit: Credit = {}
        zeroed: set[TurnId] = set()
        degenerate = 0
        for group in groups:
            numbers, turns = mean_credit_per_unit(group), turns_in_group(group)
            compared = numbers if self.equal == "units" else [earned[turn].value for turn in turns]
            centre: float | Mapping[TurnId, float] | None = None
            scale = 1.0
            if not all(map(math.isfinite, numbers)):
                # A group with infinite or NaN returns is left unchanged: the learner refuses and names such turns.
                centre = 0.0
            elif len(group) < 2 or are_equal_up_to_rounding(compared):
                degenerate += 1
            else:
                centre = self.centre(group)
                if self.scale == "population":
                    scale = 1 / max(pstdev(numbers), self.epsilon)
                elif self.scale:
                    scale = 1 / ((step_std or stdev(numbers)) + self.epsilon)
            if isinstance(centre, Mapping):
                for turn in turns:
                    credit[turn] = subtract_and_scale(earned[turn], centre.get(turn), scale)
                zeroed.update([turn for turn in turns if turn not in centre])
            else:
                for turn in turns:
                    credit[turn] = subtract_and_scale(earned[turn], centre, scale)
                if centre is None:
                    zeroed.update(turns)
        return PeerComparison(credit, zeroed, group_count_metrics(len(groups), degenerate))


def group_count_metrics(group_count: int, degenerate_count: int) -> Metrics:
    """Return the number of groups, and the share of degenerate groups, whose units all earned the same, as metrics."""
    return {"credit/groups": float(group_count), "credit/degenerate_groups": degenerate_count / max(group_count, 1)}


@dataclass(frozen=True, slots=True, eq=False)
class PeerGrouping:
    """Definition of the groups of a step, and of the units that are compared within a group.

    Definitions are compared by identity, because a plug-in's keys may be objects without a hash.
    """

    shared_property: SharedProperty | None
    """Property that peers are expected to share, such as the prompt. The metric `purity` checks this."""
    group: Key
    """Turns with equal keys are in one group."""
    unit: Key
    """Turns of a group with equal keys form one unit."""

    def groups(self, evidence: Evidence, earned: Credit) -> list[ComparisonUnits]:
        """Return the groups of a step, each a list of units, made from all turns in `earned` but rule-based roles'."""
        groups: list[ComparisonUnits] = []
        for units in self._turn_lengths_by_group_and_unit(evidence, earned):
            group: list[ComparisonUnit] = []
            for unit in units:
                turns = tuple(unit)
                group.append(ComparisonUnit(mean_credit(turns, earned), turns, sum(unit.values())))
            groups.append(group)
        evidence.compared_groups[self] = earned, list(map(turns_in_group, groups))
        return groups

    def compared_turn_groups(self, evidence: Evidence, earned: Credit) -> PeerGroups:
        """Return the groups of turns that are compared with one another, and the property that they share."""
        compared, groups = evidence.compared_groups.get(self, ({}, []))
        if compared is not earned:  # the baseline has not compared this credit
            groups = [
                list(dict.fromkeys(chain.from_iterable(units)))
                for units in self._turn_lengths_by_group_and_unit(evidence, earned)
            ]
        return PeerGroups(self.shared_property, groups)

    def _turn_lengths_by_group_and_unit(
        self, evidence: Evidence, earned: Credit
    ) -> list[Collection[dict[TurnId, int]]]:
        """Return the credited turns by group and, in a group, by unit: turn id -> number of completion tokens."""
        groups: dict[Hashable, dict[Hashable, dict[TurnId, int]]] = defaultdict(partial(defaultdict, dict))
        group_key, unit_key = self.group, self.unit
        for trajectory, turn in credited_turns_with_episodes(evidence, earned):
            unit = groups[group_key(trajectory, turn)][unit_key(trajectory, turn)]
            unit[turn.id] = len(turn.completion.token_ids)
        return [units.values() for units in groups.values()]


class PeerBaselineConfig(BaselineConfig):
    """Base of the settings of baselines that compare turns with their peers in the same step.

    If an agent's turns earn different amounts (`outcome` with `to_go`, `flow`, ...), an episode's mean depends on its
    number of turns, so a comparison of full episodes rewards longer or shorter episodes. Then compare turns with the
    same prompt (`group` with `like: prompt`, `agent_turn_group`, `joint` with `per: round`), or use `rloo`.
    """

    needs_groups: ClassVar[bool] = True

    @property
    @abstractmethod
    def peer_formula(self) -> PeerFormula:
        """Return the formula by which turns are compared with their peers."""

    @abstractmethod
    def peer_group_keys_and_units(self, evidence: Evidence, earned: Credit) -> PeerGrouping:
        """Return the keys that define the step's groups, and the units that are compared within a group."""

    def __call__(self, evidence: Evidence, earned: Credit) -> tuple[Credit, Metrics]:
        """Return the advantage of every turn in `earned`, and metrics of the groups.

        Raises:
            ValueError: if problems are compared and a turn has no problem.
        """
        comparison = self.peer_formula.compare_with_peers(
            self.peer_group_keys_and_units(evidence, earned).groups(evidence, earned), earned
        )
        return comparison.credit, comparison.metrics

    def compared_turn_groups(self, evidence: Evidence, earned: Credit) -> PeerGroups:
        return self.peer_group_keys_and_units(evidence, earned).compared_turn_groups(evidence, earned)


def problem_key_of(turn: Turn) -> str:
    """Return the problem of a turn.

    Raises:
        ValueError: if the turn has no problem.
    """
    if not turn.problem:
        raise ValueError(
            f"credit.baseline.like: 'problem', but role {turn.role!r} works on none: its game gives no `problem` in "
            f"`infos` (turn {turn.id}); choices: start, prompt"
        )
    return turn.problem


PEER_GROUPINGS: Mapping[SharedProperty, PeerGrouping] = {
    "start": PeerGrouping(
        "start", lambda episode, turn: (episode.start, turn.agent, turn.role), lambda episode, _: episode.id
    ),
    "prompt": PeerGrouping("prompt", lambda _, turn: (hashable_prompt(turn), turn.role), lambda _, turn: turn.id),
    "problem": PeerGrouping(
        "problem", lambda _, turn: (problem_key_of(turn), turn.role), lambda episode, turn: (episode.id, turn.agent)
    ),
}
"""Property that peers share -> keys of the groups, and of the units that are compared within a group."""


def group_mean(group: ComparisonUnits) -> float:
    """Return the mean credit of all units of the group, which is the number to subtract."""
    return fmean(mean_credit_per_unit(group))


def leave_one_out_mean(group: ComparisonUnits) -> dict[TurnId, float]:
    """Return turn -> mean credit of the units without the turn. A turn that is in all units gets no number."""
    total = math.fsum(mean_credit_per_unit(group))
    with_turn: dict[TurnId, list[float]] = defaultdict(list)
    for unit in group:
        for turn in unit.turns:
            with_turn[turn].append(unit.mean_earned)
    means: dict[TurnId, float] = {}
    for turn, numbers in with_turn.items():
        if len(numbers) < len(group):
            means[turn] = (total - math.fsum(numbers)) / (len(group) - len(numbers))
    return means


def length_weighted_mean(group: ComparisonUnits) -> float | dict[TurnId, float]:
    """Return the mean credit of all units, weighted by their completion tokens; {} if no unit has tokens."""
    lengths = [unit.tokens for unit in group]
    return fmean(mean_credit_per_unit(group), lengths) if any(lengths) else {}


def group_max(group: ComparisonUnits) -> float:
    """Return the largest mean credit of a unit of the group."""
    return max(mean_credit_per_unit(group))


def credited_turns_with_episodes(evidence: Evidence, earned: Credit) -> Iterator[tuple[Trajectory, Turn]]:
    """Yield every turn in `earned` with its episode, in playing order, except turns of rule-based roles."""
    rule_based_roles = evidence.rule_based_roles
    for trajectory in evidence.trajectories:
        for turn in trajectory.turns:
            if turn.id in earned and turn.role not in rule_based_roles:
                yield trajectory, turn


def mean_credit_per_unit(group: ComparisonUnits) -> list[float]:
    """Return the mean credit of each unit of the group."""
    return [unit.mean_earned for unit in group]


def turns_in_group(group: ComparisonUnits) -> list[TurnId]:
    """Return the turns of all units of the group, each turn once."""
    return list(dict.fromkeys([turn for unit in group for turn in unit.turns]))


def mean_credit(turns: Sequence[TurnId], earned: Credit) -> float:
    """Return the mean credit of `turns`."""
    # Many units are a single turn.
    return earned[turns[0]].value if len(turns) == 1 else mean_exact_if_equal([earned[turn].value for turn in turns])


def subtract_and_scale(earned: Advantage, centre: float | None, scale: float) -> Advantage:
    """Return (x - centre) * scale for the credit x of a turn and of its tokens, or exactly 0 if `centre` is None.

    If a baseline was already subtracted from `earned`, `baseline` and `scale` of the result combine both steps.
    """
    if centre is None:
        baseline = earned.value if earned.baseline is None else earned.baseline
        return Advantage(0.0, (0.0,) * len(earned.tokens), earned.returns, baseline, 0.0)
    tokens = tuple([(token - centre) * scale for token in earned.tokens]) if earned.tokens else ()
    value, baseline = (earned.value - centre) * scale, centre
    if earned.baseline is not None and earned.scale:
        baseline, scale = earned.baseline + centre / earned.scale, earned.scale * scale
    # This line runs once per turn, and the constructor is several times as fast as `dataclasses.replace`.
    return Advantage(value, tokens, earned.returns, baseline, scale)


def are_equal_up_to_rounding(numbers: Sequence[float]) -> bool:
    """Return True if `numbers` differ by rounding at most, as equal returns that were summed in different orders."""
    largest, smallest = max(numbers), min(numbers)
    return largest - smallest <= max(ROUNDING * max(abs(largest), abs(smallest)), sys.float_info.min)


def mean_exact_if_equal(numbers: Sequence[float]) -> float:
    """Return the mean of `numbers`; the mean of equal numbers is exactly that number, without rounding."""
    return numbers[0] if numbers.count(numbers[0]) == len(numbers) else fmean(numbers)
