"""How sound the credit of a step is, role by role: pure functions of what a rule was shown and what it gave.

Linear in turns; nothing is played.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from marl.graph import Trajectory
from marl.judging.purity import prompt, purity
from marl.protocols import Evidence, Peers
from marl.types import Credit, Metrics, Turn, TurnId

Pot = tuple[frozenset[str], float]


@dataclass(frozen=True, slots=True)
class Ruling:
    """What one rule made of one step."""

    evidence: Evidence
    """With the rewards as the rule read them."""
    given: Credit
    """What `assign` gave every turn ..."""
    earned: Credit
    """... and those that this rule judges."""
    credit: Credit
    metrics: Metrics
    peers: Peers | None
    pots: Sequence[Sequence[Pot]]
    """Of each episode."""


def diagnose(ruling: Ruling) -> Metrics:
    """`credit/ROLE/...` of the roles that the rule judges.

    `zero`: share of the judged turns whose advantage is exactly 0. `earned`, `conservation`: see `conservation`.
    `purity`: see `marl.judging.purity`. `stopping_bias`, `stopping_bias_t`: see `stopping_bias`.
    """
    turns = {turn.id: turn for trajectory in ruling.evidence.trajectories for turn in trajectory.turns}
    judged: dict[str, list[Turn]] = defaultdict(list)
    for turn_id in ruling.credit:
        judged[turns[turn_id].role].append(turns[turn_id])
    found: dict[str, Metrics] = {role: {"zero": _zero(ruling.credit, own)} for role, own in judged.items()}
    pure = {role: {"purity": share} for role, share in purity(ruling.peers, ruling.evidence.trajectories).items()}
    tests = (conservation(ruling, judged), pure, _biases(ruling, judged))
    for role, figures in ((role, figures) for test in tests for role, figures in test.items()):
        found.get(role, {}).update(figures)
    return {f"credit/{role}/{name}": value for role, own in sorted(found.items()) for name, value in own.items()}


def _zero(credit: Credit, turns: Sequence[Turn]) -> float:
    advantages = [credit[turn.id] for turn in turns]
    return sum([not a.value and not any(a.tokens) for a in advantages]) / len(turns)


def conservation(ruling: Ruling, roles: Collection[str]) -> dict[str, Metrics]:
    """Whether what turns earned adds up to what was paid.

    `earned`: what a role's turns earned in an episode, mean. `conservation`: what the turns of all who share a pot with
    the role earned, for each unit that was in it: sum of sign(paid) earned / sum of |paid|, over episodes and pots. 1:
    they share exactly what was paid; 3: every unit was given three times; 0: nothing was given. Without it where
    nothing was ever paid.
    """
    given, paid = dict.fromkeys(roles, 0.0), dict.fromkeys(roles, 0.0)
    earned = dict.fromkeys(roles, 0.0)
    for trajectory, pots in zip(ruling.evidence.trajectories, ruling.pots, strict=True):
        sums, seats = _sums(trajectory, ruling.given), trajectory.deal.seats
        for agent, total in sums.items():
            if seats[agent] in earned:
                earned[seats[agent]] += total
        for agents, worth in pots:
            total = sum([sums.get(agent, 0.0) for agent in agents])
            for role in {seats[agent] for agent in agents if seats[agent] in paid}:
                given[role] += total if worth > 0 else -total if worth else 0.0
                paid[role] += abs(worth)
    episodes = len(ruling.evidence.trajectories)
    return {
        role: {"earned": earned[role] / episodes} | ({"conservation": given[role] / paid[role]} if paid[role] else {})
        for role in roles
    }


def _sums(trajectory: Trajectory, given: Credit) -> dict[str, float]:
    """What each agent's turns earned."""
    sums: dict[str, float] = {}
    for turn in trajectory.turns:
        if (advantage := given.get(turn.id)) is not None:
            sums[turn.agent] = sums.get(turn.agent, 0.0) + advantage.value
    return sums


