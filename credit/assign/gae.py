"""Generalised advantage estimation (GAE, arXiv 1506.02438) on the turns of an agent or of a team.

delta_k = r_k + gamma V_{k+1} - V_k and A_k = delta_k + gamma lambda A_{k+1}, from the last moment to the first. Moments
need not be neighbours in the text: other agents' turns, tool answers and prompts are not on the time axis and cost no
discount ("skip"). Turns whose policies do not learn have no values, so they count as part of the environment: their
rewards belong to the last moment before them.

Values are `Reading.values`: V_t is the value of the state *before* token t. After the last moment of a truncated
episode the value is `Reading.next_value`, if there is one; after any other episode it is 0. `own` values
(`credit.baselines.value`) are values of the state before a turn, so they fit the level `turn` only, and end with 0.
Without values (`none`) all are 0.

The result has `tokens` (one advantage a token) and their mean as `value` at the levels `token` and `bi_level`; `value`
alone at the level `turn`. `returns` = advantage + value are the value targets: one a token; or one a turn, for the
state before its first token. Advantages are not whitened: the usual baseline after GAE is `whiten` (PPO), or `none`.

Rewards of single tokens (`credit.kl`, `credit.overlong`) enter at the token; at the level `turn`, with the turn.
With `values: none` A is the discounted sum of later rewards; `whiten` as the baseline and a `credit.kl` make this
REINFORCE++ (arXiv 2501.03262).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from statistics import fmean
from typing import ClassVar, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from marl.core.graph import Trajectory
from marl.core.types import Advantage, Credit, Metrics, Turn, TurnId
from marl.credit.assign.teams import Team, TeamAssign
from marl.credit.baselines.value import ValueSource, ValueSourceConfig, explained_variance
from marl.protocols import Assign, AssignConfig, Evidence


class Discount(NamedTuple):
    """Weights of later moments."""

    gamma: float = 1.0
    lam: float = 1.0


class Bootstrap(NamedTuple):
    """Value and advantage after the last moment."""

    value: float = 0.0
    advantage: float = 0.0


TERMINAL = Bootstrap()


def gae(
    rewards: Sequence[float], values: Sequence[float], discount: Discount, later: Bootstrap = TERMINAL
) -> list[float]:
    """Return the advantages of successive moments: return - V with lambda = 1, r + gamma V' - V with lambda = 0.

    Args:
        rewards: the reward of each moment.
        values: the value of the state before each moment.
        later: value and advantage after the last moment.
    """
    gamma, fade = discount.gamma, discount.gamma * discount.lam
    next_values = [*values, later.value][1:]
    deltas = [reward + gamma * after - value for reward, after, value in zip(rewards, next_values, values, strict=True)]
    backwards = accumulate(reversed(deltas), lambda advantage, delta: delta + fade * advantage, initial=later.advantage)
    # Without the initial value, and in the order of time again.
    return list(backwards)[:0:-1]


def bi_level_gae(
    rewards: Sequence[float],
    values: Sequence[float],
    ends: Sequence[int],
    inner: Discount,
    outer: Discount,
    bootstrap: Bootstrap = TERMINAL,
) -> list[float]:
    """Return VAGEN's token advantages (arXiv 2510.16907): GAE over the turns' last tokens, then within each turn.

    delta_k = r_{e_k} + gamma_turn V_{e_{k+1}} - V_{e_k}, A_{e_k} = delta_k + gamma_turn lambda_turn A_{e_{k+1}}; inside
    a turn, A_t = r_t + gamma V_{t+1} - V_t + gamma lambda A_{t+1}.

    Args:
        rewards: rewards of tokens; r_{e_k} is the turn's, and rewards inside a turn do not reach the turns before it.
        values: values of the states before the tokens.
        ends: index of each turn's last token. They are never inferred from rewards: a turn's reward may be exactly 0.
        inner: discounts from token to token inside a turn.
        outer: discounts from turn to turn.
        bootstrap: value and advantage after the last token.

    Raises:
        ValueError: if the last token does not end a turn.
    """
    if not ends or ends[-1] != len(rewards) - 1:
        raise ValueError(f"the last of {len(rewards)} tokens must end a turn, got ends={list(ends)}")
    turn_advantages = gae([rewards[end] for end in ends], [values[end] for end in ends], outer, bootstrap)
    advantages: list[float] = []
    for end, advantage in zip(ends, turn_advantages, strict=True):
        inside = slice(len(advantages), end)
        advantages += gae(rewards[inside], values[inside], inner, Bootstrap(values[end], advantage))
        advantages.append(advantage)
    return advantages


@dataclass(frozen=True, slots=True)
class Chain:
    """Turns that share a time axis."""

    turns: Sequence[TurnId]
    values: Sequence[tuple[float, ...]]
    """For each turn: values of the states before its tokens, or before its first token alone."""
    rewards: Sequence[float]
    """Reward of each turn, which enters at the turn's last token."""
    later: Bootstrap
    """Value and advantage after the last turn."""
    token_rewards: Mapping[TurnId, Sequence[float]] = field(default_factory=dict)
    """Turn -> additional rewards of its tokens."""

    def by_turn(self, discount: Discount) -> list[Advantage]:
        """Return advantages of turns as single actions, taken in the state before the turn's first token."""
        before = [values[0] for values in self.values]
        rewards: list[float] = []
        for turn, reward in zip(self.turns, self.rewards, strict=True):
            rewards.append(reward + sum(self.token_rewards.get(turn, ())))
        advantages = gae(rewards, before, discount, self.later)
        return [Advantage(a, (), (a + value,)) for a, value in zip(advantages, before, strict=True)]

    def by_token(self, discount: Discount) -> list[Advantage]:
        """Return advantages of tokens as single actions, over the concatenated tokens of all turns."""
        return self._split(gae(self._token_rewards(), list(chain.from_iterable(self.values)), discount, self.later))

    def bi_level(self, inner: Discount, outer: Discount) -> list[Advantage]:
        """Return advantages as `bi_level_gae` does."""
        ends = [start - 1 for start in accumulate(map(len, self.values))]
        values = list(chain.from_iterable(self.values))
        return self._split(bi_level_gae(self._token_rewards(), values, ends, inner, outer, self.later))

    def _token_rewards(self) -> list[float]:
        """Return the reward of every token of the chain."""
        rewards = list[float]()
        for turn, values, reward in zip(self.turns, self.values, self.rewards, strict=True):
            rewards += self.token_rewards.get(turn) or [0.0] * len(values)
            rewards[-1] += reward
        return rewards

    def _split(self, advantages: Sequence[float]) -> list[Advantage]:
        """Return the advantage of each turn from the advantages of all tokens."""
        by_turn, start = [], 0
        for values in self.values:
            tokens = tuple(advantages[start : start + len(values)])
            returns = tuple([a + value for a, value in zip(tokens, values, strict=True)])
            by_turn.append(Advantage(fmean(tokens), tokens, returns))
            start += len(values)
        return by_turn


