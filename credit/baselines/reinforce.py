"""Baselines of REINFORCE without critic or peers: the greedy return (ReMax), a moving average (SPIRAL), or none."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any, ClassVar, Literal

from pydantic import Field

from marl.core.graph import Trajectory
from marl.core.types import Credit, Deal, Metrics, TurnId
from marl.credit.baselines.peer_baseline import credited_turns_with_episodes, mean_credit, subtract_and_scale
from marl.protocols import BaselineConfig, BaselineRule, Evidence

# Metrics of this module (name | unit | meaning), which `tests/bench/figures.py` copies into marl/README.md.
METRICS = """
credit/average/GAME/ROLE/AGENT | reward | moving average of `role_average`
credit/greedy/ROLE | reward | mean return of the greedy episodes (`greedy`, ReMax)
"""


class GreedyReturnBaseline(BaselineConfig):
    """ReMax (arXiv 2310.10505): minus the agent's return in an episode in which every agent answers greedily.

    One greedy episode is played from each start, with the same seats. The tokens of greedy episodes count as tokens
    spent on credit. The baseline subtracts the agent's return in the greedy episode itself; the rule `assign` is not
    applied to that episode. With `assign: outcome` this is ReMax. With other rules the subtracted return still depends
    on no sampled turn, so the policy gradient stays unbiased.
    """

    plays: ClassVar[bool] = True
    kind: str = "greedy"

    def __call__(self, evidence: Evidence, earned: Credit) -> tuple[Credit, Metrics]:
        """Return the advantage of every turn in `earned` whose greedy episode has a result, and each role's mean
        greedy return.

        Raises:
            ValueError: if there is no simulator.
        """
        credited = list(credited_turns_with_episodes(evidence, earned))
        starts: dict[Hashable, Trajectory] = {}
        for trajectory, _ in credited:
            starts.setdefault(_start_and_seats_key(trajectory), trajectory)
        simulator = evidence.require_simulator(
            "credit.baseline: 'greedy' plays an episode from each start, but here nothing can be played: there is no "
            "simulator; choices: group, rloo, opo, ..."
        )
        deals: dict[Hashable, Deal] = {}
        for start, trajectory in starts.items():
            name = f"{trajectory.id}~greedy"
            deals[start] = replace(trajectory.deal, episode=name, purpose="credit", branch=0)
        episodes = simulator.with_greedy_decoding().play(list(deals.values()), evidence.reward_transform)
        # A greedy episode may be dropped by an error; turns from its start then get no baseline and are not trained on.
        greedy_returns = {episode.id: episode.returns for episode in episodes}
        credit: Credit = {}
        by_role: dict[str, dict[Hashable, float]] = defaultdict(dict)
        for trajectory, turn in credited:
            start = _start_and_seats_key(trajectory)
            if (greedy := greedy_returns.get(deals[start].episode)) is None:
                continue
            baseline = greedy.get(turn.agent, 0.0)
            by_role[turn.role][start, turn.agent] = baseline
            credit[turn.id] = subtract_and_scale(earned[turn.id], baseline, 1.0)
        return credit, {f"credit/greedy/{role}": fmean(values.values()) for role, values in sorted(by_role.items())}


def _start_and_seats_key(trajectory: Trajectory) -> Hashable:
    return trajectory.start, frozenset(trajectory.deal.seats.items())


class RoleAverageBaseline(BaselineConfig):
    """SPIRAL's role-conditioned advantage estimation (arXiv 2506.24119): minus a moving average per game and seat.

    The average b starts at 0. For each episode in deal order, with R the mean credit of the seat's turns:
    A = R - b, b <- alpha b + (1 - alpha) R.
    """

    kind: str = "role_average"
    alpha: float = Field(default=0.95, ge=0, lt=1)
    """Weight of the previous average when an episode's return is added to it."""
    order: Literal["subtract_first", "update_first"] = "subtract_first"
    """Order of subtracting the average and adding the episode's return to it. `update_first`: equation 2 of the paper;
    `subtract_first`: the paper's code. The results differ by the factor alpha."""

    def build(self) -> BaselineRule:
        return RoleMovingAverage(self)


class RoleMovingAverage:
    """Baseline built from `RoleAverageBaseline`: subtracts a moving average of returns per game, role and agent."""

    needed_reading_fields: frozenset[str] = frozenset()

    def __init__(self, settings: RoleAverageBaseline) -> None:
        self._settings = settings
        self._means: dict[str, float] = {}

    def __call__(self, evidence: Evidence, earned: Credit) -> tuple[Credit, Metrics]:
        """Return the advantages of the turns in `earned`, and as metrics each seat's moving average after this step."""
        episodes: dict[str, dict[str, dict[TurnId, None]]] = defaultdict(lambda: defaultdict(dict))
        for trajectory, turn in credited_turns_with_episodes(evidence, earned):
            episodes[trajectory.id][f"{evidence.game}/{turn.role}/{turn.agent}"][turn.id] = None
        alpha = self._settings.alpha
        credit: Credit = {}
        for seats in episodes.values():
            for key, turns in seats.items():
                before = self._means.get(key, 0.0)
                self._means[key] = alpha * before + (1 - alpha) * mean_credit(list(turns), earned)
                baseline = before if self._settings.order == "subtract_first" else self._means[key]
                for turn in turns:
                    credit[turn] = subtract_and_scale(earned[turn], baseline, 1.0)
        return credit, {f"credit/average/{key}": average for key, average in sorted(self._means.items())}

    def state_dict(self) -> dict[str, Any]:
        return {"means": dict(self._means)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._means = dict(state["means"])


class NoBaseline(BaselineConfig):
    """No baseline: the advantage of a turn is the credit that `assign` gave the turn."""

    kind: str = "none"

    def __call__(self, evidence: Evidence, earned: Credit) -> tuple[Credit, Metrics]:
        return dict(earned), {}
