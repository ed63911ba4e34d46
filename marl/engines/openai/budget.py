"""A budget that requests in flight cannot exceed together."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from marl.types import Usage


class Overdrawn(Exception):  # noqa: N818 (says what would happen)
    """What is asked for could cost more than is left."""


class Purse:
    """Sets aside the most that a request can cost before it is sent; one that does not fit waits until others are paid.

    Lives in one event loop.
    """

    def __init__(self, budget: float | None, spent: Mapping[str, Usage]) -> None:
        self._budget = math.inf if budget is None else budget
        self._spent = spent
        self._aside: list[float] = []
        self._paid = asyncio.Event()

    @property
    def spent(self) -> float:
        """What was paid so far."""
        return math.fsum(usage.cost for usage in self._spent.values())

    @asynccontextmanager
    async def aside(self, most: float) -> AsyncIterator[None]:
        """Within, `most` is set aside; what it really was is to be added to `spent` before the end.

        Raises:
            Overdrawn: if it does not fit, and nothing is in flight that could turn out cheaper.
        """
        while self.spent + math.fsum(self._aside) + most > self._budget:
            if not self._aside:
                raise Overdrawn
            self._paid.clear()
            await self._paid.wait()
        self._aside.append(most)
        try:
            yield
        finally:
            self._aside.remove(most)
            self._paid.set()
