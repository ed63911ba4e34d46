"""Seeds of random numbers: hashes of the run's seed and of the use of the numbers, equal on all machines."""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b

_MIN_STEP_DIGITS = 6
"""Minimum number of digits of the step at the beginning of a training episode's name, such as `000008.0.1`."""


def hash_to_seed(*parts: object) -> int:
    """Return a 64-bit seed: the hash of `parts`, such as the run's seed, the purpose and the episode."""
    return hash_text_to_seed("/".join(map(str, parts)))


def hash_text_to_seed(text: str) -> int:
    """Return a 64-bit seed that depends on `text` alone: `hash_to_seed(1, "a")` is `hash_text_to_seed("1/a")`."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


def episode_name_for_seeding(episode_name: str) -> str:
    """Return an episode's name with its step counted from 0, to be hashed into seeds: `000007.0.1` for `000008.0.1`.

    Steps in names were first counted from 0. With the first names in seeds, old scenarios draw the same numbers.
    """
    step, dot, name_in_step = episode_name.partition(".")
    if not (dot and len(step) >= _MIN_STEP_DIGITS and step.isdecimal()):
        return episode_name
    return f"{_step_counted_from_0(step)}.{name_in_step}"


@lru_cache(maxsize=16)
def _step_counted_from_0(step: str) -> str:
    """Return `step`, the digits of a step counted from 1, counted from 0. All episodes of a step need the same."""
    return f"{int(step) - 1:06d}"
