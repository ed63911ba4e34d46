"""Base of rules that compare recorded episodes with counterfactual rollouts."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from statistics import fmean
from typing import ClassVar

from pydantic import PositiveInt

from marl.core.config import DistinctValues, choices_hint
from marl.core.graph import Trajectory
from marl.core.types import Advantage, Completion, Credit, Fork, Metrics, Request, Turn, TurnId
from marl.credit.assign.teams import CreditTeam, StatelessAssignRule, TeamAssign, credit_by_first_value
from marl.protocols import AssignRule, Evidence, Simulator

# Metrics of this module (name | unit | meaning), which `tests/bench/figures.py` copies into marl/README.md.
METRICS = """
credit/plays | episodes | rollouts that credit played, for each episode of the step (`difference`, `leave_one_out`,
    `shapley`, `replay`)
"""


class RolloutAssign(TeamAssign):
    """Base of rules that play forks of the recorded episodes. Subclasses implement `turn_credits_from_rollouts`.

    A turn gets no credit if a fork that its credit depends on could not be played because the game raised an error
    (`schedule.max_drops`).
    """

    plays: ClassVar[bool] = True
    roles: DistinctValues[str] = ()
    """Roles whose turns get credit; nothing is played for other turns. Default: all roles that do not answer by
    rule."""
    samples: PositiveInt = 1
    """Number of rollouts of each fork; the fork's value is the team's mean reward over these rollouts."""

    @abstractmethod
    def turn_credits_from_rollouts(
        self, evidence: Evidence, rollouts: CreditRolloutPlayer
    ) -> Iterable[tuple[TurnId, float | Advantage]]:
        """Yield (turn, credit) for each credited turn of each episode; a turn that forks share is yielded per fork."""

    def build(self) -> AssignRule:
        return RolloutRule(self)

    def credited_turns_by_team(
        self, trajectory: Trajectory, evidence: Evidence
    ) -> Iterator[tuple[CreditTeam, list[Turn]]]:
        """Yield each team of an episode with the team's turns whose roles get credit."""
        for team in self.teams_in_trajectory(trajectory, evidence):
            yield team, [turn for turn in team.turns(trajectory) if not self.roles or turn.role in self.roles]

    def refuse_unknown_roles_or_agents(self, evidence: Evidence) -> None:
        """Raise ValueError if the setting `roles` contains a role that no seat has, or a rule-based role."""
        seated: set[str] = set()
        for trajectory in evidence.trajectories:
            seated.update(trajectory.deal.seats.values())
        learning = sorted(seated - evidence.rule_based_roles)
        for role in self.roles:
            if seated and role not in learning:
                raise ValueError(f"roles: {role!r} can earn nothing here; {choices_hint(role, learning)}")


class CreditRolloutPlayer:
    """Player of forks for one credit rule, which counts the episodes played."""

    def __init__(self, evidence: Evidence, kind: str) -> None:
        self.simulator = evidence.require_simulator(
            f"credit.assign: {kind!r} plays what did not happen, so it needs the game and its players; recorded "
            "trajectories are not enough"
        )
        self._reward_transform = evidence.reward_transform
        self.metrics: Metrics = {"credit/plays": 0.0}
        self._episodes = max(len(evidence.trajectories), 1)

    def mean_team_reward_per_fork(self, forks: Sequence[tuple[Fork, CreditTeam]]) -> list[float | None]:
        """Play all forks at once, and return the team's mean reward over the rollouts of each fork.

        The mean is None for a fork whose rollouts were all dropped because the game raised an error.
        """
        rollouts = self.simulator.play_forks([fork for fork, _ in forks], self._reward_transform)
        self.metrics["credit/plays"] += sum(map(len, rollouts)) / self._episodes
        rewards: list[float | None] = []
        for (_, team), trajectories in zip(forks, rollouts, strict=True):
            rewards.append(fmean(map(team.total_reward, trajectories)) if trajectories else None)
        return rewards


class RolloutRule(StatelessAssignRule):
    """Credit rule built from `RolloutAssign`, which plays forks."""

    def __init__(self, settings: RolloutAssign) -> None:
        self._settings = settings

    def __call__(self, evidence: Evidence) -> Credit:
        """Return the credit of the turns of all teams; metric `credit/plays`: episodes played for each recorded one.

        Raises:
            ValueError: if there is no simulator, or a setting names a role or agent that the game does not have.
        """
        self._settings.refuse_unknown_roles_or_agents(evidence)
        rollouts = CreditRolloutPlayer(evidence, self._settings.kind)
        credit = credit_by_first_value(self._settings.turn_credits_from_rollouts(evidence, rollouts))
        self._metrics = rollouts.metrics
        return credit


def probabilities_among_texts(
    requests_with_texts: Sequence[tuple[Request, Sequence[str]]], simulator: Simulator
) -> list[list[float]]:
    """Return, for each (request, texts), the probability of each text, given that one of the texts is sampled.

    A request whose texts all have probability 0 gets [].
    """
    forced = [replace(request, forced=text) for request, texts in requests_with_texts for text in texts]
    answers = iter(simulator.score_forced_texts(forced))
    rows: list[list[float]] = []
    for _, texts in requests_with_texts:
        logprobs: list[float] = []
        for answer in islice(answers, len(texts)):
            # An engine's failure instead of a completion counts as probability 0.
            logprobs.append(math.fsum(answer.logprobs) if isinstance(answer, Completion) else -math.inf)
        largest = max(logprobs)
        if largest == -math.inf:
            rows.append([])
            continue
        weights = [math.exp(logprob - largest) for logprob in logprobs]
        total = math.fsum(weights)
        rows.append([weight / total for weight in weights])
    return rows
