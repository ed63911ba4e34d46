"""Credit records: the derivation of each turn's advantage, as plain data that is written beside the trajectories."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from marl.core.graph import Trajectory
from marl.core.types import Advantage, Credit, Reward, TurnId
from marl.credit_stage.diagnostics import CreditRuleResult
from marl.protocols import TokenLogprobsAndEntropies

SharedRewardPool = tuple[tuple[str, ...], float]
"""Agents that share their rewards, and the sum of these rewards."""


@dataclass(frozen=True, slots=True)
class CreditRuleSettingsRecord:
    """Settings of one credit rule."""

    field: str
    """Field of the scenario that contains the rule: `credit` or `credit.roles.ROLE`."""
    assign: Mapping[str, Any]
    """Settings under `assign`, with their defaults."""
    baseline: Mapping[str, Any]
    """Settings under `baseline`, with their defaults."""
    scale: float
    """Factor that multiplied the rewards before `assign` read them."""


@dataclass(frozen=True, slots=True)
class BaselinePeerGroup:
    """Group of turns that a baseline compared with one another."""

    like: str | None
    """Property that the turns share: `start`, `prompt` or `problem`; None if the baseline requires none."""
    turns: tuple[TurnId, ...]


@dataclass(frozen=True, slots=True)
class TurnCreditRecord:
    """Derivation of one turn's advantage: rewards, assigned credit, penalties, baseline, advantage."""

    turn: TurnId
    agent: str
    role: str
    policy: str
    version: tuple[int, int]
    """Versions of the policy's weights that sampled the turn's first and last token."""
    rule: int
    """Index of the turn's rule in `CreditRecord.rules`."""
    pool: tuple[str, ...]
    """Agents that share rewards with the turn's agent, the agent included; empty if the rule has no reward pools."""
    pool_reward: float
    """Sum of the rewards of the agents in `pool` in the episode, times the rule's `scale`."""
    assigned: float | None
    """Output of `assign` for the turn, or None if `assign` gave the turn no credit."""
    penalties: Mapping[str, float]
    """Name of a penalty (`kl`, `overlong`, `token_cost`) -> sum of the penalty over the turn's tokens."""
    earned: float
    """`assigned` plus the penalties: the input of the baseline."""
    baseline: float | None
    """Number that the baseline subtracted, or None if it subtracted none or a different number for each reward."""
    scale: float | None
    """Factor by which the baseline multiplied `earned` minus `baseline`, or None if `baseline` is None."""
    group: int | None
    """Index of the turn's peers in `CreditRecord.groups`, or None if the turn was compared with no peers."""
    advantage: float
    """Output of the credit rule: the weight with which the turn is learned."""
    token_advantages: tuple[float, ...] = ()
    """Advantage of each token, from rules that credit tokens; empty if every token has `advantage`."""
    token_entropy: tuple[float, ...] = ()
    """Entropy of the learner's distribution at each token [nats, rounded]; empty if the update did not compute
    entropies."""
    token_mismatch: tuple[float, ...] = ()
    """Log-probability of each token under the learner minus its log-probability under the sampler [nats, rounded].

    The learner computes the first term in its first pass over the turn, possibly after some optimizer steps of the
    update."""


@dataclass(frozen=True, slots=True)
class EpisodeCreditRecord:
    """Rewards of one episode, and the credit record of each of its credited turns.

    A turn that several forks share is in the record of the first fork only.
    """

    episode: str
    rewards: tuple[Reward, ...]
    turns: tuple[TurnCreditRecord, ...]


@dataclass(frozen=True, slots=True)
class CreditRecord:
    """Credit of one step, with its derivation."""

    rules: tuple[CreditRuleSettingsRecord, ...]
    groups: tuple[BaselinePeerGroup, ...]
    episodes: tuple[EpisodeCreditRecord, ...]

    def turns(self) -> dict[TurnId, TurnCreditRecord]:
        """Return the record of each credited turn, by the turn's id."""
        return {turn.turn: turn for episode in self.episodes for turn in episode.turns}


@dataclass(frozen=True, slots=True)
class RecomputedCredit:
    """Credit of a recorded step, computed again after training by a rule of the user's choice."""

    rule: str
    """Credit rule as the user wrote it, such as `flow/role_average`."""
    record: CreditRecord
    metrics: Mapping[str, float]
    """Metrics `credit/...` of the step; with several games `game/GAME/...` as well."""
    tokens: int
    """Number of tokens that were sampled or scored to compute this credit, such as in forks of episodes."""
    differences: tuple[str, ...] = ()
    """Settings of `credit` in which the rule differs from the run's own, a line each; empty for the run's own rule."""
    notes: tuple[str, ...] = ()
    """Sentences about the weights and the state with which the credit was computed."""

    def credit(self) -> Credit:
        """Return the advantage of every credited turn."""
        records = self.record.turns().items()
        return {turn: Advantage(record.advantage, record.token_advantages) for turn, record in records}


