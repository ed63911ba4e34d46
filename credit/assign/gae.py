"""Generalised advantage estimation (GAE, arXiv 1506.02438) on the turns of an agent or of a team.

delta_k = r_k + gamma V_{k+1} - V_k and A_k = delta_k + gamma lambda A_{k+1}, from the last moment back, over moments
that are not always neighbours in the text: other agents' turns, tool answers and prompts do not exist on the time axis
and cost no discount ("skip"). Turns that nobody learns from have no values, so they are part of the world, too: what is
paid there reaches the last moment before it.

Values are those of `Reading.values`: V_t is of the state *before* token t. A truncated episode goes on after its last
moment with `Reading.next_value`, if there is one; any other, with 0. `own` values (`credit.baselines.value`) are of the
state before a turn, so they serve the level `turn` only, and end with 0. Without values (`none`) all are 0.

The result: `tokens` (one advantage a token) and their mean as `value` at the levels `token` and `bi_level`; `value`
alone at the level `turn`. `returns` = advantage + value, the value targets: one a token; or one a turn, for the state
before its first token. They are not whitened: the usual baseline after GAE is `whiten` (PPO), or `none`.

Rewards of single tokens (`credit.kl`, `credit.overlong`) enter at the token; at the level `turn`, with the turn.
With `values: none` A is the discounted sum to go; `whiten` as the baseline and a `credit.kl` make it REINFORCE++ (arXiv
2501.03262).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from statistics import fmean
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from credit.assign.teams import Team, TeamAssign
from credit.baselines.value import ValueSettings, ValueSource, explained_variance
from marl.protocols import Assign, AssignConfig, Evidence
from marl.types import Advantage, Credit, Metrics, TurnId

if TYPE_CHECKING:
    from marl.graph import Trajectory
    from marl.types import Turn


class Discount(NamedTuple):
    """Weight of later moments."""

    gamma: float = 1.0
    lam: float = 1.0


class Later(NamedTuple):
    """The state after the last moment: its value, and the advantage there."""

    value: float = 0.0
    advantage: float = 0.0


OVER = Later()


def gae(rewards: Sequence[float], values: Sequence[float], discount: Discount, later: Later = OVER) -> list[float]:
    """Return the advantages of moments in their order.

    lambda = 1 gives return - V, lambda = 0 gives r + gamma V' - V.
    """
    gamma, fade = discount.gamma, discount.gamma * discount.lam
    after = [*values, later.value][1:]
    deltas = [reward + gamma * next_ - value for reward, next_, value in zip(rewards, after, values, strict=True)]
    backwards = accumulate(reversed(deltas), lambda past, delta: delta + fade * past, initial=later.advantage)
    return list(backwards)[:0:-1]


def bi_level_gae(
    rewards: Sequence[float],
    values: Sequence[float],
    ends: Sequence[int],
    inner: Discount,
    outer: Discount,
    later: Later = OVER,
) -> list[float]:
    """Return VAGEN's advantages of tokens (arXiv 2510.16907): GAE over the turns' last tokens, then inside each turn.

    delta_k = r_{e_k} + gamma_turn V_{e_{k+1}} - V_{e_k}, A_{e_k} = delta_k + gamma_turn lambda_turn A_{e_{k+1}}; inside
    a turn A_t = r_t + gamma V_{t+1} - V_t + gamma lambda A_{t+1}.

    Args:
        rewards: of tokens; r_{e_k} is the turn's, and what is paid inside a turn does not reach the turns before.
        ends: index of each turn's last token. They are never guessed from rewards: a turn may be paid exactly 0.

    Raises:
        ValueError: if the last token ends no turn.
    """
    if not ends or ends[-1] != len(rewards) - 1:
        raise ValueError(f"the last of {len(rewards)} tokens must end a turn, got ends={list(ends)}")
    turns = gae([rewards[end] for end in ends], [values[end] for end in ends], outer, later)
    advantages: list[float] = []
    for end, advantage in zip(ends, turns, strict=True):
        inside = slice(len(advantages), end)
        advantages += gae(rewards[inside], values[inside], inner, Later(values[end], advantage))
        advantages.append(advantage)
    return advantages


@dataclass(frozen=True, slots=True)
class Chain:
    """Turns that share a time axis."""

    turns: Sequence[TurnId]
    values: Sequence[tuple[float, ...]]
    """For each turn: values of the states before its tokens, or before the first one alone."""
    rewards: Sequence[float]
    """For each turn; it enters at its last token."""
    later: Later
    token_rewards: Mapping[TurnId, Sequence[float]] = field(default_factory=dict)
    """Turn -> additional rewards of its tokens."""

    def by_turn(self, discount: Discount) -> list[Advantage]:
        """Return advantages where a turn is one action, from the state before its first token."""
        before = [values[0] for values in self.values]
        pairs = zip(self.turns, self.rewards, strict=True)
        rewards = [reward + sum(self.token_rewards.get(turn, ())) for turn, reward in pairs]
        advantages = gae(rewards, before, discount, self.later)
        return [Advantage(a, (), (a + value,)) for a, value in zip(advantages, before, strict=True)]

    def by_token(self, discount: Discount) -> list[Advantage]:
        """Return advantages where a token is one action; all turns' tokens follow one another."""
        return self._split(gae(self._all_rewards(), self._all_values(), discount, self.later))

    def bi_level(self, inner: Discount, outer: Discount) -> list[Advantage]:
        """Return advantages as `bi_level_gae` does."""
        ends = [start - 1 for start in accumulate(map(len, self.values))]
        return self._split(bi_level_gae(self._all_rewards(), self._all_values(), ends, inner, outer, self.later))

    def _all_values(self) -> list[float]:
        return [value for values in self.values for value in values]

    def _all_rewards(self) -> list[float]:
        rewards = list[float]()
        for turn, values, reward in zip(self.turns, self.values, self.rewards, strict=True):
            rewards += self.token_rewards.get(turn) or [0.0] * len(values)
            rewards[-1] += reward
        return rewards

    def _split(self, advantages: Sequence[float]) -> list[Advantage]:
        judged, start = [], 0
        for values in self.values:
            tokens = tuple(advantages[start : start + len(values)])
            returns = tuple([a + value for a, value in zip(tokens, values, strict=True)])
            judged.append(Advantage(fmean(tokens), tokens, returns))
            start += len(values)
        return judged


