"""Comparison of turns with their peers in the same step: the working part of most baselines."""

from __future__ import annotations

import math
import sys
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from statistics import fmean, pstdev, stdev
from typing import TYPE_CHECKING, ClassVar, Literal

from marl.protocols import BaselineConfig, Evidence, Likeness, Peers
from marl.types import Advantage, Credit, Metrics, Turn, TurnId

if TYPE_CHECKING:
    from marl.graph import Trajectory

ROUNDING = 1e-12
"""Relative difference below which numbers are equal."""


@dataclass(frozen=True, slots=True)
class PeerUnit:
    """Turns that are compared as one, such as an agent's turns in one episode."""

    worth: float
    """Mean of what its turns earned."""
    turns: Mapping[TurnId, Turn]
    """Each once, also if several forks hold it."""


PeerUnits = Sequence[PeerUnit]
"""Units that are compared with one another."""
Key = Callable[["Trajectory", Turn], Hashable]
Centre = Callable[[PeerUnits], Mapping[TurnId, float]]
"""Group -> number to subtract from each turn; turns without one have nothing to be compared with."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Result of comparing the turns of a step with their peers."""

    credit: Credit
    idle: Set[TurnId]
    """Turns with exactly 0, because they have no peers or because their peers all earned the same."""
    metrics: Metrics
    """`credit/groups`, and the share of groups whose units all earned the same, `credit/degenerate_groups`."""


@dataclass(frozen=True, slots=True)
class PeerBaseline:
    """Comparison with peers: advantage = (earned - centre) * scale.

    A turn's token numbers are treated likewise, its value targets stay. Peers that all earned the same, and turns
    without peers, get exactly 0. A group that holds a number that is not finite stays as it is, for the learner to
    refuse and to name. Seats that answer by rule are not judged.
    """

    like: Likeness | None
    """Property that peers are declared to share."""
    key: Key
    """Turns with equal keys are peers."""
    unit: Key
    """Peers with equal units count once."""
    centre: Centre
    scale: bool | Literal["batch", "population"] = False
    """Divide by std + epsilon with ddof 1, of the group (True) or of all units of the step (`batch`), or by
    max(std, epsilon) of the group with ddof 0 (`population`)."""
    epsilon: float = 0.0
    equal: Literal["units", "turns"] = "units"
    """A whole group gets 0 if all its units, or all its turns, earned the same."""

    def groups(self, evidence: Evidence, earned: Credit) -> list[PeerUnits]:
        """Return all judged turns of the step, by what they are compared with."""
        groups: dict[Hashable, dict[Hashable, dict[TurnId, Turn]]] = defaultdict(lambda: defaultdict(dict))
        for trajectory, turn in judged_turns(evidence, earned):
            groups[self.key(trajectory, turn)][self.unit(trajectory, turn)][turn.id] = turn
        return [[PeerUnit(mean_earned(turns, earned), turns) for turns in units.values()] for units in groups.values()]

    def compare(self, evidence: Evidence, earned: Credit) -> Comparison:
        """Return the advantage of every judged turn."""
        groups = self.groups(evidence, earned)
        step_std = _std([unit.worth for group in groups for unit in group]) if self.scale == "batch" else 0.0
        credit: Credit = {}
        idle: set[TurnId] = set()
        degenerate = 0
        for group in groups:
            worths, turns = [unit.worth for unit in group], turns_of(group)
            if not all(map(math.isfinite, worths)):
                centres, scale = dict.fromkeys(turns, 0.0), 1.0
            elif len(group) < 2 or all_equal(worths if self.equal == "units" else [earned[t].value for t in turns]):
                centres, scale, degenerate = {}, 0.0, degenerate + 1
            else:
                centres, scale = self.centre(group), self._scale(worths, step_std)
            credit.update((turn, shift(earned[turn], centres.get(turn), scale)) for turn in turns)
            idle.update(turn for turn in turns if turn not in centres)
        return Comparison(credit, idle, group_metrics(len(groups), degenerate))

    def peers(self, evidence: Evidence, earned: Credit) -> Peers:
        """Return the turns that are compared with one another."""
        return Peers(self.like, [turns_of(group) for group in self.groups(evidence, earned)])

    def _scale(self, worths: Sequence[float], step_std: float) -> float:
        if self.scale == "population":
            return 1 / max(pstdev(worths), self.epsilon)
        return 1 / ((step_std or stdev(worths)) + self.epsilon) if self.scale else 1.0


def _std(worths: Sequence[float]) -> float:
    return stdev(worths) if len(worths) > 1 and all(map(math.isfinite, worths)) else 0.0


def group_metrics(groups: int, degenerate: int) -> Metrics:
    """Return how many groups there are, and the share of those in which nothing differs."""
    return {"credit/groups": float(groups), "credit/degenerate_groups": degenerate / max(groups, 1)}


