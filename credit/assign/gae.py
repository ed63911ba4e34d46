"""Generalised advantage estimation (GAE, arXiv 1506.02438) on the turns of an agent or of a team.

delta_k = r_k + gamma V_{k+1} - V_k and A_k = delta_k + gamma lambda A_{k+1}, from the last moment to the first. A
moment is a token, a segment of an answer or a turn. Moments need not be neighbours in the text: other agents' turns,
tool answers and prompts are not on the time axis and cost no discount ("skip"). Turns whose policies do not learn have
no values, so they count as part of the environment: their rewards belong to the last moment before them.

Values are `Reading.values`: V_t is the value of the state *before* token t. After the last moment of a truncated
episode the value is `Reading.next_value`, if there is one; after any other episode it is 0. `own` values
(`credit.baselines.value`) are values of the state before a turn, so they fit the level `turn` only, and end with 0.
Without values (`none`) all values are 0.

At all levels but `turn`, the result has `tokens` (an advantage for each token) and their mean as `value`; at the level
`turn` it has `value` alone. At the level `segment` all tokens of a segment have its advantage and its value target: as
seen from inside the segment, the rest of the return is the same. `returns` = advantage + value are the value targets:
one for each token, or one for each turn, for the state before its first token. Advantages are not whitened: the usual
baseline after GAE is `whiten` (PPO), or `none`.

Rewards of single tokens (`credit.kl`, `credit.overlong`) enter at the token; at the level `turn`, with the turn.
With `values: none` A is the discounted sum of later rewards. Together with the baseline `whiten` and `credit.kl` this
is REINFORCE++ (arXiv 2501.03262).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, islice, pairwise
from operator import add
from statistics import fmean
from typing import ClassVar, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from marl.core.graph import Trajectory
from marl.core.state import MetricsReporter
from marl.core.types import Advantage, Credit, Turn, TurnId
from marl.credit.assign.segments import last_tokens_of_segments
from marl.credit.assign.teams import CreditTeam, TeamAssign
from marl.credit.baselines.value import ValueSource, ValueSourceConfig, explained_variance_metrics_by_role
from marl.protocols import AssignConfig, AssignRule, Evidence


class GammaAndLambda(NamedTuple):
    """Factors gamma and lambda of GAE from one moment (a token or a turn) to the next."""

    gamma: float = 1.0
    lam: float = 1.0


class BootstrapValueAndAdvantage(NamedTuple):
    """Value and advantage of the state after the last moment of a GAE pass."""

    value: float = 0.0
    advantage: float = 0.0


TERMINAL = BootstrapValueAndAdvantage()
"""Bootstrap after the end of an episode that was not truncated."""


def gae(
    rewards: Sequence[float],
    values: Sequence[float],
    discount: GammaAndLambda,
    bootstrap: BootstrapValueAndAdvantage = TERMINAL,
) -> list[float]:
    """Return the GAE advantages of successive moments: return - V with lambda = 1, r + gamma V' - V with lambda = 0.

    Args:
        rewards: the reward of each moment.
        values: the value of the state before each moment.
        discount: gamma and lambda from each moment to the next.
        bootstrap: value and advantage after the last moment.
    """
    gamma, fade = discount.gamma, discount.gamma * discount.lam
    next_values = [*values, bootstrap.value][1:]
    deltas = [reward + gamma * after - value for reward, after, value in zip(rewards, next_values, values, strict=True)]
    backwards = accumulate(
        reversed(deltas), lambda advantage, delta: delta + fade * advantage, initial=bootstrap.advantage
    )
    # The slice drops the initial value, `bootstrap.advantage`, and puts the advantages in order of time.
    return list(backwards)[:0:-1]


def bi_level_gae(
    rewards: Sequence[float],
    values: Sequence[float],
    turn_end_indices: Sequence[int],
    within_turns: GammaAndLambda,
    between_turns: GammaAndLambda,
    bootstrap: BootstrapValueAndAdvantage = TERMINAL,
) -> list[float]:
    """Return VAGEN's token advantages (arXiv 2510.16907): `nested_gae` over the turns' last tokens, then over tokens.

    Args:
        rewards: rewards of tokens; r_{e_k} is the turn's reward. Rewards inside a turn do not reach earlier turns.
        values: values of the states before the tokens.
        turn_end_indices: index of each turn's last token. Ends are never inferred from rewards, since a reward may be
            exactly 0.
        within_turns: discounts from token to token inside a turn.
        between_turns: discounts from turn to turn.
        bootstrap: value and advantage after the last token.

    Raises:
        ValueError: if the last token does not end a turn.
    """
    if not turn_end_indices or turn_end_indices[-1] != len(rewards) - 1:
        raise ValueError(f"the last of {len(rewards)} tokens must end a turn, got ends={list(turn_end_indices)}")
    return nested_gae(rewards, values, [turn_end_indices], [between_turns, within_turns], bootstrap)


def nested_gae(
    rewards: Sequence[float],
    values: Sequence[float],
    end_indices: Sequence[Sequence[int]],
    discounts: Sequence[GammaAndLambda],
    bootstrap: BootstrapValueAndAdvantage = TERMINAL,
) -> list[float]:
    """Return token advantages of GAE on several levels: over the ends of large spans first, then within each span.

    On one level with ends e_1 < ... < e_n: delta_k = r_{e_k} + gamma V_{e_{k+1}} - V_{e_k} and
    A_{e_k} = delta_k + gamma lambda A_{e_{k+1}}. The tokens before an end e are a problem of the next level, with V_e
    and A_e as bootstrap; on the last level every token is an end. With the levels turn and token this is VAGEN's
    bi-level GAE (arXiv 2510.16907); with turn, segment and token, the same scheme once more inside each turn.

    Args:
        rewards: rewards of tokens. A reward that is not at an end of a level does not reach earlier ends of this level.
        values: values of the states before the tokens.
        end_indices: for each level but the last, the index of the last token of each span. An end of a level is also
            an end of the levels after it, and need not be repeated there.
        discounts: discounts from end to end, for each level; the last ones are from token to token.
        bootstrap: value and advantage after the last token.
    """
    if not end_indices:
        return gae(rewards, values, discounts[0], bootstrap)
    ends, *inner_levels = end_indices
    end_rewards, end_values = map(rewards.__getitem__, ends), map(values.__getitem__, ends)
    end_advantages = gae(list(end_rewards), list(end_values), discounts[0], bootstrap)
    advantages: list[float] = []
    for end, advantage in zip((*ends, len(rewards)), (*end_advantages, None), strict=True):
        inside, begin = slice(len(advantages), end), len(advantages)
        inner_ends = [[index - begin for index in level if begin <= index < end] for level in inner_levels]
        after = bootstrap if advantage is None else BootstrapValueAndAdvantage(values[end], advantage)
        advantages += nested_gae(rewards[inside], values[inside], inner_ends, discounts[1:], after)
        if advantage is not None:
            advantages.append(advantage)
    return advantages


@dataclass(frozen=True, slots=True)
class TurnChain:
    """Successive turns on one time axis, with their values and rewards: the input of GAE."""

    turns: Sequence[TurnId]
    values: Sequence[tuple[float, ...]]
    """For each turn: values of the states before its tokens, or before its first token alone."""
    rewards: Sequence[float]
    """Reward of each turn, which enters at the turn's last token."""
    later: BootstrapValueAndAdvantage
    """Value and advantage after the last turn."""
    token_rewards: Mapping[TurnId, Sequence[float]] = field(default_factory=dict)
    """Turn -> additional rewards of its tokens."""
    segment_ends: Sequence[Sequence[int]] = ()
    """For each turn: index of the last token of each of its segments. Empty unless a level needs segments."""

    def turn_level_advantages(self, discount: GammaAndLambda) -> list[Advantage]:
        """Return the advantage of each turn as a single action, taken in the state before the turn's first token."""
        before: list[float] = []
        rewards: list[float] = []
        for turn, values, reward in zip(self.turns, self.values, self.rewards, strict=True):
            before.append(values[0])
            rewards.append(reward + sum(self.token_rewards.get(turn, ())))
        advantages = gae(rewards, before, discount, self.later)
        return [Advantage(a, (), (a + value,)) for a, value in zip(advantages, before, strict=True)]

    def segment_level_advantages(self, discount: GammaAndLambda) -> list[Advantage]:
        """Return the advantage of each turn, in which a segment is a single action in the state before its first token.

        All tokens of a segment have its advantage and its value target.
        """
        before: list[float] = []
        rewards: list[float] = []
        for turn, values, reward, ends in zip(self.turns, self.values, self.rewards, self.segment_ends, strict=True):
            token_rewards = self.token_rewards.get(turn) or (0.0,) * len(values)
            for begin, end in pairwise((0, *[last + 1 for last in ends])):
                before.append(values[begin])
                rewards.append(sum(token_rewards[begin:end]))
            rewards[-1] += reward
        remaining = zip(gae(rewards, before, discount, self.later), before, strict=True)
        by_turn: list[Advantage] = []
        for ends in self.segment_ends:
            lengths = [last - previous for previous, last in pairwise((-1, *ends))]
            tokens: list[float] = []
            returns: list[float] = []
            for length, (advantage, value) in zip(lengths, islice(remaining, len(lengths)), strict=True):
                tokens += [advantage] * length
                returns += [advantage + value] * length
            by_turn.append(Advantage(fmean(tokens), tuple(tokens), tuple(returns)))
        return by_turn

    def token_level_advantages(
        self,
        discount: GammaAndLambda,
        between_turns: GammaAndLambda | None = None,
        between_segments: GammaAndLambda | None = None,
    ) -> list[Advantage]:
        """Return the advantage of each turn with an advantage for each of its tokens.

        GAE runs over the concatenated tokens of all turns; with `between_turns` it is `bi_level_gae`, and with
        `between_segments`, too, `nested_gae` over turns, segments and tokens.
        """
        rewards: list[float] = []
        ends: list[int] = []
        for turn, values, reward in zip(self.turns, self.values, self.rewards, strict=True):
            rewards += self.token_rewards.get(turn) or [0.0] * len(values)
            rewards[-1] += reward
            ends.append(len(rewards) - 1)
        token_values = list(chain.from_iterable(self.values))
        if between_turns is None:
            advantages = gae(rewards, token_values, discount, self.later)
        elif between_segments is not None:
            begins = [0, *[end + 1 for end in ends[:-1]]]
            segments = [begin + last for begin, lasts in zip(begins, self.segment_ends, strict=True) for last in lasts]
            levels = between_turns, between_segments, discount
            advantages = nested_gae(rewards, token_values, [ends, segments], levels, self.later)
        else:
            advantages = bi_level_gae(rewards, token_values, ends, discount, between_turns, self.later)
        by_turn: list[Advantage] = []
        remaining = iter(advantages)
        for values in self.values:
            tokens = tuple(islice(remaining, len(values)))
            by_turn.append(Advantage(fmean(tokens), tokens, tuple(map(add, tokens, values))))
        return by_turn


