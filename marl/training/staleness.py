"""Staleness: age in steps of the weights that began a turn, where play runs ahead of learning."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from statistics import fmean

from marl.core.errors import EngineError
from marl.core.types import Metrics, Turn
from marl.protocols import RoleConfig


class Staleness:
    """Records the published versions of each policy's weights, and computes the staleness of turns."""

    def __init__(self, policies: Iterable[str], roles: Mapping[str, RoleConfig], allowed: int) -> None:
        """`allowed`: number of steps by which the experience plays ahead; if it is 0, no turn is stale."""
        self._published: dict[str, list[int]] = {policy: [] for policy in policies}
        self._policies, self._allowed = {name: role.policy for name, role in roles.items()}, allowed

    def record_publish(self, policy: str, version: int) -> None:
        """Record that the policy has new weights from step `version` on."""
        self._published[policy].append(version)

    def __call__(self, turn: Turn, step: int) -> int:
        """Return the number of steps since the weights of a turn's first token were the newest, at `step`.

        The staleness of the newest weights is 0, and so is the staleness of a policy that never learns.

        Raises:
            EngineError: if staleness exceeds the steps played ahead: published weights did not reach the engine.
        """
        policy, version = self._policies[turn.role], turn.completion.versions[0]
        published = self._published.get(policy, ()) if self._allowed else ()
        # Index of the first version published after the turn began: the turn's weights were the newest until then.
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
        """Return `role/NAME/staleness` (mean) and `role/NAME/staleness_max` for each role whose policy learns."""
        ages: dict[str, list[int]] = {}
        for turn in turns if self._allowed else ():
            if turn.completion.prompt_ids and self._policies[turn.role] in self._published:
                ages.setdefault(turn.role, []).append(self(turn, step))
        means = {f"role/{role}/staleness": fmean(values) for role, values in ages.items()}
        return means | {f"role/{role}/staleness_max": float(max(values)) for role, values in ages.items()}
