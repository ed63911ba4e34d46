"""R-NaD's transformed reward: self-play drawn towards a reference policy that is replaced from time to time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from math import fsum
from typing import TYPE_CHECKING

from pydantic import PositiveFloat

from credit.assign.teams import to_credit
from marl.protocols import AssignConfig, Evidence
from marl.types import Credit, Reading, TurnId

if TYPE_CHECKING:
    from marl.graph import Trajectory


class Rnad(AssignConfig):
    """R-NaD (arXiv 2206.15378): each turn earns its agent's return in a game in which who moves pays the others.

    With d = log pi(a) - log pi_reference(a) of what is said (nats), a turn's agent pays eta d and the others receive
    that in equal parts, so a zero-sum game stays one. A turn earns what the game pays its agent in the episode, less
    eta d of the agent's turns from this one on, plus its part of the others' from here on. Between two replacements of
    the reference (`refresh`) this game has one equilibrium, which self-play reaches; the sequence of these leads to an
    equilibrium of the game itself. Turns that no learner reads cost nothing.
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
        pairs = (self._earned(trajectory, evidence.readings) for trajectory in evidence.trajectories)
        return to_credit(pair for episode in pairs for pair in episode)

    def _earned(self, trajectory: Trajectory, readings: Mapping[TurnId, Reading]) -> Iterator[tuple[TurnId, float]]:
        agents, transferred = trajectory.deal.seats, defaultdict[str, float](float)
        for turn in reversed(trajectory.turns):
            price = self.eta * _log_ratio(readings.get(turn.id))
            for agent in agents:
                transferred[agent] += -price if agent == turn.agent else price / (len(agents) - 1)
            yield turn.id, trajectory.returns.get(turn.agent, 0.0) + transferred[turn.agent]


def _log_ratio(reading: Reading | None) -> float:
    """Return log pi - log pi_reference of all that was said in a turn, in nats."""
    if reading is None or reading.reference is None:
        return 0.0
    return fsum(reading.logprobs) - fsum(reading.reference)
