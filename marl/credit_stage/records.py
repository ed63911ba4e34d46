"""Credit records: the derivation of each turn's advantage. Plain data, written beside the trajectories."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from marl.core.graph import Trajectory
from marl.core.types import Advantage, Credit, Reward, TokenFigures, Turn, TurnId
from marl.credit_stage.diagnostics import RuleResult

RewardPool = tuple[tuple[str, ...], float]
"""Agents that share their rewards, and the sum of those rewards."""


@dataclass(frozen=True, slots=True)
class RuleRecord:
    """Settings of one credit rule."""

    field: str
    """Field of the scenario that holds the rule: `credit` or `credit.roles.ROLE`."""
    assign: Mapping[str, Any]
    baseline: Mapping[str, Any]
    scale: float
    """Factor that multiplied the rewards before `assign` read them."""


@dataclass(frozen=True, slots=True)
class PeerGroup:
    """Turns that one baseline compared with one another."""

    like: str | None
    """Property that the turns share: `start`, `prompt` or `problem`; None: no property."""
    turns: tuple[TurnId, ...]


@dataclass(frozen=True, slots=True)
class TurnCreditRecord:
    """Derivation of one turn's advantage: rewards, assigned credit, penalties, baseline, advantage."""

    turn: TurnId
    agent: str
    role: str
    policy: str
    version: tuple[int, int]
    """Versions of the weights that sampled the first and the last token."""
    rule: int
    """Index in `CreditRecord.rules`."""
    pool: tuple[str, ...]
    """Agents that share rewards with the turn's agent, itself included; empty if the rule has no reward pools."""
    pool_reward: float
    """Sum of the pool's rewards in the episode, times the rule's `scale`."""
    assigned: float | None
    """Output of `assign`; None: `assign` gave the turn no credit."""
    penalties: Mapping[str, float]
    """Name (`kl`, `overlong`) -> sum over the turn's tokens."""
    earned: float
    """`assigned` plus the penalties: the input of the baseline."""
    baseline: float | None
    """Number that the baseline subtracted; None: no number, or different ones for different rewards."""
    scale: float | None
    """Factor that multiplied the difference."""
    group: int | None
    """Index in `CreditRecord.groups`; None: the turn was compared with no peers of this step."""
    advantage: float
    token_advantages: tuple[float, ...] = ()
    """Advantage of each token, from rules that credit tokens; empty: every token has `advantage`."""
    token_entropy: tuple[float, ...] = ()
    """Entropy of the learner's distribution at each token [nats, rounded], where the update computed it."""
    token_mismatch: tuple[float, ...] = ()
    """Log-probability of each token under the learner minus that under the sampler [nats, rounded].

    The learner's is from its first pass over the turn; in an update of several optimizer steps some of them have been
    made by then."""


@dataclass(frozen=True, slots=True)
class EpisodeRecord:
    """Rewards of one episode, and the record of each of its credited turns.

    A turn that several forks share is in the record of the first fork.
    """

    episode: str
    rewards: tuple[Reward, ...]
    turns: tuple[TurnCreditRecord, ...]


@dataclass(frozen=True, slots=True)
class CreditRecord:
    """Credit of one step, with its derivation."""

    rules: tuple[RuleRecord, ...]
    groups: tuple[PeerGroup, ...]
    episodes: tuple[EpisodeRecord, ...]

    def turns(self) -> dict[TurnId, TurnCreditRecord]:
        """Return the record of each credited turn, by the turn's id."""
        return {turn.turn: turn for episode in self.episodes for turn in episode.turns}


@dataclass(frozen=True, slots=True)
class RecomputedCredit:
    """Credit of a recorded step under one rule."""

    rule: str
    """The rule, as the user wrote it."""
    record: CreditRecord
    metrics: Mapping[str, float]
    """Metrics `credit/...` of the step; with several games `game/GAME/...` as well."""
    tokens: int
    """Number of tokens sampled or scored to compute this credit."""

    def credit(self) -> Credit:
        """Return the advantage of every credited turn."""
        records = self.record.turns().items()
        return {turn: Advantage(record.advantage, record.token_advantages) for turn, record in records}