class EpisodeValues(NamedTuple):
    """An episode with the values of its turns, and the evidence of its step."""

    trajectory: Trajectory
    evidence: Evidence
    values: Mapping[TurnId, tuple[float, ...]]
    """Turn -> values of the states before its tokens, or before its first token alone. Turns without values are
    absent."""

    def bootstrap_after_final_turn(self, final_turn: TurnId) -> BootstrapValueAndAdvantage:
        """Return value and advantage after the episode's final turn `final_turn`.

        Both are 0 unless the episode was truncated and the reading of `final_turn` has a `next_value`.
        """
        reading = self.evidence.readings.get(final_turn) if self.trajectory.end == "truncated" else None
        return (
            BootstrapValueAndAdvantage(reading.next_value) if reading and reading.next_value is not None else TERMINAL
        )


class GaeAssign(ValueSourceConfig, AssignConfig):
    """Base of the settings of credit rules that apply generalised advantage estimation (GAE)."""

    uses_token_rewards: ClassVar[bool] = True
    gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount from one moment to the next: a moment is a token, or a turn at the level `turn`."""
    lam: float = Field(default=1.0, ge=0, le=1)
    """GAE's lambda: 1 sums up rewards (unbiased for any values), 0 uses the value one moment later instead."""
    level: Literal["token", "segment", "turn", "bi_level", "tri_level"] = "token"
    """Moments of the time axis: tokens, segments, turns, or nested levels."""

    @property
    def needs_segments(self) -> bool:
        return self.level in ("segment", "tri_level")

    @model_validator(mode="after")
    def _check_values_fit_lambda_and_level(self) -> Self:
        if self.values == "none" and self.lam != 1:
            raise ValueError(f"lam: {self.lam:g} says how far values are trusted, and values are 'none'; choices: 1")
        if self.values == "own" and self.level != "turn":
            raise ValueError(
                f"level: {self.level!r} needs a value before each token, but values: 'own' has one a turn; "
                "choices: level: turn, or values: learner"
            )
        return self

    def teams_sharing_a_chain(self, trajectory: Trajectory, evidence: Evidence) -> list[CreditTeam]:
        """Return the groups of agents whose turns share a time axis; subclasses override this."""
        raise NotImplementedError

    def advantages_of_turn_chain(self, chain: TurnChain) -> list[Advantage]:
        """Return the advantage of each turn of `chain`, and the advantages of its tokens unless `level` is `turn`."""
        discount = GammaAndLambda(self.gamma, self.lam)
        if self.level == "segment":
            return chain.segment_level_advantages(discount)
        return chain.turn_level_advantages(discount) if self.level == "turn" else chain.token_level_advantages(discount)

    def advantages(self, team: CreditTeam, turns: Sequence[Turn], episode: EpisodeValues) -> list[Advantage]:
        """Return the advantages of `turns`: the turns of a team that have values, in playing order."""
        ids, rewards = [turn.id for turn in turns], self.team_rewards_per_turn(episode.trajectory, team, turns)
        values = list(map(episode.values.__getitem__, ids))
        later = episode.bootstrap_after_final_turn(ids[-1])
        segment_ends = list(map(last_tokens_of_segments, turns)) if self.needs_segments else ()
        token_rewards = episode.evidence.token_rewards
        return self.advantages_of_turn_chain(TurnChain(ids, values, rewards, later, token_rewards, segment_ends))

    def team_rewards_per_turn(self, trajectory: Trajectory, team: CreditTeam, turns: Sequence[Turn]) -> list[float]:
        """Return the team's reward at each of `turns`, plus the rewards until the next of `turns`."""
        by_turn = team.rewards_by_turn(trajectory)
        rewards, chained = list[float](), {turn.id for turn in turns}
        for turn in trajectory.turns:
            if turn.id in chained:
                rewards.append(0.0)
            if rewards:
                rewards[-1] += by_turn.get(turn.id, 0.0)
        return rewards

    def build(self) -> AssignRule:
        return GaeRule(self, self.build_value_source())