class Seen(NamedTuple):
    """An episode, with the values of its turns."""

    trajectory: Trajectory
    evidence: Evidence
    values: Mapping[TurnId, tuple[float, ...]]
    """Turn -> values before its tokens, or before the first one alone; some turns may have none."""

    def after(self, last: TurnId) -> Later:
        """Return the state after the turn `last`, if nothing follows it: in a truncated episode it has a value."""
        reading = self.evidence.readings.get(last) if self.trajectory.end == "truncated" else None
        return Later(reading.next_value) if reading and reading.next_value is not None else OVER


class GaeAssign(ValueSettings, AssignConfig):
    """Base of the settings of GAE."""

    by_token: ClassVar[bool] = True
    gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount of a moment: a token, or a turn at the level `turn`."""
    lam: float = Field(default=1.0, ge=0, le=1)
    """GAE's lambda: 1 trusts what was paid (unbiased, whatever the values), 0 trusts the values."""

    @model_validator(mode="after")
    def _check_lambda(self) -> Self:
        if self.values == "none" and self.lam != 1:
            raise ValueError(f"lam: {self.lam:g} says how far values are trusted, and values are 'none'; choices: 1")
        return self

    def chains(self, trajectory: Trajectory, evidence: Evidence) -> list[Team]:
        """Return the groups of agents whose turns share a time axis."""
        raise NotImplementedError

    def judge(self, chain: Chain) -> list[Advantage]:
        """Return the advantage of each turn of a chain."""
        raise NotImplementedError

    def advantages(self, team: Team, turns: Sequence[Turn], seen: Seen) -> list[Advantage]:
        """Return the advantage of each of the turns of a team that have values, in playing order."""
        ids, rewards = [turn.id for turn in turns], self.rewards_of(seen.trajectory, team, turns)
        values = [seen.values[turn] for turn in ids]
        return self.judge(Chain(ids, values, rewards, seen.after(ids[-1]), seen.evidence.token_rewards))

    def rewards_of(self, trajectory: Trajectory, team: Team, turns: Sequence[Turn]) -> list[float]:
        """Return the rewards of a chain's turns: each reward belongs to the last of them at or before it."""
        paid: dict[TurnId, float] = defaultdict(float)
        for reward in trajectory.rewards:
            if reward.agent in team.agents:
                paid[reward.turn] += team.share * reward.value
        rewards, chained = list[float](), {turn.id for turn in turns}
        for turn in trajectory.turns:
            if turn.id in chained:
                rewards.append(0.0)
            if rewards:
                rewards[-1] += paid.get(turn.id, 0.0)
        return rewards

    def build(self) -> Assign:
        return Estimator(self, self.build_source())


