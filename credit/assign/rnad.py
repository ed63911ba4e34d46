"""R-NaD's transformed reward: self-play regularised towards a reference policy that is replaced at intervals."""

from __future__ import annotations

from collections import defaultdict
from itertools import compress
from math import fsum

from pydantic import PositiveFloat

from marl.core.types import Advantage, Credit
from marl.protocols import AssignConfig, Evidence


class Rnad(AssignConfig):
    """R-NaD (arXiv 2206.15378): each turn earns its agent's return in a game with a payment at every turn.

    With d = log pi(a) - log pi_reference(a) of the answer [nats], a turn's agent pays eta d, and the other agents
    receive this payment in equal parts, so a zero-sum game remains zero-sum. A turn earns its agent's return in the
    episode, minus the agent's payments from this turn on, plus the payments that the agent receives from this turn on.
    Between two replacements of the reference policy (`refresh`) this game has one equilibrium, which self-play reaches.
    The sequence of these equilibria converges to an equilibrium of the original game. Turns without a reading cost
    nothing.
    """

    kind: str = "rnad"
    eta: PositiveFloat = 0.2
    """Payment per nat of log-probability ratio, in units of reward after `credit.scale`."""

    @property
    def needed_reading_fields(self) -> frozenset[str]:
        return frozenset({"logprobs", "reference"})

    @property
    def credit_depends_on_reward_time(self) -> bool:
        """Return True: an agent's turns earn different amounts."""
        return True

    def __call__(self, evidence: Evidence) -> Credit:
        credit: Credit = {}
        for trajectory in evidence.trajectories:
            returns, agents = trajectory.returns, trajectory.deal.seats
            # Net transfer of each agent: payments received minus payments made, from the current turn on.
            transferred: dict[str, float] = defaultdict(float)
            for turn in reversed(trajectory.turns):
                reading, log_ratio = evidence.readings.get(turn.id), 0.0
                if reading and reading.reference is not None:
                    # Tokens that the engine imposed were not chosen by the policy, so nothing is paid for them.
                    mask = [index not in turn.completion.imposed for index in range(len(reading.logprobs))]
                    log_ratio = fsum(compress(reading.logprobs, mask)) - fsum(compress(reading.reference, mask))
                payment = self.eta * log_ratio
                for agent in agents:
                    transferred[agent] += -payment if agent == turn.agent else payment / (len(agents) - 1)
                # A turn shared by several forks of an episode is credited in the first of these forks only.
                credit.setdefault(turn.id, Advantage(returns.get(turn.agent, 0.0) + transferred[turn.agent]))
        return credit
