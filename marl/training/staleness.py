"""Staleness: the age, in steps, of the weights that sampled a turn, if play runs ahead of learning."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from statistics import fmean

from marl.core.errors import EngineError
from marl.core.types import Metrics, Turn
from marl.protocols import RoleConfig

# Metrics of this module (name | unit | meaning), which `tests/bench/figures.py` copies into marl/README.md.
METRICS = """
role/NAME/staleness | steps | since the weights that began a turn were the newest, mean over turns (`experience:
    queue` with a `max_staleness` above 0)
role/NAME/staleness_max | steps | the same of the stalest turn
"""


class StalenessTracker:
    """Records the published versions of each policy's weights, and computes the staleness of turns."""

    def __init__(self, policies: Iterable[str], roles: Mapping[str, RoleConfig], allowed: int) -> None:
        """`allowed`: maximum number of steps by which the experience plays ahead (0: no turn is stale)."""
        self._published: dict[str, list[int]] = {policy: [] for policy in policies}
        self._policies, self._allowed = {name: role.policy for name, role in roles.items()}, allowed

    def record_published_version(self, policy: str, version: int) -> None:
        """Record that `policy` samples with new weights from step `version` on."""
        self._published[policy].append(version)

    def __call__(self, turn: Turn, step: int) -> int:
        """Return the staleness of `turn` at `step`: steps since the weights of its first token were the newest.

        The staleness is 0 for the newest weights, and for a policy that never learns.

        Raises:
            EngineError: if the staleness exceeds `allowed`, because published weights did not reach the engine.
        """
        policy, version = self._policies[turn.role], turn.completion.versions[0]
        published = self._published.get(policy, ()) if self._allowed else ()
        # The turn's weights were the newest ones until version `published[following]` was published.
        following = bisect_right(published, version)
        steps = step - published[following] + 1 if following < len(published) else 0
        if steps > self._allowed:
            raise EngineError(
                f"turn {turn.id} of step {step + 1} was begun by version {version} of the weights of policy "
                f"{policy!r}, {steps} steps old, but experience.max_staleness is {self._allowed}: weights that were "
                "published have not reached its engine"
            )
        return steps

    def metrics(self, turns: Iterable[Turn], current_step: int) -> Metrics:
        """Return the metrics `staleness` (mean) and `staleness_max` [steps] of each role whose policy learns."""
        ages: dict[str, list[int]] = {}
        for turn in turns if self._allowed else ():
            if turn.completion.prompt_ids and self._policies[turn.role] in self._published:
                ages.setdefault(turn.role, []).append(self(turn, current_step))
        means: Metrics = {}
        maxima: Metrics = {}
        for role, role_ages in ages.items():
            means[f"role/{role}/staleness"] = fmean(role_ages)
            maxima[f"role/{role}/staleness_max"] = float(max(role_ages))
        return means | maxima
