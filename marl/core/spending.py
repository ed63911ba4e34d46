"""Limits of tokens and cost that are never exceeded."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from marl.core.errors import EpisodeWithoutOutcomeError


class SpendingLimitReachedError(EpisodeWithoutOutcomeError):
    """A request might exceed a limit of tokens or cost, so it was not submitted."""


@dataclass(slots=True)
class SpendingLimit:
    """Limit of sampled tokens and of cost, which is never exceeded: a request reserves the most that it may need."""

    tokens: float = math.inf
    """Maximum number of sampled tokens."""
    cost: float = math.inf
    """Maximum cost, in the currency of the engines' prices."""
    spent_tokens: float = 0.0
    spent_cost: float = 0.0
    reached: bool = False
    """True after a request was refused."""
    _reserved: dict[int, tuple[float, float]] = field(default_factory=dict[int, tuple[float, float]])
    """Ticket of an open request -> tokens and cost that are reserved for it."""

    def check(self, tokens: float, cost: float) -> None:
        """Check that a request with at most `tokens` and `cost` fits into the limit beside the open requests.

        Raises:
            SpendingLimitReachedError: if it does not.
        """
        open_tokens = sum(reserved for reserved, _ in self._reserved.values())
        open_cost = math.fsum(reserved for _, reserved in self._reserved.values())
        if self.spent_tokens + open_tokens + tokens > self.tokens or self.spent_cost + open_cost + cost > self.cost:
            self.reached = True
            raise SpendingLimitReachedError("the limit of tokens or cost is reached")

    def reserve(self, ticket: int, tokens: float, cost: float) -> None:
        """Reserve `tokens` and `cost` for the open request `ticket`."""
        self._reserved[ticket] = tokens, cost

    def settle(self, ticket: int, tokens: float, cost: float) -> None:
        """Replace the reservation of `ticket` by the tokens and cost of its answer."""
        self._reserved.pop(ticket, None)
        self.spent_tokens += tokens
        self.spent_cost += cost

    def forfeit(self, tickets: Iterable[int]) -> None:
        """Count the reservations of cancelled requests as spent, because nobody knows what they have cost."""
        for ticket in tickets:
            if ticket in self._reserved:
                self.settle(ticket, *self._reserved[ticket])
