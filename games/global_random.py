"""Environments that draw from Python's and NumPy's global generators, as if they had generators of their own."""

from __future__ import annotations

import random
from types import TracebackType
from typing import Any, Self

import numpy as np


class GlobalRandom:
    """Context in which the global generators of `random` and `numpy.random` have a state that nobody else sees.

    Each entry goes on where the last one ended, and the state from before is back afterwards. So what is run in the
    context is a pure function of the seed, and disturbs nobody. It does not reach generators of other libraries, nor
    other threads and processes, and no source that has no seed: the clock, `secrets`, `uuid`, `os.urandom`.
    """

    def __init__(self, seed: int = 0) -> None:
        self._seed: int | None = seed
        self._state: Any = None
        self._outside: Any = None
        self._begun: Any = None

    def seeded(self, seed: int) -> Self:
        """Return the context itself, which begins anew from `seed` when it is entered."""
        self._seed = seed
        return self

    @property
    def used(self) -> bool:
        """Return True if a random number was drawn since it was seeded, or a generator seeded by others."""
        return repr(self._state) != repr(self._begun)

    def __enter__(self) -> None:
        self._outside = _get()
        if self._seed is None:
            _set(self._state)
        else:
            random.seed(self._seed)
            np.random.seed(self._seed % 2**32)
            self._begun, self._seed = _get(), None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._state = _get()
        _set(self._outside)


def _get() -> tuple[Any, Any]:
    return random.getstate(), np.random.get_state(legacy=False)


def _set(state: tuple[Any, Any]) -> None:
    random.setstate(state[0])
    np.random.set_state(state[1])
