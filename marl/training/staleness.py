"""Staleness: how many steps ago the weights that began a turn were the newest, where play runs ahead of learning."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from statistics import fmean

from marl.errors import EngineError
from marl.protocols import RoleConfig
from marl.types import Metrics, Turn


class Staleness:
    """Knows which versions of every policy's weights were published."""

    def __init__(self, policies: Iterable[str], roles: Mapping[str, RoleConfig], allowed: int) -> None:
        """`allowed`: steps by which an experience plays ahead; with 0 no turn is stale."""
        self._published: dict[str, list[int]] = {policy: [] for policy in policies}
        self._policies, self._allowed = {name: role.policy for name, role in roles.items()}, allowed

    def publish(self, policy: str, version: int) -> None:
        """Note that step `version` begins with new weights of a policy."""
        self._published[policy].append(version)

    def __call__(self, turn: Turn, step: int) -> int:
        """Return the number of steps, at `step`, since the weights of a turn's first token were the newest.

        0 if they still are, as those of a policy that never learns.

        Raises:
            EngineError: if that is more than the experience plays ahead: new weights did not arrive.
        """
        policy, version = self._policies[turn.role], turn.completion.versions[0]
        published = self._published.get(policy, ()) if self._allowed else ()
        following = bisect_right(published, version)
        steps = step - published[following] + 1 if following < len(published) else 0
        if steps > self._allowed:
            raise EngineError(
                f"turn {turn.id} of step {step + 1} was begun by version {version} of the weights of policy "
                f"{policy!r}, {steps} steps old, but experience.max_staleness is {self._allowed}: weights that were "
                "published have not reached its engine"
            )
        return steps

    def metrics(self, turns: Iterable[Turn], step: int) -> Metrics:
        """Return `role/NAME/staleness` and `staleness_max` of the roles whose policies learn."""
        ages: dict[str, list[int]] = {}
        for turn in turns if self._allowed else ():
            if turn.completion.prompt_ids and self._policies[turn.role] in self._published:
                ages.setdefault(turn.role, []).append(self(turn, step))
        means = {f"role/{role}/staleness": fmean(values) for role, values in ages.items()}
        return means | {f"role/{role}/staleness_max": float(max(values)) for role, values in ages.items()}
