"""Records of a judgement: why each turn got its advantage. Plain data, written beside the trajectories."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from marl.judging.diagnostics import Ruling
from marl.types import Advantage, Credit, Reward, TokenFigures, TurnId

if TYPE_CHECKING:
    from marl.graph import Trajectory
    from marl.types import Turn


Pool = tuple[tuple[str, ...], float]
"""Agents that share their rewards, and the sum of those rewards."""


@dataclass(frozen=True, slots=True)
class RuleRecord:
    """A credit rule and the roles that it judges."""

    field: str
    """Place in the scenario: `credit` or `credit.roles.ROLE`."""
    assign: Mapping[str, Any]
    baseline: Mapping[str, Any]
    scale: float
    """Factor by which rewards were multiplied before anything else."""


@dataclass(frozen=True, slots=True)
class PeerGroup:
    """Turns that were compared with one another."""

    like: str | None
    """Property that they share: `start`, `prompt` or `problem`."""
    turns: tuple[TurnId, ...]


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """The chain from rewards to advantage of one turn."""

    turn: TurnId
    agent: str
    role: str
    policy: str
    version: tuple[int, int]
    """Versions of the weights that sampled the first and the last token."""
    rule: int
    """Index in `StepRecord.rules`."""
    pool: tuple[str, ...]
    """Agents that share their rewards with this one, itself included; empty if the rule divides nothing."""
    pool_reward: float
    """Sum of the pool's rewards in the episode, times the rule's `scale`."""
    assigned: float | None
    """Output of `assign`; None: it did not judge the turn."""
    penalties: Mapping[str, float]
    """Name (`kl`, `overlong`) -> sum over the turn's tokens."""
    earned: float
    """Assigned plus penalties: what the baseline compared."""
    baseline: float | None
    """Number that was subtracted; None: none, or not the same one for all parts."""
    scale: float | None
    """Factor by which the difference was multiplied."""
    group: int | None
    """Index in `StepRecord.groups`; None: compared with no peers of this step."""
    advantage: float
    token_advantages: tuple[float, ...] = ()
    """One number a token, where the rule judges tokens; otherwise every token has `advantage`."""
    token_entropy: tuple[float, ...] = ()
    """Entropy of the learner's distribution at each token in nats, where the update computed it; rounded."""
    token_mismatch: tuple[float, ...] = ()
    """Log-probability of each token by the learner less that by the sampler, in nats, where both are known; rounded.
    The learner's is from the first pass over the turn: in an update of several optimizer steps, after some of them."""


@dataclass(frozen=True, slots=True)
class EpisodeRecord:
    """Rewards of one episode, and the chain of each of its turns that was judged.

    A turn that several forks share stands in the first of them.
    """

    episode: str
    rewards: tuple[Reward, ...]
    turns: tuple[TurnRecord, ...]


@dataclass(frozen=True, slots=True)
class StepRecord:
    """The judgement of one step."""

    rules: tuple[RuleRecord, ...]
    groups: tuple[PeerGroup, ...]
    episodes: tuple[EpisodeRecord, ...]

    def turns(self) -> dict[TurnId, TurnRecord]:
        """Return every turn that was judged."""
        return {turn.turn: turn for episode in self.episodes for turn in episode.turns}


@dataclass(frozen=True, slots=True)
class RejudgedStep:
    """Judgement of a recorded step by one rule."""

    rule: str
    """The rule, as it was asked for."""
    record: StepRecord
    metrics: Mapping[str, float]
    """`credit/...` of the step; with several games `game/GAME/...` as well."""
    tokens: int
    """Tokens that it had sampled or scored for this step."""

    def credit(self) -> Credit:
        """Return the advantage of every turn that was judged."""
        return {t: Advantage(r.advantage, r.token_advantages) for t, r in self.record.turns().items()}


def record_step(
    rulings: Sequence[tuple[RuleRecord, Ruling]], policies: Mapping[str, str], paid: Sequence[Trajectory]
) -> StepRecord:
    """Return the records of a step.

    Args:
        rulings: each rule and what it made of the step.
        policies: role -> policy that speaks for it.
        paid: the step's trajectories, with the rewards as the game paid them.
    """
    groups: list[PeerGroup] = []
    chains: dict[TurnId, TurnRecord] = {}
    for index, (_, ruling) in enumerate(rulings):
        first, peers = len(groups), ruling.peers
        groups += [PeerGroup(peers.like, tuple(members)) for members in peers.groups] if peers else []
        group_of = {turn: first + i for i, group in enumerate(groups[first:]) for turn in group.turns}
        for turn, pool in _judged_turns(ruling):
            if turn.id not in chains:
                chain = _chain(turn, ruling, policies[turn.role], pool)
                chains[turn.id] = replace(chain, rule=index, group=group_of.get(turn.id))
    episodes = []
    for trajectory in paid:
        turns = [chain for turn in trajectory.turns if (chain := chains.pop(turn.id, None))]
        episodes.append(EpisodeRecord(trajectory.id, tuple(trajectory.rewards), tuple(turns)))
    return StepRecord(tuple(rule for rule, _ in rulings), tuple(groups), tuple(episodes))


def with_token_figures(
    record: StepRecord, trajectories: Sequence[Trajectory], figures: Mapping[TurnId, TokenFigures]
) -> StepRecord:
    """Return the record of a step with what its update computed of single tokens."""
    sampled = {turn.id: turn.completion.logprobs for trajectory in trajectories for turn in trajectory.turns}

    def with_figures(turn: TurnRecord) -> TurnRecord:
        known, theirs = figures.get(turn.turn), sampled.get(turn.turn, ())
        if known is None:
            return turn
        gaps = [ours - other for ours, other in zip(known.logprobs, theirs, strict=len(theirs) > 0)]
        return replace(turn, token_entropy=_rounded(known.entropy), token_mismatch=_rounded(gaps))

    episodes = [replace(each, turns=tuple(map(with_figures, each.turns))) for each in record.episodes]
    return replace(record, episodes=tuple(episodes))


def _rounded(numbers: Iterable[float]) -> tuple[float, ...]:
    """Return numbers of three digits, which take a third of the room on disk."""
    return tuple([float(f"{number:.3g}") for number in numbers])


def _judged_turns(ruling: Ruling) -> Iterator[tuple[Turn, Pool]]:
    for trajectory, pools in zip(ruling.evidence.trajectories, ruling.reward_pools, strict=True):
        shared = {agent: (tuple(sorted(agents)), amount) for agents, amount in pools for agent in agents}
        for turn in trajectory.turns:
            if turn.id in ruling.credit:
                yield turn, shared.get(turn.agent, ((), 0.0))


def _chain(turn: Turn, ruling: Ruling, policy: str, pool: Pool) -> TurnRecord:
    assigned, advantage = ruling.assigned.get(turn.id), ruling.credit[turn.id]
    agents, amount = pool
    return TurnRecord(
        turn=turn.id,
        agent=turn.agent,
        role=turn.role,
        policy=policy,
        version=turn.completion.versions,
        rule=0,
        pool=agents,
        pool_reward=amount,
        assigned=assigned.value if assigned else None,
        penalties={name: sums[turn.id] for name, sums in ruling.penalties.items() if turn.id in sums},
        earned=ruling.earned[turn.id].value,
        baseline=advantage.baseline,
        scale=advantage.scale,
        group=None,
        advantage=advantage.value,
        token_advantages=advantage.tokens,
    )
