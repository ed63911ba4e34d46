"""Isolation of the global random generators, for environments without generators of their own."""

from __future__ import annotations

import random
from types import TracebackType
from typing import Any, Self

import numpy as np


class IsolatedGlobalRandom:
    """Context manager with a private state of the global generators of `random` and `numpy.random`.

    Each entry continues from the private state at the last exit, and each exit restores the outer state. Code in the
    context is therefore a pure function of the seed, and leaves the random numbers of other code unchanged. Generators
    of other libraries, threads and processes are not isolated, nor are sources without a seed (such as `os.urandom`).
    """

    def __init__(self, seed: int = 0) -> None:
        self._seed: int | None = seed
        """Seed to apply at the next entry, or None to continue from the private state."""
        self._state: Any = None
        self._outer_state: Any = None
        self._seeded_state: Any = None

    def reseed_on_entry(self, seed: int) -> Self:
        """Reseed the generators with `seed` at the next entry, and return this context manager."""
        self._seed = seed
        return self

    @property
    def changed_since_seeding(self) -> bool:
        """True if code in the context drew a random number or reseeded a generator since the last seeding."""
        # Generator states are compared as texts, because `!=` would compare their numpy arrays item by item.
        return repr(self._state) != repr(self._seeded_state)

    def __enter__(self) -> None:
        if self._seed is None:
            self._outer_state = _swap_global_random_state(self._state)
        else:
            self._outer_state = _swap_global_random_state()
            random.seed(self._seed)
            np.random.seed(self._seed % 2**32)
            self._seeded_state, self._seed = _swap_global_random_state(), None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._state = _swap_global_random_state(self._outer_state)


def _swap_global_random_state(new_state: tuple[Any, Any] | None = None) -> tuple[Any, Any]:
    """Return the state of the global generators, and replace it by `new_state` if given."""
    previous = random.getstate(), np.random.get_state(legacy=False)
    if new_state is not None:
        random.setstate(new_state[0])
        np.random.set_state(new_state[1])
    return previous
