"""REINFORCE with a baseline that needs no critic: the others (RLOO), their tokens (OPO), the greedy answer (ReMax)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING

from pydantic import Field

from credit.baselines.group import Alike
from credit.baselines.peers import Compared, Pool, constant, judged, others, shifted, turns_of
from credit.baselines.whiten import Whiten
from marl.protocols import BaselineConfig, Evidence
from marl.types import Credit, Deal, Metrics, TurnId

if TYPE_CHECKING:
    from marl.graph import Trajectory


class LeaveOneOut(Alike):
    """RLOO (arXiv 2402.14740): minus the mean of the other peers, R_i - sum over j != i of R_j / (G - 1).

    A turn's own episode has no say in its baseline, so the policy gradient stays unbiased, also where an agent's turns
    are worth different numbers. For that, a turn that several forks inherited is compared with the episodes that did
    not inherit it; one that all did has no peers.
    """

    kind: str = "leave_one_out"
    whiten: bool = False
    """Then (A - mean) / (std + whiten_epsilon) over all turns of the step: TRL's `normalize_advantages`."""
    whiten_epsilon: float = Field(default=1e-4, ge=0)

    def compare(self, evidence: Evidence, earned: Credit) -> Compared:
        compared = super().compare(evidence, earned)
        if not self.whiten:
            return compared
        whole = Whiten(unit="sequence", guard="std", epsilon=self.whiten_epsilon)
        return replace(compared, credit=whole.whitened(compared.credit, evidence, compared.idle))

    def level(self, pool: Pool, earned: Credit) -> bool:
        return constant([earned[turn].value for turn in turns_of(pool)])

    def baselines(self, pool: Pool) -> Mapping[TurnId, float]:
        return others(pool)


class LengthWeighted(Alike):
    """OPO, as in verl: minus the mean of the peers, each weighed by its tokens, sum of L_j R_j / sum of L_j.

    L counts the completion tokens of the turns that are judged. Peers without any token have no baseline and get 0.
    """

    kind: str = "opo"

    def baselines(self, pool: Pool) -> Mapping[TurnId, float]:
        lengths = [sum([len(turn.completion.token_ids) for turn in peer.turns.values()]) for peer in pool]
        if not any(lengths):
            return {}
        return dict.fromkeys(turns_of(pool), fmean([peer.worth for peer in pool], lengths))


class Greedy(BaselineConfig):
    """ReMax (arXiv 2310.10505): minus what the same agent is paid where everybody says what is most likely.

    One such episode is played from each start, with the same seats; its tokens are counted as credit's. A baseline is
    not told what `assign` would make of that episode, so it is the agent's return there that is subtracted: with
    `outcome`, the same estimand; with other rules still a number that no sampled turn has a say in, so the policy
    gradient stays unbiased.
    """

    kind: str = "greedy"

    def __call__(self, evidence: Evidence, earned: Credit) -> tuple[Credit, Metrics]:
        """Judge every turn that `earned` speaks of.

        Raises:
            ValueError: if nothing can be played.
        """
        entries = list(judged(evidence, earned))
        starts: dict[Hashable, Trajectory] = {}
        for trajectory, _ in entries:
            starts.setdefault(_start(trajectory), trajectory)
        paid = dict(zip(starts, _returns(evidence, [_greedy(first) for first in starts.values()]), strict=True))
        credit: Credit = {}
        returns: dict[str, dict[Hashable, float]] = defaultdict(dict)
        for trajectory, turn in entries:
            start = _start(trajectory)
            baseline = returns[turn.role][start, turn.agent] = paid[start].get(turn.agent, 0.0)
            credit[turn.id] = shifted(earned[turn.id], baseline, 1.0)
        return credit, {f"credit/greedy/{role}": fmean(own.values()) for role, own in sorted(returns.items())}


def _start(trajectory: Trajectory) -> Hashable:
    return trajectory.start, frozenset(trajectory.deal.seats.items())


def _greedy(trajectory: Trajectory) -> Deal:
    return replace(trajectory.deal, episode=f"{trajectory.id}~greedy", purpose="credit", branch=0)


def _returns(evidence: Evidence, deals: list[Deal]) -> list[dict[str, float]]:
    if evidence.simulator is None:
        raise ValueError(
            "credit.baseline: 'greedy' plays an episode from each start, but here nothing can be played: there is no "
            "simulator; choices: group, leave_one_out, opo, ..."
        )
    return [trajectory.returns for trajectory in evidence.simulator.greedy().play(deals)]
