"""Base of rules that compare recorded episodes with counterfactual rollouts."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from statistics import fmean

from pydantic import PositiveInt

from marl.core.config import choices_hint
from marl.core.graph import Trajectory
from marl.core.types import Completion, Credit, Fork, Metrics, Request, Turn, TurnId
from marl.credit.assign.teams import StatelessRule, Team, TeamAssign, credit_from_first
from marl.protocols import Assign, Evidence, Simulator


class RolloutAssign(TeamAssign):
    """Base of rules that play forks of the recorded episodes. Subclasses write `credit_values`.

    A turn gets no entry if a fork that its credit depends on could not be played, because the game raised an error
    (`schedule.max_drops`).
    """

    roles: tuple[str, ...] = ()
    """Roles whose turns get credit; nothing is played for other turns. Default: all roles that do not answer by
    rule."""
    samples: PositiveInt = 1
    """Number of rollouts of each fork; the fork's value is their mean."""

    @abstractmethod
    def credit_values(self, evidence: Evidence, rollouts: CreditRollouts) -> Iterable[tuple[TurnId, float]]:
        """Yield (turn, credit), once for each episode that contains the turn."""

    def build(self) -> Assign:
        return RolloutRule(self)

    def credited_turns(self, trajectory: Trajectory, evidence: Evidence) -> Iterator[tuple[Team, list[Turn]]]:
        """Yield each team of an episode with its turns that get credit."""
        for team in self.teams_of(trajectory, evidence):
            yield team, [turn for turn in team.turns(trajectory) if not self.roles or turn.role in self.roles]

    def check_names(self, evidence: Evidence) -> None:
        """Raises:
        ValueError: if `roles` contains a role that no seat has, or that answers by rule.
        """
        seated = {role for trajectory in evidence.trajectories for role in trajectory.deal.seats.values()}
        learning = sorted(seated - evidence.rule_based_roles)
        for role in self.roles:
            if seated and role not in learning:
                raise ValueError(f"roles: {role!r} can earn nothing here; {choices_hint(role, learning)}")


class CreditRollouts:
    """Plays forks of episodes, and counts the episodes played."""

    def __init__(self, evidence: Evidence, kind: str) -> None:
        self.simulator = evidence.require_simulator(
            f"credit.assign: {kind!r} plays what did not happen, so it needs the game and its players; recorded "
            "trajectories are not enough"
        )
        self._reward_transform = evidence.reward_transform
        self.metrics: Metrics = {"credit/plays": 0.0}
        self._episodes = max(len(evidence.trajectories), 1)

    def mean_rewards(self, forks: Sequence[tuple[Fork, Team]]) -> list[float | None]:
        """Play all forks at once, and return the team's mean reward over the rollouts of each fork.

        None stands for a fork whose rollouts were all dropped because the game raised an error.
        """
        rollouts = self.simulator.play_forks([fork for fork, _ in forks], self._reward_transform)
        self.metrics["credit/plays"] += sum(map(len, rollouts)) / self._episodes
        rewards: list[float | None] = []
        for (_, team), trajectories in zip(forks, rollouts, strict=True):
            rewards.append(fmean(map(team.total_reward, trajectories)) if trajectories else None)
        return rewards


class RolloutRule(StatelessRule):
    """A built rule that plays forks."""

    def __init__(self, settings: RolloutAssign) -> None:
        super().__init__()
        self._settings = settings

    def __call__(self, evidence: Evidence) -> Credit:
        """Return the credit of the turns of all teams; metric `credit/plays`: episodes played for each recorded one.

        Raises:
            ValueError: if there is no simulator, or a setting names a role or agent that the game does not have.
        """
        self._settings.check_names(evidence)
        rollouts = CreditRollouts(evidence, self._settings.kind)
        credit = credit_from_first(self._settings.credit_values(evidence, rollouts))
        self._metrics = rollouts.metrics
        return credit


def text_probabilities(questions: Sequence[tuple[Request, Sequence[str]]], simulator: Simulator) -> list[list[float]]:
    """Return the probability of each text of a request, given that one of them is sampled; [] if all have probability
    0."""
    forced = [replace(request, forced=text) for request, texts in questions for text in texts]
    logprobs: list[float] = []
    for answer in simulator.score(forced):
        # An engine's failure instead of a completion counts as probability 0.
        logprobs.append(math.fsum(answer.logprobs) if isinstance(answer, Completion) else -math.inf)
    remaining = iter(logprobs)
    return [_softmax(list(islice(remaining, len(texts)))) for _, texts in questions]


def _softmax(logprobs: Sequence[float]) -> list[float]:
    largest = max(logprobs)
    if largest == -math.inf:
        return []
    weights = [math.exp(logprob - largest) for logprob in logprobs]
    total = math.fsum(weights)
    return [weight / total for weight in weights]