def _biases(ruling: Ruling, judged: Mapping[str, Sequence[Turn]]) -> dict[str, Metrics]:
    """Where nobody is declared a peer, turns are compared that were asked the same after the same start: what else they
    were credited for, such as the worth of where they stood, is equal there."""
    goes_on, found = _goes_on(ruling.evidence.trajectories), dict[str, Metrics]()
    groups = _groups(ruling)
    for role, turns in judged.items():
        compared = [turn for turn in turns if turn.id in groups]
        keys = [(turn.agent, turn.nth, groups[turn.id]) for turn in compared]
        columns = [(ruling.credit[t.id].value, ruling.earned[t.id].value, goes_on[t.id]) for t in compared]
        found[role] = stopping_bias(keys, columns)
    return found


def _groups(ruling: Ruling) -> dict[TurnId, Hashable]:
    if ruling.peers:
        return {turn_id: number for number, group in enumerate(ruling.peers.groups) for turn_id in group}
    trajectories = ruling.evidence.trajectories
    return {turn.id: (trajectory.start, prompt(turn)) for trajectory in trajectories for turn in trajectory.turns}


def _goes_on(trajectories: Iterable[Trajectory]) -> dict[TurnId, float]:
    """1 where the agent had a further turn in the episode, else 0; the mean where several courses share a turn."""
    further: dict[TurnId, list[bool]] = {}
    for trajectory in trajectories:
        seen: set[str] = set()
        for turn in reversed(trajectory.turns):
            further.setdefault(turn.id, []).append(turn.agent in seen)
            seen.add(turn.agent)
    return {turn_id: sum(found) / len(found) for turn_id, found in further.items()}


def stopping_bias(keys: Sequence[Hashable], columns: Sequence[tuple[float, float, float]]) -> Metrics:
    """Whether credit pays for going on: turns with equal `keys` (one agent's nth turns that are compared with one
    another) are asked whether, of two that earned the same, the one after which the agent had a further turn is
    credited more.

    Within each group, credit and going on are each freed of what [1, earned] explains of them, by least squares; then
    over all groups `stopping_bias` is the slope of what is left of credit on what is left of going on, and
    `stopping_bias_t` its t value, at most a million (Frisch and Waugh 1933). Credit that is an affine function of what
    was earned, as a group's is, has exactly 0. Neither is given where nothing can be told apart.

    Args:
        columns: (credit, earned, whether it went on) of each turn.
    """
    credit, earned, goes_on = np.array(columns, dtype=float).reshape(-1, 3).T
    numbers: dict[Hashable, int] = {}
    codes = np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=int)
    finite = np.isfinite(credit) & np.isfinite(earned)
    group = _Groups(codes[finite], earned[finite])
    left, moved = group.rest(credit[finite]), group.rest(goes_on[finite])
    spread, free = float(moved @ moved), group.free - 1
    if spread == 0.0 or free < 1:
        return {}
    slope = float(left @ moved) / spread
    noise = left - slope * moved
    error = float(np.sqrt(noise @ noise / free / spread))
    t = slope / error if abs(slope) < _MOST * error else float(np.sign(slope)) * _MOST
    return {"stopping_bias": slope, "stopping_bias_t": t}


_MOST = 1e6
_ROUNDING = 1e-9


class _Groups:
    """Least squares on [1, x] within groups of numbers."""

    def __init__(self, codes: np.ndarray, x: np.ndarray) -> None:
        self._codes, self._many = codes, np.bincount(codes)
        self._x = self._centred(x)
        self._squares = np.bincount(codes, self._x**2)
        ranks = 1 + (self._squares > 0)
        self.free = int(np.maximum(self._many - ranks, 0).sum())
        """Degrees of freedom that are left."""

    def rest(self, y: np.ndarray) -> np.ndarray:
        """What is left of `y`. What may be rounding is 0."""
        centred = self._centred(y)
        products = np.bincount(self._codes, self._x * centred)
        slopes = products / np.where(self._squares > 0, self._squares, 1.0)
        return self._rounded(centred - slopes[self._codes] * self._x, y)

    def _centred(self, y: np.ndarray) -> np.ndarray:
        means = np.bincount(self._codes, y) / np.maximum(self._many, 1)
        return self._rounded(y - means[self._codes], y)

    def _rounded(self, rest: np.ndarray, y: np.ndarray) -> np.ndarray:
        most = np.zeros(len(self._many))
        np.maximum.at(most, self._codes, np.abs(y))
        return np.where(np.abs(rest) <= _ROUNDING * most[self._codes], 0.0, rest)
