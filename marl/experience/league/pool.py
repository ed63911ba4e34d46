"""The pool of a league: earlier weights of its players, by policy and by the step after which they were taken."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import reduce
from itertools import takewhile
from typing import NamedTuple


class Member(NamedTuple):
    """Earlier weights of a policy."""

    policy: str
    version: int

    @property
    def name(self) -> str:
        """Return the name under which it plays, as in `Deal.policies`."""
        return f"{self.policy}@{self.version:06d}"


class Pool:
    """All versions that were ever taken, and those of them that are members."""

    def __init__(self, keep: int) -> None:
        """`keep`: most members of a policy."""
        self._keep = keep
        self.taken: dict[str, list[int]] = {}
        """Policy -> its versions, in ascending order, whether they still are members or not."""
        self._members: dict[str, tuple[int, ...]] = {}

    def add(self, policy: str, version: int) -> None:
        """Take in a version that is later than all others of its policy."""
        self.taken.setdefault(policy, []).append(version)
        self._members[policy] = self._with(self._members.get(policy, ()), version)

    def members(self, policies: Collection[str] | None = None) -> list[Member]:
        """Return the members of these policies (default: all), oldest first."""
        chosen = self._members if policies is None else policies
        members = (Member(policy, version) for policy in chosen for version in self._members.get(policy, ()))
        return sorted(members, key=lambda member: (member.version, member.policy))

    def versions(self, policy: str, step: int) -> tuple[int, ...]:
        """Return the versions of a policy that were members after `step` steps."""
        return self._of(takewhile(lambda version: version <= step, self.taken.get(policy, ())))

    def restore(self, taken: Mapping[str, Iterable[int]]) -> None:
        """Go on from versions that were taken."""
        self.taken = {policy: [*versions] for policy, versions in taken.items()}
        self._members = {policy: self._of(versions) for policy, versions in self.taken.items()}

    def _of(self, taken: Iterable[int]) -> tuple[int, ...]:
        return reduce(self._with, taken, ())

    def _with(self, members: tuple[int, ...], version: int) -> tuple[int, ...]:
        """Return members with a new one, and if that is one too many without the one that leaves the smallest gap."""
        members = (*members, version)
        if len(members) <= self._keep:
            return members
        gone = min(range(1, len(members) - 1), key=lambda place: members[place + 1] - members[place - 1])
        return members[:gone] + members[gone + 1 :]