class PerAgentGae(GaeAssign):
    """GAE over each agent's own turns, on the agent's own rewards.

    `level: token`: over the concatenated tokens of the agent's turns (PPO; PaperScout's multi-step token GAE). `turn`:
    a turn is one action, from the state at the last token of its prompt (PSPO and Agent-R1's step-level MDP, VAGEN
    without concatenation). `bi_level`: over turns, then over the tokens of each turn (VAGEN, RAGEN). `segment`: a
    segment of an answer is one action. `tri_level`: over turns, then over the segments of each turn, then over the
    tokens of each segment.
    """

    kind: str = "gae"
    level: Literal["token", "segment", "turn", "bi_level", "tri_level"] = "token"
    """Moments of the time axis. `token`: every token; `segment`: every segment of an answer (the role's `segments`);
    `turn`: every turn; `bi_level`: the turns' last tokens, then the tokens inside each turn (VAGEN, arXiv 2510.16907);
    `tri_level`: the turns' last tokens, then the segments' last tokens, then the tokens inside each segment."""
    gamma_turn: float | None = Field(default=None, ge=0, le=1)
    """Discount from turn to turn at the levels `bi_level` and `tri_level` (default: `gamma`, which discounts from token
    to token inside a turn; VAGEN: 0.95)."""
    lam_turn: float | None = Field(default=None, ge=0, le=1)
    """Lambda from turn to turn at the levels `bi_level` and `tri_level` (default: `lam`, as in VAGEN's code)."""
    gamma_segment: float | None = Field(default=None, ge=0, le=1)
    """Discount from segment to segment at level `tri_level` (default: `gamma`)."""
    lam_segment: float | None = Field(default=None, ge=0, le=1)
    """Lambda from segment to segment at level `tri_level` (default: `lam`)."""

    @model_validator(mode="after")
    def _check_nested_discounts_fit_level(self) -> Self:
        nested = "bi_level", "tri_level"
        settings = {"gamma_turn": nested, "lam_turn": nested, "gamma_segment": nested[1:], "lam_segment": nested[1:]}
        for name, levels in settings.items():
            value = dict(self)[name]
            if value is not None and self.level not in levels:
                choices = ", ".join(levels)
                raise ValueError(
                    f"{name}: {value:g} has no effect at level {self.level!r}; choices: {choices}, or none"
                )
        return self

    def teams_sharing_a_chain(self, trajectory: Trajectory, evidence: Evidence) -> list[CreditTeam]:
        return [CreditTeam(frozenset({agent})) for agent in evidence.non_rule_based_agents(trajectory)]

    def advantages_of_turn_chain(self, chain: TurnChain) -> list[Advantage]:
        if self.level not in ("bi_level", "tri_level"):
            return super().advantages_of_turn_chain(chain)
        gamma = self.gamma if self.gamma_turn is None else self.gamma_turn
        lam = self.lam if self.lam_turn is None else self.lam_turn
        between_segments = None
        if self.level == "tri_level":
            segment_gamma = self.gamma if self.gamma_segment is None else self.gamma_segment
            between_segments = GammaAndLambda(segment_gamma, self.lam if self.lam_segment is None else self.lam_segment)
        within = GammaAndLambda(self.gamma, self.lam)
        return chain.token_level_advantages(within, GammaAndLambda(gamma, lam), between_segments)


