"""REINFORCE without a critic or peers: against the greedy answer (ReMax), a moving average (SPIRAL), or nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from credit.baselines.peers import judged_turns, mean_earned, shift
from marl.protocols import Baseline, BaselineConfig, Evidence
from marl.types import Credit, Metrics, Turn, TurnId

if TYPE_CHECKING:
    from marl.graph import Trajectory


class Greedy(BaselineConfig):
    """ReMax (arXiv 2310.10505): minus the agent's return in an episode where everybody says what is most likely.

    One such episode is played from each start, with the same seats; its tokens are counted as credit's. A baseline
    does not know what `assign` would make of that episode, so it subtracts the agent's return there: with `outcome`,
    the same estimand; with other rules still a number that no sampled turn has a say in, so the policy gradient stays
    unbiased.
    """

    kind: str = "greedy"

    def __call__(self, evidence: Evidence, earned: Credit) -> tuple[Credit, Metrics]:
        """Return the advantage of every turn that `earned` holds, and each role's mean greedy return.

        Raises:
            ValueError: if nothing can be played.
        """
        entries = list(judged_turns(evidence, earned))
        starts: dict[Hashable, Trajectory] = {}
        for trajectory, _ in entries:
            starts.setdefault(_start(trajectory), trajectory)
        greedy = dict(zip(starts, _greedy_returns(evidence, list(starts.values())), strict=True))
        credit: Credit = {}
        returns: dict[str, dict[Hashable, float]] = defaultdict(dict)
        for trajectory, turn in entries:
            start = _start(trajectory)
            baseline = returns[turn.role][start, turn.agent] = greedy[start].get(turn.agent, 0.0)
            credit[turn.id] = shift(earned[turn.id], baseline, 1.0)
        return credit, {f"credit/greedy/{role}": fmean(values.values()) for role, values in sorted(returns.items())}


def _start(trajectory: Trajectory) -> Hashable:
    return trajectory.start, frozenset(trajectory.deal.seats.items())


def _greedy_returns(evidence: Evidence, trajectories: list[Trajectory]) -> list[dict[str, float]]:
    """Return each agent's return in a greedy episode from the start of each trajectory."""
    simulator = evidence.player(
        "credit.baseline: 'greedy' plays an episode from each start, but here nothing can be played: there is no "
        "simulator; choices: group, rloo, opo, ..."
    )
    deals = [replace(t.deal, episode=f"{t.id}~greedy", purpose="credit", branch=0) for t in trajectories]
    return [trajectory.returns for trajectory in simulator.greedy().play(deals, evidence.rewards)]


class RoleAverage(BaselineConfig):
    """SPIRAL's role-conditioned advantage estimation (arXiv 2506.24119): minus a moving average per game and seat.

    b starts at 0; A = R - b, b <- alpha b + (1 - alpha) R, once per episode, in deal order.
    """

    kind: str = "role_average"
    alpha: float = Field(default=0.95, ge=0, lt=1)
    """Weight of the average so far when an episode's return is added to it."""
    order: Literal["subtract_first", "update_first"] = "subtract_first"
    """Subtract the average before the episode counts in it, or after: the paper's equation 2 updates first, its code
    subtracts first; they differ by the factor alpha."""

    def build(self) -> Baseline:
        return RunningAverage(self)


class RunningAverage:
    """Moving average of returns per game, role and agent."""

    needs: frozenset[str] = frozenset()

    def __init__(self, settings: RoleAverage) -> None:
        self._settings = settings
        self._means: dict[str, float] = {}

    def __call__(self, evidence: Evidence, earned: Credit) -> tuple[Credit, Metrics]:
        episodes: dict[str, dict[str, dict[TurnId, Turn]]] = defaultdict(lambda: defaultdict(dict))
        for trajectory, turn in judged_turns(evidence, earned):
            episodes[trajectory.id][f"{evidence.game}/{turn.role}/{turn.agent}"][turn.id] = turn
        credit: Credit = {}
        for seats in episodes.values():
            for key, turns in seats.items():
                average = self._learn(key, mean_earned(turns, earned))
                credit.update((turn, shift(earned[turn], average, 1.0)) for turn in turns)
        return credit, {f"credit/average/{key}": average for key, average in sorted(self._means.items())}

    def _learn(self, key: str, worth: float) -> float:
        """Update the average with one episode; return the number to subtract from it."""
        alpha, before = self._settings.alpha, self._means.get(key, 0.0)
        self._means[key] = alpha * before + (1 - alpha) * worth
        return before if self._settings.order == "subtract_first" else self._means[key]

    def state_dict(self) -> dict[str, Any]:
        return {"means": dict(self._means)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._means = dict(state["means"])


class Nothing(BaselineConfig):
    """No comparison: the advantage is what was earned."""

    kind: str = "none"

    def __call__(self, evidence: Evidence, earned: Credit) -> tuple[Credit, Metrics]:
        return dict(earned), {}
