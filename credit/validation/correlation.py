"""Weighted correlation, and ranks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Numbers = Sequence[float]


def mean(values: Numbers, weights: Numbers) -> float:
    """Weighted."""
    return float(np.average(values, weights=weights))


def spread(values: Numbers, weights: Numbers) -> float:
    """The weighted standard deviation."""
    return float(np.sqrt(np.average((np.asarray(values) - mean(values, weights)) ** 2, weights=weights)))


def pearson(x: Numbers, y: Numbers, weights: Numbers) -> float | None:
    """Weighted correlation; None if one of the two is the same everywhere."""
    scale = spread(x, weights) * spread(y, weights)
    if scale <= _ROUNDING:
        return None
    products = (np.asarray(x) - mean(x, weights)) * (np.asarray(y) - mean(y, weights))
    return float(np.average(products, weights=weights)) / scale


def spearman(x: Numbers, y: Numbers, weights: Numbers) -> float | None:
    """Weighted correlation of ranks; equal values share the mean of theirs."""
    return pearson(_ranks(x), _ranks(y), weights)


def _ranks(values: Numbers) -> list[float]:
    rounded = np.round(np.asarray(values, dtype=float), 9)
    return [float((rounded < value).sum() + (rounded == value).sum() / 2) for value in rounded]


_ROUNDING = 1e-9
