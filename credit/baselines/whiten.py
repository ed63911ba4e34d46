"""Whitening over the whole step: REINFORCE++ and its variant with groups, GDPO."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence, Set
from dataclasses import replace
from operator import mul
from statistics import fmean
from typing import ClassVar, Literal

from pydantic import Field

from credit.baselines.peers import (
    ALIKE,
    ROUNDING,
    Comparison,
    PeerBaseline,
    all_equal,
    group_metrics,
    judged_turns,
    mean_of_all,
    shift,
)
from marl.protocols import BaselineConfig, Evidence, Likeness, Peers
from marl.types import Advantage, Credit, Metrics, Turn, TurnId


class Whitening(BaselineConfig):
    """Base of settings of a division over the step: (A - mean) / deviation.

    Fewer than two numbers, or equal ones, become exactly 0. If one is not finite, all stay as they are. Turns that had
    nothing to be compared with count, but stay exactly 0 (verl and OpenRLHF shift them by the mean, too). Roles that do
    not learn are judged and count like others: with `over: role` they do so only among themselves.
    """

    unit: Literal["token", "sequence"]
    """Numbers that mean and deviation are taken of. `token`: every token of a completion is one, so long ones weigh
    more (verl, OpenRLHF); `sequence`: every turn, which is one prompt and one completion, is (ms-swift, TRL)."""
    over: Literal["step", "role"] = "step"
    """Scope of mean and deviation: all turns of the step, as published, or those of each role."""
    ddof: Literal[0, 1] = 1
    """Degrees of freedom that the variance loses: 1 in verl and TRL, 0 in OpenRLHF."""
    guard: Literal["variance", "std", "clamp"]
    """The deviation: `variance`: sqrt(var + epsilon) (verl, TRL's PPO); `std`: std + epsilon (ms-swift, TRL);
    `clamp`: sqrt(max(var, epsilon)) (OpenRLHF)."""
    epsilon: float = Field(ge=0)
    """Number that keeps the deviation above 0, where `guard` says."""

    def whitened(
        self, credit: Credit, evidence: Evidence, idle: Set[TurnId] = frozenset(), centre: bool = True
    ) -> Credit:
        """Return `credit` whitened; without `centre` it is only divided."""
        result: Credit = {}
        for turns in self.batches(evidence, credit):
            mean, scale = self._statistics(*self._numbers(credit, turns.values()))
            shifted = mean if centre or mean is None else 0.0
            result.update((turn, shift(credit[turn], None if turn in idle else shifted, scale)) for turn in turns)
        return result

    def batches(self, evidence: Evidence, credit: Credit) -> list[dict[TurnId, Turn]]:
        """Return the judged turns that share a mean and a deviation."""
        batches: dict[str, dict[TurnId, Turn]] = defaultdict(dict)
        for _, turn in judged_turns(evidence, credit):
            batches[turn.role if self.over == "role" else ""][turn.id] = turn
        return list(batches.values())

    def _numbers(self, credit: Credit, turns: Iterable[Turn]) -> tuple[list[float], list[int]]:
        """Return the numbers to whiten, and how often each counts."""
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

    def _statistics(self, numbers: Sequence[float], counts: Sequence[int]) -> tuple[float | None, float]:
        """Return mean and 1 / deviation; the mean is None where there is nothing to compare."""
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


class Whiten(Whitening):
    """REINFORCE++ (arXiv 2501.03262): whitened over all action tokens of the step; by default as in verl.

    With `like` it is REINFORCE++-baseline: first minus the mean of the peers. The paper and ms-swift then whiten
    sequences (ms-swift: `unit: sequence, guard: std, epsilon: 1e-4, centre: false`), verl and OpenRLHF tokens
    (OpenRLHF: `ddof: 0, guard: clamp`).
    """

    kind: str = "whiten"
    like: Likeness | None = None
    """Property that peers share whose mean is subtracted first (see `group`); null: no mean is."""
    centre: bool = True
    """Subtract the mean, too; ms-swift only divides."""
    unit: Literal["token", "sequence"] = "token"
    guard: Literal["variance", "std", "clamp"] = "variance"
    epsilon: float = Field(default=1e-8, ge=0)

    @property
    def compares(self) -> bool:  # type: ignore[override]
        """Return True if it takes peers: only with `like`."""
        return self.like is not None

    def __call__(self, evidence: Evidence, earned: Credit) -> tuple[Credit, Metrics]:
        """Return the advantage of every turn that `earned` holds, and metrics of the groups.

        Raises:
            ValueError: if problems are compared and a turn works on none.
        """
        compared = Comparison(earned, frozenset(), {})
        if self.like is not None:
            compared = PeerBaseline(*ALIKE[self.like], mean_of_all).compare(evidence, earned)
        return self.whitened(compared.credit, evidence, compared.idle, self.centre), compared.metrics

    def peers(self, evidence: Evidence, earned: Credit) -> Peers:
        """Return one group of all turns (one a role with `over: role`), or with `like` the groups of peers."""
        if self.like is not None:
            return PeerBaseline(*ALIKE[self.like], mean_of_all).peers(evidence, earned)
        return Peers(None, [list(turns) for turns in self.batches(evidence, earned)])


class Decoupled(Whitening):
    """GDPO (arXiv 2601.05242): GRPO for each named reward alone, their weighted sum, whitened over the step.

    A^k = (R^k - mean) / (std + group_epsilon), S = sum of w_k A^k, A = (S - mean) / (std + epsilon), std with ddof 1.
    By default as in TRL and NVlabs' TRL code; ms-swift has 1e-8 in both places; verl whitens tokens, `unit: token,
    guard: variance, epsilon: 1e-8, group_epsilon: 1e-6`. A turn that a reward says nothing of counts in no mean of it
    (as in TRL). A reward that is the same for all peers adds exactly 0.
    """

    kind: str = "decoupled"
    compares: ClassVar[bool] = True
    by_name: ClassVar[bool] = True
    like: Likeness = "start"
    """Property that peers share (see `group`)."""
    weights: dict[str, float] = Field(default_factory=dict)
    """Name of a reward -> its weight. Empty: 1 for each; else every reward must be named."""
    group_epsilon: float = Field(default=1e-4, ge=0)
    """Added to the standard deviation of each reward among the peers."""
    alone: Literal["whiten", "group"] = "whiten"
    """Treatment of a single reward: the same, or plain GRPO without whitening (NVlabs' code)."""
    unit: Literal["token", "sequence"] = "sequence"
    guard: Literal["variance", "std", "clamp"] = "std"
    epsilon: float = Field(default=1e-4, ge=0)

    def __call__(self, evidence: Evidence, earned: Credit) -> tuple[Credit, Metrics]:
        """Return the advantage of every turn that `earned` holds, and metrics of the groups.

        Raises:
            ValueError: if a reward has no weight, or if `evidence.named` is missing.
        """
        weights = self._weights(evidence)
        parts: dict[str, Comparison] = {}
        for name in weights:
            named = {turn: worth for turn, worth in evidence.named[name].items() if turn in earned}
            parts[name] = self._group.compare(evidence, named)
        sums: Credit = {}
        for _, turn in judged_turns(evidence, earned):
            terms = [(weights[name], part.credit[turn.id]) for name, part in parts.items() if turn.id in part.credit]
            sums[turn.id] = _weighted_sum(terms, earned[turn.id].returns)
        idle = {turn for turn in sums if all(turn not in part.credit or turn in part.idle for part in parts.values())}
        plain = self.alone == "group" and len(self.weights or weights) == 1
        credit = sums
        if not plain:
            whitened = self.whitened(sums, evidence, idle)
            # No single number is subtracted from what a turn earned.
            credit = {turn: replace(advantage, baseline=None, scale=None) for turn, advantage in whitened.items()}
        groups = self.peers(evidence, earned).groups
        metrics = group_metrics(len(groups), sum(idle.issuperset(group) for group in groups))
        for name, part in parts.items():
            metrics[f"credit/degenerate_groups/{name}"] = part.metrics["credit/degenerate_groups"]
        return credit, metrics

    @property
    def _group(self) -> PeerBaseline:
        return PeerBaseline(*ALIKE[self.like], mean_of_all, True, self.group_epsilon)

    def peers(self, evidence: Evidence, earned: Credit) -> Peers:
        return self._group.peers(evidence, earned)

    def _weights(self, evidence: Evidence) -> dict[str, float]:
        """Return the weights of the rewards that were paid in this step."""
        paid = {reward.name for trajectory in evidence.trajectories for reward in trajectory.rewards}
        if paid and not evidence.named:
            raise ValueError("credit.baseline: 'decoupled' needs to know what each reward alone would have earned")
        if self.weights and (strangers := sorted(set(evidence.named) - set(self.weights))):
            raise ValueError(
                f"credit.baseline.weights: reward {strangers[0]!r} has none; weights: {', '.join(sorted(self.weights))}"
            )
        return {name: self.weights.get(name, 1.0) for name in evidence.named}


def _weighted_sum(terms: Sequence[tuple[float, Advantage]], returns: tuple[float, ...]) -> Advantage:
    """Return the sum of weight * advantage, token by token where there are numbers for tokens."""
    value = _sum([weight * term.value for weight, term in terms])
    many = max((len(term.tokens) for _, term in terms), default=0)
    rows = [[weight * t for t in term.tokens or (term.value,) * many] for weight, term in terms] if many else []
    return Advantage(value, tuple(map(_sum, zip(*rows, strict=True))), returns)


def _sum(numbers: Sequence[float]) -> float:
    """Return the sum; rewards that cancel out leave exactly 0."""
    if not all(map(math.isfinite, numbers)):
        return sum(numbers)
    total = math.fsum(numbers)
    return total if abs(total) > ROUNDING * math.fsum(map(abs, numbers)) else 0.0
