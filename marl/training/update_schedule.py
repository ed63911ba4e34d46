"""Schedule of updates: when each policy learns, and the samples that are stored until then."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from itertools import chain
from typing import Any

from pydantic import TypeAdapter

from marl.core.types import Sample
from marl.scenario.schema import PolicyConfig


class UpdateSchedule:
    """Stores the samples of each policy until its next update.

    The policy's weights do not change until then, so the stored samples are on-policy.
    """

    def __init__(self, policies: Mapping[str, PolicyConfig]) -> None:
        self._policies = {name: policy for name, policy in policies.items() if policy.learner}
        self._waiting: dict[str, list[list[Sample]]] = {name: [] for name in self._policies}
        """Policy -> samples that are stored for its next update, one list for each step."""

    def __call__(self, step: int, batches: Mapping[str, list[Sample]]) -> dict[str, list[Sample]]:
        """Store the samples of `step`, and return policy -> all stored samples, for policies whose update is due.

        Samples of a policy that takes no part in `step` (`policy.alternate`) are dropped.
        """
        updates: dict[str, list[Sample]] = {}
        for name, policy in self._policies.items():
            if not policy.learns_in_step(step):
                continue
            waiting = [*self._waiting[name], batches.get(name, [])]
            is_full = len(waiting) == policy.update_every
            self._waiting[name] = [] if is_full else waiting
            if is_full:
                updates[name] = list(chain.from_iterable(waiting))
        return updates

    def make_state_restorer(self) -> Callable[[], None]:
        """Return a function that restores the currently stored samples."""
        # A shallow copy suffices, because `__call__` replaces these lists and never changes one in place.
        waiting = dict(self._waiting)
        return lambda: self._waiting.update(waiting)

    def state_dict(self) -> dict[str, Any]:
        return {name: _json_codec_of_sample_lists().dump_python(waiting) for name, waiting in self._waiting.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._waiting = {name: _json_codec_of_sample_lists().validate_python(state[name]) for name in self._policies}


# The TypeAdapter is built on first use, because building it takes long and most processes need none.
@cache
def _json_codec_of_sample_lists() -> TypeAdapter[list[list[Sample]]]:
    return TypeAdapter(list[list[Sample]])