class EpisodeValues(NamedTuple):
    """An episode with the values of its turns."""

    trajectory: Trajectory
    evidence: Evidence
    values: Mapping[TurnId, tuple[float, ...]]
    """Turn -> values before its tokens, or before its first token alone; some turns may be absent."""

    def bootstrap_after(self, last: TurnId) -> Bootstrap:
        """Return value and advantage after the final turn `last`: not 0 only in a truncated episode with a next
        value."""
        reading = self.evidence.readings.get(last) if self.trajectory.end == "truncated" else None
        return Bootstrap(reading.next_value) if reading and reading.next_value is not None else TERMINAL


class GaeAssign(ValueSourceConfig, AssignConfig):
    """Base of the settings of GAE."""

    uses_token_rewards: ClassVar[bool] = True
    gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount of a moment: a token, or a turn at the level `turn`."""
    lam: float = Field(default=1.0, ge=0, le=1)
    """GAE's lambda: 1 trusts the rewards (unbiased for any values), 0 trusts the values."""

    @model_validator(mode="after")
    def _check_lambda(self) -> Self:
        if self.values == "none" and self.lam != 1:
            raise ValueError(f"lam: {self.lam:g} says how far values are trusted, and values are 'none'; choices: 1")
        return self

    def agent_groups(self, trajectory: Trajectory, evidence: Evidence) -> list[Team]:
        """Return the groups of agents whose turns share a time axis; subclasses override this."""
        raise NotImplementedError

    def estimate(self, chain: Chain) -> list[Advantage]:
        """Return the advantage of each turn of a chain; subclasses override this."""
        raise NotImplementedError

    def advantages(self, team: Team, turns: Sequence[Turn], episode: EpisodeValues) -> list[Advantage]:
        """Return the advantages of `turns`: the turns of a team that have values, in playing order."""
        ids, rewards = [turn.id for turn in turns], self.rewards_of(episode.trajectory, team, turns)
        values = [episode.values[turn] for turn in ids]
        later = episode.bootstrap_after(ids[-1])
        return self.estimate(Chain(ids, values, rewards, later, episode.evidence.token_rewards))

    def rewards_of(self, trajectory: Trajectory, team: Team, turns: Sequence[Turn]) -> list[float]:
        """Return the rewards of a chain's turns: a reward belongs to the last of `turns` at or before its payment."""
        by_turn = team.rewards_by_turn(trajectory)
        rewards, chained = list[float](), {turn.id for turn in turns}
        for turn in trajectory.turns:
            if turn.id in chained:
                rewards.append(0.0)
            if rewards:
                rewards[-1] += by_turn.get(turn.id, 0.0)
        return rewards

    def build(self) -> Assign:
        return GaeRule(self, self.build_source())


