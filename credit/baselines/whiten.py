"""Whitening over the full step: REINFORCE++ and its variant with groups, GDPO."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence, Set
from dataclasses import replace
from operator import mul
from statistics import fmean
from typing import ClassVar, Literal

from pydantic import Field

from marl.core.types import Advantage, Credit, Metrics, Turn, TurnId
from marl.credit.baselines.peer_baseline import (
    PEER_GROUPINGS,
    ROUNDING,
    PeerComparison,
    PeerFormula,
    are_equal_up_to_rounding,
    credited_turns_with_episodes,
    group_count_metrics,
    group_mean,
    subtract_and_scale,
    turns_in_group,
)
from marl.protocols import BaselineConfig, Evidence, PeerGroups, SharedProperty

# Metrics of this module (name | unit | meaning), which `tests/bench/figures.py` copies into marl/README.md.
METRICS = """
credit/degenerate_groups/COMPONENT | share of groups | the same for one named reward (`decoupled`)
"""


class WhiteningConfig(BaselineConfig):
    """Base of the settings of baselines that whiten credit over the step: (A - mean) / deviation.

    A single number, and numbers that are all equal, become exactly 0. If a number is not finite, all numbers stay
    unchanged. Turns without peers count in the mean, but stay exactly 0 (verl and OpenRLHF subtract the mean from them,
    too). Roles that do not learn count like other roles; with `over: role` they count only among themselves.
    """

    unit: Literal["token", "sequence"]
    """Unit of the mean and the deviation. `token`: each sampled token counts, so long completions weigh more (verl,
    OpenRLHF); `sequence`: each turn counts once, as one prompt with its completion (ms-swift, TRL)."""
    over: Literal["step", "role"] = "step"
    """Scope of mean and deviation: all turns of the step, as published, or the turns of each role."""
    ddof: Literal[0, 1] = 1
    """Degrees of freedom subtracted in the variance: 1 in verl and TRL, 0 in OpenRLHF."""
    guard: Literal["variance", "std", "clamp"]
    """The deviation: `variance`: sqrt(var + epsilon) (verl, TRL's PPO); `std`: std + epsilon (ms-swift, TRL);
    `clamp`: sqrt(max(var, epsilon)) (OpenRLHF)."""
    epsilon: float = Field(ge=0)
    """Small number that keeps the deviation above 0. `guard` selects the formula in which the number is used."""

    def whitened_credit(
        self, credit: Credit, evidence: Evidence, zeroed_turns: Set[TurnId] = frozenset(), subtract_mean: bool = True
    ) -> Credit:
        """Return `credit` whitened, with exactly 0 for `zeroed_turns`; without `subtract_mean`, only scaled."""
        result: Credit = {}
        for turns in self.turns_by_whitening_scope(evidence, credit):
            numbers: list[float] = []
            counts: list[int] = []
            for turn in turns.values():
                # Tokens that the engine imposed are in no loss, so they do not count (verl: `response_mask`).
                advantage, imposed = credit[turn.id], turn.completion.imposed
                tokens = len(turn.completion.token_ids) - len(imposed)
                if self.unit == "token" and advantage.tokens:
                    sampled = [index for index in range(len(advantage.tokens)) if index not in imposed]
                    numbers += map(advantage.tokens.__getitem__, sampled) if imposed else advantage.tokens
                    counts += [1] * len(sampled)
                elif tokens or self.unit == "sequence":
                    numbers.append(advantage.value)
                    counts.append(tokens if self.unit == "token" else 1)
            mean, scale = self.mean_and_inverse_deviation(numbers, counts)
            subtracted = mean if subtract_mean or mean is None else 0.0
            for turn in turns:
                result[turn] = subtract_and_scale(credit[turn], None if turn in zeroed_turns else subtracted, scale)
        return result

    def turns_by_whitening_scope(self, evidence: Evidence, credit: Credit) -> list[dict[TurnId, Turn]]:
        """Return the sets of credited turns that share a mean and a deviation: all turns, or those of each role."""
        sets: dict[str, dict[TurnId, Turn]] = defaultdict(dict)
        for _, turn in credited_turns_with_episodes(evidence, credit):
            sets[turn.role if self.over == "role" else ""][turn.id] = turn
        return list(sets.values())

    def mean_and_inverse_deviation(
        self, numbers: Sequence[float], weights: Sequence[int]
    ) -> tuple[float | None, float]:
        """Return mean and 1 / deviation of `numbers`; `weights` is the weight of each number.

        The mean is None if all numbers are equal, or if there is only one.
        """
        if not all(map(math.isfinite, numbers)):
            return 0.0, 1.0
        total = sum(weights)
        if total < 2 or are_equal_up_to_rounding(numbers):
            return None, 1.0
        mean = fmean(numbers, weights)
        variance = math.fsum(map(mul, weights, [(number - mean) ** 2 for number in numbers])) / (total - self.ddof)
        deviation = {
            "variance": math.sqrt(variance + self.epsilon),
            "std": math.sqrt(variance) + self.epsilon,
            "clamp": math.sqrt(max(variance, self.epsilon)),
        }[self.guard]
        return (mean, 1 / deviation) if deviation else (None, 1.0)


class WhitenBaseline(WhiteningConfig):
    """REINFORCE++ (arXiv 2501.03262): whitening over all action tokens of the step; by default as in verl.

    With `like` it is REINFORCE++-baseline: the mean of the peers is subtracted first. Then the paper and ms-swift
    whiten sequences (ms-swift: `unit: sequence, guard: std, epsilon: 1e-4, centre: false`), verl and OpenRLHF tokens
    (OpenRLHF: `ddof: 0, guard: clamp`).
    """

    kind: str = "whiten"
    like: SharedProperty | None = None
    """Property of the peers whose mean is subtracted first, as in `group` (null: no mean of peers is subtracted)."""
    centre: bool = True
    """True: subtract the mean of the step; false: only divide by the deviation, as ms-swift does."""
    unit: Literal["token", "sequence"] = "token"
    guard: Literal["variance", "std", "clamp"] = "variance"
    epsilon: float = Field(default=1e-8, ge=0)

    @property
    def needs_groups(self) -> bool:  # type: ignore[override]
        """Return True with `like`: only then are turns compared with peers."""
        return self.like is not None

    def __call__(self, evidence: Evidence, earned: Credit) -> tuple[Credit, Metrics]:
        """Return the advantage of every turn in `earned`, and metrics of the groups.

        Raises:
            ValueError: if problems are compared and a turn has no problem.
        """
        compared = PeerComparison(earned, frozenset(), {})
        if self.like is not None:
            compared = PeerFormula(group_mean).compare_with_peers(
                PEER_GROUPINGS[self.like].groups(evidence, earned), earned
            )
        return self.whitened_credit(compared.credit, evidence, compared.zeroed, self.centre), compared.metrics

    def compared_turn_groups(self, evidence: Evidence, earned: Credit) -> PeerGroups:
        """Return the groups of peers that share `like`, or, without `like`, of turns that are whitened together."""
        if self.like is not None:
            return PEER_GROUPINGS[self.like].compared_turn_groups(evidence, earned)
        return PeerGroups(None, list(map(list, self.turns_by_whitening_scope(evidence, earned))))


class GdpoBaseline(WhiteningConfig):
    """GDPO (arXiv 2601.05242): GRPO for each named reward alone, their weighted sum, whitened over the step.

    A^k = (R^k - mean) / (std + group_epsilon), S = sum of w_k A^k, A = (S - mean) / (std + epsilon), std with ddof 1.
    By default as in TRL and NVlabs' TRL code; ms-swift has 1e-8 in both places; verl whitens tokens, `unit: token,
    guard: variance, epsilon: 1e-8, group_epsilon: 1e-6`. A turn without credit from a reward does not count in that
    reward's means (as in TRL). A reward that is the same for all peers adds exactly 0.
    """

    kind: str = "decoupled"
    needs_groups: ClassVar[bool] = True
    uses_reward_names: ClassVar[bool] = True
    like: SharedProperty = "start"
    """Property that peers share, as in `group`."""
    weights: dict[str, float] = Field(default_factory=dict)
    """Name of a reward -> its weight (default: all weights are 1). If weights are given, every reward needs one."""
    group_epsilon: float = Field(default=1e-4, ge=0)
    """Number added to the standard deviation of each reward among the peers."""
    alone: Literal["whiten", "group"] = "whiten"
    """Treatment of a single reward: `whiten`, as with several rewards; `group`: plain GRPO (NVlabs' code)."""
    unit: Literal["token", "sequence"] = "sequence"
    guard: Literal["variance", "std", "clamp"] = "std"
    epsilon: float = Field(default=1e-4, ge=0)

    def __call__(self, evidence: Evidence, earned: Credit) -> tuple[Credit, Metrics]:
        """Return the advantage of every turn in `earned`, and metrics of the groups.

        Raises:
            ValueError: if a reward has no weight, or if `evidence.earned_by_reward` is missing.
        """
        rewards = evidence.earned_by_reward
        if not rewards and any(trajectory.rewards for trajectory in evidence.trajectories):
            raise ValueError("credit.baseline: 'decoupled' needs to know what each reward alone would have earned")
        if self.weights and (unnamed := sorted(set(rewards) - set(self.weights))):
            raise ValueError(
                f"credit.baseline.weights: reward {unnamed[0]!r} has none; weights: {', '.join(sorted(self.weights))}"
            )
        weights = dict.fromkeys(rewards, 1.0) | self.weights
        formula = PeerFormula(group_mean, True, self.group_epsilon)
        comparisons: dict[str, PeerComparison] = {}
        for name, earned_alone in rewards.items():
            named = {turn: advantage for turn, advantage in earned_alone.items() if turn in earned}
            comparisons[name] = formula.compare_with_peers(PEER_GROUPINGS[self.like].groups(evidence, named), named)
        credit: Credit = {}
        zeroed: set[TurnId] = set()
        for _, turn in credited_turns_with_episodes(evidence, earned):
            terms: list[tuple[float, Advantage]] = []
            differs = False
            for name, comparison in comparisons.items():
                if turn.id in comparison.credit:
                    terms.append((weights[name], comparison.credit[turn.id]))
                    differs = differs or turn.id not in comparison.zeroed
            credit[turn.id] = _sum_of_weighted_advantages(terms, earned[turn.id].returns)
            if not differs:
                zeroed.add(turn.id)
        if self.alone == "whiten" or len(self.weights or rewards) != 1:
            whitened = self.whitened_credit(credit, evidence, zeroed)
            # `baseline` and `scale` become None, because each reward component was compared with a mean of its own.
            credit = {turn: replace(advantage, baseline=None, scale=None) for turn, advantage in whitened.items()}
        groups = PEER_GROUPINGS[self.like].groups(evidence, earned)
        metrics = group_count_metrics(len(groups), sum(zeroed.issuperset(turns_in_group(group)) for group in groups))
        for name, comparison in comparisons.items():
            metrics[f"credit/degenerate_groups/{name}"] = comparison.metrics["credit/degenerate_groups"]
        return credit, metrics

    def compared_turn_groups(self, evidence: Evidence, earned: Credit) -> PeerGroups:
        return PEER_GROUPINGS[self.like].compared_turn_groups(evidence, earned)


def _sum_of_weighted_advantages(
    weighted_advantages: Sequence[tuple[float, Advantage]], value_targets: tuple[float, ...]
) -> Advantage:
    """Return the sum of weight * advantage over `weighted_advantages`; if an advantage credits tokens, for each token
    as well."""
    count = max((len(term.tokens) for _, term in weighted_advantages), default=0)
    values: list[float] = []
    rows: list[list[float]] = []
    for weight, term in weighted_advantages:
        values.append(weight * term.value)
        if count:
            rows.append([weight * token for token in term.tokens or (term.value,) * count])
    return Advantage(
        sum_with_exact_zero(values), tuple(map(sum_with_exact_zero, zip(*rows, strict=True))), value_targets
    )


def sum_with_exact_zero(numbers: Sequence[float]) -> float:
    """Return the sum of `numbers`; numbers that cancel out sum to exactly 0, without rounding."""
    if not all(map(math.isfinite, numbers)):
        return sum(numbers)
    total = math.fsum(numbers)
    return total if abs(total) > ROUNDING * math.fsum(map(abs, numbers)) else 0.0
