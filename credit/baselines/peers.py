"""What baselines that compare turns within a step have in common: who are peers, and what a difference is worth."""

from __future__ import annotations

import math
import sys
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from marl.protocols import BaselineConfig, Evidence, Likeness, Peers
from marl.types import Advantage, Credit, Metrics, Turn, TurnId

if TYPE_CHECKING:
    from marl.graph import Trajectory


@dataclass(frozen=True, slots=True)
class Peer:
    """One of those that are compared with one another."""

    worth: float
    """The mean of its turns'."""
    turns: Mapping[TurnId, Turn]
    """Each once, also where several forks inherited it."""


Pool = Sequence[Peer]
"""All that are compared with one another."""


@dataclass(frozen=True, slots=True)
class Compared:
    """What a comparison found."""

    credit: Credit
    idle: Set[TurnId]
    """Turns with nothing to be compared with, or whose peers are all worth the same: they have exactly 0."""
    metrics: Metrics
    """`credit/groups`, and the share of them in which nobody differs, `credit/degenerate_groups`."""


class Comparison(BaselineConfig):
    """Base of baselines that subtract from each turn what its peers in the same step were worth.

    Advantage = (earned - baseline) * scale; where a rule judges tokens, each token's number likewise. Value targets
    stay. Peers that are all worth the same, and turns without peers, get exactly 0. Peers of whom one is worth no
    finite number are left as they are, for the learner to refuse and to name. Seats that answer by rule are not judged.

    Where an agent's turns are worth different numbers (`outcome` with `to_go`, `flow`, ...), an episode's mean depends
    on how many there were, so that comparing whole episodes pays for going on or for stopping. Then compare what was
    asked the same (`group` with `like: prompt`, `agent_turn_group`, `joint` with `per: round`), or `leave_one_out`.
    """

    compares: ClassVar[bool] = True

    def __call__(self, evidence: Evidence, earned: Credit) -> tuple[Credit, Metrics]:
        """Judge every turn that `earned` speaks of.

        Raises:
            ValueError: if problems are to be compared and a turn works on none.
        """
        compared = self.compare(evidence, earned)
        return compared.credit, compared.metrics

    def compare(self, evidence: Evidence, earned: Credit) -> Compared:
        """The same, and which turns had nothing to be compared with."""
        pools = self.pools(evidence, earned)
        spread = self.spread(pools)
        credit: Credit = {}
        idle: set[TurnId] = set()
        degenerate = 0
        for pool in pools:
            worths = [peer.worth for peer in pool]
            turns = turns_of(pool)
            if not all(map(math.isfinite, worths)):
                credit.update((turn, shifted(earned[turn], 0.0, 1.0)) for turn in turns)
                continue
            same = len(pool) < 2 or self.level(pool, earned)
            degenerate += same
            against = {} if same else self.baselines(pool)
            scale = 0.0 if same else self.scale(worths, spread)
            idle.update(turn for turn in turns if turn not in against)
            credit.update((turn, _judged(earned[turn], against.get(turn), scale)) for turn in turns)
        shares = {"credit/groups": float(len(pools)), "credit/degenerate_groups": degenerate / max(len(pools), 1)}
        return Compared(credit, idle, shares)

    def peers(self, evidence: Evidence, earned: Credit) -> Peers:
        return Peers(self.likeness, [turns_of(pool) for pool in self.pools(evidence, earned)])

    @property
    @abstractmethod
    def likeness(self) -> Likeness | None:
        """What those who are compared have in common."""

    @abstractmethod
    def pools(self, evidence: Evidence, earned: Credit) -> list[Pool]:
        """Everybody in the step, by whom they are compared with."""

    def level(self, pool: Pool, earned: Credit) -> bool:
        """Whether nothing tells the peers apart."""
        return constant([peer.worth for peer in pool])

    @abstractmethod
    def baselines(self, pool: Pool) -> Mapping[TurnId, float]:
        """What is subtracted from each turn; without those that nothing can be compared with."""

    def spread(self, pools: Sequence[Pool]) -> float:
        """What `scale` has to know of the whole step; 0 if nothing."""
        return 0.0

    def scale(self, worths: Sequence[float], spread: float) -> float:
        """What differences are multiplied with."""
        return 1.0


class Keyed(Comparison):
    """Base of comparisons whose peers are told by their own turns."""

    def pools(self, evidence: Evidence, earned: Credit) -> list[Pool]:
        found: dict[Hashable, dict[Hashable, dict[TurnId, Turn]]] = defaultdict(lambda: defaultdict(dict))
        for trajectory, turn in judged(evidence, earned):
            found[self.key(trajectory, turn)][self.one(trajectory, turn)][turn.id] = turn
        return [[peer_of(turns, earned) for turns in pool.values()] for pool in found.values()]

    @abstractmethod
    def key(self, trajectory: Trajectory, turn: Turn) -> Hashable:
        """Turns with equal keys are compared."""

    @abstractmethod
    def one(self, trajectory: Trajectory, turn: Turn) -> Hashable:
        """Turns with equal keys count as one peer."""


