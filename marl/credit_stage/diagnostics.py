"""Diagnostics of credit by role: conservation of rewards, purity of peer groups, stopping bias, agreement of rules.

All functions are pure functions of a rule's input and output: they play no episodes, and their time is linear in the
number of turns.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from statistics import fmean
from typing import Literal, NamedTuple

import numpy as np

from marl.core.graph import Trajectory
from marl.core.types import Advantage, Credit, Metrics, Turn, TurnId, hashable_prompt
from marl.protocols import Evidence, PeerGroups

# Metrics of this module (name | unit | meaning), which `tests/bench/figures.py` copies into marl/README.md.
METRICS = """
credit/ROLE/nonzero | share of turns | the role's turns whose advantage is not 0; turns that got none count, but for
    those of forks that get no credit
credit/ROLE/zero | share of turns | judged turns whose advantage is exactly 0
credit/ROLE/earned | reward | sum of what the role's turns earned in an episode, mean over episodes, before token
    penalties
credit/ROLE/conservation | ratio | what the turns of the role's reward pools earned for each unit of reward. 1: it
    adds up; 3: every unit was given three times; 0: nothing was given
credit/ROLE/purity | share of groups | compared groups whose members share what the baseline says (`like`) and, if
    another agent posed a problem on which one of them works, work on the same problems
credit/ROLE/stopping_bias | advantage | of two compared turns that earned the same, how much more the one is
    credited after which its agent had a further turn
credit/ROLE/stopping_bias_t | t value | of `stopping_bias`, at most 1e6; beyond about 4 it is no luck
"""

_ROUNDING = 1e-9
"""Relative size below which a difference counts as rounding."""
_LARGEST_T = 1e6
"""Maximum absolute value of a reported t value."""


@dataclass(frozen=True, slots=True)
class CreditRuleResult:
    """Input and output of one credit rule (`assign` and `baseline`) in one training step."""

    evidence: Evidence
    """Evidence with the rewards that the rule read (scaled)."""
    assigned: Credit
    """Output of `assign` for every turn, without token penalties."""
    earned: Credit
    """Credit of the turns that this rule is responsible for, token penalties included."""
    credit: Credit
    """Advantages of the turns in `earned`: the output of `baseline`."""
    metrics: Metrics
    """Metrics that `assign`, the token penalties and `baseline` report."""
    peers: PeerGroups | None
    """Groups of turns that the baseline compared, or None if it declares no peers."""
    reward_pools: Sequence[Sequence[tuple[frozenset[str], float]]]
    """For each episode: groups of agents that share their rewards, each with the sum of these rewards."""
    penalties: Mapping[str, Mapping[TurnId, float]]
    """Name of a penalty (`kl`, `overlong`, `token_cost`) -> turn -> sum of the penalty over the turn's tokens."""


def credit_rule_diagnostics(rule_result: CreditRuleResult) -> Metrics:
    """Return the metrics `credit/ROLE/...` of the roles whose turns the rule credits.

    `zero`: share of the credited turns with an advantage of exactly 0. `earned`, `conservation`: see
    `credit_conservation_by_role`. `purity`: see `pure_peer_group_share_by_role`. `stopping_bias`, `stopping_bias_t`:
    see `continuation_bias_metrics`.
    """
    turns = rule_result.evidence.turns()
    by_role: dict[str, list[Turn]] = defaultdict(list)
    zeros = Counter[str]()
    for turn_id, advantage in rule_result.credit.items():
        role = turns[turn_id].role
        by_role[role].append(turns[turn_id])
        zeros[role] += not _has_nonzero_advantage(advantage)
    conserved = credit_conservation_by_role(rule_result, by_role)
    purities = pure_peer_group_share_by_role(rule_result.peers, rule_result.evidence.trajectories)
    biases = _continuation_bias_by_role(rule_result, by_role)
    metrics: Metrics = {}
    for role, members in sorted(by_role.items()):
        figures = {"zero": zeros[role] / len(members)} | conserved[role]
        if role in purities:
            figures["purity"] = purities[role]
        for name, value in (figures | biases[role]).items():
            metrics[f"credit/{role}/{name}"] = value
    return metrics


def nonzero_advantage_metrics(evidence: Evidence, credit: Credit, credited_turns: Set[TurnId] | None) -> Metrics:
    """Return `credit/ROLE/nonzero`: the share of a role's turns with an advantage other than 0.

    Only these turns can change the role's policy. The share is taken over the turns in `credited_turns` (None: all
    turns); a turn without an entry in `credit` counts like a turn with advantage 0.
    """
    by_role: dict[str, list[bool]] = defaultdict(list)
    for turn in evidence.turns().values():
        if turn.role not in evidence.rule_based_roles and (credited_turns is None or turn.id in credited_turns):
            by_role[turn.role].append(turn.id in credit and _has_nonzero_advantage(credit[turn.id]))
    return {f"credit/{role}/nonzero": sum(flags) / len(flags) for role, flags in sorted(by_role.items())}