class PeerSettings(BaselineConfig):
    """Base of the settings of baselines that compare turns with their peers in the same step.

    Where an agent's turns earn different amounts (`outcome` with `to_go`, `flow`, ...), an episode's mean depends on
    how many turns it has, so that comparing whole episodes pays for going on or for stopping. Then compare turns with
    the same prompt (`group` with `like: prompt`, `agent_turn_group`, `joint` with `per: round`), or use `rloo`.
    """

    compares: ClassVar[bool] = True

    @abstractmethod
    def peer_baseline(self, evidence: Evidence, earned: Credit) -> PeerBaseline:
        """Return the comparison that these settings describe."""

    def __call__(self, evidence: Evidence, earned: Credit) -> tuple[Credit, Metrics]:
        """Return the advantage of every turn that `earned` holds, and metrics.

        Raises:
            ValueError: if problems are compared and a turn works on none.
        """
        comparison = self.compare(evidence, earned)
        return comparison.credit, comparison.metrics

    def compare(self, evidence: Evidence, earned: Credit) -> Comparison:
        """Return the same, with the turns that had nothing to be compared with."""
        return self.peer_baseline(evidence, earned).compare(evidence, earned)

    def peers(self, evidence: Evidence, earned: Credit) -> Peers:
        return self.peer_baseline(evidence, earned).peers(evidence, earned)


def prompt_of(turn: Turn) -> Hashable:
    """Return the prompt's token ids, or its messages where there are no tokens."""
    return turn.completion.prompt_ids or turn.request.messages


def problem_of(turn: Turn) -> str:
    """Return the problem that a turn works on.

    Raises:
        ValueError: if it works on none.
    """
    if not turn.problem:
        raise ValueError(
            f"credit.baseline.like: 'problem', but role {turn.role!r} works on none: its game gives no `problem` in "
            f"`infos` (turn {turn.id}); choices: start, prompt"
        )
    return turn.problem


ALIKE: Mapping[Likeness, tuple[Likeness, Key, Key]] = {
    "start": ("start", lambda episode, turn: (episode.start, turn.agent, turn.role), lambda episode, _: episode.id),
    "prompt": ("prompt", lambda _, turn: (prompt_of(turn), turn.role), lambda _, turn: turn.id),
    "problem": (
        "problem",
        lambda _, turn: (problem_of(turn), turn.role),
        lambda episode, turn: (episode.id, turn.agent),
    ),
}
"""Property that peers share -> `like`, `key` and `unit` of a `PeerBaseline`."""


def mean_of_all(group: PeerUnits) -> dict[TurnId, float]:
    """Return the mean of all units' worths, for each turn."""
    return dict.fromkeys(turns_of(group), fmean(unit.worth for unit in group))


def mean_of_others(group: PeerUnits) -> dict[TurnId, float]:
    """Return the mean of the units that do not hold a turn; nothing for a turn that all units hold."""
    total = math.fsum(unit.worth for unit in group)
    holding: dict[TurnId, list[float]] = defaultdict(list)
    for unit in group:
        for turn in unit.turns:
            holding[turn].append(unit.worth)
    left = {turn: len(group) - len(worths) for turn, worths in holding.items()}
    return {turn: (total - math.fsum(worths)) / left[turn] for turn, worths in holding.items() if left[turn]}


def mean_by_length(group: PeerUnits) -> dict[TurnId, float]:
    """Return the mean of the units' worths, weighed by their completion tokens; nothing if there are no tokens."""
    lengths = [sum([len(turn.completion.token_ids) for turn in unit.turns.values()]) for unit in group]
    return dict.fromkeys(turns_of(group), fmean([unit.worth for unit in group], lengths)) if any(lengths) else {}


def best_of_all(group: PeerUnits) -> dict[TurnId, float]:
    """Return the highest worth, for each turn."""
    return dict.fromkeys(turns_of(group), max(unit.worth for unit in group))


def judged_turns(evidence: Evidence, earned: Credit) -> Iterator[tuple[Trajectory, Turn]]:
    """Yield every turn that `earned` holds, in playing order, but for roles that answer by rule."""
    for trajectory in evidence.trajectories:
        for turn in trajectory.turns:
            if turn.id in earned and turn.role not in evidence.rules:
                yield trajectory, turn


def turns_of(group: PeerUnits) -> list[TurnId]:
    """Return the turns of all units, each once."""
    return list(dict.fromkeys([turn for unit in group for turn in unit.turns]))


def mean_earned(turns: Iterable[TurnId], earned: Credit) -> float:
    """Return the mean of what these turns earned."""
    return exact_mean([earned[turn].value for turn in turns])


def shift(earned: Advantage, centre: float | None, scale: float) -> Advantage:
    """Return (x - centre) * scale of the turn's number and its tokens' numbers, or exactly 0 if `centre` is None.

    If `earned` is a shifted number itself, `baseline` and `scale` of the result are those of both shifts together.
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
    """Return True if numbers differ by rounding at most, as returns do by the order in which rewards were added."""
    most, least = max(numbers), min(numbers)
    return most - least <= max(ROUNDING * max(abs(most), abs(least)), sys.float_info.min)


def exact_mean(numbers: Sequence[float]) -> float:
    """Return the mean; of equal numbers exactly that number."""
    return numbers[0] if len(set(numbers)) == 1 else fmean(numbers)
