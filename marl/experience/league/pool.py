"""The pool of a league: earlier weights of its players, by policy and by the step after which they were saved."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import reduce
from itertools import takewhile
from typing import NamedTuple

SELF, POOL = "self", "pool"
"""Opponents that name no player: the learning player with its newest weights, and a member of the pool."""


class Member(NamedTuple):
    """Earlier weights of a policy."""

    policy: str
    version: int

    @property
    def name(self) -> str:
        """Return the member's name in `Deal.policies`."""
        return f"{self.policy}@{self.version:06d}"


class PolicyPool:
    """All saved versions of the players' weights, and the versions that are members of the pool."""

    def __init__(self, keep: int) -> None:
        """`keep`: maximum number of members of one policy."""
        self._keep = keep
        self.saved_versions: dict[str, list[int]] = {}
        """Policy -> all versions ever saved, in ascending order, former members included."""
        self._members: dict[str, tuple[int, ...]] = {}

    def add(self, policy: str, version: int) -> None:
        """Add a version, which must be later than all other versions of its policy."""
        self.saved_versions.setdefault(policy, []).append(version)
        self._members[policy] = self._add_version(self._members.get(policy, ()), version)

    def members(self, policies: Collection[str] | None = None) -> list[Member]:
        """Return the members of these policies (default: all), oldest first."""
        chosen = self._members if policies is None else policies
        members: list[Member] = []
        for policy in chosen:
            members += [Member(policy, version) for version in self._members.get(policy, ())]
        return sorted(members, key=lambda member: (member.version, member.policy))

    def versions(self, policy: str, step: int) -> tuple[int, ...]:
        """Return the versions of a policy that were members after `step` steps."""
        saved = self.saved_versions.get(policy, ())
        # Membership depends on the order of additions, so that they are replayed.
        return reduce(self._add_version, takewhile(lambda version: version <= step, saved), ())

    def restore(self, saved_versions: Mapping[str, Iterable[int]]) -> None:
        """Restore the pool from all versions ever saved."""
        self.saved_versions = {policy: [*versions] for policy, versions in saved_versions.items()}
        self._members.clear()
        for policy, versions in self.saved_versions.items():
            self._members[policy] = reduce(self._add_version, versions, ())

    def _add_version(self, members: tuple[int, ...], version: int) -> tuple[int, ...]:
        """Return `members` with a new version. Beyond `keep`, remove the member whose two neighbours are closest."""
        members = (*members, version)
        if len(members) <= self._keep:
            return members
        # The oldest and the newest member always stay.
        removed = min(range(1, len(members) - 1), key=lambda index: members[index + 1] - members[index - 1])
        return members[:removed] + members[removed + 1 :]
