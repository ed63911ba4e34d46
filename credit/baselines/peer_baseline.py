"""Comparison of turns with their peers in the same step, as most baselines make it."""

from __future__ import annotations

import math
import sys
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from statistics import fmean, pstdev, stdev
from typing import ClassVar, Literal

from marl.core.graph import Trajectory
from marl.core.types import Advantage, Credit, Metrics, Turn, TurnId
from marl.protocols import BaselineConfig, Evidence, Peers, SharedProperty

ROUNDING = 1e-12
"""Relative difference below which numbers are equal."""


@dataclass(frozen=True, slots=True)
class PeerUnit:
    """Turns that are compared as one number, such as an agent's turns in one episode."""

    mean_earned: float
    """Mean credit of its turns."""
    turns: Sequence[TurnId]
    """Distinct turns, also if several forks share a turn."""
    tokens: int
    """Number of completion tokens of these turns."""


PeerUnits = Sequence[PeerUnit]
"""Units that are compared with one another."""
Key = Callable[[Trajectory, Turn], Hashable]
BaselineFn = Callable[[PeerUnits], Mapping[TurnId, float]]
"""Group -> number to subtract from each turn; a turn without a number has no peers."""


@dataclass(frozen=True, slots=True)
class PeerComparison:
    """Result of comparing the turns of a step with their peers."""

    credit: Credit
    zeroed: Set[TurnId]
    """Turns with exactly 0, because they have no peers or because all units of their group earned the same."""
    metrics: Metrics
    """`credit/groups`, and `credit/degenerate_groups`, the share of groups whose units all earned the same."""


@dataclass(frozen=True, slots=True)
class PeerFormula:
    """Formula of the comparison: advantage = (earned - centre) * scale.

    The credit of a turn's tokens is treated likewise; its value targets stay. Units that all earned the same, and turns
    without peers, get exactly 0.
    """

    centre: BaselineFn
    scale: bool | Literal["batch", "population"] = False
    """Divide by std + epsilon with ddof 1, of the group (True) or of all units of the step (`batch`), or by
    max(std, epsilon) of the group with ddof 0 (`population`)."""
    epsilon: float = 0.0
    equal: Literal["units", "turns"] = "units"
    """A group gets 0 if all its units, or all its turns, earned the same."""

    def compare(self, groups: Sequence[PeerUnits], earned: Credit) -> PeerComparison:
        """Return the advantages of all turns in `groups`."""
        step_std = 0.0
        if self.scale == "batch":
            numbers = [unit.mean_earned for group in groups for unit in group]
            step_std = stdev(numbers) if len(numbers) > 1 and all(map(math.isfinite, numbers)) else 0.0
        credit: Credit = {}
        zeroed: set[TurnId] = set()
        degenerate = 0
        for group in groups:
            numbers, turns = [unit.mean_earned for unit in group], turns_of(group)
            compared = numbers if self.equal == "units" else [earned[turn].value for turn in turns]
            centres: Mapping[TurnId, float] = {}
            scale = 1.0
            if not all(map(math.isfinite, numbers)):
                # Such a group passes unchanged: the learner refuses numbers that are not finite and names their turns.
                centres = dict.fromkeys(turns, 0.0)
            elif len(group) < 2 or all_equal(compared):
                degenerate += 1
            else:
                centres = self.centre(group)
                if self.scale == "population":
                    scale = 1 / max(pstdev(numbers), self.epsilon)
                elif self.scale:
                    scale = 1 / ((step_std or stdev(numbers)) + self.epsilon)
            for turn in turns:
                credit[turn] = subtract_and_scale(earned[turn], centres.get(turn), scale)
            zeroed.update(turn for turn in turns if turn not in centres)
        return PeerComparison(credit, zeroed, group_metrics(len(groups), degenerate))


def group_metrics(groups: int, degenerate: int) -> Metrics:
    """Return the number of groups, and the share of `degenerate` ones: all their units earned the same."""
    return {"credit/groups": float(groups), "credit/degenerate_groups": degenerate / max(groups, 1)}


@dataclass(frozen=True, slots=True)
class PeerKeys:
    """Definition of the groups of a step, and of the units that are compared within a group."""

    shared_property: SharedProperty | None
    """Property that peers are declared to share."""
    group: Key
    """Turns with equal keys are in one group."""
    unit: Key
    """Turns of a group with equal keys form one unit."""

    def groups(self, evidence: Evidence, earned: Credit) -> list[PeerUnits]:
        """Return the groups of all credited turns of a step. Turns of roles that answer by rule are in none."""
        turns: dict[Hashable, dict[Hashable, dict[TurnId, Turn]]] = defaultdict(lambda: defaultdict(dict))
        for trajectory, turn in credited_turns(evidence, earned):
            turns[self.group(trajectory, turn)][self.unit(trajectory, turn)][turn.id] = turn
        groups: list[PeerUnits] = []
        for units in turns.values():
            group = []
            for unit in units.values():
                tokens = sum([len(turn.completion.token_ids) for turn in unit.values()])
                group.append(PeerUnit(mean_earned(unit, earned), tuple(unit), tokens))
            groups.append(group)
        return groups

    def peers(self, evidence: Evidence, earned: Credit) -> Peers:
        """Return the groups of turns compared with one another."""
        return Peers(self.shared_property, [turns_of(group) for group in self.groups(evidence, earned)])