class Standardized(Keyed):
    """Base of comparisons with the mean of the peers: (R - mean) / (std + epsilon), std with ddof 1 (verl, TRL)."""

    std: bool | Literal["batch"] = True
    """Divide by the standard deviation of the peers; `batch`: by that of all worths of the step (TRL's and ms-swift's
    `scale_rewards=batch`); false: by nothing (Dr. GRPO, arXiv 2503.20783)."""
    epsilon: float = Field(default=1e-6, ge=0)
    """verl 1e-6, TRL and ms-swift 1e-4, OpenRLHF 1e-9."""

    def baselines(self, pool: Pool) -> Mapping[TurnId, float]:
        return means(pool)

    def spread(self, pools: Sequence[Pool]) -> float:
        worths = [peer.worth for pool in pools for peer in pool] if self.std == "batch" else []
        return stdev(worths) if len(worths) > 1 and all(map(math.isfinite, worths)) else 0.0

    def scale(self, worths: Sequence[float], spread: float) -> float:
        return 1 / ((spread or stdev(worths)) + self.epsilon) if self.std else 1.0


def judged(evidence: Evidence, earned: Credit) -> Iterator[tuple[Trajectory, Turn]]:
    """Every turn that `earned` speaks of, in playing order; not those that follow from the question alone."""
    for trajectory in evidence.trajectories:
        for turn in trajectory.turns:
            if turn.id in earned and turn.role not in evidence.rules:
                yield trajectory, turn


def shifted(worth: Advantage, baseline: float, scale: float) -> Advantage:
    """The turn's number and its tokens' minus `baseline`, times `scale`."""
    tokens = tuple([(token - baseline) * scale for token in worth.tokens]) if worth.tokens else ()
    # Several times as fast as dataclasses.replace, once a turn.
    return Advantage((worth.value - baseline) * scale, tokens, worth.returns)


def nothing(worth: Advantage) -> Advantage:
    """Exactly 0, for the turn and for its tokens."""
    return Advantage(0.0, (0.0,) * len(worth.tokens), worth.returns)


def _judged(worth: Advantage, baseline: float | None, scale: float) -> Advantage:
    return nothing(worth) if baseline is None else shifted(worth, baseline, scale)


def turns_of(pool: Pool) -> list[TurnId]:
    """All that are compared, each once."""
    return list(dict.fromkeys([turn for peer in pool for turn in peer.turns]))


def constant(numbers: Sequence[float]) -> bool:
    """Whether all are equal. Equal returns may differ in the last bits, by the order in which rewards were added."""
    most, least = max(numbers), min(numbers)
    return most - least <= max(ROUNDING * max(abs(most), abs(least)), sys.float_info.min)


def mean(numbers: Sequence[float]) -> float:
    """Of equal numbers exactly that number."""
    return numbers[0] if len(set(numbers)) == 1 else fmean(numbers)


def means(pool: Pool) -> dict[TurnId, float]:
    """The mean of all, for each turn."""
    baseline = fmean(peer.worth for peer in pool)
    return dict.fromkeys([turn for peer in pool for turn in peer.turns], baseline)


def others(pool: Pool) -> dict[TurnId, float]:
    """The mean of those peers of which a turn is no part; none for a turn that is a part of all."""
    total = math.fsum(peer.worth for peer in pool)
    own: dict[TurnId, list[float]] = defaultdict(list)
    for peer in pool:
        for turn in peer.turns:
            own[turn].append(peer.worth)
    left = {turn: len(pool) - len(worths) for turn, worths in own.items()}
    return {turn: (total - math.fsum(worths)) / left[turn] for turn, worths in own.items() if left[turn]}


def peer_of(turns: Mapping[TurnId, Turn], earned: Credit) -> Peer:
    """These turns as one."""
    return Peer(mean([earned[turn].value for turn in turns]), turns)


def prompt(turn: Turn) -> Hashable:
    """What was asked, token for token where there are tokens."""
    return turn.completion.prompt_ids or turn.request.messages


def problem(turn: Turn) -> str:
    """Raises:
    ValueError: if the turn works on none.
    """
    if not turn.problem:
        raise ValueError(
            f"credit.baseline.like: 'problem', but role {turn.role!r} works on none: its game gives no `problem` in "
            f"`infos` (turn {turn.id}); choices: start, prompt"
        )
    return turn.problem


ROUNDING = 1e-12
"""Relative difference below which numbers are equal."""