class Gae(GaeAssign):
    """GAE over each agent's own turns, on what it is paid itself.

    `token`: over all its tokens, one after the other (PPO; PaperScout's multi-step token GAE). `turn`: a turn is one
    action, from the state at the last token of its prompt (PSPO and Agent-R1's step-level MDP, VAGEN without
    concatenation). `bi_level`: over turns, then over the tokens of each (VAGEN, RAGEN), with explicit turn ends.
    """

    kind: str = "gae"
    level: Literal["token", "turn", "bi_level"] = "token"
    """Moments of the time axis. `token`: every token; `turn`: every turn; `bi_level`: the turns' last tokens, then the
    tokens inside each turn (VAGEN, arXiv 2510.16907)."""
    gamma_turn: float | None = Field(default=None, ge=0, le=1)
    """Discount from turn to turn at `bi_level`, where `gamma` is that of tokens inside a turn (VAGEN: 0.95). None: as
    `gamma`."""
    lam_turn: float | None = Field(default=None, ge=0, le=1)
    """Lambda from turn to turn at `bi_level`. None: as `lam`, as in VAGEN's code."""

    @model_validator(mode="after")
    def _check_level(self) -> Self:
        check_source(self.level, self.values)
        for name, value in (("gamma_turn", self.gamma_turn), ("lam_turn", self.lam_turn)):
            if value is not None and self.level != "bi_level":
                raise ValueError(f"{name}: {value:g} has no effect at level {self.level!r}; choices: bi_level, or none")
        return self

    def chains(self, trajectory: Trajectory, evidence: Evidence) -> list[Team]:
        seats = trajectory.deal.seats.items()
        return [Team(frozenset({agent})) for agent, role in seats if role not in evidence.rules]

    def judge(self, chain: Chain) -> list[Advantage]:
        inner = Discount(self.gamma, self.lam)
        if self.level == "turn":
            return chain.by_turn(inner)
        if self.level == "token":
            return chain.by_token(inner)
        gamma = self.gamma if self.gamma_turn is None else self.gamma_turn
        return chain.bi_level(inner, Discount(gamma, self.lam if self.lam_turn is None else self.lam_turn))


class ChainGae(GaeAssign, TeamAssign):
    """MARFT's chain: one reversed pass over all turns of a team's agents, in the order in which they spoke.

    At an agent's last token the next value is that of the next agent's first token (or turn), so what a speaker adds
    shows in what the next one expects. With gamma = lambda = 1 everyone gets the team's return minus its own value.
    """

    kind: str = "chain_gae"
    level: Literal["token", "turn"] = "token"
    """Moments of the time axis. `token`: every token; `turn`: every turn."""
    rewards: Literal["last", "paid"] = "last"
    """Place at which the team's reward enters: all at the end of its last turn (MARFT), or each where it was paid."""

    @model_validator(mode="after")
    def _check_level(self) -> Self:
        check_source(self.level, self.values)
        return self

    def chains(self, trajectory: Trajectory, evidence: Evidence) -> list[Team]:
        return self.teams_of(trajectory, evidence)

    def rewards_of(self, trajectory: Trajectory, team: Team, turns: Sequence[Turn]) -> list[float]:
        if self.rewards == "paid":
            return super().rewards_of(trajectory, team, turns)
        return [*[0.0] * (len(turns) - 1), team.total_reward(trajectory)]

    def judge(self, chain: Chain) -> list[Advantage]:
        discount = Discount(self.gamma, self.lam)
        return chain.by_turn(discount) if self.level == "turn" else chain.by_token(discount)


def check_source(level: str, values: str) -> None:
    """Raises:
    ValueError: if tokens are to be judged by values of turns.
    """
    if values == "own" and level != "turn":
        raise ValueError(
            f"level: {level!r} needs a value before each token, but values: 'own' has one a turn; "
            "choices: level: turn, or values: learner"
        )


class Estimator:
    """A GAE rule at work, with its source of values."""

    def __init__(self, settings: GaeAssign, source: ValueSource) -> None:
        self._settings, self._source = settings, source
        self._metrics: Metrics = {}
        self.needs = source.needs
        self.state_dict, self.load_state_dict = source.state_dict, source.load_state_dict

    def __call__(self, evidence: Evidence) -> Credit:
        """Return the advantage of every turn that has values; a turn that forks share, in its first episode."""
        values = self._source.values(evidence)
        credit: Credit = {}
        for trajectory in evidence.trajectories:
            for team in self._settings.chains(trajectory, evidence):
                if turns := [turn for turn in team.turns(trajectory) if turn.id in values]:
                    judged = self._settings.advantages(team, turns, Seen(trajectory, evidence, values))
                    for turn, advantage in zip(turns, judged, strict=True):
                        credit.setdefault(turn.id, advantage)
        targets = {turn: advantage.returns[0] for turn, advantage in credit.items()}
        self._source.learn(evidence, targets)
        self._metrics = explained_variance(evidence, targets, values) if self._settings.values != "none" else {}
        return credit

    def metrics(self) -> Metrics:
        """Return `credit/explained_variance/ROLE` of the values at the prompts; 1 if they foretold all targets."""
        return self._metrics