def _has_nonzero_advantage(advantage: Advantage) -> bool:
    """Return True if the advantage of the turn or of one of its tokens is not 0."""
    return bool(advantage.value or any(advantage.tokens))


def credit_conservation_by_role(rule_result: CreditRuleResult, roles: Collection[str]) -> dict[str, Metrics]:
    """Return role -> comparison of the credit of its turns with the rewards of its agents.

    `earned`: mean over episodes of the summed credit of the role's turns. `conservation`: credit for each unit of
    reward, sum of sign(reward) credit / sum of |reward|, over episodes and the reward pools of the role's agents (with
    the credit of all agents of a pool). 1: credit sums to the reward; 3: every unit of reward was credited three times;
    0: no reward was credited. `conservation` is absent where all rewards are 0.
    """
    shared, rewarded = dict.fromkeys(roles, 0.0), dict.fromkeys(roles, 0.0)
    earned = dict.fromkeys(roles, 0.0)
    for trajectory, reward_pools in zip(rule_result.evidence.trajectories, rule_result.reward_pools, strict=True):
        seats = trajectory.deal.seats
        sums: dict[str, float] = {}
        for turn in trajectory.turns:
            if (advantage := rule_result.assigned.get(turn.id)) is not None:
                sums[turn.agent] = sums.get(turn.agent, 0.0) + advantage.value
        for agent, total in sums.items():
            if seats[agent] in earned:
                earned[seats[agent]] += total
        for agents, reward in reward_pools:
            # Agents are sorted, because the order of the summands decides the last bits of a sum, and a set has none.
            total = sum([sums.get(agent, 0.0) for agent in sorted(agents)])
            for role in {seats[agent] for agent in agents}:
                if role not in rewarded:
                    continue
                shared[role] += total if reward > 0 else -total if reward else 0.0
                rewarded[role] += abs(reward)
    metrics: dict[str, Metrics] = {}
    for role in roles:
        metrics[role] = {"earned": earned[role] / len(rule_result.evidence.trajectories)}
        if rewarded[role]:
            metrics[role]["conservation"] = shared[role] / rewarded[role]
    return metrics


def _continuation_bias_by_role(
    rule_result: CreditRuleResult, turns_by_role: Mapping[str, Sequence[Turn]]
) -> dict[str, Metrics]:
    """Return role -> `continuation_bias_metrics` of its comparable turns in `turns_by_role`."""
    trajectories = rule_result.evidence.trajectories
    groups: dict[TurnId, Hashable] = {}
    if rule_result.peers:
        for index, group in enumerate(rule_result.peers.groups):
            groups.update(dict.fromkeys(group, index))
    # For each turn: in each of its episodes, did its agent have a further turn after it?
    continues: dict[TurnId, list[bool]] = defaultdict(list)
    for trajectory in trajectories:
        seen: set[str] = set()
        for turn in reversed(trajectory.turns):
            continues[turn.id].append(turn.agent in seen)
            seen.add(turn.agent)
            # If the baseline declares no peers, turns with equal prompts and equal starts count as peers.
            # Terms such as the value of the state before the turn are equal for all peers, and so cause no bias.
            if not rule_result.peers:
                groups[turn.id] = trajectory.start, hashable_prompt(turn)
    biases: dict[str, Metrics] = {}
    for role, turns in turns_by_role.items():
        keys: list[Hashable] = []
        columns: list[tuple[float, float, float]] = []
        for turn in turns:
            if turn.id in groups:
                keys.append((turn.agent, turn.nth, groups[turn.id]))
                flags = continues[turn.id]
                continuation_rate = sum(flags) / len(flags)
                columns.append(
                    (rule_result.credit[turn.id].value, rule_result.earned[turn.id].value, continuation_rate)
                )
        biases[role] = continuation_bias_metrics(keys, columns)
    return biases


