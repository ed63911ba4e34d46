"""DAPO's soft punishment of answers that are too long (https://arxiv.org/abs/2503.14476, equation 13)."""

from __future__ import annotations


def punishment(length: int, limit: int, buffer: int, *, capped: bool = True) -> float:
    """What an answer of `length` tokens is paid for it: 0 up to `limit - buffer`, -1 at `limit`, linear between.

    Beyond `limit` it stays -1 if `capped` (paper, OpenRLHF), else it goes on falling (verl, ms-swift).
    """
    over = (length - (limit - buffer)) / buffer
    return min(0.0, max(-over, -1.0) if capped else -over)
