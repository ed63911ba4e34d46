"""Against what: what turns are worth -> how much better they are than their peers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from credit.baselines.peers import Keyed, Standardized, judged, peer_of, problem, prompt, shifted
from marl.protocols import Baseline, BaselineConfig, Evidence, Likeness
from marl.types import Credit, Metrics, Turn, TurnId

if TYPE_CHECKING:
    from marl.graph import Trajectory


class Alike(Keyed):
    """Base of comparisons among peers that have something to choose in common."""

    like: Likeness = "start"
    """`start`: whole episodes that began in the same state, one value for each agent in each; `prompt`: turns with
    the same prompt, token for token; `problem`: agents that work on the same problem, in one episode or in several,
    one value for each agent in each episode."""

    @property
    def likeness(self) -> Likeness:
        return self.like

    def key(self, trajectory: Trajectory, turn: Turn) -> Hashable:
        if self.like == "start":
            return trajectory.start, turn.agent, turn.role
        return (problem(turn) if self.like == "problem" else prompt(turn)), turn.role

    def one(self, trajectory: Trajectory, turn: Turn) -> Hashable:
        if self.like == "problem":
            return trajectory.id, turn.agent
        return trajectory.id if self.like == "start" else turn.id


class Group(Alike, Standardized):
    """GRPO: minus the mean of the peers in this step, by default divided by their spread (arXiv 2402.03300)."""

    kind: str = "group"

    @property
    def by_episode(self) -> bool:
        """Unless turns with the same prompt are compared."""
        return self.like != "prompt"


class RoleAverage(BaselineConfig):
    """SPIRAL's role-conditioned advantage estimation (arXiv 2506.24119): minus a moving average per game and seat.

    b starts at 0; A = R - b, b <- alpha b + (1 - alpha) R, once per episode, in deal order.
    """

    kind: str = "role_average"
    alpha: float = Field(default=0.95, ge=0, lt=1)
    order: Literal["subtract_first", "update_first"] = "subtract_first"
    """The paper's equation 2 updates first, its code subtracts first; they differ by the factor alpha."""

    def build(self) -> Baseline:
        return RunningAverage(self)


class RunningAverage:
    """A moving average of returns per game, role and agent."""

    needs: frozenset[str] = frozenset()

    def __init__(self, settings: RoleAverage) -> None:
        self._settings = settings
        self._means: dict[str, float] = {}

    def __call__(self, evidence: Evidence, earned: Credit) -> tuple[Credit, Metrics]:
        episodes: dict[str, dict[str, dict[TurnId, Turn]]] = defaultdict(lambda: defaultdict(dict))
        for trajectory, turn in judged(evidence, earned):
            episodes[trajectory.id][f"{evidence.game}/{turn.role}/{turn.agent}"][turn.id] = turn
        credit: Credit = {}
        for seats in episodes.values():
            for key, turns in seats.items():
                average = self._learn(key, peer_of(turns, earned).worth)
                credit.update((turn, shifted(earned[turn], average, 1.0)) for turn in turns)
        return credit, {f"credit/average/{key}": average for key, average in sorted(self._means.items())}

    def _learn(self, key: str, worth: float) -> float:
        """Learn from one episode; return the average to subtract from it."""
        alpha, before = self._settings.alpha, self._means.get(key, 0.0)
        self._means[key] = alpha * before + (1 - alpha) * worth
        return before if self._settings.order == "subtract_first" else self._means[key]

    def state_dict(self) -> dict[str, Any]:
        return {"means": dict(self._means)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._means = dict(state["means"])


class Nothing(BaselineConfig):
    """Compared with nothing: the advantage is what was earned."""

    kind: str = "none"

    def __call__(self, evidence: Evidence, earned: Credit) -> tuple[Credit, Metrics]:
        return dict(earned), {}
