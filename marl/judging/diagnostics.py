"""Diagnostics of credit, role by role: does it add up, are peers alike, does it pay for going on, do two rules agree.

Pure functions of what a rule was shown and what it returned; linear in turns; nothing is played.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Literal

import numpy as np

from marl.graph import Trajectory
from marl.protocols import Evidence, Peers
from marl.types import Credit, Metrics, Turn, TurnId

_ROUNDING = 1e-9
"""Relative size below which a difference counts as rounding."""
_LARGEST_T = 1e6


@dataclass(frozen=True, slots=True)
class Ruling:
    """Input and output of one rule in one step."""

    evidence: Evidence
    """With the rewards as the rule read them."""
    assigned: Credit
    """Output of `assign` for every turn, before token penalties."""
    earned: Credit
    """The turns that this rule judges, token penalties included."""
    credit: Credit
    metrics: Metrics
    peers: Peers | None
    reward_pools: Sequence[Sequence[tuple[frozenset[str], float]]]
    """For each episode: agents that share their rewards, and the sum of those."""
    penalties: Mapping[str, Mapping[TurnId, float]]
    """Name -> turn -> sum of its token penalties."""


def diagnose(ruling: Ruling) -> Metrics:
    """Return `credit/ROLE/...` for the roles that the rule judges.

    `zero`: share of the judged turns whose advantage is exactly 0. `earned`, `conservation`: see `conservation`.
    `purity`: see `peer_purity`. `stopping_bias`, `stopping_bias_t`: see `stopping_bias`.
    """
    turns = {turn.id: turn for trajectory in ruling.evidence.trajectories for turn in trajectory.turns}
    by_role: dict[str, list[Turn]] = defaultdict(list)
    for turn_id in ruling.credit:
        by_role[turns[turn_id].role].append(turns[turn_id])
    metrics = {role: {"zero": _zero(ruling.credit, members)} for role, members in by_role.items()}
    pure = {role: {"purity": share} for role, share in peer_purity(ruling.peers, ruling.evidence.trajectories).items()}
    for test in (conservation(ruling, by_role), pure, _biases(ruling, by_role)):
        for role, figures in test.items():
            metrics.get(role, {}).update(figures)
    return {
        f"credit/{role}/{name}": value for role, figures in sorted(metrics.items()) for name, value in figures.items()
    }


def nonzero(evidence: Evidence, credit: Credit, judged: Set[TurnId] | None) -> Metrics:
    """Return `credit/ROLE/nonzero`: the share of a role's turns from which something can be learnt.

    Turns whose advantage is 0 do not count, nor do those that were to be `judged` (None: all) and got no entry.
    """
    turns = {turn.id: turn for trajectory in evidence.trajectories for turn in trajectory.turns}
    by_role: dict[str, list[bool]] = defaultdict(list)
    for turn in turns.values():
        if turn.role not in evidence.rules and (judged is None or turn.id in judged):
            advantage = credit.get(turn.id)
            by_role[turn.role].append(advantage is not None and bool(advantage.value or any(advantage.tokens)))
    return {f"credit/{role}/nonzero": sum(differs) / len(differs) for role, differs in sorted(by_role.items())}


def _zero(credit: Credit, turns: Sequence[Turn]) -> float:
    advantages = [credit[turn.id] for turn in turns]
    return sum([not a.value and not any(a.tokens) for a in advantages]) / len(turns)


def conservation(ruling: Ruling, roles: Collection[str]) -> dict[str, Metrics]:
    """Return, by role, how what turns earned compares with the rewards that were paid.

    `earned`: mean over episodes of what the role's turns earned. `conservation`: what the turns of all agents of the
    role's reward pools earned for each unit of reward: sum of sign(reward) earned / sum of |reward|, over episodes and
    pools. 1: turns share exactly what was paid; 3: every unit was given three times; 0: nothing was given. Left out
    where nothing was ever paid.
    """
    shared, paid = dict.fromkeys(roles, 0.0), dict.fromkeys(roles, 0.0)
    earned = dict.fromkeys(roles, 0.0)
    for trajectory, reward_pools in zip(ruling.evidence.trajectories, ruling.reward_pools, strict=True):
        sums, seats = _sums(trajectory, ruling.assigned), trajectory.deal.seats
        for agent, total in sums.items():
            if seats[agent] in earned:
                earned[seats[agent]] += total
        for agents, worth in reward_pools:
            total = sum([sums.get(agent, 0.0) for agent in sorted(agents)])  # a set has no order of its own
            for role in {seats[agent] for agent in agents if seats[agent] in paid}:
                shared[role] += total if worth > 0 else -total if worth else 0.0
                paid[role] += abs(worth)
    episodes = len(ruling.evidence.trajectories)
    return {
        role: {"earned": earned[role] / episodes} | ({"conservation": shared[role] / paid[role]} if paid[role] else {})
        for role in roles
    }


def _sums(trajectory: Trajectory, assigned: Credit) -> dict[str, float]:
    """Return agent -> what its turns earned."""
    sums: dict[str, float] = {}
    for turn in trajectory.turns:
        if (advantage := assigned.get(turn.id)) is not None:
            sums[turn.agent] = sums.get(turn.agent, 0.0) + advantage.value
    return sums


def _biases(ruling: Ruling, by_role: Mapping[str, Sequence[Turn]]) -> dict[str, Metrics]:
    # Where a rule declares no peers, turns with the same prompt after the same start are compared: whatever else they
    # are credited for, such as the value of the state they stood in, is equal there.
    goes_on, biases = _goes_on(ruling.evidence.trajectories), dict[str, Metrics]()
    groups = _groups(ruling)
    for role, turns in by_role.items():
        compared = [turn for turn in turns if turn.id in groups]
        keys = [(turn.agent, turn.nth, groups[turn.id]) for turn in compared]
        columns = [(ruling.credit[t.id].value, ruling.earned[t.id].value, goes_on[t.id]) for t in compared]
        biases[role] = stopping_bias(keys, columns)
    return biases


def _groups(ruling: Ruling) -> dict[TurnId, Hashable]:
    if ruling.peers:
        return {turn_id: number for number, group in enumerate(ruling.peers.groups) for turn_id in group}
    trajectories = ruling.evidence.trajectories
    return {turn.id: (trajectory.start, prompt(turn)) for trajectory in trajectories for turn in trajectory.turns}


def _goes_on(trajectories: Iterable[Trajectory]) -> dict[TurnId, float]:
    """Return 1 where the agent had a further turn in the episode, else 0; the mean if several episodes share a turn."""
    further: dict[TurnId, list[bool]] = {}
    for trajectory in trajectories:
        seen: set[str] = set()
        for turn in reversed(trajectory.turns):
            further.setdefault(turn.id, []).append(turn.agent in seen)
            seen.add(turn.agent)
    return {turn_id: sum(flags) / len(flags) for turn_id, flags in further.items()}


def stopping_bias(keys: Sequence[Hashable], columns: Sequence[tuple[float, float, float]]) -> Metrics:
    """Return whether credit pays for going on: of two turns with equal `keys` (one agent's nth turns that are compared
    with one another) that earned the same, is the one after which the agent had a further turn credited more?

    Within each group, credit and going on are each freed of what [1, earned] explains of them, by least squares; then
    over all groups `stopping_bias` is the slope of what is left of credit on what is left of going on, and
    `stopping_bias_t` its t value, at most a million (Frisch and Waugh 1933). Credit that is an affine function of what
    was earned, as a group's is, has exactly 0. Neither is given where nothing can be told apart.

    Args:
        columns: (credit, earned, 1 if the agent had a further turn else 0) of each turn.
    """
    credit, earned, goes_on = np.array(columns, dtype=float).reshape(-1, 3).T
    numbers: dict[Hashable, int] = {}
    codes = np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=int)
    finite = np.isfinite(credit) & np.isfinite(earned)
    group = _Groups(codes[finite], earned[finite])
    left, moved = group.residuals(credit[finite]), group.residuals(goes_on[finite])
    spread, free = float(moved @ moved), group.free - 1
    if spread == 0.0 or free < 1:
        return {}
    slope = float(left @ moved) / spread
    noise = left - slope * moved
    error = float(np.sqrt(noise @ noise / free / spread))
    t = slope / error if abs(slope) < _LARGEST_T * error else float(np.sign(slope)) * _LARGEST_T
    return {"stopping_bias": slope, "stopping_bias_t": t}


class _Groups:
    """Least squares on [1, x] within groups of numbers."""

    def __init__(self, codes: np.ndarray, x: np.ndarray) -> None:
        self._codes, self._many = codes, np.bincount(codes)
        self._x = self._centred(x)
        self._squares = np.bincount(codes, self._x**2)
        ranks = 1 + (self._squares > 0)
        self.free = int(np.maximum(self._many - ranks, 0).sum())
        """Degrees of freedom that are left."""

    def residuals(self, y: np.ndarray) -> np.ndarray:
        """Return the residuals of `y`; what may be rounding is 0."""
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


def prompt(turn: Turn) -> Hashable:
    """Return a turn's prompt: token ids, or the messages where there are none."""
    return turn.completion.prompt_ids or turn.request.messages