def continuation_bias_metrics(
    peer_group_keys: Sequence[Hashable], credit_earned_continues: Sequence[tuple[float, float, float]]
) -> Metrics:
    """Return the bias of credit towards continuing: the additional credit of turns whose agent had a further turn.

    Only turns that earned the same are compared. Within each group, the least-squares fit on [1, earned] is subtracted
    from credit and from the indicator of a further turn. Over all groups, `stopping_bias` is the slope of the first
    residual on the second, and `stopping_bias_t` its t value, at most a million (Frisch and Waugh 1933). Credit that is
    an affine function of the earnings, as in `group`, has a bias of exactly 0. Without an estimate of the slope, both
    figures are absent.

    Args:
        peer_group_keys: group of each turn: the baseline compares turns with equal keys, of one agent and with the same
            index.
        credit_earned_continues: (credit, earned, 1 if the agent had a further turn else 0) of each turn.
    """
    credit, earned, continues = np.array(credit_earned_continues, dtype=float).reshape(-1, 3).T
    group_indices: dict[Hashable, int] = {}
    indices = np.array([group_indices.setdefault(key, len(group_indices)) for key in peer_group_keys], dtype=int)
    finite = np.isfinite(credit) & np.isfinite(earned)
    regression = _GroupedRegression(indices[finite], earned[finite])
    credit_residual, indicator_residual = regression.residuals(credit[finite]), regression.residuals(continues[finite])
    # The slope of credit on the indicator of a further turn takes one more degree of freedom.
    spread, freedom = float(indicator_residual @ indicator_residual), regression.freedom - 1
    if spread == 0.0 or freedom < 1:
        return {}
    slope = float(credit_residual @ indicator_residual) / spread
    noise = credit_residual - slope * indicator_residual
    error = float(np.sqrt(noise @ noise / freedom / spread))
    t = slope / error if abs(slope) < _LARGEST_T * error else float(np.sign(slope)) * _LARGEST_T
    return {"stopping_bias": slope, "stopping_bias_t": t}


