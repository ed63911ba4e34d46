"""Whitening over the full step: REINFORCE++ and its variant with groups, GDPO."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence, Set
from dataclasses import replace
from operator import mul
from statistics import fmean
from typing import ClassVar, Literal

from pydantic import Field

from marl.core.types import Advantage, Credit, Metrics, Turn, TurnId
from marl.credit.baselines.peer_baseline import (
    PEER_KEYS,
    ROUNDING,
    PeerComparison,
    PeerFormula,
    all_equal,
    credited_turns,
    group_mean,
    group_metrics,
    subtract_and_scale,
    turns_of,
)
from marl.protocols import BaselineConfig, Evidence, Peers, SharedProperty


class WhiteningConfig(BaselineConfig):
    """Base of settings of whitening over the step: (A - mean) / deviation.

    Fewer than two numbers, or equal ones, become exactly 0. If a number is not finite, all stay unchanged. Turns
    without peers count, but stay exactly 0 (verl and OpenRLHF subtract the mean from them, too). Roles that do not
    learn are credited and count like others: with `over: role` only among themselves.
    """

    unit: Literal["token", "sequence"]
    """Unit of the mean and the deviation. `token`: one number a token, so long completions weigh more (verl, OpenRLHF);
    `sequence`: one number a turn, which is one prompt with its completion (ms-swift, TRL)."""
    over: Literal["step", "role"] = "step"
    """Scope of mean and deviation: all turns of the step, as published, or the turns of each role."""
    ddof: Literal[0, 1] = 1
    """Degrees of freedom subtracted in the variance: 1 in verl and TRL, 0 in OpenRLHF."""
    guard: Literal["variance", "std", "clamp"]
    """The deviation: `variance`: sqrt(var + epsilon) (verl, TRL's PPO); `std`: std + epsilon (ms-swift, TRL);
    `clamp`: sqrt(max(var, epsilon)) (OpenRLHF)."""
    epsilon: float = Field(ge=0)
    """Number that keeps the deviation above 0, added as `guard` says."""

    def whitened(
        self, credit: Credit, evidence: Evidence, zeroed: Set[TurnId] = frozenset(), centre: bool = True
    ) -> Credit:
        """Return `credit` whitened, with exactly 0 for `zeroed` turns; without `centre` the mean is not subtracted."""
        result: Credit = {}
        for turns in self.batches(evidence, credit):
            mean, scale = self.mean_and_scale(*self._numbers(credit, turns.values()))
            subtracted = mean if centre or mean is None else 0.0
            for turn in turns:
                result[turn] = subtract_and_scale(credit[turn], None if turn in zeroed else subtracted, scale)
        return result

    def batches(self, evidence: Evidence, credit: Credit) -> list[dict[TurnId, Turn]]:
        """Return the sets of credited turns that share a mean and a deviation."""
        batches: dict[str, dict[TurnId, Turn]] = defaultdict(dict)
        for _, turn in credited_turns(evidence, credit):
            batches[turn.role if self.over == "role" else ""][turn.id] = turn
        return list(batches.values())

    def _numbers(self, credit: Credit, turns: Iterable[Turn]) -> tuple[list[float], list[int]]:
        """Return the numbers to whiten, and the weight (count) of each."""
        numbers, counts = list[float](), list[int]()
        for turn in turns:
            advantage, tokens = credit[turn.id], len(turn.completion.token_ids)
            if self.unit == "token" and advantage.tokens:
                numbers += advantage.tokens
                counts += [1] * len(advantage.tokens)
            elif tokens or self.unit == "sequence":
                numbers.append(advantage.value)
                counts.append(tokens if self.unit == "token" else 1)
        return numbers, counts

    def mean_and_scale(self, numbers: Sequence[float], counts: Sequence[int]) -> tuple[float | None, float]:
        """Return mean and 1 / deviation of `numbers`; the mean is None if all are equal or there is only one."""
        if not all(map(math.isfinite, numbers)):
            return 0.0, 1.0
        total = sum(counts)
        if total < 2 or all_equal(numbers):
            return None, 1.0
        mean = fmean(numbers, counts)
        variance = math.fsum(map(mul, counts, [(number - mean) ** 2 for number in numbers])) / (total - self.ddof)
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
    """Property of the peers whose mean is subtracted first (see `group`); null: no mean is subtracted."""
    centre: bool = True
    """Subtract the mean of the step; ms-swift only divides."""
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
            compared = PeerFormula(group_mean).compare(PEER_KEYS[self.like].groups(evidence, earned), earned)
        return self.whitened(compared.credit, evidence, compared.zeroed, self.centre), compared.metrics

    def peers(self, evidence: Evidence, earned: Credit) -> Peers:
        """Return the groups of peers with `like`; without, one group of all turns (one a role with `over: role`)."""
        if self.like is not None:
            return PEER_KEYS[self.like].peers(evidence, earned)
        return Peers(None, [list(turns) for turns in self.batches(evidence, earned)])


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
    """Property that peers share (see `group`)."""
    weights: dict[str, float] = Field(default_factory=dict)
    """Name of a reward -> its weight. Empty: all weights are 1; else every reward must be named."""
    group_epsilon: float = Field(default=1e-4, ge=0)
    """Added to the standard deviation of each reward among the peers."""
    alone: Literal["whiten", "group"] = "whiten"
    """Treatment if there is a single reward: whitening as with several, or plain GRPO (NVlabs' code)."""
    unit: Literal["token", "sequence"] = "sequence"
    guard: Literal["variance", "std", "clamp"] = "std"
    epsilon: float = Field(default=1e-4, ge=0)

    def __call__(self, evidence: Evidence, earned: Credit) -> tuple[Credit, Metrics]:
        """Return the advantage of every turn in `earned`, and metrics of the groups.

        Raises:
            ValueError: if a reward has no weight, or if `evidence.earned_by_reward` is missing.
        """
        weights = self._weights(evidence)
        formula = PeerFormula(group_mean, True, self.group_epsilon)
        comparisons: dict[str, PeerComparison] = {}
        for name in weights:
            named = {turn: credit for turn, credit in evidence.earned_by_reward[name].items() if turn in earned}
            comparisons[name] = formula.compare(PEER_KEYS[self.like].groups(evidence, named), named)
        credit: Credit = {}
        zeroed: set[TurnId] = set()
        for _, turn in credited_turns(evidence, earned):
            terms: list[tuple[float, Advantage]] = []
            differs = False
            for name, comparison in comparisons.items():
                if turn.id in comparison.credit:
                    terms.append((weights[name], comparison.credit[turn.id]))
                    differs = differs or turn.id not in comparison.zeroed
            credit[turn.id] = _weighted_sum(terms, earned[turn.id].returns)
            if not differs:
                zeroed.add(turn.id)
        if self.alone == "whiten" or len(self.weights or weights) != 1:
            whitened = self.whitened(credit, evidence, zeroed)
            # No single number is subtracted from a turn's earnings: every reward has a mean of its own.
            credit = {turn: replace(advantage, baseline=None, scale=None) for turn, advantage in whitened.items()}
        groups = PEER_KEYS[self.like].groups(evidence, earned)
        metrics = group_metrics(len(groups), sum(zeroed.issuperset(turns_of(group)) for group in groups))
        for name, comparison in comparisons.items():
            metrics[f"credit/degenerate_groups/{name}"] = comparison.metrics["credit/degenerate_groups"]
        return credit, metrics

    def peers(self, evidence: Evidence, earned: Credit) -> Peers:
        return PEER_KEYS[self.like].peers(evidence, earned)

    def _weights(self, evidence: Evidence) -> dict[str, float]:
        """Return the weights of the rewards of this step."""
        if not evidence.earned_by_reward and any(trajectory.rewards for trajectory in evidence.trajectories):
            raise ValueError("credit.baseline: 'decoupled' needs to know what each reward alone would have earned")
        if self.weights and (strangers := sorted(set(evidence.earned_by_reward) - set(self.weights))):
            raise ValueError(
                f"credit.baseline.weights: reward {strangers[0]!r} has none; weights: {', '.join(sorted(self.weights))}"
            )
        return {name: self.weights.get(name, 1.0) for name in evidence.earned_by_reward}


def _weighted_sum(terms: Sequence[tuple[float, Advantage]], returns: tuple[float, ...]) -> Advantage:
    """Return the sum of weight * advantage, token by token if an advantage has numbers of tokens."""
    value = exact_sum([weight * term.value for weight, term in terms])
    count = max((len(term.tokens) for _, term in terms), default=0)
    rows = []
    for weight, term in terms if count else ():
        rows.append([weight * token for token in term.tokens or (term.value,) * count])
    return Advantage(value, tuple(map(exact_sum, zip(*rows, strict=True))), returns)


def exact_sum(numbers: Sequence[float]) -> float:
    """Return the sum; numbers that cancel out sum to exactly 0, without rounding."""
    if not all(map(math.isfinite, numbers)):
        return sum(numbers)
    total = math.fsum(numbers)
    return total if abs(total) > ROUNDING * math.fsum(map(abs, numbers)) else 0.0
