"""Nash equilibrium of a two-player zero-sum matrix game, by linear programming."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Mixture = NDArray[np.float64]
"""Probability of each action; the sum is 1."""


class MatrixEquilibrium(NamedTuple):
    """Nash equilibrium in mixed strategies: neither player gains by deviating."""

    row: Mixture
    column: Mixture
    value: float
    """Value of the game: expected payoff of the row player, and expected loss of the column player."""


def nash_equilibrium(payoffs: ArrayLike) -> MatrixEquilibrium:
    """Return a Nash equilibrium of the matrix game in which the row player gains `payoffs[i, j]` from the column
    player.

    The row player's mixture maximises the minimum over columns of its expected payoff, a linear programme (von Neumann
    1928; Dantzig 1951). Among several equilibria the solver deterministically returns one at a vertex.

    Raises:
        ValueError: if `payoffs` is no matrix, has no row or column, or holds a number that is not finite.
    """
    matrix = np.asarray(payoffs, dtype=np.float64)
    if matrix.ndim != 2 or matrix.size == 0:
        raise ValueError(f"payoffs: shape {matrix.shape}; a matrix with a row and a column at least is needed")
    if not np.isfinite(matrix).all():
        raise ValueError("payoffs: not all are finite numbers")
    row, value = _maximin(matrix)
    column, _ = _maximin(-matrix.T)
    return MatrixEquilibrium(row, column, value)


def _maximin(matrix: NDArray[np.float64]) -> tuple[Mixture, float]:
    """Return the maximin mixture of rows, and its minimum expected payoff over columns."""
    from scipy.optimize import linprog

    rows, columns = matrix.shape
    # The solver's tolerances are absolute, so payoffs are scaled to [-1, 1].
    scale = float(np.abs(matrix).max()) or 1.0
    # Variables of the programme: the mixture's probabilities, then the minimum expected payoff, which is maximised.
    worst = np.eye(1, rows + 1, rows).ravel()
    solution = linprog(
        -worst,
        A_ub=np.hstack([-matrix.T / scale, np.ones((columns, 1))]),
        b_ub=np.zeros(columns),
        A_eq=[1.0 - worst],
        b_eq=[1.0],
        bounds=[(0.0, 1.0)] * rows + [(None, None)],
        method="highs-ds",
    )
    # Every finite matrix game has an equilibrium, so a failure is the solver's.
    if not solution.success:
        raise ArithmeticError(f"no equilibrium of a {rows} x {columns} matrix: {solution.message}")
    # Probabilities may be negative, or miss the sum of 1, by the solver's tolerance.
    mixture = np.clip(solution.x[:rows], 0.0, None)
    return mixture / mixture.sum(), float(solution.x[rows] * scale)
