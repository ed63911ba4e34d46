"""Diagnostics of credit by role: conservation of rewards, purity of peer groups, stopping bias, agreement of rules.

Pure functions of a rule's input and output. Their time is linear in the number of turns, and they play no episodes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Literal

import numpy as np

from marl.core.graph import Trajectory
from marl.core.types import Credit, Metrics, Turn, TurnId
from marl.protocols import Evidence, Peers

_ROUNDING = 1e-9
"""Relative size below which a difference counts as rounding."""
_LARGEST_T = 1e6
"""Upper bound of reported t values."""


@dataclass(frozen=True, slots=True)
class RuleResult:
    """Input and output of one rule in one step."""

    evidence: Evidence
    """Evidence with the rewards that the rule read (scaled)."""
    assigned: Credit
    """Output of `assign` for every turn, before token penalties."""
    earned: Credit
    """Credit of the turns that this rule is responsible for, token penalties included."""
    credit: Credit
    """Advantages of these turns."""
    metrics: Metrics
    """Metrics of the rule itself."""
    peers: Peers | None
    reward_pools: Sequence[Sequence[tuple[frozenset[str], float]]]
    """For each episode: groups of agents that share their rewards, each with the sum of these rewards."""
    penalties: Mapping[str, Mapping[TurnId, float]]
    """Name -> turn -> sum of its token penalties."""


def rule_diagnostics(result: RuleResult) -> Metrics:
    """Return `credit/ROLE/...` for the roles whose turns the rule credits.

    `zero`: share of the credited turns with an advantage of exactly 0. `earned`, `conservation`: see `conservation`.
    `purity`: see `peer_purity`. `stopping_bias`, `stopping_bias_t`: see `stopping_bias`.
    """
    turns = {turn.id: turn for trajectory in result.evidence.trajectories for turn in trajectory.turns}
    by_role: dict[str, list[Turn]] = defaultdict(list)
    for turn_id in result.credit:
        by_role[turns[turn_id].role].append(turns[turn_id])
    conserved = conservation(result, by_role)
    purities = peer_purity(result.peers, result.evidence.trajectories)
    biases = _stopping_biases(result, by_role)
    metrics: Metrics = {}
    for role, members in sorted(by_role.items()):
        zeros = [not _differs_from_zero(result.credit, turn) for turn in members]
        figures = {"zero": sum(zeros) / len(members)} | conserved[role]
        if role in purities:
            figures["purity"] = purities[role]
        metrics.update({f"credit/{role}/{name}": value for name, value in (figures | biases[role]).items()})
    return metrics


def nonzero_fraction(evidence: Evidence, credit: Credit, credited: Set[TurnId] | None) -> Metrics:
    """Return `credit/ROLE/nonzero`: the share of a role's turns that can teach its policy something.

    A turn with advantage 0 does not count, and neither does a turn of `credited` (None: all turns) without an entry.
    """
    turns = {turn.id: turn for trajectory in evidence.trajectories for turn in trajectory.turns}
    by_role: dict[str, list[bool]] = defaultdict(list)
    for turn in turns.values():
        if turn.role not in evidence.rule_based_roles and (credited is None or turn.id in credited):
            by_role[turn.role].append(_differs_from_zero(credit, turn))
    return {f"credit/{role}/nonzero": sum(differs) / len(differs) for role, differs in sorted(by_role.items())}


def _differs_from_zero(credit: Credit, turn: Turn) -> bool:
    """Return True if the turn has an advantage that is not 0, as a turn or at one of its tokens."""
    advantage = credit.get(turn.id)
    return advantage is not None and bool(advantage.value or any(advantage.tokens))


def conservation(result: RuleResult, roles: Collection[str]) -> dict[str, Metrics]:
    """Return, by role, the credit of its turns compared with the rewards of its agents.

    `earned`: mean over episodes of the summed credit of the role's turns. `conservation`: credit for each unit of
    reward, sum of sign(reward) credit / sum of |reward|, over episodes and the reward pools of the role's agents (with
    the credit of all agents of a pool). 1: credit sums to the reward; 3: every unit was credited three times; 0:
    nothing was credited. `conservation` is absent where all rewards are 0.
    """
    shared, rewarded = dict.fromkeys(roles, 0.0), dict.fromkeys(roles, 0.0)
    earned = dict.fromkeys(roles, 0.0)
    for trajectory, reward_pools in zip(result.evidence.trajectories, result.reward_pools, strict=True):
        sums, seats = _credit_by_agent(trajectory, result.assigned), trajectory.deal.seats
        for agent, total in sums.items():
            if seats[agent] in earned:
                earned[seats[agent]] += total
        for agents, reward in reward_pools:
            # Sorted, since a set has no order: the order of the summands decides the last bits.
            total = sum([sums.get(agent, 0.0) for agent in sorted(agents)])
            for role in {seats[agent] for agent in agents if seats[agent] in rewarded}:
                shared[role] += total if reward > 0 else -total if reward else 0.0
                rewarded[role] += abs(reward)
    metrics: dict[str, Metrics] = {}
    for role in roles:
        metrics[role] = {"earned": earned[role] / len(result.evidence.trajectories)}
        if rewarded[role]:
            metrics[role]["conservation"] = shared[role] / rewarded[role]
    return metrics


def _credit_by_agent(trajectory: Trajectory, assigned: Credit) -> dict[str, float]:
    """Return agent -> summed credit of its turns."""
    sums: dict[str, float] = {}
    for turn in trajectory.turns:
        if (advantage := assigned.get(turn.id)) is not None:
            sums[turn.agent] = sums.get(turn.agent, 0.0) + advantage.value
    return sums


def _stopping_biases(result: RuleResult, by_role: Mapping[str, Sequence[Turn]]) -> dict[str, Metrics]:
    """Return role -> `stopping_bias` of the turns that can be compared with others."""
    trajectories = result.evidence.trajectories
    groups: dict[TurnId, Hashable] = {}
    if result.peers:
        for number, group in enumerate(result.peers.groups):
            groups.update(dict.fromkeys(group, number))
    else:
        # Where a rule declares no peers, turns with the same prompt after the same start are compared: the other terms
        # of their credit, such as the value of the state before them, are equal there.
        for trajectory in trajectories:
            groups.update((turn.id, (trajectory.start, prompt(turn))) for turn in trajectory.turns)
    continues = _continuation_rates(trajectories)
    biases: dict[str, Metrics] = {}
    for role, turns in by_role.items():
        compared = [turn for turn in turns if turn.id in groups]
        keys = [(turn.agent, turn.nth, groups[turn.id]) for turn in compared]
        columns = [(result.credit[t.id].value, result.earned[t.id].value, continues[t.id]) for t in compared]
        biases[role] = stopping_bias(keys, columns)
    return biases


def _continuation_rates(trajectories: Iterable[Trajectory]) -> dict[TurnId, float]:
    """Return turn -> 1 if its agent had a further turn in the episode, else 0; the mean over episodes that share it."""
    further: dict[TurnId, list[bool]] = {}
    for trajectory in trajectories:
        seen: set[str] = set()
        for turn in reversed(trajectory.turns):
            further.setdefault(turn.id, []).append(turn.agent in seen)
            seen.add(turn.agent)
    return {turn_id: sum(flags) / len(flags) for turn_id, flags in further.items()}


def stopping_bias(keys: Sequence[Hashable], columns: Sequence[tuple[float, float, float]]) -> Metrics:
    """Return how much more a turn is credited if its agent had a further turn, among turns that earned the same.

    Within each group, the least-squares fit on [1, earned] is subtracted from credit and from the indicator of a
    further turn. Over all groups, `stopping_bias` is the slope of the first residual on the second, and
    `stopping_bias_t` its t value, at most a million (Frisch and Waugh 1933). Credit that is an affine function of the
    earnings, as a group's is, has exactly 0. Both are absent if no slope can be estimated.

    Args:
        keys: group of each turn: turns of one agent with the same index that the baseline compares.
        columns: (credit, earned, 1 if the agent had a further turn else 0) of each turn.
    """
    credit, earned, continues = np.array(columns, dtype=float).reshape(-1, 3).T
    numbers: dict[Hashable, int] = {}
    codes = np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=int)
    finite = np.isfinite(credit) & np.isfinite(earned)
    groups = _GroupedRegression(codes[finite], earned[finite])
    credit_residual, indicator_residual = groups.residuals(credit[finite]), groups.residuals(continues[finite])
    spread, free = float(indicator_residual @ indicator_residual), groups.free - 1
    if spread == 0.0 or free < 1:
        return {}
    slope = float(credit_residual @ indicator_residual) / spread
    noise = credit_residual - slope * indicator_residual
    error = float(np.sqrt(noise @ noise / free / spread))
    t = slope / error if abs(slope) < _LARGEST_T * error else float(np.sign(slope)) * _LARGEST_T
    return {"stopping_bias": slope, "stopping_bias_t": t}


class _GroupedRegression:
    """Least squares on [1, x] within groups of numbers."""

    def __init__(self, codes: np.ndarray, x: np.ndarray) -> None:
        """`codes`: index of the group of each number in `x`."""
        self._codes, self._counts = codes, np.bincount(codes)
        self._x = self._centred(x)
        self._squares = np.bincount(codes, self._x**2)
        ranks = 1 + (self._squares > 0)
        self.free = int(np.maximum(self._counts - ranks, 0).sum())
        """Degrees of freedom of the residuals."""

    def residuals(self, y: np.ndarray) -> np.ndarray:
        """Return the residuals of `y`; a residual that may be rounding is 0."""
        centred = self._centred(y)
        products = np.bincount(self._codes, self._x * centred)
        slopes = products / np.where(self._squares > 0, self._squares, 1.0)
        return self._without_rounding(centred - slopes[self._codes] * self._x, y)

    def _centred(self, y: np.ndarray) -> np.ndarray:
        means = np.bincount(self._codes, y) / np.maximum(self._counts, 1)
        return self._without_rounding(y - means[self._codes], y)

    def _without_rounding(self, residuals: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Set residuals to 0 that are tiny compared with the largest |y| of their group."""
        largest = np.zeros(len(self._counts))
        np.maximum.at(largest, self._codes, np.abs(y))
        return np.where(np.abs(residuals) <= _ROUNDING * largest[self._codes], 0.0, residuals)


