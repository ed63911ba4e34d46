"""Isolation of the global random generators, for environments without generators of their own."""

from __future__ import annotations

import random
from types import TracebackType
from typing import Any, Self

import numpy as np


class IsolatedGlobalRandom:
    """Context with a private state of the global generators of `random` and `numpy.random`.

    Each entry continues from the state at the last exit, and the outer state is restored afterwards. Code in the
    context is therefore a pure function of the seed, without an effect on other code. Not isolated are generators of
    other libraries, other threads and processes, and sources without a seed (the clock, `secrets`, `os.urandom`).
    """

    def __init__(self, seed: int = 0) -> None:
        self._seed: int | None = seed
        """Seed to apply at the next entry, or None to continue from `_state`."""
        self._state: Any = None
        self._outer_state: Any = None
        self._seeded_state: Any = None

    def seeded(self, seed: int) -> Self:
        """Return the context itself, reseeded at its next entry."""
        self._seed = seed
        return self

    @property
    def used(self) -> bool:
        """True if code in the context drew a random number or reseeded a generator since the last seeding."""
        # States hold numpy arrays, which `!=` would compare item by item.
        return repr(self._state) != repr(self._seeded_state)

    def __enter__(self) -> None:
        self._outer_state = _get_state()
        if self._seed is None:
            _set_state(self._state)
        else:
            random.seed(self._seed)
            np.random.seed(self._seed % 2**32)
            self._seeded_state, self._seed = _get_state(), None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._state = _get_state()
        _set_state(self._outer_state)


def _get_state() -> tuple[Any, Any]:
    return random.getstate(), np.random.get_state(legacy=False)


def _set_state(state: tuple[Any, Any]) -> None:
    random.setstate(state[0])
    np.random.set_state(state[1])
