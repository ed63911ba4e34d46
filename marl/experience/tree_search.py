"""Tree sampling: at each turn several answers are tried from one and the same state, and the best is gone on with.

AT-GRPO (https://arxiv.org/abs/2510.11062, PettingLLMs): every agent samples K candidates at every turn, the one with
the highest score is continued, and candidates are compared with one another, for they share their state. There, a turn
is scored as it is said; here, where a reward may come late, a candidate is played to the end of its episode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import Field, model_validator

from marl.config import nearest
from marl.protocols import Experience, ExperienceConfig, Simulator
from marl.types import Deal, Fork, Metrics, Turn

if TYPE_CHECKING:
    from marl.graph import Trajectory


class Tree(ExperienceConfig):
    """Tries several answers at every turn, each played to its end, and goes on from the best one (AT-GRPO).

    A deal with T such turns takes `candidates` x T episodes. Each is played from its candidate on, so in all they say
    about `candidates` x T x T / 2 turns. All are trajectories of the step; a candidate is the first turn that its
    episode has to itself, and what follows shows what it is worth.
    """

    kind: str = "tree"
    siblings: ClassVar[bool] = True
    candidates: int = Field(4, ge=2)
    """Answers that are tried at a turn: K in the paper."""
    roles: tuple[str, ...] = ()
    """Roles at whose turns this is done; default: all that speak in a model's tokens, whether they learn or not.
    What others say is not learnt from: it stands in courses that were chosen for their end."""
    own: float = Field(1.0, ge=0)
    """A candidate's score is what its agent is paid in its episode, times this ..."""
    team: float = Field(0.0, ge=0)
    """... and what all agents are paid together, times this (alpha in the paper; its code has 1)."""

    @model_validator(mode="after")
    def _scored(self) -> Self:
        if not self.own and not self.team:
            raise ValueError("own and team are both 0, so no candidate would be better than another; give one more")
        return self

    def build(self) -> Experience:
        return Trees(self)


@dataclass(slots=True)
class _Grown:
    """What was played of one deal so far."""

    courses: list[Trajectory]
    """All of them, in the order in which they were begun."""
    trunk: Trajectory
    """The course that goes on from the best candidates."""
    settled: int = 0
    """How many of its turns are decided."""
    scores: list[list[float]] = field(default_factory=list)
    """Of the candidates of each decision."""


class Trees:
    """Grows a tree from every deal, all deals' candidates at once. Keeps nothing from step to step."""

    def __init__(self, settings: Tree) -> None:
        self._settings = settings
        self._metrics: Metrics = {}

    def gather(self, deals: Sequence[Deal], simulator: Simulator) -> list[Trajectory]:
        """All courses of all deals: by deal, then in the order in which they were begun.

        Raises:
            ValueError: if `roles` names one that no seat has.
        """
        self._expect(deals)
        trees = [_Grown([first], first) for first in simulator.play(deals)]
        while growing := [(tree, turn) for tree in trees if (turn := self._next(tree))]:
            forks = [self._fork(tree, turn) for tree, turn in growing]
            for (tree, turn), courses in zip(growing, simulator.branch(forks), strict=True):
                self._decide(tree, turn, courses)
        self._metrics = _measured(trees)
        return [course for tree in trees for course in tree.courses]

    def metrics(self) -> Metrics:
        """Of the last step: `tree/` courses and decisions of a deal, gain, tied, and `first/...` of each measure."""
        return dict(self._metrics)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing to restore."""

    def _expect(self, deals: Sequence[Deal]) -> None:
        seated = {role for deal in deals for role in deal.seats.values()}
        for role in self._settings.roles:
            if deals and role not in seated:
                raise ValueError(f"experience.roles: no seat has the role {role!r}; {nearest(role, sorted(seated))}")

    def _next(self, tree: _Grown) -> Turn | None:
        """The trunk's next turn at which there is something to decide."""
        roles = self._settings.roles
        for turn in tree.trunk.turns[tree.settled :]:
            # What has no tokens follows from the question alone, or could not be said at all.
            if turn.completion.prompt_ids and (not roles or turn.role in roles):
                return turn
        return None

    def _fork(self, tree: _Grown, turn: Turn) -> Fork:
        # The first course was chosen by nobody, so its own answer is a candidate. A course that was chosen for how it
        # ended is no fair sample of what is said on the way there.
        return Fork(turn.id, n=self._settings.candidates - (not tree.scores), purpose="train")

    def _decide(self, tree: _Grown, turn: Turn, courses: Sequence[Trajectory]) -> None:
        candidates = [*(() if tree.scores else (tree.trunk,)), *courses]
        scores = [self._score(course, turn.agent) for course in candidates]
        tree.courses += courses
        tree.scores.append(scores)
        tree.settled = turn.id[1] + 1
        if candidates:  # none if the game raised in all of them
            tree.trunk = candidates[scores.index(max(scores))]

    def _score(self, course: Trajectory, agent: str) -> float:
        paid = course.returns
        return self._settings.own * paid.get(agent, 0.0) + self._settings.team * sum(paid.values())


def _measured(trees: Sequence[_Grown]) -> Metrics:
    if not trees:
        return {}
    decisions = [scores for tree in trees for scores in tree.scores if scores]
    metrics = {
        "tree/courses": fmean(len(tree.courses) for tree in trees),
        "tree/decisions": len(decisions) / len(trees),
    }
    if decisions:
        metrics["tree/gain"] = fmean(max(scores) - fmean(scores) for scores in decisions)
        metrics["tree/tied"] = fmean(max(scores) == min(scores) for scores in decisions)
    return metrics | _first([tree.courses[0] for tree in trees])


def _first(courses: Sequence[Trajectory]) -> Metrics:
    """The game's measures of what was played before anything was chosen: how well policies do by themselves."""
    names = sorted({name for course in courses for name in course.findings.measures})
    told = {name: [c.findings.measures[name] for c in courses if name in c.findings.measures] for name in names}
    return {f"tree/first/{name}": fmean(values) for name, values in told.items()}