def prompt(turn: Turn) -> Hashable:
    """Return a turn's prompt: token ids, or the messages of a turn without tokens."""
    return turn.completion.prompt_ids or turn.request.messages


def peer_purity(peers: Peers | None, trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Return role -> share of its peer groups whose members started alike, among groups with more than one unit.

    Members must share the property that the baseline declares. `prompt`: the prompt; `problem`: the problem's key;
    `start`: the start key, and everything that follows from the start alone: an agent's first prompt after the same
    moves, and its problem. This detects a game that gives different starts the same key.

    Members must also work on the same problems, if another agent posed one of these in the episode. Such a problem acts
    as a second start: an easier one would be credited to its solver. Problems that an agent posed itself do not count,
    since they are its own action.
    """
    if peers is None or peers.shared_property is None:
        return {}
    turns: dict[TurnId, Turn] = {}
    tasks: dict[TurnId, _Task] = {}
    for trajectory in reversed(trajectories):
        turns.update((turn.id, turn) for turn in trajectory.turns)
        tasks.update(_tasks(trajectory))
    alike, unit = _TESTS[peers.shared_property](trajectories)
    verdicts: dict[str, list[bool]] = defaultdict(list)
    for group in peers.groups:
        members = [turns[turn_id] for turn_id in group]
        if len(set(map(unit, members))) > 1:
            verdict = alike(members) and _have_same_tasks([(unit(turn), tasks[turn.id]) for turn in members])
            for role in {turn.role for turn in members}:
                verdicts[role].append(verdict)
    return {role: sum(flags) / len(flags) for role, flags in verdicts.items()}


@dataclass(frozen=True, slots=True)
class _Task:
    """The problem of a turn, and its author: the start of the game, another agent, or the turn's own agent."""

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


def _have_same_tasks(tasks: Sequence[tuple[Hashable, _Task]]) -> bool:
    """Return False if units, such as episodes, work on different problems of which another agent posed one."""
    if all(task.posed_by != "other" for _, task in tasks):
        return True
    problems: dict[Hashable, set[str]] = {unit: set() for unit, _ in tasks}
    for unit, task in tasks:
        if task.posed_by != "itself":
            problems[unit].add(task.problem)
    return len(set(map(frozenset, problems.values()))) == 1


Test = tuple[Callable[[Sequence[Turn]], bool], Callable[[Turn], Hashable]]
"""(test if turns are alike, key of the unit to which a turn belongs)"""


def _equality_test(key: Callable[[Turn], Hashable], unit: Callable[[Turn], Hashable]) -> Test:
    return lambda turns: len(set(map(key, turns))) == 1, unit


def _start_test(trajectories: Sequence[Trajectory]) -> Test:
    """Return the test if the episodes of turns have one start; a turn that forks share belongs to the first fork."""
    first_episode: dict[TurnId, int] = {}
    for number, trajectory in enumerate(trajectories):
        for turn in trajectory.turns:
            first_episode.setdefault(turn.id, number)
    # The agents of the same episodes form groups of their own, so the same test comes up once an agent.
    verdicts: dict[tuple[int, ...], bool] = {}

    def alike(turns: Sequence[Turn]) -> bool:
        episodes = tuple(dict.fromkeys([first_episode[turn.id] for turn in turns]))
        if episodes not in verdicts:
            verdicts[episodes] = _have_one_start([trajectories[number] for number in episodes])
        return verdicts[episodes]

    return alike, lambda turn: first_episode[turn.id]


def _have_one_start(trajectories: Sequence[Trajectory]) -> bool:
    if len({trajectory.start for trajectory in trajectories}) != 1:
        return False
    prompts: dict[Hashable, Hashable] = {}
    for trajectory in trajectories:
        for key, opening in _openings(trajectory):
            if prompts.setdefault(key, opening) != opening:
                return False
    return True


def _openings(trajectory: Trajectory) -> Iterator[tuple[Hashable, Hashable]]:
    """Yield, for each agent's first turn, (agent, role, whether its prompt is in tokens, texts before it) and (prompt,
    problem). Several players may speak for a role, some of them without tokens.

    A game may answer a text without a legal move at random, so turns after such a text are left out.
    """
    texts: list[str] = []
    seen: set[str] = set()
    for turn in trajectory.turns:
        if turn.agent not in seen:
            seen.add(turn.agent)
            in_tokens = bool(turn.completion.prompt_ids)
            yield (turn.agent, turn.role, in_tokens, *texts), (prompt(turn), turn.problem)
        if turn.action is None or len(seen) == len(trajectory.deal.seats):
            return
        texts += [turn.agent, turn.completion.text]


_TESTS: Mapping[str, Callable[[Sequence[Trajectory]], Test]] = {
    "start": _start_test,
    "prompt": lambda _: _equality_test(prompt, lambda turn: turn.id),
    "problem": lambda _: _equality_test(lambda turn: turn.problem, lambda turn: (turn.id[0], turn.agent)),
}


def agreement_by_role(trajectories: Iterable[Trajectory], ours: Credit, theirs: Credit) -> dict[str, Metrics]:
    """Return role -> `agreement` of two rules on the turns that both credit."""
    pairs: dict[str, dict[TurnId, tuple[float, float]]] = defaultdict(dict)
    for trajectory in trajectories:
        for turn in trajectory.turns:
            if turn.id in ours and turn.id in theirs:
                pairs[turn.role][turn.id] = ours[turn.id].value, theirs[turn.id].value
    return {role: agreement(list(values.values())) for role, values in sorted(pairs.items())}


def agreement(pairs: Sequence[tuple[float, float]]) -> Metrics:
    """Return measures of agreement of two rules, from the two advantages of each turn.

    `sign_agreement`: share of turns with the same sign, among turns with an advantage other than 0 under either rule;
    `correlation` (Pearson); `rank_correlation` (Spearman; ties share their mean rank); `difference`: mean absolute
    difference. An undefined measure is absent.
    """
    ours, theirs = np.array(pairs, dtype=float).reshape(-1, 2).T
    metrics: Metrics = {}
    if len(ours):
        metrics["difference"] = float(np.abs(ours - theirs).mean())
    signs = np.stack([np.sign(ours), np.sign(theirs)])[:, (ours != 0) | (theirs != 0)]
    if signs.size:
        metrics["sign_agreement"] = float((signs[0] == signs[1]).mean())
    figures = {"correlation": _pearson(ours, theirs), "rank_correlation": _pearson(_ranks(ours), _ranks(theirs))}
    return metrics | {name: value for name, value in figures.items() if value is not None}


def _pearson(a: np.ndarray, b: np.ndarray) -> float | None:
    """Return the correlation, or None if `a` or `b` is constant."""
    if len(a) < 2 or not (np.ptp(a) > _ROUNDING * np.abs(a).max() and np.ptp(b) > _ROUNDING * np.abs(b).max()):
        return None
    return float(np.corrcoef(a, b)[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    _, indices, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[indices]
