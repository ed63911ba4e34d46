"""Seeds of everything that is drawn: a tree below the run's seed, the same on any machine."""

from __future__ import annotations

from hashlib import blake2b


def seed_of(*parts: object) -> int:
    """Return 64 random bits that depend on all `parts` and on nothing else."""
    return int.from_bytes(blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest(), "little")