def build_credit_record(
    results: Sequence[tuple[CreditRuleSettingsRecord, CreditRuleResult]],
    policy_by_role: Mapping[str, str],
    trajectories: Sequence[Trajectory],
) -> CreditRecord:
    """Return the credit record of a step.

    Args:
        results: the rules of the step, with their results.
        policy_by_role: role -> its policy.
        trajectories: the step's trajectories, with the rewards as the game paid them (not scaled).
    """
    groups: list[BaselinePeerGroup] = []
    records: dict[TurnId, TurnCreditRecord] = {}
    rules: list[CreditRuleSettingsRecord] = []
    for index, (rule, result) in enumerate(results):
        rules.append(rule)
        group_of: dict[TurnId, int] = {}
        if result.peers:
            for group in result.peers.groups:
                group_of.update(dict.fromkeys(group, len(groups)))
                groups.append(BaselinePeerGroup(result.peers.shared_property, tuple(group)))
        for trajectory, pools in zip(result.evidence.trajectories, result.reward_pools, strict=True):
            pool_of: dict[str, SharedRewardPool] = {}
            for agents, reward in pools:
                pool_of.update(dict.fromkeys(agents, (tuple(sorted(agents)), reward)))
            for turn in trajectory.turns:
                # A turn that several forks share belongs to the first fork.
                if turn.id not in result.credit or turn.id in records:
                    continue
                assigned, advantage = result.assigned.get(turn.id), result.credit[turn.id]
                pool, pool_reward = pool_of.get(turn.agent, ((), 0.0))
                records[turn.id] = TurnCreditRecord(
                    turn=turn.id,
                    agent=turn.agent,
                    role=turn.role,
                    policy=policy_by_role[turn.role],
                    version=turn.completion.versions,
                    rule=index,
                    pool=pool,
                    pool_reward=pool_reward,
                    assigned=assigned.value if assigned else None,
                    penalties={name: sums[turn.id] for name, sums in result.penalties.items() if turn.id in sums},
                    earned=result.earned[turn.id].value,
                    baseline=advantage.baseline,
                    scale=advantage.scale,
                    group=group_of.get(turn.id),
                    advantage=advantage.value,
                    token_advantages=advantage.tokens,
                )
    episodes = []
    for trajectory in trajectories:
        turns = [records.pop(turn.id) for turn in trajectory.turns if turn.id in records]
        episodes.append(EpisodeCreditRecord(trajectory.id, tuple(trajectory.rewards), tuple(turns)))
    return CreditRecord(tuple(rules), tuple(groups), tuple(episodes))


def with_token_statistics(
    record: CreditRecord,
    trajectories: Sequence[Trajectory],
    logprobs_and_entropies: Mapping[TurnId, TokenLogprobsAndEntropies],
) -> CreditRecord:
    """Return `record` with each token's entropy and log-probability mismatch.

    `logprobs_and_entropies` maps a turn to the learner's figures of its tokens, from the step's update.
    """
    sampled = {turn.id: turn.completion.logprobs for trajectory in trajectories for turn in trajectory.turns}
    episodes = []
    for episode in record.episodes:
        turns = []
        for turn in episode.turns:
            if turn.turn in logprobs_and_entropies:
                learner, sampler = logprobs_and_entropies[turn.turn], sampled.get(turn.turn, ())
                # Without the sampler's log-probabilities there is no mismatch to record.
                mismatch = [a - b for a, b in zip(learner.logprobs, sampler, strict=True)] if sampler else ()
                entropy, mismatch = _round_to_three_digits(learner.entropy), _round_to_three_digits(mismatch)
                turn = replace(turn, token_entropy=entropy, token_mismatch=mismatch)
            turns.append(turn)
        episodes.append(replace(episode, turns=tuple(turns)))
    return replace(record, episodes=tuple(episodes))


def _round_to_three_digits(numbers: Iterable[float]) -> tuple[float, ...]:
    """Return `numbers` rounded to three significant digits, which need a third of the space on disk."""
    return tuple([float(f"{number:.3g}") for number in numbers])
