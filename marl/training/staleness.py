"""Staleness: the age, in steps, of the weights that sampled a turn, if play runs ahead of learning.

Weights may change during a turn (`Completion.version_runs`). The bound of the experience counts the oldest weights that
sampled a token of the turn.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from statistics import fmean

from marl.core.errors import EngineError
from marl.core.types import Completion, Metrics, Turn
from marl.protocols import RoleConfig

# Metrics of this module (name | unit | meaning), which `tests/bench/figures.py` copies into marl/README.md.
METRICS = """
role/NAME/staleness | steps | since the oldest weights that sampled a turn were the newest, mean over turns
    (`experience: queue` with a `max_staleness` above 0)
role/NAME/staleness_max | steps | the same of the stalest turn
role/NAME/staleness_token | steps | since the weights that sampled a token were the newest, mean over tokens
role/NAME/mixed_versions | share of turns | turns during which the weights changed
"""


def tokens_by_version(completion: Completion) -> tuple[tuple[int, int], ...]:
    """Return (version of the weights, number of successive tokens that it sampled) for all tokens, in order.

    If it is not known which tokens each version sampled, all count with the first version.
    """
    return completion.version_runs or ((completion.versions[0], len(completion.token_ids)),)


class StalenessTracker:
    """Records the published versions of each policy's weights, and computes the staleness of turns."""

    def __init__(self, policies: Iterable[str], roles: Mapping[str, RoleConfig], allowed: int) -> None:
        """`allowed`: maximum number of steps by which the experience plays ahead (0: no turn is stale)."""
        self._published: dict[str, list[int]] = {policy: [] for policy in policies}
        self._policies, self.allowed = {name: role.policy for name, role in roles.items()}, allowed

    def record_published_version(self, policy: str, version: int) -> None:
        """Record that `policy` samples with new weights from step `version` on."""
        self._published[policy].append(version)

    def __call__(self, turn: Turn, step: int) -> int:
        """Return the staleness of `turn` at `step`: steps since the weights of its oldest token were the newest.

        The staleness is 0 for the newest weights, and for a policy that never learns.

        Raises:
            EngineError: if the staleness exceeds `allowed`, because published weights did not reach the engine.
        """
        if not self.allowed:
            return 0
        policy = self._policies[turn.role]
        version = min([version for version, _ in tokens_by_version(turn.completion)])
        steps = self._age(policy, version, step)
        if steps > self.allowed:
            raise EngineError(
                f"turn {turn.id} of step {step + 1} has tokens from version {version} of the weights of policy "
                f"{policy!r}, {steps} steps old, but experience.max_staleness is {self.allowed}: weights that were "
                "published have not reached its engine"
            )
        return steps

    def _age(self, policy: str, version: int, step: int) -> int:
        """Return the steps until `step` since `version` of the weights of `policy` was the newest."""
        published = self._published.get(policy, ())
        # The version was the newest until version `published[following]` was published.
        following = bisect_right(published, version)
        return step - published[following] + 1 if following < len(published) else 0

    def metrics(self, turns: Iterable[Turn], current_step: int) -> Metrics:
        """Return `role/ROLE/...` for each role whose policy learns; nothing if the experience never plays ahead.

        `staleness`, `staleness_max`: mean and maximum over the role's turns, in steps. `staleness_token`: mean over its
        tokens, in steps. `mixed_versions`: share of its turns whose tokens come from several versions of the weights.
        """
        turns_by_role: dict[str, list[Turn]] = {}
        for turn in turns if self.allowed else ():
            if turn.completion.prompt_ids and self._policies[turn.role] in self._published:
                turns_by_role.setdefault(turn.role, []).append(turn)
        metrics: Metrics = {}
        for role, role_turns in turns_by_role.items():
            ages = [self(turn, current_step) for turn in role_turns]
            token_ages = tokens = mixed = 0
            for turn in role_turns:
                mixed += bool(turn.completion.version_runs)
                for version, count in tokens_by_version(turn.completion):
                    token_ages += self._age(self._policies[role], version, current_step) * count
                    tokens += count
            metrics[f"role/{role}/staleness"] = fmean(ages)
            metrics[f"role/{role}/staleness_max"] = float(max(ages))
            metrics[f"role/{role}/staleness_token"] = token_ages / max(tokens, 1)
            metrics[f"role/{role}/mixed_versions"] = mixed / len(role_turns)
        return metrics
