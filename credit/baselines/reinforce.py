"""REINFORCE without a critic or peers: minus the greedy return (ReMax), a moving average (SPIRAL), or nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any, Literal

from pydantic import Field

from marl.core.graph import Trajectory
from marl.core.types import Credit, Metrics, TurnId
from marl.credit.baselines.peer_baseline import credited_turns, mean_earned, subtract_and_scale
from marl.protocols import Baseline, BaselineConfig, Evidence


class Greedy(BaselineConfig):
    """ReMax (arXiv 2310.10505): minus the agent's return in an episode in which every agent answers greedily.

    One such episode is played from each start, with the same seats; its tokens count as credit's. The baseline does
    not run `assign` on that episode, but subtracts the agent's return there: with `outcome`, the same estimand; with
    other rules still a number that does not depend on any sampled turn, so the policy gradient stays unbiased.
    """

    kind: str = "greedy"

    def __call__(self, evidence: Evidence, earned: Credit) -> tuple[Credit, Metrics]:
        """Return the advantage of every turn in `earned`, and each role's mean greedy return.

        Raises:
            ValueError: if there is no simulator.
        """
        entries = list(credited_turns(evidence, earned))
        starts: dict[Hashable, Trajectory] = {}
        for trajectory, _ in entries:
            starts.setdefault(_start(trajectory), trajectory)
        simulator = evidence.require_simulator(
            "credit.baseline: 'greedy' plays an episode from each start, but here nothing can be played: there is no "
            "simulator; choices: group, rloo, opo, ..."
        )
        deals = []
        for trajectory in starts.values():
            deals.append(replace(trajectory.deal, episode=f"{trajectory.id}~greedy", purpose="credit", branch=0))
        episodes = simulator.greedy().play(deals, evidence.reward_transform)
        greedy_returns = {start: episode.returns for start, episode in zip(starts, episodes, strict=True)}
        credit: Credit = {}
        by_role: dict[str, dict[Hashable, float]] = defaultdict(dict)
        for trajectory, turn in entries:
            start = _start(trajectory)
            baseline = greedy_returns[start].get(turn.agent, 0.0)
            by_role[turn.role][start, turn.agent] = baseline
            credit[turn.id] = subtract_and_scale(earned[turn.id], baseline, 1.0)
        return credit, {f"credit/greedy/{role}": fmean(values.values()) for role, values in sorted(by_role.items())}


def _start(trajectory: Trajectory) -> Hashable:
    return trajectory.start, frozenset(trajectory.deal.seats.items())


class RoleAverage(BaselineConfig):
    """SPIRAL's role-conditioned advantage estimation (arXiv 2506.24119): minus a moving average per game and seat.

    b starts at 0; A = R - b, b <- alpha b + (1 - alpha) R, once per episode, in deal order.
    """

    kind: str = "role_average"
    alpha: float = Field(default=0.95, ge=0, lt=1)
    """Weight of the previous average when an episode's return is added to it."""
    order: Literal["subtract_first", "update_first"] = "subtract_first"
    """Subtract the average before or after the episode's return is added to it: the paper's equation 2 updates first,
    its code subtracts first; the results differ by the factor alpha."""

    def build(self) -> Baseline:
        return RunningAverage(self)


class RunningAverage:
    """Moving average of returns per game, role and agent."""

    needs: frozenset[str] = frozenset()

    def __init__(self, settings: RoleAverage) -> None:
        self._settings = settings
        self._means: dict[str, float] = {}

    def __call__(self, evidence: Evidence, earned: Credit) -> tuple[Credit, Metrics]:
        """Return the advantages of the turns in `earned`, and the averages after this step."""
        episodes: dict[str, dict[str, dict[TurnId, None]]] = defaultdict(lambda: defaultdict(dict))
        for trajectory, turn in credited_turns(evidence, earned):
            episodes[trajectory.id][f"{evidence.game}/{turn.role}/{turn.agent}"][turn.id] = None
        alpha = self._settings.alpha
        credit: Credit = {}
        for seats in episodes.values():
            for key, turns in seats.items():
                before = self._means.get(key, 0.0)
                self._means[key] = alpha * before + (1 - alpha) * mean_earned(turns, earned)
                baseline = before if self._settings.order == "subtract_first" else self._means[key]
                credit.update((turn, subtract_and_scale(earned[turn], baseline, 1.0)) for turn in turns)
        return credit, {f"credit/average/{key}": average for key, average in sorted(self._means.items())}

    def state_dict(self) -> dict[str, Any]:
        return {"means": dict(self._means)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._means = dict(state["means"])


class NoBaseline(BaselineConfig):
    """No comparison: the advantage is the credit that `assign` gave."""

    kind: str = "none"

    def __call__(self, evidence: Evidence, earned: Credit) -> tuple[Credit, Metrics]:
        return dict(earned), {}
