"""Diagnostics of credit by role: conservation of rewards, purity of peer groups, stopping bias, agreement of rules.

All functions are pure functions of a rule's input and output: they play no episodes, and their time is linear in the
number of turns.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import chain
from typing import Literal

import numpy as np

from marl.core.graph import Trajectory
from marl.core.types import Credit, Metrics, TurnId, hashable_prompt
from marl.credit_stage.turn_columns import TurnColumns, groups_with_differences, number_combinations, number_distinct
from marl.protocols import Evidence, PeerGroups, SharedProperty

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


def credit_rule_diagnostics(rule_result: CreditRuleResult, columns: TurnColumns) -> Metrics:
    """Return the metrics `credit/ROLE/...` of the roles whose turns the rule credits.

    `zero`: share of the credited turns with an advantage of exactly 0. `earned`, `conservation`: see
    `credit_conservation_by_role`. `purity`: see `pure_peer_group_share_by_role`. `stopping_bias`, `stopping_bias_t`:
    see `continuation_bias_metrics`. `columns` holds the turns of the rule's evidence.
    """
    rows = columns.rows(rule_result.credit)
    roles, is_nonzero = columns.role[rows], _nonzero_flags(rule_result.credit)
    counts = np.bincount(roles, minlength=len(columns.role_names)).tolist()
    zero_counts = np.bincount(roles[~is_nonzero], minlength=len(columns.role_names)).tolist()
    conserved = credit_conservation_by_role(rule_result, columns)
    purities = pure_peer_group_share_by_role(rule_result.peers, columns)
    biases = _continuation_bias_by_role(rule_result, columns, rows)
    metrics: Metrics = {}
    for role, count, zero_count in sorted(zip(columns.role_names, counts, zero_counts, strict=True)):
        if not count:
            continue
        figures = {"zero": zero_count / count} | conserved[role]
        if role in purities:
            figures["purity"] = purities[role]
        for name, value in (figures | biases[role]).items():
            metrics[f"credit/{role}/{name}"] = value
    return metrics


def nonzero_advantage_metrics(
    columns: TurnColumns, credit: Credit, credited_turns: Set[TurnId] | None, rule_based_roles: Set[str]
) -> Metrics:
    """Return `credit/ROLE/nonzero`: the share of a role's turns with an advantage other than 0.

    Only these turns can change the role's policy. The share is taken over the turns in `credited_turns` (None: all
    turns); a turn without an entry in `credit` counts like a turn with advantage 0. Roles in `rule_based_roles` have no
    such share.
    """
    counted_roles, nonzero_roles = columns.role, columns.role[columns.rows(credit)[_nonzero_flags(credit)]]
    if credited_turns is not None:
        counted_roles = columns.role[[turn in credited_turns for turn in columns.row]]
    counts = np.bincount(counted_roles, minlength=len(columns.role_names)).tolist()
    nonzero_counts = np.bincount(nonzero_roles, minlength=len(columns.role_names)).tolist()
    metrics: Metrics = {}
    for role, count, nonzero_count in sorted(zip(columns.role_names, counts, nonzero_counts, strict=True)):
        if count and role not in rule_based_roles:
            metrics[f"credit/{role}/nonzero"] = nonzero_count / count
    return metrics


def _nonzero_flags(credit: Credit) -> np.ndarray:
    """Return for each advantage: True if the advantage of the turn or of one of its tokens is not 0."""
    return np.array([advantage.value != 0 or any(advantage.tokens) for advantage in credit.values()], dtype=bool)


def credit_conservation_by_role(rule_result: CreditRuleResult, columns: TurnColumns) -> dict[str, Metrics]:
    """Return role -> comparison of the credit of its turns with the rewards of its agents.

    `earned`: mean over episodes of the summed credit of the role's turns. `conservation`: credit for each unit of
    reward, sum of sign(reward) credit / sum of |reward|, over episodes and the reward pools of the role's agents (with
    the credit of all agents of a pool). 1: credit sums to the reward; 3: every unit of reward was credited three times;
    0: no reward was credited. `conservation` is absent where all rewards are 0.
    """
    assigned = np.zeros(len(columns.turns))
    assigned[columns.rows(rule_result.assigned)] = [advantage.value for advantage in rule_result.assigned.values()]
    roles = columns.role[columns.occurrence_row]
    earned = np.bincount(roles, assigned[columns.occurrence_row], minlength=len(columns.role_names)).tolist()
    pools = _RewardPools(rule_result.reward_pools, columns)
    metrics: dict[str, Metrics] = {}
    # Infinite numbers give no warning here, because the learner refuses them and names the turn.
    with np.errstate(invalid="ignore"):
        credit = np.sign(pools.reward) * pools.sum_over_agents(columns.sum_by_episode_and_agent(assigned))
        for index, role in enumerate(columns.role_names):
            metrics[role] = {"earned": earned[index] / len(columns.trajectories)}
            of_role = pools.has_role(role)
            if rewarded := float(np.abs(pools.reward[of_role]).sum()):
                metrics[role]["conservation"] = float(credit[of_role].sum()) / rewarded
    return metrics


class _RewardPools:
    """The reward pools of all episodes whose reward is not 0, as columns with one entry for each pool."""

    def __init__(
        self, pools_of_episodes: Sequence[Sequence[tuple[frozenset[str], float]]], columns: TurnColumns
    ) -> None:
        pools = list(chain.from_iterable(pools_of_episodes))
        episodes = np.repeat(np.arange(len(pools_of_episodes)), np.array(list(map(len, pools_of_episodes)), dtype=int))
        rewards = np.array([reward for _, reward in pools], dtype=float)
        agent_sets, agent_set = number_distinct([agents for agents, _ in pools])
        self._agents = list(dict.fromkeys(chain(columns.agent_names, *map(sorted, agent_sets))))
        """All agents; the first are those of `columns.agent_names`, in the same order."""
        is_member = np.array([[agent in agents for agent in self._agents] for agents in agent_sets], dtype=bool)
        self.reward, self._episode = rewards[rewards != 0], episodes[rewards != 0]
        self._is_member = is_member.reshape(len(agent_sets), len(self._agents))[agent_set[rewards != 0]]
        """True for the agents of each pool [pools, agents]."""
        seats = {id(trajectory.deal.seats): trajectory.deal.seats for trajectory in columns.trajectories}
        self._seats = [set(roles_by_agent.items()) for roles_by_agent in seats.values()]
        """Assignments of roles to agents, as sets of (agent, role)."""
        _, self._seats_of_episode = number_distinct([id(trajectory.deal.seats) for trajectory in columns.trajectories])
        """Index in `_seats` of each episode's assignment."""

    def sum_over_agents(self, amounts: np.ndarray) -> np.ndarray:
        """Return the sum of each pool's `amounts` [episodes, agents of the columns] in its episode."""
        spoke = self._is_member[:, : amounts.shape[1]]
        return np.where(spoke, amounts[self._episode], 0.0).sum(axis=1)

    def has_role(self, role: str) -> np.ndarray:
        """Return for each pool: True if one of its agents has `role`."""
        is_seated = np.array([[(agent, role) in seats for agent in self._agents] for seats in self._seats], dtype=bool)
        return np.any(self._is_member & is_seated[self._seats_of_episode[self._episode]], axis=1)


