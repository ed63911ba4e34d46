"""Rewards of games and of users' functions: finite numbers of a bounded size."""

from __future__ import annotations

import math
import reprlib
from typing import Any, SupportsFloat

MAX_REWARD = 1e100
"""Maximum absolute value of a reward: the square of a larger reward could overflow a float."""


def validate_reward(reward: Any, error_prefix: str) -> float:
    """Return `reward` (a number, a numpy scalar or a tensor with one element) as a finite float.

    Raises ValueError, which begins with `error_prefix`, if `reward` is no finite number or exceeds `MAX_REWARD`.
    """
    try:
        # Text is no reward, although float("3") would succeed.
        number = float(reward) if isinstance(reward, (float, int, SupportsFloat)) else math.nan
    # Arrays and tensors with several elements raise TypeError, ValueError or RuntimeError.
    except (TypeError, ValueError, OverflowError, RuntimeError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{error_prefix}: {reprlib.repr(reward)} is no finite number")
    if abs(number) > MAX_REWARD:
        raise ValueError(f"{error_prefix}: {number:g} is too large; the limit is {MAX_REWARD:g}")
    return number