class TeamChainGae(GaeAssign, TeamAssign):
    """GAE over all turns of a team's agents in playing order, as one chain (MARFT).

    At an agent's last token the next value is the value at the next agent's first token (or turn), so a speaker's
    contribution appears in the next speaker's value. With gamma = lambda = 1 every turn gets the team's return minus
    the value of the state before the turn.
    """

    kind: str = "chain_gae"
    level: Literal["token", "turn"] = "token"  # type: ignore[assignment]
    """Moments of the time axis. `token`: every token; `turn`: every turn."""
    rewards: Literal["last", "paid"] = "last"
    """Time of the team's rewards: `last`: all at the end of the team's last turn (MARFT); `paid`: each reward at the
    turn at which it was paid."""

    def teams_sharing_a_chain(self, trajectory: Trajectory, evidence: Evidence) -> list[CreditTeam]:
        return self.teams_in_trajectory(trajectory, evidence)

    def team_rewards_per_turn(self, trajectory: Trajectory, team: CreditTeam, turns: Sequence[Turn]) -> list[float]:
        if self.rewards == "paid":
            return super().team_rewards_per_turn(trajectory, team, turns)
        return [*[0.0] * (len(turns) - 1), team.total_reward(trajectory)]


class GaeRule(MetricsReporter):
    """Rule built from `GaeAssign`: reads values from their source, and computes advantages by GAE.

    Metric of a step, `credit/explained_variance/ROLE`: explained variance of the values at the prompts; 1 if the values
    predict all targets.
    """

    def __init__(self, settings: GaeAssign, source: ValueSource) -> None:
        self._settings, self._source = settings, source
        self.needed_reading_fields = source.needed_reading_fields
        self.state_dict, self.load_state_dict = source.state_dict, source.load_state_dict

    def __call__(self, evidence: Evidence) -> Credit:
        """Return the advantage of every turn with values; shared turns of forks get the advantage of the first fork."""
        values = self._source.values(evidence)
        credit: Credit = {}
        targets: dict[TurnId, float] = {}
        for trajectory in evidence.trajectories:
            for team in self._settings.teams_sharing_a_chain(trajectory, evidence):
                turns = [turn for turn in team.turns(trajectory) if turn.id in values]
                if not turns:
                    continue
                advantages = self._settings.advantages(team, turns, EpisodeValues(trajectory, evidence, values))
                for turn, advantage in zip(turns, advantages, strict=True):
                    targets[turn.id] = credit.setdefault(turn.id, advantage).returns[0]
        self._source.fit_values(evidence, targets)
        self._metrics = (
            explained_variance_metrics_by_role(evidence, targets, values) if self._settings.values != "none" else {}
        )
        return credit