def _continuation_bias_by_role(
    rule_result: CreditRuleResult, columns: TurnColumns, rows: np.ndarray
) -> dict[str, Metrics]:
    """Return role -> `continuation_bias_metrics` of its comparable turns. `rows`: row of each turn in the credit."""
    if rule_result.peers:
        groups = np.full(len(columns.turns), -1)
        groups[_member_rows(rule_result.peers, columns)] = _group_of_members(rule_result.peers)
    else:
        # If the baseline declares no peers, turns with equal prompts and equal starts count as peers.
        # Terms such as the value of the state before the turn are equal for all peers, and so cause no bias.
        starts = [columns.trajectories[episode].start for episode in columns.episode.tolist()]
        _, groups = number_distinct(list(zip(starts, map(hashable_prompt, columns.turns), strict=True)))
    nth = np.array([turn.nth for turn in columns.turns], dtype=int)
    peers = number_combinations(columns.agent, nth, groups + 1)[rows]
    earned = np.array([rule_result.earned[turn].value for turn in rule_result.credit], dtype=float)
    credit = np.array([advantage.value for advantage in rule_result.credit.values()], dtype=float)
    continues = columns.continuation_rate()[rows]
    biases: dict[str, Metrics] = {}
    for index, role in enumerate(columns.role_names):
        chosen = (columns.role[rows] == index) & (groups[rows] >= 0)
        biases[role] = _continuation_bias(peers[chosen], credit[chosen], earned[chosen], continues[chosen])
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
    _, groups = number_distinct(peer_group_keys)
    return _continuation_bias(groups, *np.array(credit_earned_continues, dtype=float).reshape(-1, 3).T)


def _continuation_bias(groups: np.ndarray, credit: np.ndarray, earned: np.ndarray, continues: np.ndarray) -> Metrics:
    """Return `continuation_bias_metrics` of turns given as columns; `groups`: index of each turn's group."""
    finite = np.isfinite(credit) & np.isfinite(earned)
    regression = _GroupedRegression(groups[finite], earned[finite])
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


