"""Schedule of updates: the steps in which each policy learns, and the samples that wait until then."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from pydantic import TypeAdapter

from marl.scenario.schema import PolicyConfig
from marl.types import Sample


class UpdateSchedule:
    """Hands a policy's samples on when it learns. Its weights do not change meanwhile, so all are on-policy."""

    def __init__(self, policies: Mapping[str, PolicyConfig]) -> None:
        self._policies = {name: policy for name, policy in policies.items() if policy.learner}
        self._waiting: dict[str, list[list[Sample]]] = {name: [] for name in self._policies}
        """Policy -> its samples, a list for each step in which it gathered some."""

    def __call__(self, step: int, batches: Mapping[str, list[Sample]]) -> dict[str, list[Sample]]:
        """Return the policies that learn at the end of `step` with their samples; the samples of others are dropped."""
        due = {}
        for name, policy in self._policies.items():
            if not policy.learns_in(step):
                continue
            waiting = [*self._waiting[name], batches.get(name, [])]
            ready = len(waiting) == policy.update_every
            self._waiting[name] = [] if ready else waiting
            if ready:
                due[name] = [sample for samples in waiting for sample in samples]
        return due

    def snapshot(self) -> Callable[[], None]:
        """Return a function that goes back to what waits now."""
        waiting = dict(self._waiting)
        return lambda: self._waiting.update(waiting)

    def state_dict(self) -> dict[str, Any]:
        return {name: _codec().dump_python(waiting) for name, waiting in self._waiting.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._waiting = {name: _codec().validate_python(state[name]) for name in self._policies}


@cache
def _codec() -> TypeAdapter[list[list[Sample]]]:
    return TypeAdapter(list[list[Sample]])
