"""Base of rules that play what did not happen, to compare it with what did."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING

from pydantic import PositiveInt

from credit.assign.teams import StatelessRule, Team, TeamAssign, to_credit
from marl.config import nearest
from marl.protocols import Assign, Evidence, Simulator
from marl.types import Completion, Credit, Fork, Metrics, Request, Turn, TurnId

if TYPE_CHECKING:
    from marl.graph import Trajectory


class PlayingAssign(TeamAssign):
    """Base of rules that have other courses of the recorded episodes played. Subclasses write `judge`.

    A turn has no entry if a course that its credit depends on could not be played, because the game raised in it
    (`schedule.max_drops`).
    """

    roles: tuple[str, ...] = ()
    """Roles whose turns are judged: other turns have no entry, and nothing is played for them. Default: all that do
    not answer by rule."""
    samples: PositiveInt = 1
    """Number of times that each other course is played; its value is the mean."""

    @abstractmethod
    def judge(self, evidence: Evidence, courses: Courses) -> Iterable[tuple[TurnId, float]]:
        """Yield a turn and what it earned, once for each episode that has the turn."""

    def build(self) -> Assign:
        return PlayingRule(self)

    def judged_turns(self, trajectory: Trajectory, evidence: Evidence) -> Iterator[tuple[Team, list[Turn]]]:
        """Yield the teams of an episode, each with those of its turns that are to be judged."""
        for team in self.teams_of(trajectory, evidence):
            yield team, [turn for turn in team.turns(trajectory) if not self.roles or turn.role in self.roles]

    def check_names(self, evidence: Evidence) -> None:
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
    """Plays other courses of episodes, and counts them."""

    def __init__(self, evidence: Evidence, kind: str) -> None:
        self.simulator = evidence.player(
            f"credit.assign: {kind!r} plays what did not happen, so it needs the game and its players; recorded "
            "trajectories are not enough"
        )
        self._rewards = evidence.rewards
        self.metrics: Metrics = {"credit/plays": 0.0}
        self._episodes = max(len(evidence.trajectories), 1)

    def mean_rewards(self, forks: Sequence[tuple[Fork, Team]]) -> list[float | None]:
        """Play all forks at once; return for each what its team is paid, on average over its continuations.

        None stands for a fork all of whose continuations were dropped because the game raised.
        """
        played = self.simulator.branch([fork for fork, _ in forks], self._rewards)
        self.metrics["credit/plays"] += sum(map(len, played)) / self._episodes
        pairs = zip(forks, played, strict=True)
        return [fmean(map(team.total_reward, courses)) if courses else None for (_, team), courses in pairs]


class PlayingRule(StatelessRule):
    """The working part of a rule that plays."""

    def __init__(self, settings: PlayingAssign) -> None:
        super().__init__()
        self._settings = settings

    def __call__(self, evidence: Evidence) -> Credit:
        """Return what the judged turns of all teams earned; `credit/plays` is the number of courses for each episode.

        Raises:
            ValueError: without a simulator, or if a setting names what the game does not have.
        """
        self._settings.check_names(evidence)
        courses = Courses(evidence, self._settings.kind)
        credit = to_credit(self._settings.judge(evidence, courses))
        self._metrics = courses.metrics
        return credit


def text_probabilities(questions: Sequence[tuple[Request, Sequence[str]]], simulator: Simulator) -> list[list[float]]:
    """Return how likely each of a request's texts is, given that one of them is sampled; [] if none of them can be."""
    scored = simulator.score([replace(request, forced=text) for request, texts in questions for text in texts])
    logprobs = iter([math.fsum(each.logprobs) if isinstance(each, Completion) else -math.inf for each in scored])
    return [_normalise([next(logprobs) for _ in texts]) for _, texts in questions]


def _normalise(logprobs: Sequence[float]) -> list[float]:
    largest = max(logprobs)
    if largest == -math.inf:
        return []
    weights = [math.exp(logprob - largest) for logprob in logprobs]
    total = math.fsum(weights)
    return [weight / total for weight in weights]