def record_step(
    results: Sequence[tuple[RuleRecord, RuleResult]], policies: Mapping[str, str], trajectories: Sequence[Trajectory]
) -> CreditRecord:
    """Return the credit record of a step.

    Args:
        results: the rules of the step, with their results.
        policies: role -> its policy.
        trajectories: the step's trajectories, with the rewards as the game paid them (not scaled).
    """
    groups: list[PeerGroup] = []
    records: dict[TurnId, TurnCreditRecord] = {}
    for index, (_, result) in enumerate(results):
        group_of: dict[TurnId, int] = {}
        if result.peers:
            for group in result.peers.groups:
                group_of.update(dict.fromkeys(group, len(groups)))
                groups.append(PeerGroup(result.peers.shared_property, tuple(group)))
        for turn, pool in _credited_turns(result):
            # A turn that several forks share belongs to the first of them.
            if turn.id not in records:
                record = _turn_record(turn, result, policies[turn.role], pool)
                records[turn.id] = replace(record, rule=index, group=group_of.get(turn.id))
    episodes = []
    for trajectory in trajectories:
        turns = [records.pop(turn.id) for turn in trajectory.turns if turn.id in records]
        episodes.append(EpisodeRecord(trajectory.id, tuple(trajectory.rewards), tuple(turns)))
    return CreditRecord(tuple(rule for rule, _ in results), tuple(groups), tuple(episodes))


def with_token_statistics(
    record: CreditRecord, trajectories: Sequence[Trajectory], figures: Mapping[TurnId, TokenFigures]
) -> CreditRecord:
    """Return `record` with the entropy and the log-probability gap of each token, from the step's update."""
    sampled = {turn.id: turn.completion.logprobs for trajectory in trajectories for turn in trajectory.turns}
    episodes = []
    for episode in record.episodes:
        turns = []
        for turn in episode.turns:
            if turn.turn in figures:
                learner, sampler = figures[turn.turn], sampled.get(turn.turn, ())
                # A sampler that reports no log-probabilities leaves the gaps empty.
                gaps = [a - b for a, b in zip(learner.logprobs, sampler, strict=len(sampler) > 0)]
                turn = replace(turn, token_entropy=_rounded(learner.entropy), token_mismatch=_rounded(gaps))
            turns.append(turn)
        episodes.append(replace(episode, turns=tuple(turns)))
    return replace(record, episodes=tuple(episodes))


def _rounded(numbers: Iterable[float]) -> tuple[float, ...]:
    """Return `numbers` with three significant digits, which need a third of the space on disk."""
    return tuple([float(f"{number:.3g}") for number in numbers])


def _credited_turns(result: RuleResult) -> Iterator[tuple[Turn, RewardPool]]:
    """Yield each turn that the rule credited, with the reward pool of the turn's agent."""
    for trajectory, pools in zip(result.evidence.trajectories, result.reward_pools, strict=True):
        pool_of: dict[str, RewardPool] = {}
        for agents, amount in pools:
            pool_of.update(dict.fromkeys(agents, (tuple(sorted(agents)), amount)))
        for turn in trajectory.turns:
            if turn.id in result.credit:
                yield turn, pool_of.get(turn.agent, ((), 0.0))


def _turn_record(turn: Turn, result: RuleResult, policy: str, pool: RewardPool) -> TurnCreditRecord:
    """Return the record of one turn, still without `rule` and `group`."""
    assigned, advantage = result.assigned.get(turn.id), result.credit[turn.id]
    agents, amount = pool
    return TurnCreditRecord(
        turn=turn.id,
        agent=turn.agent,
        role=turn.role,
        policy=policy,
        version=turn.completion.versions,
        rule=0,
        pool=agents,
        pool_reward=amount,
        assigned=assigned.value if assigned else None,
        penalties={name: sums[turn.id] for name, sums in result.penalties.items() if turn.id in sums},
        earned=result.earned[turn.id].value,
        baseline=advantage.baseline,
        scale=advantage.scale,
        group=None,
        advantage=advantage.value,
        token_advantages=advantage.tokens,
    )