def pure_peer_group_share_by_role(peers: PeerGroups | None, columns: TurnColumns) -> dict[str, float]:
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
    rows, groups = _member_rows(peers, columns), _group_of_members(peers)
    units, shared = _units_and_shared_property(peers.shared_property, columns)
    has_peers = groups_with_differences(groups, units[rows], len(peers.groups))
    pure = ~groups_with_differences(groups, shared[rows], len(peers.groups))
    authors = _authors_of_later_problems(columns)
    # This cache spares comparing the same episodes again for each agent, whose groups contain the same episodes.
    same_start: dict[tuple[int, ...], bool] = {}
    ends = np.cumsum(list(map(len, peers.groups))).tolist()
    episode_of_member = columns.episode[rows].tolist()
    for group in np.flatnonzero(has_peers & pure).tolist():
        members = slice(ends[group] - len(peers.groups[group]), ends[group])
        is_pure = True
        if authors:
            is_pure = _units_share_problems_posed_by_others(rows[members].tolist(), units, authors, columns)
        if is_pure and peers.shared_property == "start":
            episodes = tuple(dict.fromkeys(episode_of_member[members]))
            if episodes not in same_start:
                trajectories = [columns.trajectories[episode] for episode in episodes]
                same_start[episodes] = _have_same_first_prompts_and_problems(trajectories)
            is_pure = same_start[episodes]
        pure[group] = is_pure
    shares: dict[str, float] = {}
    for index, role in enumerate(columns.role_names):
        verdicts = pure[np.unique(groups[(columns.role[rows] == index) & has_peers[groups]])]
        if len(verdicts):
            shares[role] = float(verdicts.mean())
    return shares


def _member_rows(peers: PeerGroups, columns: TurnColumns) -> np.ndarray:
    """Return the row of each turn of each group, one group after the other."""
    return columns.rows(chain.from_iterable(peers.groups))


def _group_of_members(peers: PeerGroups) -> np.ndarray:
    """Return the index of its group for each turn of each group, in the order of `_member_rows`."""
    return np.repeat(np.arange(len(peers.groups)), np.array(list(map(len, peers.groups)), dtype=int))


def _units_and_shared_property(shared_property: SharedProperty, columns: TurnColumns) -> tuple[np.ndarray, np.ndarray]:
    """Return two columns: the unit of each turn (a set of turns compared by one number), and its `shared_property`.

    Equal numbers stand for the same unit, and for the same start, prompt or problem.
    """
    if shared_property == "start":
        _, starts = number_distinct([trajectory.start for trajectory in columns.trajectories])
        return columns.episode, starts[columns.episode]
    if shared_property == "prompt":
        return np.arange(len(columns.turns)), number_distinct(list(map(hashable_prompt, columns.turns)))[1]
    _, units = number_distinct([(turn.id[0], turn.agent) for turn in columns.turns])
    return units, number_distinct([turn.problem for turn in columns.turns])[1]


def _authors_of_later_problems(columns: TurnColumns) -> dict[int, Literal["itself", "other"]]:
    """Return row -> author of the turn's problem, the turn's own agent or another one.

    Turns that work on the problem of their episode's first turn are absent: the start of the game posed it.
    """
    authors: dict[int, Literal["itself", "other"]] = {}
    if len({turn.problem for turn in columns.turns}) < 2:
        return authors
    for row, (turn, episode) in enumerate(zip(columns.turns, columns.episode.tolist(), strict=True)):
        trajectory = columns.trajectories[episode]
        if turn.problem != trajectory.turns[0].problem:
            sources = columns.rows(trajectory.sources(turn.id, ("posed",))).tolist()
            posers = {columns.turns[source].agent for source in sources}
            authors[row] = "itself" if turn.agent in posers else "other"
    return authors


def _units_share_problems_posed_by_others(
    rows: Sequence[int], units: np.ndarray, authors: Mapping[int, Literal["itself", "other"]], columns: TurnColumns
) -> bool:
    """Return False if another agent posed a problem of the turns `rows`, and their units differ in their problems.

    Problems that an agent posed itself do not count. `units`: column with the unit of each turn, such as its episode.
    """
    if "other" not in map(authors.get, rows):
        return True
    problems_of_unit: dict[int, set[str]] = defaultdict(set)
    for row, unit in zip(rows, units[rows].tolist(), strict=True):
        problems_of_unit[unit].update([columns.turns[row].problem] if authors.get(row) != "itself" else [])
    return len(set(map(frozenset, problems_of_unit.values()))) == 1


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
