"""The pool of a league: earlier weights of its players, by policy and by the step after which they were saved."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import reduce
from itertools import takewhile
from typing import NamedTuple

SELF, POOL = "self", "pool"
"""Names of opponents in settings: the learning player with its newest weights, and a member of the pool."""


class PoolMember(NamedTuple):
    """Member of the pool: earlier weights of a policy."""

    policy: str
    version: int
    """Step after which the weights were saved."""

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
        """Policy -> versions that are members now, in ascending order."""

    def add_member(self, policy: str, version: int) -> None:
        """Add `version`, which must be later than all other versions of `policy`, to the pool."""
        self.saved_versions.setdefault(policy, []).append(version)
        self._members[policy] = self._members_after_adding_version(self._members.get(policy, ()), version)

    def members(self, policies: Collection[str] | None = None) -> list[PoolMember]:
        """Return the members from `policies` (default: all policies), oldest first."""
        chosen = self._members if policies is None else policies
        members: list[PoolMember] = []
        for policy in chosen:
            members += [PoolMember(policy, version) for version in self._members.get(policy, ())]
        return sorted(members, key=lambda member: (member.version, member.policy))

    def member_names(self, policies: Collection[str] | None = None) -> list[str]:
        """Return the names of the members from `policies` (default: all policies), oldest first."""
        return [member.name for member in self.members(policies)]

    def member_versions_after_step(self, policy: str, step: int) -> tuple[int, ...]:
        """Return the versions of a policy that were members after `step` steps."""
        saved = self.saved_versions.get(policy, ())
        # Additions are replayed in order: which version a full pool removes depends on all earlier additions.
        return reduce(self._members_after_adding_version, takewhile(lambda version: version <= step, saved), ())

    def restore_versions(self, saved_versions: Mapping[str, Iterable[int]]) -> None:
        """Restore the pool from `saved_versions`: policy -> all versions ever saved."""
        self.saved_versions, self._members = {}, {}
        for policy, versions in saved_versions.items():
            self.saved_versions[policy] = [*versions]
            self._members[policy] = reduce(self._members_after_adding_version, self.saved_versions[policy], ())

    def _members_after_adding_version(self, member_versions: tuple[int, ...], version: int) -> tuple[int, ...]:
        """Return `member_versions` plus `version`. Beyond `keep` members, the member with the closest neighbours is
        removed."""
        member_versions = (*member_versions, version)
        if len(member_versions) <= self._keep:
            return member_versions
        # The oldest and the newest member are never removed.
        removed = min(
            range(1, len(member_versions) - 1),
            key=lambda index: member_versions[index + 1] - member_versions[index - 1],
        )
        return member_versions[:removed] + member_versions[removed + 1 :]