class PeerBaselineConfig(BaselineConfig):
    """Base of the settings of baselines that compare turns with their peers in the same step.

    Where an agent's turns earn different amounts (`outcome` with `to_go`, `flow`, ...), an episode's mean depends on
    its number of turns, so that comparing full episodes rewards longer or shorter episodes. Then compare turns with
    the same prompt (`group` with `like: prompt`, `agent_turn_group`, `joint` with `per: round`), or use `rloo`.
    """

    needs_groups: ClassVar[bool] = True

    @property
    @abstractmethod
    def formula(self) -> PeerFormula:
        """Return the formula of the comparison."""

    @abstractmethod
    def peer_keys(self, evidence: Evidence, earned: Credit) -> PeerKeys:
        """Return the definition of groups and units in this step."""

    def __call__(self, evidence: Evidence, earned: Credit) -> tuple[Credit, Metrics]:
        """Return the advantage of every turn in `earned`, and metrics.

        Raises:
            ValueError: if problems are compared and a turn has no problem.
        """
        comparison = self.formula.compare(self.peer_keys(evidence, earned).groups(evidence, earned), earned)
        return comparison.credit, comparison.metrics

    def peers(self, evidence: Evidence, earned: Credit) -> Peers:
        return self.peer_keys(evidence, earned).peers(evidence, earned)


def prompt_key(turn: Turn) -> Hashable:
    """Return the prompt's token ids, or its messages where there are no tokens."""
    return turn.completion.prompt_ids or turn.request.messages


def problem_of(turn: Turn) -> str:
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


PEER_KEYS: Mapping[SharedProperty, PeerKeys] = {
    "start": PeerKeys(
        "start", lambda episode, turn: (episode.start, turn.agent, turn.role), lambda episode, _: episode.id
    ),
    "prompt": PeerKeys("prompt", lambda _, turn: (prompt_key(turn), turn.role), lambda _, turn: turn.id),
    "problem": PeerKeys(
        "problem", lambda _, turn: (problem_of(turn), turn.role), lambda episode, turn: (episode.id, turn.agent)
    ),
}
"""Property that peers share -> the groups and units that it defines."""


def group_mean(group: PeerUnits) -> dict[TurnId, float]:
    """Return the mean over all units, for each turn."""
    return dict.fromkeys(turns_of(group), fmean(unit.mean_earned for unit in group))


def leave_one_out_mean(group: PeerUnits) -> dict[TurnId, float]:
    """Return, for each turn, the mean of the units without it; a turn that all units share gets no number."""
    total = math.fsum(unit.mean_earned for unit in group)
    with_turn: dict[TurnId, list[float]] = defaultdict(list)
    for unit in group:
        for turn in unit.turns:
            with_turn[turn].append(unit.mean_earned)
    means: dict[TurnId, float] = {}
    for turn, numbers in with_turn.items():
        if len(numbers) < len(group):
            means[turn] = (total - math.fsum(numbers)) / (len(group) - len(numbers))
    return means


def length_weighted_mean(group: PeerUnits) -> dict[TurnId, float]:
    """Return the mean of the units, weighted by their completion tokens; no numbers if there are no tokens."""
    lengths = [unit.tokens for unit in group]
    if not any(lengths):
        return {}
    return dict.fromkeys(turns_of(group), fmean([unit.mean_earned for unit in group], lengths))


def group_max(group: PeerUnits) -> dict[TurnId, float]:
    """Return the largest credit of a unit, for each turn."""
    return dict.fromkeys(turns_of(group), max(unit.mean_earned for unit in group))


def credited_turns(evidence: Evidence, earned: Credit) -> Iterator[tuple[Trajectory, Turn]]:
    """Yield every turn in `earned`, in playing order, except turns of roles that answer by rule."""
    for trajectory in evidence.trajectories:
        for turn in trajectory.turns:
            if turn.id in earned and turn.role not in evidence.rule_based_roles:
                yield trajectory, turn


def turns_of(group: PeerUnits) -> list[TurnId]:
    """Return the distinct turns of all units."""
    return list(dict.fromkeys([turn for unit in group for turn in unit.turns]))


def mean_earned(turns: Iterable[TurnId], earned: Credit) -> float:
    """Return the mean credit of `turns`."""
    return exact_mean([earned[turn].value for turn in turns])


def subtract_and_scale(earned: Advantage, centre: float | None, scale: float) -> Advantage:
    """Return (x - centre) * scale of the turn's number and its tokens' numbers, or exactly 0 if `centre` is None.

    If a baseline was already subtracted from `earned`, `baseline` and `scale` of the result combine both steps.
    """
    if centre is None:
        baseline = earned.value if earned.baseline is None else earned.baseline
        return Advantage(0.0, (0.0,) * len(earned.tokens), earned.returns, baseline, 0.0)
    tokens = tuple([(token - centre) * scale for token in earned.tokens]) if earned.tokens else ()
    value, baseline = (earned.value - centre) * scale, centre
    if earned.baseline is not None and earned.scale:
        baseline, scale = earned.baseline + centre / earned.scale, earned.scale * scale
    # Several times as fast as dataclasses.replace, and called once a turn.
    return Advantage(value, tokens, earned.returns, baseline, scale)


def all_equal(numbers: Sequence[float]) -> bool:
    """Return True if numbers differ by rounding at most: equal returns may be summed in different orders."""
    largest, smallest = max(numbers), min(numbers)
    return largest - smallest <= max(ROUNDING * max(abs(largest), abs(smallest)), sys.float_info.min)


def exact_mean(numbers: Sequence[float]) -> float:
    """Return the mean; the mean of equal numbers is exactly that number, without rounding."""
    return numbers[0] if len(set(numbers)) == 1 else fmean(numbers)
