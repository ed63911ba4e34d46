"""R-NaD's transformed reward: self-play regularised towards a reference policy that is replaced at intervals."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import chain
from math import fsum

from pydantic import PositiveFloat

from marl.core.graph import Trajectory
from marl.core.types import Credit, Reading, TurnId
from marl.credit.assign.teams import credit_from_first
from marl.protocols import AssignConfig, Evidence


class Rnad(AssignConfig):
    """R-NaD (arXiv 2206.15378): each turn earns its agent's return in a game with a payment at every turn.

    With d = log pi(a) - log pi_reference(a) of the answer (nats), a turn's agent pays eta d, and the other agents
    receive this payment in equal parts, so a zero-sum game remains zero-sum. A turn earns its agent's return in the
    episode, minus the agent's payments from this turn on, plus the payments that the agent receives from this turn on.
    Between two replacements of the reference (`refresh`) this game has one equilibrium, which self-play reaches; the
    sequence of these equilibria converges to an equilibrium of the original game. Turns that no learner reads cost
    nothing.
    """

    kind: str = "rnad"
    eta: PositiveFloat = 0.2
    """Price of a nat, in rewards after `credit.scale`."""

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"logprobs", "reference"})

    @property
    def by_turn(self) -> bool:
        """Return True: an agent's turns earn different amounts."""
        return True

    def __call__(self, evidence: Evidence) -> Credit:
        episodes = (self._episode(trajectory, evidence.readings) for trajectory in evidence.trajectories)
        return credit_from_first(chain.from_iterable(episodes))

    def _episode(self, trajectory: Trajectory, readings: Mapping[TurnId, Reading]) -> Iterator[tuple[TurnId, float]]:
        agents, transferred = trajectory.deal.seats, defaultdict[str, float](float)
        for turn in reversed(trajectory.turns):
            price = self.eta * _log_ratio(readings.get(turn.id))
            for agent in agents:
                transferred[agent] += -price if agent == turn.agent else price / (len(agents) - 1)
            yield turn.id, trajectory.returns.get(turn.agent, 0.0) + transferred[turn.agent]


def _log_ratio(reading: Reading | None) -> float:
    """Return log pi - log pi_reference of a turn's full answer [nats], or 0 if it was not read."""
    if reading is None or reading.reference is None:
        return 0.0
    return fsum(reading.logprobs) - fsum(reading.reference)