class _GroupedRegression:
    """Least-squares regression on [1, x], fitted separately within each group of numbers."""

    def __init__(self, groups: np.ndarray, x: np.ndarray) -> None:
        """`groups`: index of the group of each number in `x`."""
        self._groups, self._counts = groups, np.bincount(groups)
        self._x = self._subtract_group_means(x)
        self._squares = np.bincount(groups, self._x**2)
        ranks = 1 + (self._squares > 0)
        self.freedom = int(np.maximum(self._counts - ranks, 0).sum())
        """Degrees of freedom of the residuals."""

    def residuals(self, y: np.ndarray) -> np.ndarray:
        """Return the residuals of `y`. A residual that may be a rounding error is 0."""
        centred = self._subtract_group_means(y)
        products = np.bincount(self._groups, self._x * centred)
        slopes = products / np.where(self._squares > 0, self._squares, 1.0)
        return self._zero_rounding_errors(centred - slopes[self._groups] * self._x, y)

    def _subtract_group_means(self, y: np.ndarray) -> np.ndarray:
        means = np.bincount(self._groups, y) / np.maximum(self._counts, 1)
        return self._zero_rounding_errors(y - means[self._groups], y)

    def _zero_rounding_errors(self, residuals: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return `residuals`, with 0 for each residual that is tiny compared with the largest |y| of its group."""
        largest = np.zeros(len(self._counts))
        np.maximum.at(largest, self._groups, np.abs(y))
        return np.where(np.abs(residuals) <= _ROUNDING * largest[self._groups], 0.0, residuals)


def pure_peer_group_share_by_role(peers: PeerGroups | None, trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Return role -> share of its peer groups whose members had the same start, prompt or problem.

    Groups with a single unit do not count. Members must share the property that the baseline declares. `prompt`: the
    prompt; `problem`: the problem's key; `start`: the start key, and everything that follows from the start alone: an
    agent's first prompt after the same moves, and its problem. So a low purity reveals a game that gives different
    starts the same key.

    Members must also work on the same problems, if another agent posed one of these problems in the episode. Such a
    problem acts as a second start: an easier problem would be credited to its solver. A problem that an agent posed
    itself does not count, since it is the agent's own action.
    """
    if peers is None or peers.shared_property is None:
        return {}
    turns: dict[TurnId, Turn] = {}
    tasks: dict[TurnId, _ProblemAndAuthor] = {}
    first_episode: dict[TurnId, Trajectory] = {}
    # The loop runs backwards, so that a turn shared by several forks ends up with the first of these forks.
    for trajectory in reversed(trajectories):
        for turn in trajectory.turns:
            turns[turn.id], first_episode[turn.id] = turn, trajectory
            if turn.problem == trajectory.turns[0].problem:
                tasks[turn.id] = _ProblemAndAuthor(turn.problem, "start")
            else:
                posers = {turns[source].agent for source in trajectory.sources(turn.id, ("posed",))}
                tasks[turn.id] = _ProblemAndAuthor(turn.problem, "itself" if turn.agent in posers else "other")
    # This cache spares comparing the same episodes again for each agent, whose groups contain the same episodes.
    same_start: dict[tuple[str, ...], bool] = {}
    verdicts: dict[str, list[bool]] = defaultdict(list)
    for group in peers.groups:
        # Unit -> tasks of its turns. A unit is a set of turns compared by one number, such as an episode.
        unit_tasks: dict[Hashable, list[_ProblemAndAuthor]] = defaultdict(list)
        # The group is pure if its turns agree in this property, such as the start: `shared` then has one value.
        shared: set[Hashable] = set()
        roles: set[str] = set()
        episodes: dict[str, Trajectory] = {}
        for turn_id in group:
            turn, episode = turns[turn_id], first_episode[turn_id]
            if peers.shared_property == "start":
                unit, key = episode.id, episode.start
            elif peers.shared_property == "prompt":
                unit, key = turn.id, hashable_prompt(turn)
            else:
                unit, key = (turn.id[0], turn.agent), turn.problem
            unit_tasks[unit].append(tasks[turn.id])
            shared.add(key)
            roles.add(turn.role)
            episodes[episode.id] = episode
        if len(unit_tasks) < 2:
            continue
        pure = len(shared) == 1 and _units_share_problems_posed_by_others(unit_tasks)
        if pure and peers.shared_property == "start":
            names = tuple(episodes)
            if names not in same_start:
                same_start[names] = _have_same_first_prompts_and_problems(episodes.values())
            pure = same_start[names]
        for role in roles:
            verdicts[role].append(pure)
    return {role: fmean(flags) for role, flags in verdicts.items()}


class _ProblemAndAuthor(NamedTuple):
    """The problem of a turn, and its author: the start of the game, another agent, or the turn's own agent."""

    problem: str
    posed_by: Literal["start", "other", "itself"]


def _units_share_problems_posed_by_others(problems_by_unit: Mapping[Hashable, Sequence[_ProblemAndAuthor]]) -> bool:
    """Return False if the units (such as episodes) work on different problems, of which another agent posed one."""
    problem_sets: set[frozenset[str]] = set()
    posed_by_other = False
    for tasks in problems_by_unit.values():
        problems: set[str] = set()
        for task in tasks:
            posed_by_other = posed_by_other or task.posed_by == "other"
            if task.posed_by != "itself":
                problems.add(task.problem)
        problem_sets.add(frozenset(problems))
    return not posed_by_other or len(problem_sets) == 1


def _have_same_first_prompts_and_problems(trajectories: Iterable[Trajectory]) -> bool:
    """Return True if agents have equal first prompts and problems wherever the earlier texts are equal."""
    openings: dict[Hashable, Hashable] = {}
    for trajectory in trajectories:
        texts: list[str] = []
        seen: set[str] = set()
        for turn in trajectory.turns:
            if turn.agent not in seen:
                seen.add(turn.agent)
                # The key tells players with tokens (models) from players without tokens, who may share a role.
                key = (turn.agent, turn.role, bool(turn.completion.prompt_ids), *texts)
                opening = hashable_prompt(turn), turn.problem
                if openings.setdefault(key, opening) != opening:
                    return False
            # A game may answer a text without a legal move at random, so turns after such a text do not count.
            if turn.action is None or len(seen) == len(trajectory.deal.seats):
                break
            texts += [turn.agent, turn.completion.text]
    return True


def credit_rule_agreement_by_role(
    trajectories: Iterable[Trajectory], first_credit: Credit, second_credit: Credit
) -> dict[str, Metrics]:
    """Return role -> `credit_rule_agreement` of the advantages of two rules, on the turns that both rules credit."""
    pairs: dict[str, dict[TurnId, tuple[float, float]]] = defaultdict(dict)
    for trajectory in trajectories:
        for turn in trajectory.turns:
            if turn.id in first_credit and turn.id in second_credit:
                pairs[turn.role][turn.id] = first_credit[turn.id].value, second_credit[turn.id].value
    return {role: credit_rule_agreement(list(values.values())) for role, values in sorted(pairs.items())}


def credit_rule_agreement(advantage_pairs: Sequence[tuple[float, float]]) -> Metrics:
    """Return measures of agreement of two rules, from the two advantages of each turn.

    `sign_agreement`: share of turns with the same sign, among turns with an advantage other than 0 under either rule;
    `correlation` (Pearson); `rank_correlation` (Spearman; ties share their mean rank); `difference`: mean absolute
    difference. An undefined measure is absent.
    """
    ours, theirs = np.array(advantage_pairs, dtype=float).reshape(-1, 2).T
    metrics: Metrics = {}
    if len(ours):
        metrics["difference"] = float(np.abs(ours - theirs).mean())
    signs = np.stack([np.sign(ours), np.sign(theirs)])[:, (ours != 0) | (theirs != 0)]
    if signs.size:
        metrics["sign_agreement"] = float((signs[0] == signs[1]).mean())
    for name, a, b in (("correlation", ours, theirs), ("rank_correlation", _mean_ranks(ours), _mean_ranks(theirs))):
        # The correlation with a constant is undefined.
        if len(a) > 1 and np.ptp(a) > _ROUNDING * np.abs(a).max() and np.ptp(b) > _ROUNDING * np.abs(b).max():
            metrics[name] = float(np.corrcoef(a, b)[0, 1])
    return metrics


def _mean_ranks(values: np.ndarray) -> np.ndarray:
    _, indices, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[indices]