class Gae(GaeAssign):
    """GAE over each agent's own turns, on the agent's own rewards.

    `token`: over the concatenated tokens of its turns (PPO; PaperScout's multi-step token GAE). `turn`: a turn is one
    action, from the state at the last token of its prompt (PSPO and Agent-R1's step-level MDP, VAGEN without
    concatenation). `bi_level`: over turns, then over the tokens of each (VAGEN, RAGEN), with explicit turn ends.
    """

    kind: str = "gae"
    level: Literal["token", "turn", "bi_level"] = "token"
    """Moments of the time axis. `token`: every token; `turn`: every turn; `bi_level`: the turns' last tokens, then the
    tokens inside each turn (VAGEN, arXiv 2510.16907)."""
    gamma_turn: float | None = Field(default=None, ge=0, le=1)
    """Discount from turn to turn at `bi_level`, where `gamma` discounts tokens inside a turn (VAGEN: 0.95). None: equal
    to `gamma`."""
    lam_turn: float | None = Field(default=None, ge=0, le=1)
    """Lambda from turn to turn at `bi_level`. None: equal to `lam`, as in VAGEN's code."""

    @model_validator(mode="after")
    def _check_level(self) -> Self:
        check_source(self.level, self.values)
        for name, value in (("gamma_turn", self.gamma_turn), ("lam_turn", self.lam_turn)):
            if value is not None and self.level != "bi_level":
                raise ValueError(f"{name}: {value:g} has no effect at level {self.level!r}; choices: bi_level, or none")
        return self

    def agent_groups(self, trajectory: Trajectory, evidence: Evidence) -> list[Team]:
        seats = trajectory.deal.seats.items()
        return [Team(frozenset({agent})) for agent, role in seats if role not in evidence.rule_based_roles]

    def estimate(self, chain: Chain) -> list[Advantage]:
        inner = Discount(self.gamma, self.lam)
        if self.level == "turn":
            return chain.by_turn(inner)
        if self.level == "token":
            return chain.by_token(inner)
        gamma = self.gamma if self.gamma_turn is None else self.gamma_turn
        return chain.bi_level(inner, Discount(gamma, self.lam if self.lam_turn is None else self.lam_turn))


class ChainGae(GaeAssign, TeamAssign):
    """MARFT's chain: one reversed pass over all turns of a team's agents, in playing order.

    At an agent's last token the next value is the value at the next agent's first token (or turn), so a speaker's
    contribution appears in the next speaker's value. With gamma = lambda = 1 every turn gets the team's return minus
    its own value."""

    kind: str = "chain_gae"
    level: Literal["token", "turn"] = "token"
    """Moments of the time axis. `token`: every token; `turn`: every turn."""
    rewards: Literal["last", "paid"] = "last"
    """Time of the team's rewards: `last`: all at the end of its last turn (MARFT); `paid`: when each was paid."""

    @model_validator(mode="after")
    def _check_level(self) -> Self:
        check_source(self.level, self.values)
        return self

    def agent_groups(self, trajectory: Trajectory, evidence: Evidence) -> list[Team]:
        return self.teams_of(trajectory, evidence)

    def rewards_of(self, trajectory: Trajectory, team: Team, turns: Sequence[Turn]) -> list[float]:
        if self.rewards == "paid":
            return super().rewards_of(trajectory, team, turns)
        return [*[0.0] * (len(turns) - 1), team.total_reward(trajectory)]

    def estimate(self, chain: Chain) -> list[Advantage]:
        discount = Discount(self.gamma, self.lam)
        return chain.by_turn(discount) if self.level == "turn" else chain.by_token(discount)


def check_source(level: str, values: str) -> None:
    """Raises:
    ValueError: if `level` needs values of tokens, and `values` are values of turns.
    """
    if values == "own" and level != "turn":
        raise ValueError(
            f"level: {level!r} needs a value before each token, but values: 'own' has one a turn; "
            "choices: level: turn, or values: learner"
        )


class GaeRule:
    """A built GAE rule with its source of values."""

    def __init__(self, settings: GaeAssign, source: ValueSource) -> None:
        self._settings, self._source = settings, source
        self._metrics: Metrics = {}
        self.needs = source.needs
        self.state_dict, self.load_state_dict = source.state_dict, source.load_state_dict

    def __call__(self, evidence: Evidence) -> Credit:
        """Return the advantage of every turn with values; a turn that forks share gets it from the first fork."""
        values = self._source.values(evidence)
        credit: Credit = {}
        for trajectory in evidence.trajectories:
            for team in self._settings.agent_groups(trajectory, evidence):
                turns = [turn for turn in team.turns(trajectory) if turn.id in values]
                if not turns:
                    continue
                advantages = self._settings.advantages(team, turns, EpisodeValues(trajectory, evidence, values))
                for turn, advantage in zip(turns, advantages, strict=True):
                    credit.setdefault(turn.id, advantage)
        targets = {turn: advantage.returns[0] for turn, advantage in credit.items()}
        self._source.learn(evidence, targets)
        self._metrics = explained_variance(evidence, targets, values) if self._settings.values != "none" else {}
        return credit

    def metrics(self) -> Metrics:
        """Return `credit/explained_variance/ROLE` of the values at the prompts; 1: they predict all targets."""
        return self._metrics
