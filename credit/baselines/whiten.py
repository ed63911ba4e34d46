"""Against the whole batch: REINFORCE++ and its variant with groups, GDPO."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from operator import mul
from statistics import fmean
from typing import ClassVar, Literal

from pydantic import Field

from credit.baselines.group import Group
from credit.baselines.peers import ROUNDING, Compared, constant, judged, nothing, shifted
from marl.protocols import BaselineConfig, Evidence, Likeness, Peers
from marl.types import Advantage, Credit, Metrics, Turn, TurnId

Statistics = tuple[float, float]
"""What is subtracted, and what the rest is multiplied with."""
_AS_IT_IS: Statistics = (0.0, 1.0)


class Whitening(BaselineConfig):
    """Base of what is whitened over the step: (A - mean) / deviation.

    Fewer than two numbers, or equal ones, become exactly 0. If one is not finite, all stay as they are. Turns that had
    nothing to be compared with count, but stay exactly 0 (verl and OpenRLHF shift them by the mean, too). Roles that do
    not learn are judged and count like others: with `over: role` they do so only among themselves.
    """

    unit: Literal["token", "sequence"]
    """`token`: every token of a completion is one number, so long ones weigh more (verl, OpenRLHF); `sequence`: every
    turn, which is one prompt and one completion, is (ms-swift, TRL)."""
    over: Literal["step", "role"] = "step"
    """Whether all turns of the step have one mean and deviation, as published, or those of each role their own."""
    ddof: Literal[0, 1] = 1
    """1 in verl and TRL, 0 in OpenRLHF."""
    guard: Literal["variance", "std", "clamp"]
    """The deviation: `variance`: sqrt(var + epsilon) (verl, TRL's PPO); `std`: std + epsilon (ms-swift, TRL);
    `clamp`: sqrt(max(var, epsilon)) (OpenRLHF)."""
    epsilon: float = Field(ge=0)

    def whitened(self, credit: Credit, evidence: Evidence, idle: Set[TurnId] = frozenset()) -> Credit:
        """`credit`, whitened."""
        batches: dict[str, dict[TurnId, Turn]] = defaultdict(dict)
        for _, turn in judged(evidence, credit):
            batches[turn.role if self.over == "role" else ""][turn.id] = turn
        found: Credit = {}
        for turns in batches.values():
            statistics = self._statistics(*self._numbers(credit, turns.values()))
            for turn in turns:
                if statistics is None or turn in idle:
                    found[turn] = nothing(credit[turn])
                else:
                    found[turn] = shifted(credit[turn], *statistics)
        return found

    def _numbers(self, credit: Credit, turns: Iterable[Turn]) -> tuple[list[float], list[int]]:
        """What is whitened, and how often each counts."""
        numbers: list[float] = []
        counts: list[int] = []
        for turn in turns:
            advantage, many = credit[turn.id], len(turn.completion.token_ids)
            if self.unit == "token" and advantage.tokens:
                numbers += advantage.tokens
                counts += [1] * len(advantage.tokens)
            elif many or self.unit == "sequence":
                numbers.append(advantage.value)
                counts.append(many if self.unit == "token" else 1)
        return numbers, counts

    def _statistics(self, numbers: Sequence[float], counts: Sequence[int]) -> Statistics | None:
        """None where there is nothing to compare."""
        if not all(map(math.isfinite, numbers)):
            return _AS_IT_IS
        total = sum(counts)
        if total < 2 or constant(numbers):
            return None
        mean = fmean(numbers, counts)
        variance = math.fsum(map(mul, counts, [(number - mean) ** 2 for number in numbers])) / (total - self.ddof)
        deviation = self._deviation(variance)
        return (self._centre(mean), 1 / deviation) if deviation else None

    def _centre(self, mean: float) -> float:
        return mean

    def _deviation(self, variance: float) -> float:
        if self.guard == "variance":
            return math.sqrt(variance + self.epsilon)
        return math.sqrt(variance) + self.epsilon if self.guard == "std" else math.sqrt(max(variance, self.epsilon))


class Whiten(Whitening):
    """REINFORCE++ (arXiv 2501.03262): whitened over all action tokens of the step; by default as in verl.

    With `like` it is REINFORCE++-baseline: first minus the mean of the peers. The paper and ms-swift then whiten
    sequences (ms-swift: `unit: sequence, guard: std, epsilon: 1e-4, centre: false`), verl and OpenRLHF tokens
    (OpenRLHF: `ddof: 0, guard: clamp`).
    """

    kind: str = "whiten"
    like: Likeness | None = None
    """What the peers have in common whose mean is subtracted first (see `group`); null: none is."""
    centre: bool = True
    """Whether the mean is subtracted, too; ms-swift only divides."""
    unit: Literal["token", "sequence"] = "token"
    guard: Literal["variance", "std", "clamp"] = "variance"
    epsilon: float = Field(default=1e-8, ge=0)

    @property
    def compares(self) -> bool:  # type: ignore[override]
        """Only with `like` does it take peers."""
        return self.like is not None

    def __call__(self, evidence: Evidence, earned: Credit) -> tuple[Credit, Metrics]:
        """Judge every turn that `earned` speaks of.

        Raises:
            ValueError: if problems are to be compared and a turn works on none.
        """
        if self.like is None:
            return self.whitened(earned, evidence), {}
        compared = Group(like=self.like, std=False).compare(evidence, earned)
        return self.whitened(compared.credit, evidence, compared.idle), compared.metrics

    def peers(self, evidence: Evidence, earned: Credit) -> Peers:
        """All with all, or with `like` each group."""
        if self.like is not None:
            return Group(like=self.like).peers(evidence, earned)
        batches: dict[str, dict[TurnId, None]] = defaultdict(dict)
        for _, turn in judged(evidence, earned):
            batches[turn.role if self.over == "role" else ""][turn.id] = None
        return Peers(None, [list(turns) for turns in batches.values()])

    def _centre(self, mean: float) -> float:
        return mean if self.centre else 0.0


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
    """What the peers have in common (see `group`)."""
    weights: dict[str, float] = Field(default_factory=dict)
    """Name of a reward -> its weight. Empty: 1 for each; else every reward must be named."""
    group_epsilon: float = Field(default=1e-4, ge=0)
    alone: Literal["whiten", "group"] = "whiten"
    """What happens if there is but one reward: the same, or plain GRPO without whitening (NVlabs' code)."""
    unit: Literal["token", "sequence"] = "sequence"
    guard: Literal["variance", "std", "clamp"] = "std"
    epsilon: float = Field(default=1e-4, ge=0)

    def __call__(self, evidence: Evidence, earned: Credit) -> tuple[Credit, Metrics]:
        """Judge every turn that `earned` speaks of.

        Raises:
            ValueError: if a reward has no weight, or if nobody says what each reward alone would have earned.
        """
        weights = self._weights(evidence)
        group = Group(like=self.like, epsilon=self.group_epsilon)
        parts: dict[str, Compared] = {}
        for name in weights:
            own = {turn: worth for turn, worth in evidence.named[name].items() if turn in earned}
            parts[name] = group.compare(evidence, own)
        turns = dict.fromkeys(turn.id for _, turn in judged(evidence, earned))
        sums = {turn: _sum(_terms(turn, parts, weights), earned[turn].returns) for turn in turns}
        idle = {turn for turn in turns if all(turn not in part.credit or turn in part.idle for part in parts.values())}
        plain = self.alone == "group" and len(self.weights or weights) == 1
        credit = sums if plain else self.whitened(sums, evidence, idle)
        return credit, self._metrics(group.peers(evidence, earned), idle, parts)

    def peers(self, evidence: Evidence, earned: Credit) -> Peers:
        return Group(like=self.like).peers(evidence, earned)

    def _weights(self, evidence: Evidence) -> dict[str, float]:
        """Of the rewards that were paid in this step."""
        paid = {reward.name for trajectory in evidence.trajectories for reward in trajectory.rewards}
        if paid and not evidence.named:
            raise ValueError("credit.baseline: 'decoupled' needs to know what each reward alone would have earned")
        if self.weights and (strangers := sorted(set(evidence.named) - set(self.weights))):
            raise ValueError(
                f"credit.baseline.weights: reward {strangers[0]!r} has none; weights: {', '.join(sorted(self.weights))}"
            )
        return {name: self.weights.get(name, 1.0) for name in evidence.named}

    def _metrics(self, peers: Peers, idle: Set[TurnId], parts: Mapping[str, Compared]) -> Metrics:
        groups = len(peers.groups)
        degenerate = sum(all(turn in idle for turn in group) for group in peers.groups)
        shares = {"credit/groups": float(groups), "credit/degenerate_groups": degenerate / max(groups, 1)}
        own = {f"credit/degenerate_groups/{n}": part.metrics["credit/degenerate_groups"] for n, part in parts.items()}
        return shares | own


Term = tuple[float, Advantage]
"""The weight of a reward, and what it alone says of a turn."""


def _terms(turn: TurnId, parts: Mapping[str, Compared], weights: Mapping[str, float]) -> list[Term]:
    return [(weights[name], part.credit[turn]) for name, part in parts.items() if turn in part.credit]


def _sum(terms: Sequence[Term], returns: tuple[float, ...]) -> Advantage:
    value = _added([weight * term.value for weight, term in terms])
    many = max((len(term.tokens) for _, term in terms), default=0)
    rows = [[weight * t for t in term.tokens or (term.value,) * many] for weight, term in terms] if many else []
    return Advantage(value, tuple(map(_added, zip(*rows, strict=True))), returns)


def _added(numbers: Sequence[float]) -> float:
    """Their sum; rewards that cancel out leave exactly 0."""
    if not all(map(math.isfinite, numbers)):
        return sum(numbers)
    total = math.fsum(numbers)
    return total if abs(total) > ROUNDING * math.fsum(map(abs, numbers)) else 0.0
