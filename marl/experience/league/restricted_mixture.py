"""Anytime PSRO's mixture of a pool's members, found by regret matching against the player that learns to beat it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

EXPLORATION = 0.1
"""Share of the draws that are uniform over the members, so that every member's payoff is measured again and again."""


class RestrictedMixture:
    """Mixture of a pool's members that approaches their least exploitable mixture (McAleer et al. 2022, 2201.07700).

    A player learns a best response to the mixture, and regret matching+ (Tammelin 2014, 1407.5042) moves the mixture
    towards members that do well against this player. If the player were an exact best response, the linearly weighted
    average of the mixtures would converge to the mixture of members with the least loss to any strategy of the game,
    among mixtures that give every member at least its share of the exploration. The equilibrium of the members'
    payoffs, PSRO's mixture, is only safe against other members.

    With each new member a *phase* begins, from the uniform mixture.
    """

    def __init__(self) -> None:
        self._regrets: dict[str, float] = {}
        """Member of the current phase -> its cumulative regret, at least 0."""
        self._sums: dict[str, float] = {}
        """Member of the current phase -> sum over updates t = 1, 2, ... of t * its probability."""
        self._updates = 0
        """Number of updates in the current phase."""
        self._average: dict[str, float] = {}
        """Member of the last phase that had an update -> its probability in that phase's average."""

    def start_phase(self, members: Sequence[str]) -> None:
        """Keep the average of the current phase, if it had an update, and begin a phase with `members`."""
        if self._updates:
            total = sum(self._sums.values())
            self._average = {name: weight / total for name, weight in self._sums.items()}
        self._regrets = dict.fromkeys(members, 0.0)
        self._sums = dict.fromkeys(members, 0.0)
        self._updates = 0

    def draw_probabilities(self, members: Sequence[str]) -> list[float]:
        """Return the probability with which each member is met next: in proportion to its regret, with exploration."""
        total = sum(self._regrets.values())
        uniform = 1 / len(self._regrets)
        probabilities: list[float] = []
        for name in members:
            matched = self._regrets[name] / total if total else uniform
            probabilities.append((1 - EXPLORATION) * matched + EXPLORATION * uniform)
        return probabilities

    def average_probabilities(self, members: Sequence[str]) -> list[float]:
        """Return the average mixture of the last complete phase.

        Members that joined later have probability 0. If no phase is complete, or its members have left the pool,
        the probabilities are uniform.
        """
        weights = [self._average.get(name, 0.0) for name in members]
        total = sum(weights)
        return [weight / total for weight in weights] if total else [1 / len(members)] * len(members)

    def update(self, payoffs: Mapping[str, Sequence[float]]) -> None:
        """Update the mixture after a step. `payoffs` maps each member that was met to its payoff in every episode.

        Members are met at random, so a member's regret is divided by the probability of meeting it.
        """
        episode_payoffs = [payoff for values in payoffs.values() for payoff in values]
        if not episode_payoffs:
            return
        members = list(self._regrets)
        meeting_probabilities = dict(zip(members, self.draw_probabilities(members), strict=True))
        mean = sum(episode_payoffs) / len(episode_payoffs)
        self._updates += 1
        for name, probability in meeting_probabilities.items():
            self._sums[name] += self._updates * probability
        for name, values in payoffs.items():
            regret = sum(payoff - mean for payoff in values) / len(episode_payoffs) / meeting_probabilities[name]
            self._regrets[name] = max(0.0, self._regrets[name] + regret)

    def state_dict(self) -> dict[str, Any]:
        return {
            "regrets": dict(self._regrets),
            "sums": dict(self._sums),
            "updates": self._updates,
            "average": dict(self._average),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._regrets, self._sums = dict(state["regrets"]), dict(state["sums"])
        self._updates, self._average = state["updates"], dict(state["average"])
