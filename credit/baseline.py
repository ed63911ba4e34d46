"""Against what: what turns are worth -> how much better they are than their peers."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from marl.protocols import Baseline, BaselineConfig, Evidence
from marl.types import Advantage, Credit, Metrics, Turn

if TYPE_CHECKING:
    from marl.graph import Trajectory


def judged(trajectories: Iterable[Trajectory], earned: Credit) -> Iterable[tuple[Trajectory, Turn, float]]:
    """Every turn that `earned` speaks of, with its worth, in playing order."""
    for trajectory in trajectories:
        for turn in trajectory.turns:
            if (worth := earned.get(turn.id)) is not None:
                yield trajectory, turn, worth.value


class Group(BaselineConfig):
    """GRPO: minus the mean of the peers in this step, by default divided by their spread.

    (R - mean) / (std + epsilon), std with ddof 1 (arXiv 2402.03300; ddof and epsilon as in verl). Peers whose worth is
    all equal, and turns without peers, get exactly 0.
    """

    kind: str = "group"
    compares: ClassVar[bool] = True
    like: Literal["start", "prompt", "problem"] = "start"
    """`start`: whole episodes that began in the same state, one value for each agent in each; `prompt`: turns with
    the same prompt, token for token; `problem`: agents that work on the same problem, in one episode or in several,
    one value for each agent in each episode."""
    std: bool = True
    epsilon: float = Field(default=1e-6, ge=0)

    def __call__(self, evidence: Evidence, earned: Credit) -> tuple[Credit, Metrics]:
        """Judge every turn that `earned` speaks of.

        Raises:
            ValueError: if problems are to be compared and a turn works on none.
        """
        keys: dict[Hashable, dict[Hashable, list[float]]] = defaultdict(lambda: defaultdict(list))
        entries = list(judged(evidence.trajectories, earned))
        for trajectory, turn, worth in entries:
            keys[self._peers(trajectory, turn)][self._one(trajectory, turn)].append(worth)
        compare = {key: self._statistics([_mean(v) for v in values.values()]) for key, values in keys.items()}
        credit: Credit = {}
        for trajectory, turn, worth in entries:
            mean, scale = compare[self._peers(trajectory, turn)]
            credit[turn.id] = _with(earned[turn.id], (worth - mean) * scale if scale else 0.0)
        degenerate = sum(not scale for _, scale in compare.values())
        return credit, {
            "credit/groups": float(len(compare)),
            "credit/degenerate_groups": degenerate / max(len(compare), 1),
        }

    def _peers(self, trajectory: Trajectory, turn: Turn) -> Hashable:
        """Turns with equal keys are compared."""
        if self.like == "start":
            return trajectory.start, turn.agent, turn.role
        if self.like == "problem":
            return _problem(turn), turn.role
        return turn.completion.prompt_ids or turn.request.messages, turn.role

    def _one(self, trajectory: Trajectory, turn: Turn) -> Hashable:
        """Turns with equal keys count as one peer."""
        if self.like == "problem":
            return trajectory.id, turn.agent
        return trajectory.id if self.like == "start" else turn.id

    def _statistics(self, worths: Sequence[float]) -> tuple[float, float]:
        """Mean, and what to multiply a difference with; 0 where there is nothing to compare."""
        if not all(map(math.isfinite, worths)):
            return 0.0, 1.0  # left as it is, for the learner to refuse and to name
        # Equal returns may differ in the last bits, by the order in which rewards were added; that is no difference.
        if len(worths) < 2 or max(worths) - min(worths) <= _ROUNDING * max(map(abs, worths)):
            return 0.0, 0.0
        return fmean(worths), 1 / (stdev(worths) + self.epsilon) if self.std else 1.0


def _problem(turn: Turn) -> str:
    if not turn.problem:
        raise ValueError(
            f"credit.baseline.like: 'problem', but role {turn.role!r} works on none: its game gives no `problem` in "
            f"`infos` (turn {turn.id}); choices: start, prompt"
        )
    return turn.problem


def _with(earned: Advantage, value: float) -> Advantage:
    # Several times as fast as dataclasses.replace, once a turn.
    return Advantage(value, earned.tokens, earned.returns)


def _mean(worths: Sequence[float]) -> float:
    return worths[0] if len(set(worths)) == 1 else fmean(worths)


_ROUNDING = 1e-12


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
        credit: Credit = {}
        for trajectory in evidence.trajectories:
            credit.update(self._episode(evidence.game, trajectory, earned))
        return credit, {f"credit/average/{key}": mean for key, mean in sorted(self._means.items())}

    def _episode(self, game: str, trajectory: Trajectory, earned: Credit) -> Credit:
        worths: dict[str, list[tuple[Turn, float]]] = defaultdict(list)
        for _, turn, worth in judged([trajectory], earned):
            worths[f"{game}/{turn.role}/{turn.agent}"].append((turn, worth))
        credit: Credit = {}
        for key, turns in worths.items():
            mean = self._learn(key, _mean([worth for _, worth in turns]))
            credit.update((turn.id, _with(earned[turn.id], worth - mean)) for turn, worth in turns)
        return credit

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
        return {turn: Advantage(worth.value, worth.tokens, worth.returns) for turn, worth in earned.items()}, {}
