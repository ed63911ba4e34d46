"""Equilibrium of a zero-sum game in which both players choose once, by linear programming."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Mixture = NDArray[np.float64]
"""Probability of each choice; the sum is 1."""


class MatrixEquilibrium(NamedTuple):
    """A Nash equilibrium: neither player gains by another mixture."""

    row: Mixture
    column: Mixture
    value: float
    """Expected payoff to the row player, which the column player pays."""


def nash(payoffs: ArrayLike) -> MatrixEquilibrium:
    """Return a Nash equilibrium of the game in which `payoffs[i, j]` is what the column player pays the row player.

    The row player's mixture is the one whose worst column pays most, a linear programme (von Neumann 1928; Dantzig
    1951). Of several equilibria it is one at a corner, the same every time.

    Raises:
        ValueError: if it is no matrix, has no choice, or a payoff is not finite.
    """
    matrix = np.asarray(payoffs, dtype=np.float64)
    if matrix.ndim != 2 or matrix.size == 0:
        raise ValueError(f"payoffs: shape {matrix.shape}; a matrix with a row and a column at least is needed")
    if not np.isfinite(matrix).all():
        raise ValueError("payoffs: not all are finite numbers")
    row, value = _safest(matrix)
    column, _ = _safest(-matrix.T)
    return MatrixEquilibrium(row, column, value)


def _safest(matrix: NDArray[np.float64]) -> tuple[Mixture, float]:
    """Return the mixture of rows whose least expected payoff over columns is greatest, and that payoff."""
    from scipy.optimize import linprog

    rows, columns = matrix.shape
    scale = float(np.abs(matrix).max()) or 1.0  # the solver's tolerances are absolute
    worst = np.eye(1, rows + 1, rows).ravel()  # variables: the mixture, and the payoff that it is sure of
    solution = linprog(
        -worst,
        A_ub=np.hstack([-matrix.T / scale, np.ones((columns, 1))]),
        b_ub=np.zeros(columns),
        A_eq=[1.0 - worst],
        b_eq=[1.0],
        bounds=[(0.0, 1.0)] * rows + [(None, None)],
        method="highs-ds",
    )
    if not solution.success:  # a finite matrix has a solution
        raise ArithmeticError(f"no equilibrium of a {rows} x {columns} matrix: {solution.message}")
    mixture = np.clip(solution.x[:rows], 0.0, None)
    return mixture / mixture.sum(), float(solution.x[rows] * scale)