def peer_purity(peers: Peers | None, trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Return role -> share of its groups of peers whose members began alike, among groups that compare anything.

    They share what the baseline says of them. `prompt`: the prompt; `problem`: the problem's key; `start`: the start
    key, and whatever follows from the start alone: an agent's first prompt after the same moves, and its problem, must
    be the same. This exposes a game that gives different starts one key.

    And, whatever the baseline says, they work on the same problems, if one of these was posed by another agent in the
    episode. Such a problem is a start of its own: whoever gets the easier one would be credited for that. Problems that
    an agent posed itself do not count, as they are its own doing.
    """
    if peers is None or peers.like is None:
        return {}
    turns = {turn.id: turn for trajectory in trajectories for turn in trajectory.turns}
    tasks = {turn_id: task for trajectory in reversed(trajectories) for turn_id, task in _tasks(trajectory)}
    alike, unit = _TESTS[peers.like](trajectories)
    verdicts: dict[str, list[bool]] = defaultdict(list)
    for members in ([turns[turn_id] for turn_id in group] for group in peers.groups):
        if len(set(map(unit, members))) > 1:
            verdict = alike(members) and _same_tasks([(unit(turn), tasks[turn.id]) for turn in members])
            for role in {turn.role for turn in members}:
                verdicts[role].append(verdict)
    return {role: sum(flags) / len(flags) for role, flags in verdicts.items()}


@dataclass(frozen=True, slots=True)
class _Task:
    """The problem on which a turn works, and who posed it: the start of the game, another agent, or itself."""

    problem: str
    posed_by: Literal["start", "other", "itself"]


def _tasks(trajectory: Trajectory) -> Iterator[tuple[TurnId, _Task]]:
    agents = {turn.id: turn.agent for turn in trajectory.turns}
    for turn in trajectory.turns:
        if turn.problem == trajectory.turns[0].problem:
            yield turn.id, _Task(turn.problem, "start")
        else:
            posers = {agents[source] for source in trajectory.sources(turn.id, ("posed",))}
            yield turn.id, _Task(turn.problem, "itself" if turn.agent in posers else "other")


def _same_tasks(tasks: Sequence[tuple[Hashable, _Task]]) -> bool:
    """Return False if units, such as episodes, work on different problems of which another agent posed one."""
    problems: dict[Hashable, set[str]] = {unit: set() for unit, _ in tasks}
    for unit, task in tasks:
        if task.posed_by != "itself":
            problems[unit].add(task.problem)
    return all(task.posed_by != "other" for _, task in tasks) or len(set(map(frozenset, problems.values()))) == 1


Test = tuple[Callable[[Sequence[Turn]], bool], Callable[[Turn], Hashable]]
"""(test if turns are alike, key of the unit to which a turn belongs)"""


def _same(of: Callable[[Turn], Hashable], unit: Callable[[Turn], Hashable]) -> Test:
    return lambda turns: len(set(map(of, turns))) == 1, unit


def _starts(trajectories: Sequence[Trajectory]) -> Test:
    homes: dict[TurnId, int] = {}
    for number, trajectory in enumerate(trajectories):
        for turn in trajectory.turns:
            homes.setdefault(turn.id, number)
    known: dict[tuple[int, ...], bool] = {}  # the agents of some episodes are groups of their own

    def alike(turns: Sequence[Turn]) -> bool:
        episodes = tuple(dict.fromkeys([homes[turn.id] for turn in turns]))
        if episodes not in known:
            known[episodes] = _one_start([trajectories[number] for number in episodes])
        return known[episodes]

    return alike, lambda turn: homes[turn.id]


def _one_start(trajectories: Sequence[Trajectory]) -> bool:
    prompts: dict[Hashable, Hashable] = {}
    openings = (opening for trajectory in trajectories for opening in _openings(trajectory))
    return len({t.start for t in trajectories}) == 1 and all(
        prompts.setdefault(key, first) == first for key, first in openings
    )


def _openings(trajectory: Trajectory) -> Iterator[tuple[Hashable, Hashable]]:
    """Yield, for each agent's first turn, (agent, role, whether its prompt is in tokens, texts before it) and (prompt,
    problem): several players may speak for a role, of whom some have no tokens.

    A game may answer a text without a legal move by chance, so everything after such a text is left out.
    """
    texts: list[str] = []
    met: set[str] = set()
    for turn in trajectory.turns:
        if turn.agent not in met:
            met.add(turn.agent)
            in_tokens = bool(turn.completion.prompt_ids)
            yield (turn.agent, turn.role, in_tokens, *texts), (prompt(turn), turn.problem)
        if turn.action is None or len(met) == len(trajectory.deal.seats):
            return
        texts += [turn.agent, turn.completion.text]


_TESTS: Mapping[str, Callable[[Sequence[Trajectory]], Test]] = {
    "start": _starts,
    "prompt": lambda _: _same(prompt, lambda turn: turn.id),
    "problem": lambda _: _same(lambda turn: turn.problem, lambda turn: (turn.id[0], turn.agent)),
}


def compare(trajectories: Iterable[Trajectory], ours: Credit, theirs: Credit) -> dict[str, Metrics]:
    """Return role -> how far two rules agree on the turns that both judge; see `agreement`."""
    pairs: dict[str, dict[TurnId, tuple[float, float]]] = defaultdict(dict)
    for turn in (turn for trajectory in trajectories for turn in trajectory.turns):
        if turn.id in ours and turn.id in theirs:
            pairs[turn.role][turn.id] = ours[turn.id].value, theirs[turn.id].value
    return {role: agreement(list(values.values())) for role, values in sorted(pairs.items())}


def agreement(pairs: Sequence[tuple[float, float]]) -> Metrics:
    """Return how far two rules agree on the same turns, given as pairs of advantages.

    `sign_agreement`: of the turns to which either gives something other than 0, the share with the same sign;
    `correlation` (Pearson); `rank_correlation` (Spearman; ties share their mean rank); `difference`: mean of the
    absolute one. A figure that is not defined is left out.
    """
    ours, theirs = np.array(pairs, dtype=float).reshape(-1, 2).T
    metrics = {"difference": float(np.abs(ours - theirs).mean())} if len(ours) else {}
    both = np.stack([np.sign(ours), np.sign(theirs)])[:, (ours != 0) | (theirs != 0)]
    if both.size:
        metrics["sign_agreement"] = float((both[0] == both[1]).mean())
    figures = {"correlation": _pearson(ours, theirs), "rank_correlation": _pearson(_ranks(ours), _ranks(theirs))}
    return metrics | {name: value for name, value in figures.items() if value is not None}


def _pearson(a: np.ndarray, b: np.ndarray) -> float | None:
    """Return the correlation; None if one of them is constant."""
    if len(a) < 2 or not (np.ptp(a) > _ROUNDING * np.abs(a).max() and np.ptp(b) > _ROUNDING * np.abs(b).max()):
        return None
    return float(np.corrcoef(a, b)[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    _, places, many = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(many) - (many - 1) / 2)[places]
