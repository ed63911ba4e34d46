"""Schedule of updates: the steps at whose end each policy learns, and the samples stored until then."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from itertools import chain
from typing import Any

from pydantic import TypeAdapter

from marl.core.types import Sample
from marl.scenario.schema import PolicyConfig


class UpdateSchedule:
    """Stores each policy's samples until its next update.

    Weights do not change between updates, so the stored samples are on-policy.
    """

    def __init__(self, policies: Mapping[str, PolicyConfig]) -> None:
        self._policies = {name: policy for name, policy in policies.items() if policy.learner}
        self._waiting: dict[str, list[list[Sample]]] = {name: [] for name in self._policies}
        """Policy -> stored samples, one list for each step."""

    def __call__(self, step: int, batches: Mapping[str, list[Sample]]) -> dict[str, list[Sample]]:
        """Store the samples of `step`, and return policy -> samples of the update at the end of `step`.

        Samples of a policy that does not learn in `step` (`policy.alternate`) are dropped.
        """
        updates: dict[str, list[Sample]] = {}
        for name, policy in self._policies.items():
            if not policy.learns_in(step):
                continue
            waiting = [*self._waiting[name], batches.get(name, [])]
            is_full = len(waiting) == policy.update_every
            self._waiting[name] = [] if is_full else waiting
            if is_full:
                updates[name] = list(chain.from_iterable(waiting))
        return updates

    def snapshot(self) -> Callable[[], None]:
        """Return a function that restores the samples stored now."""
        # A shallow copy suffices: `__call__` replaces the lists and never changes them.
        waiting = dict(self._waiting)
        return lambda: self._waiting.update(waiting)

    def state_dict(self) -> dict[str, Any]:
        return {name: _codec().dump_python(waiting) for name, waiting in self._waiting.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._waiting = {name: _codec().validate_python(state[name]) for name in self._policies}


# Built on first use: a type adapter takes long to build, and most processes need none.
@cache
def _codec() -> TypeAdapter[list[list[Sample]]]:
    return TypeAdapter(list[list[Sample]])
