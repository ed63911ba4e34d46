"""What rules share that play what did not happen, to compare it with what did."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from pydantic import PositiveInt

from credit.assign.teams import Team, TeamAssign
from credit.inherited import credit_of
from marl.config import nearest
from marl.protocols import Assign, Evidence
from marl.types import Credit, Fork, Metrics, Turn, TurnId

if TYPE_CHECKING:
    from marl.graph import Trajectory


class PlayingAssign(TeamAssign):
    """Base of rules that have other courses of the recorded episodes played. Subclasses write `judge`.

    A turn has no entry if a course that its worth depends on could not be played, because the game raised in it
    (`schedule.max_drops`).
    """

    roles: tuple[str, ...] = ()
    """Whose turns are judged: the others' have no entry, and nothing is played for them. Default: all that do not
    answer by rule."""
    samples: PositiveInt = 1
    """How many times each other course is played; what it is worth is the mean."""

    @abstractmethod
    def judge(self, evidence: Evidence, courses: Courses) -> Iterable[tuple[TurnId, float]]:
        """Turn and worth, once for each episode that holds the turn."""

    def build(self) -> Assign:
        return Playing(self)

    def judged(self, trajectory: Trajectory, evidence: Evidence) -> Iterator[tuple[Team, list[Turn]]]:
        """The teams of an episode, and those of their turns that are to be judged."""
        for team in self.teams_of(trajectory, evidence):
            yield team, [turn for turn in team.turns(trajectory) if not self.roles or turn.role in self.roles]

    def expect(self, evidence: Evidence) -> None:
        """Raises:
        ValueError: if `roles` names one that nobody has, or that answers by rule.
        """
        seated = {role for trajectory in evidence.trajectories for role in trajectory.deal.seats.values()}
        for role in self.roles:
            if seated and role not in seated - evidence.rules:
                raise ValueError(
                    f"roles: {role!r} can earn nothing here; {nearest(role, sorted(seated - evidence.rules))}"
                )


class Courses:
    """Plays what did not happen, and counts it."""

    def __init__(self, evidence: Evidence, kind: str) -> None:
        if evidence.simulator is None:
            raise ValueError(
                f"credit.assign: {kind!r} plays what did not happen, so it needs the game and its players; recorded "
                "trajectories are not enough"
            )
        self.simulator = evidence.simulator
        self.metrics: Metrics = {"credit/plays": 0.0}
        self._episodes = max(len(evidence.trajectories), 1)

    def worths(self, forks: Sequence[tuple[Fork, Team]]) -> list[float | None]:
        """What the team is paid in the courses of each fork, on average; all are played at once. None: in none of them
        did the game hold."""
        played = self.simulator.branch([fork for fork, _ in forks])
        self.metrics["credit/plays"] += sum(map(len, played)) / self._episodes
        pairs = zip(forks, played, strict=True)
        return [fmean(map(team.worth, courses)) if courses else None for (_, team), courses in pairs]


class Playing:
    """The working part of a rule that plays. All that it keeps is what it says of its last step."""

    needs: frozenset[str] = frozenset()

    def __init__(self, settings: PlayingAssign) -> None:
        self._settings = settings
        self._metrics: Metrics = {}

    def __call__(self, evidence: Evidence) -> Credit:
        """What the judged turns of all teams are worth.

        Raises:
            ValueError: without a simulator, or if a setting names what the game does not have.
        """
        self._settings.expect(evidence)
        courses = Courses(evidence, self._settings.kind)
        credit = credit_of(self._settings.judge(evidence, courses))
        self._metrics = courses.metrics
        return credit

    def metrics(self) -> Metrics:
        """`credit/plays`: courses played for each episode of the step; and what the rule adds."""
        return dict(self._metrics)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing to restore."""
