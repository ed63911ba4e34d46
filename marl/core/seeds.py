"""Seeds of all random numbers, derived from the run's seed and equal on all machines."""

from __future__ import annotations

from hashlib import blake2b


def seed_of(*parts: object) -> int:
    """Return a 64-bit seed that is a hash of `parts`, such as run seed, purpose and deal."""
    return int.from_bytes(blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest(), "little")
